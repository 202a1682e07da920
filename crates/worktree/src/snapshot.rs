//! Taking a snapshot: intent, copy, hash, sync, READY, publish.
//!
//! **Invariant.** A snapshot is visible if and only if an entry of its worktree's sequence publishes it, and
//! that entry is appended only when the snapshot is durable. The head is part of the same entry, so a crash
//! leaves either the old head or the new one. Everything written before the entry has an intent, so that
//! `doctor` finds it after a crash; the intent is removed after the publish, never before it.
//!
//! **What would break it.** The holder copies for longer than its lease, the lock is stolen, and it
//! publishes. The publish is committed under the token, as the entry after the one it was checked against, so
//! it is refused; and the lease is renewed while the copy runs.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::atomic::{DIR_MODE, FILE_MODE, OWNER_ONLY};
use crate::clock::{Millis, UnixMs};
use crate::diff::StoredLine;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::file_index::FileIndex;
use crate::fs::{Durability, absent_is_none};
use crate::holder::HolderId;
use crate::ids::{Digest, FencingToken, SessionId, SnapshotId, WorktreeId};
use crate::probe;
use crate::record::{EntryEvent, FORMAT, known_format};
use crate::repo::{Repo, create_json};
use crate::session::LockSession;
use crate::sharing::SharePlan;
use crate::tree::{self, IgnoreRules, Item, Progress, ReadMode, RelPath, Root, TreeManifest};
use crate::view::View;
use crate::worktree::{Mode, Worktree};

/// Whether a snapshot is known to show a single moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// Nothing changed while it was taken; in an exclusive worktree it was taken under the lock.
    Quiesced,
    /// Files may have changed while they were read.
    BestEffort,
}

/// The risk label of a best-effort snapshot.
pub const RISK: &str = "best_effort: files may have changed while they were read";

/// Parameters of a snapshot.
pub struct SnapshotRequest<'a> {
    /// A one-line note.
    pub note: Option<String>,
    /// The required consistency.
    pub consistency: Consistency,
    /// The session that holds the lock.
    pub session: Option<SessionId>,
    /// Receives the progress of the copy.
    pub progress: &'a dyn Progress,
}

/// The description of a finished snapshot: the content of `READY.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// The version of this shape.
    #[serde(deserialize_with = "known_format")]
    pub v: u32,
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The worktree that was copied.
    pub worktree_id: WorktreeId,
    /// The mode of that worktree.
    pub mode: Mode,
    /// The worktree's head when it was begun.
    pub parent: Option<SnapshotId>,
    /// A one-line note.
    pub note: Option<String>,
    /// Whether it is known to show a single moment.
    pub consistency: Consistency,
    /// [`RISK`] if it may not show any single moment.
    pub risk: Option<String>,
    /// Escaped paths of files that changed or vanished while they were read.
    pub changed_while_read: Vec<String>,
    /// The token that it was taken under.
    pub fencing_token: Option<FencingToken>,
    /// The process that took it.
    pub by: HolderId,
    /// When it was begun.
    pub created_at: UnixMs,
    /// The hash of paths, modes, bytes and links.
    pub content_hash: Digest,
    /// The number of files; hard links to one file count once.
    pub files: u64,
    /// The total size of the files, in bytes.
    pub bytes: u64,
    /// The snapshot that has the files that were unchanged; none if all are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<SnapshotId>,
}

/// A snapshot that was begun: the content of `intents/<snapshot_id>.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotIntent {
    /// The version of this shape.
    pub v: u32,
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The worktree that is copied.
    pub worktree_id: WorktreeId,
    /// The token that it is taken under.
    pub fencing_token: Option<FencingToken>,
    /// The process that takes it, in the form used in the names of temporary files.
    pub maker: String,
    /// When it was begun.
    pub created_at: UnixMs,
}

/// A published snapshot.
#[derive(Clone, Debug)]
pub struct PublishedSnapshot {
    /// Its description.
    pub descriptor: Descriptor,
    /// Whether it is the worktree's head now.
    pub is_head: bool,
}

/// What authorizes a publish.
#[derive(Clone, Debug)]
enum PublishAuthority {
    /// The lock of an exclusive worktree.
    Token(LockSession),
    /// A shared worktree: any process may move its head.
    Shared,
    /// An exclusive worktree without its lock: the snapshot is recorded, but does not move the head.
    Unlocked,
}

/// A copied tree.
struct MaterialisedTree {
    manifest: TreeManifest,
    /// Every name of the worktree when it was scanned.
    items: Vec<Item>,
    /// The names that were stored.
    stored: Vec<Item>,
    /// The files that changed or vanished while they were read, sorted.
    changed: Vec<RelPath>,
    plan: Option<SharePlan>,
    /// Permission bits of the snapshot's directory.
    dir_mode: u32,
}

/// A READY snapshot.
struct BuiltSnapshot {
    descriptor: Descriptor,
    index: FileIndex,
    dir_mode: u32,
    /// Keeps the base until the snapshot is published.
    _plan: Option<SharePlan>,
}

impl Repo {
    /// Takes a snapshot of `worktree`, and publishes it.
    pub fn snapshot(&self, worktree: &Worktree, request: &SnapshotRequest<'_>) -> Result<PublishedSnapshot> {
        let authority = self.authority(worktree, request)?;
        let began = probe::read(&self.env, &self.layout)?.now.fs;
        let intent = self.begin(worktree, &authority, began)?;
        let work = || self.build_and_publish(worktree, request, &authority, &intent);
        match &authority {
            PublishAuthority::Token(session) => self.while_renewing(worktree, session, work),
            PublishAuthority::Shared | PublishAuthority::Unlocked => work(),
        }
    }

    fn build_and_publish(
        &self,
        worktree: &Worktree,
        request: &SnapshotRequest<'_>,
        authority: &PublishAuthority,
        intent: &SnapshotIntent,
    ) -> Result<PublishedSnapshot> {
        let id = &intent.snapshot_id;
        let built = self.build(worktree, request, authority, intent);
        let published = built.and_then(|built| {
            let published = self.publish(worktree, authority, built.descriptor.clone())?;
            Ok((published, built))
        });
        match published {
            Ok((published, built)) => {
                drop(self.env.fs.remove_file(&self.layout.intent(id)));
                // Without it the next snapshot stores every file.
                drop(self.write_file_index(&worktree.worktree_id, &built.index, built.dir_mode));
                Ok(published)
            }
            // The publish may have happened, so the snapshot must not be touched; `doctor` decides later.
            Err(error) if error.facts().contains_key("indeterminate") => Err(error.with("snapshot_id", id)),
            Err(error) => {
                drop(self.discard_snapshot(id));
                Err(error)
            }
        }
    }

    /// Removes a snapshot that was never published: READY first, the intent last.
    pub(crate) fn discard_snapshot(&self, id: &SnapshotId) -> Result<()> {
        let ready = self.layout.snapshot_ready(id);
        absent_is_none(self.env.fs.remove_file(&ready)).doing("remove", &ready)?;
        tree::remove(&*self.env.fs, &self.layout.snapshot(id))?;
        // A descriptor without an intent means "published" to `doctor`, so no power cut may leave one behind.
        self.env.fs.sync_dir(&self.layout.snapshots()).doing("sync", &self.layout.snapshots())?;
        let intent = self.layout.intent(id);
        absent_is_none(self.env.fs.remove_file(&intent)).doing("remove", &intent)?;
        Ok(())
    }

    fn authority(&self, worktree: &Worktree, request: &SnapshotRequest<'_>) -> Result<PublishAuthority> {
        let lock = self.lock(worktree);
        lock.view()?;
        match (worktree.mode, &request.session, request.consistency) {
            (Mode::Shared, ..) => Ok(PublishAuthority::Shared),
            (Mode::Exclusive, Some(id), _) => {
                let session = lock.session(id)?;
                lock.check(&session)?;
                Ok(PublishAuthority::Token(session))
            }
            (Mode::Exclusive, None, Consistency::BestEffort) => Ok(PublishAuthority::Unlocked),
            (Mode::Exclusive, None, Consistency::Quiesced) => Err(Error::new(
                ErrorClass::LockNotHeld,
                "a quiesced snapshot needs the lock; run `jvs lock acquire` and pass its --session-id, or \
                 use --consistency best_effort",
            )),
        }
    }

    fn begin(
        &self,
        worktree: &Worktree,
        authority: &PublishAuthority,
        began: UnixMs,
    ) -> Result<SnapshotIntent> {
        let snapshot_id = SnapshotId::new(&began.rfc3339(), &*self.env.entropy);
        let intent = SnapshotIntent {
            v: FORMAT,
            snapshot_id,
            worktree_id: worktree.worktree_id.clone(),
            fencing_token: authority.token(),
            maker: self.env.maker.to_string(),
            created_at: began,
        };
        create_json(&self.env, &self.layout, &self.layout.intent(&intent.snapshot_id), &intent)?;
        Ok(intent)
    }

    /// Copies the tree, makes the copy durable, and marks it READY.
    fn build(
        &self,
        worktree: &Worktree,
        request: &SnapshotRequest<'_>,
        authority: &PublishAuthority,
        intent: &SnapshotIntent,
    ) -> Result<BuiltSnapshot> {
        let id = &intent.snapshot_id;
        // An interrupted restore, possibly of this very session, must not be finished after the snapshot.
        if !matches!(authority, PublishAuthority::Unlocked) {
            self.settle(worktree).map(drop)?;
        }
        let parent = self.lock(worktree).view()?.state().head.clone();
        let copied = self.materialise(worktree, request, id)?;
        let manifest = &copied.manifest;
        self.write_manifest(id, &copied)?;
        let root = Root::open(&self.layout.snapshot_tree(id))?;
        tree::make_durable(&*self.env.fs, &root, &copied.stored)?;
        let best_effort = request.consistency == Consistency::BestEffort;
        let (files, bytes) = totals(manifest);
        let descriptor = Descriptor {
            v: FORMAT,
            snapshot_id: id.clone(),
            worktree_id: worktree.worktree_id.clone(),
            mode: worktree.mode,
            parent,
            note: request.note.clone(),
            consistency: request.consistency,
            risk: best_effort.then(|| RISK.to_owned()),
            changed_while_read: copied.changed.iter().map(ToString::to_string).collect(),
            fencing_token: authority.token(),
            by: self.env.process.clone(),
            created_at: intent.created_at,
            content_hash: manifest.content_hash(),
            files,
            bytes,
            base: copied.plan.as_ref().map(|plan| plan.base_id().clone()),
        };
        create_json(&self.env, &self.layout, &self.layout.snapshot_ready(id), &descriptor)?;
        let is_stored = |path: &RelPath| copied.changed.binary_search(path).is_err();
        let index = FileIndex::new(id.clone(), intent.created_at, &copied.items, is_stored);
        Ok(BuiltSnapshot { descriptor, index, dir_mode: copied.dir_mode, _plan: copied.plan })
    }

    fn write_manifest(&self, id: &SnapshotId, copied: &MaterialisedTree) -> Result<()> {
        let (path, text) = match &copied.plan {
            Some(plan) => (self.layout.snapshot_delta(id), plan.delta(&copied.manifest)),
            None => (self.layout.snapshot_manifest(id), copied.manifest.as_text().to_owned()),
        };
        let written = self.env.fs.write_new(&path, text.as_bytes(), FILE_MODE, Durability::Synced);
        written.map(drop).doing("write", &path)
    }

    fn materialise(
        &self,
        worktree: &Worktree,
        request: &SnapshotRequest<'_>,
        id: &SnapshotId,
    ) -> Result<MaterialisedTree> {
        let fs = &*self.env.fs;
        let source = Root::open_below(self.layout.root(), worktree.path.as_path())?;
        // A user who may not list the worktree must not learn names or hashes from its snapshots either.
        let dir_mode = OWNER_ONLY | (DIR_MODE & source.mode()?);
        for (dir, mode) in [(self.layout.snapshot(id), dir_mode), (self.layout.snapshot_tree(id), OWNER_ONLY)]
        {
            fs.make_dir(&dir, mode).doing("create", &dir)?;
        }
        fs.sync_dir(&self.layout.snapshots()).doing("sync", &self.layout.snapshots())?;
        let target = Root::open(&self.layout.snapshot_tree(id))?;
        let best_effort = request.consistency == Consistency::BestEffort;
        let ignored = IgnoreRules::of(&source)?;
        let (items, reading) = if best_effort {
            (tree::scan_kept(&source, &ignored)?, ReadMode::BestEffort)
        } else {
            (self.scan_at_rest(&source, &ignored)?, ReadMode::Strict)
        };
        let plan = self.plan_sharing(&worktree.worktree_id, &items);
        let mut stored = plan.as_ref().map_or_else(|| items.clone(), |plan| plan.stored(&items));
        tree::require_capacity(fs, &target, &stored)?;
        let (files, tree) = (self.payload(worktree), self.layout.snapshot_tree(id));
        let is_cloned = plan.is_none() && tree::clone_whole(fs, &source, &files, &tree, &items)?;
        let target = Root::open(&tree)?;
        let copy = if is_cloned { tree::copy_over_clone } else { tree::copy };
        let copied = copy(fs, &source, &target, &stored, reading, request.progress)?;
        if best_effort {
            stored = tree::scan(&target)?;
        } else if let Some(path) = tree::first_difference(&items, &tree::scan_kept(&source, &ignored)?) {
            return Err(tree::changed_underneath(&path));
        }
        let manifest = match &plan {
            Some(plan) => plan.manifest(&copied.records),
            None => TreeManifest::new(&copied.records),
        };
        Ok(MaterialisedTree { manifest, items, stored, changed: copied.changed, plan, dir_mode })
    }

    /// Scans until the last change in the tree is at least one step of the file clock ago.
    ///
    /// File times advance in steps of some milliseconds, or of a second. A second write within one step
    /// leaves no trace in the metadata, so a file that changed this recently could change again unnoticed. Once the step
    /// is over, only the metadata of such names has to be read again: a name that came or went meanwhile shows in the
    /// scan after the copy.
    pub(crate) fn scan_at_rest(&self, source: &Root, ignored: &IgnoreRules) -> Result<Vec<Item>> {
        let began = self.env.clock.monotonic();
        loop {
            let now = probe::read(&self.env, &self.layout)?.now.fs;
            let items = tree::scan_kept(source, ignored)?;
            let is_recent = |item: &&Item| !is_at_rest(item, now);
            let Some(latest) = items.iter().filter(is_recent).max_by_key(|item| item.print.changed) else {
                return Ok(items);
            };
            // The scan may have taken longer than a step.
            let now = probe::read(&self.env, &self.layout)?.now.fs;
            if is_at_rest(latest, now) && tree::are_unchanged(source, items.iter().filter(is_recent)) {
                return Ok(items);
            }
            if self.env.clock.monotonic().since(began) > REST_MS {
                return Err(tree::changed_underneath(&latest.path));
            }
            self.env.clock.wait(CLOCK_STEP_MS.unsigned_abs());
        }
    }

    /// Runs `work` while another thread renews the lease. After a failed renewal that thread ends; the commit
    /// that follows detects a lost lock.
    pub(crate) fn while_renewing<T>(
        &self,
        worktree: &Worktree,
        session: &LockSession,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let lock = self.lock(worktree);
        let interval = Duration::from_millis(lock.check(session)?.policy.renew_interval_ms());
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let is_done = is_done;
                while is_done.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    if self.lock(worktree).renew(&session.session_id).is_err() {
                        return;
                    }
                }
            });
            let result = work();
            drop(done);
            result
        })
    }

    /// Refuses to publish a snapshot that is gone: a repair on another host takes one without a running lease for
    /// abandoned after a day.
    fn require_stored(&self, id: &SnapshotId) -> Result<()> {
        let path = self.layout.snapshot_ready(id);
        match absent_is_none(self.env.fs.meta(&path)).doing("stat", &path)? {
            Some(_) => Ok(()),
            None => Err(Error::not_found(format!(
                "the snapshot was removed while it was taken, by a repair that took it for abandoned; take it again: \
                 snapshot={id}"
            ))),
        }
    }

    fn publish(
        &self,
        worktree: &Worktree,
        authority: &PublishAuthority,
        descriptor: Descriptor,
    ) -> Result<PublishedSnapshot> {
        self.require_stored(&descriptor.snapshot_id)?;
        let lock = self.lock(worktree);
        let event = |view: &View, moves_head| EntryEvent::Publish {
            fencing_token: None,
            snapshot_id: descriptor.snapshot_id.clone(),
            content_hash: descriptor.content_hash,
            moves_head,
            previous: view.state().last_publish,
        };
        let committed = match authority {
            PublishAuthority::Token(session) => {
                // Loaded again: the lease was renewed while the tree was copied.
                let session = lock.session(&session.session_id)?;
                lock.publish_under(&session, &descriptor.snapshot_id, descriptor.content_hash)
            }
            PublishAuthority::Shared => lock.commit(None, |view| Ok(event(view, true))),
            PublishAuthority::Unlocked => lock.commit(None, |view| Ok(event(view, false))),
        }?;
        // A shared worktree has no release, at which an exclusive one is folded.
        lock.fold(committed.n);
        let is_head = committed.state.head.as_ref() == Some(&descriptor.snapshot_id);
        Ok(PublishedSnapshot { descriptor, is_head })
    }
}

impl PublishAuthority {
    fn token(&self) -> Option<FencingToken> {
        match self {
            Self::Token(session) => Some(session.fencing_token),
            Self::Shared | Self::Unlocked => None,
        }
    }
}

/// Longer than the step of file times on any local filesystem.
const CLOCK_STEP_MS: i64 = 25;
/// How long to wait for a tree to stop changing: longer than the one-second step of some network filesystems.
const REST_MS: Millis = 1_500;

/// Whether the name changed at least a step of the file clock before `now`.
fn is_at_rest(item: &Item, now: UnixMs) -> bool {
    let (seconds, nanos) = item.print.changed;
    let changed_ms = seconds * 1000 + i64::try_from(nanos / 1_000_000).expect("under 1000");
    changed_ms < now.0 - CLOCK_STEP_MS
}

/// The number of files and the sum of their sizes.
fn totals(manifest: &TreeManifest) -> (u64, u64) {
    let sizes = StoredLine::all(manifest).filter_map(|line| line.bytes);
    sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
}
