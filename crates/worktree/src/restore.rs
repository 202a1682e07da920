//! Restoring a worktree's files from a snapshot.
//!
//! **Invariant.** The worktree's directory is the old one or the new one, whole. Once another session's
//! acquire has returned, no restore of an earlier holder can change it. No file that was written after the tree
//! was compared is removed, even if another process finishes the restore. And a committed restore whose files cannot
//! be swapped in is undone by an entry, so that the head never names files that cannot come.
//!
//! The new files are staged in `.jvs/restores`. The restore is committed as an entry under the token; only
//! then are the two directories swapped, and the old one is compared with the tree that was to be replaced
//! before it is removed.
//!
//! **What would break it.** A commits and pauses before the swap, B steals the lock and writes, A resumes and
//! swaps B's files away. So B, before its acquire returns, *settles* every stage: see `restore/settle.rs`.
//! Or: A commits and is killed before the swap, and its session goes on writing. So a stage also records a
//! fingerprint of the files it replaces, and settling skips the swap if the files no longer match. Or: a file is
//! written after the last comparison and before the swap. So the fingerprint is compared once more after the
//! swap, and a tree that differs is kept (`restore/old_tree.rs`). Or: the worktree is a mount point, and every
//! later acquire fails in the swap. So the swap is tried before the commit, and undone if it fails after it
//! (`restore/undo.rs`).

mod attribute_changes;
mod old_tree;
mod preview;
mod settle;
mod swap_target;
mod undo;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::atomic::{DIR_MODE, FILE_MODE, OWNER_ONLY, parent};
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::{Durability, absent_is_none, ensure_dir};
use crate::ids::{Digest, EntryNumber, FencingToken, RestoreId, SessionId, SnapshotId};
use crate::record::EntryEvent;
use crate::repo::Repo;
use crate::session::LockSession;
use crate::snapshot::Descriptor;
use crate::tree::{self, IgnoreRules, Item, LayeredTree, Progress, ReadMode, Root, TreeManifest};
use crate::verify::refuse_differences;
use crate::view::View;
use crate::worktree::{Mode, Worktree};

pub use preview::RestorePreview;
pub use settle::{SettledOutcome, SettledRestore};
use swap_target::SwapTarget;

/// Parameters of a restore.
pub struct RestoreRequest<'a> {
    /// The session that holds the lock; none in a shared worktree.
    pub session: Option<SessionId>,
    /// Whether changes that are in no snapshot may be discarded.
    pub discard_changes: bool,
    /// Receives the progress of the copy.
    pub progress: &'a dyn Progress,
}

/// A restore that is done.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreOutcome {
    /// Where the replaced files are kept, if they changed after the restore was committed.
    pub rescued: Option<PathBuf>,
    /// Restores of other processes that were finished or undone first.
    pub settled: Vec<SettledRestore>,
}

/// The content of `stage.json`.
#[derive(Debug, Serialize, Deserialize)]
struct StageRecord {
    restore_id: RestoreId,
    snapshot_id: SnapshotId,
    /// The inode of the staged directory, which shows whether it was swapped in.
    tree_inode: u64,
    /// The fingerprint of the worktree's tree right before the commit; none if it could not be read.
    replaces: Option<Digest>,
}

/// A restore that is ready to commit.
struct StagedRestore {
    path: PathBuf,
    record: StageRecord,
    /// The newest restore of the worktree when this one began.
    after: Option<EntryNumber>,
    settled: Vec<SettledRestore>,
}

/// How far a restore got that returned an error; in the error's facts as `restore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestoreState {
    /// Nothing was changed.
    NotCommitted,
    /// The files are those of the snapshot.
    Done,
    /// It was committed, and undone: files and head are as before.
    Undone,
    /// It was committed, and the next acquire finishes or undoes it.
    Pending,
    /// It may have been committed; the next acquire finds out.
    Unknown,
}

impl RestoreState {
    pub(crate) fn mark(self, error: Error) -> Error {
        let (name, text) = match self {
            Self::NotCommitted => ("not_committed", "nothing was restored"),
            Self::Done => ("done", "the files are those of the snapshot"),
            Self::Undone => ("undone", "the restore was undone, files and head are as before"),
            Self::Pending => {
                ("pending", "the restore is committed, and the next acquire finishes or undoes it")
            }
            Self::Unknown => ("unknown", "the restore may be committed; the next acquire finds out"),
        };
        error.and(text).with("restore", name)
    }
}

impl Repo {
    /// Replaces the files of `worktree` with those of the snapshot. The lease is renewed until the old files are
    /// removed, and a lock that was lost in the meantime is an error.
    pub fn restore(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        request: &RestoreRequest<'_>,
    ) -> Result<RestoreOutcome> {
        let session = self.restorer(worktree, request)?;
        // Until the restore is committed, so that a head is never removed.
        let _use = self.use_snapshot(&snapshot.snapshot_id)?;
        let restored = self.while_held(worktree, session.as_ref(), || {
            self.restore_held(worktree, snapshot, request, session.as_ref())
        })?;
        self.require_still_held(worktree, session.as_ref())?;
        Ok(restored)
    }

    /// Refuses to report success if the lock was lost after the files were swapped in.
    pub(crate) fn require_still_held(
        &self,
        worktree: &Worktree,
        session: Option<&LockSession>,
    ) -> Result<()> {
        let Some(session) = session else { return Ok(()) };
        let lock = self.lock(worktree);
        let held = lock.session(&session.session_id).and_then(|session| lock.check(&session));
        held.map(drop).map_err(|error| {
            RestoreState::Done.mark(error.and("the lock was lost while the old files were removed"))
        })
    }

    fn restore_held(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        request: &RestoreRequest<'_>,
        session: Option<&LockSession>,
    ) -> Result<RestoreOutcome> {
        let restore_id = RestoreId::random(&*self.env.entropy);
        let stage = self.layout.restore(&worktree.worktree_id, &self.env.maker, &restore_id);
        let committed = self
            .prepare(worktree, snapshot, &restore_id, &stage, request)
            .and_then(|staged| self.commit_restore(worktree, session, &staged).map(|n| (staged, n)));
        let (staged, n) = match committed {
            Ok(committed) => committed,
            // The next acquire needs the stage.
            Err(error) if error.facts().contains_key("indeterminate") => {
                return Err(RestoreState::Unknown.mark(error));
            }
            Err(error) => {
                drop(self.discard_stage(&stage));
                return Err(RestoreState::NotCommitted.mark(error));
            }
        };
        // An earlier committed restore that is paused before its swap would undo this one when it resumes.
        if self.is_still_ours(worktree, session) {
            self.take_others(worktree, &stage).map_err(|error| RestoreState::Pending.mark(error))?;
        }
        match self.swap_or_undo(&stage, &staged.record, n, worktree)? {
            Swap::Done => {}
            Swap::TakenOver => self.taken_over(worktree, session, &staged.record)?,
        }
        let rescued = self.remove_old(&stage, Some(&staged.record), worktree).map_err(|error| {
            RestoreState::Done.mark(
                error.and("some of the old ones could not be removed; `jvs doctor --strict` lists them"),
            )
        })?;
        Ok(RestoreOutcome { rescued, settled: staged.settled })
    }

    /// Stages the snapshot's files, and checks that they can be swapped in.
    fn prepare(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        restore_id: &RestoreId,
        stage: &Path,
        request: &RestoreRequest<'_>,
    ) -> Result<StagedRestore> {
        let settled = self.settle(worktree)?;
        let after = self.lock(worktree).view()?.state().last_restore;
        let checked = if request.discard_changes {
            None
        } else {
            Some(self.refuse_unsaved(worktree, request.progress)?)
        };
        self.stage(snapshot, stage, request.progress)?;
        if let Some(items) = &checked {
            self.refuse_attribute_changes(worktree, items, stage)?;
        }
        let tree = stage.join(TREE);
        SwapTarget::of(self, worktree)?.require_swappable(&*self.env.fs, &tree, &stage.join(TRIAL))?;
        let record = StageRecord {
            restore_id: restore_id.clone(),
            snapshot_id: snapshot.snapshot_id.clone(),
            tree_inode: self.env.fs.meta(&tree).doing("stat", &tree)?.inode,
            replaces: self.about_to_replace(worktree, checked.as_deref())?,
        };
        self.write_stage_record(stage, &record)?;
        Ok(StagedRestore { path: stage.to_owned(), record, after, settled })
    }

    /// The session under which a restore runs; none in a shared worktree.
    pub(crate) fn restorer(
        &self,
        worktree: &Worktree,
        request: &RestoreRequest<'_>,
    ) -> Result<Option<LockSession>> {
        let lock = self.lock(worktree);
        lock.view()?;
        match (worktree.mode, &request.session) {
            (Mode::Shared, _) => Ok(None),
            (Mode::Exclusive, Some(id)) => {
                let session = lock.session(id)?;
                lock.check(&session)?;
                Ok(Some(session))
            }
            (Mode::Exclusive, None) => Err(Error::new(
                ErrorClass::LockNotHeld,
                "a restore needs the lock; run `jvs lock acquire` and pass its --session-id",
            )),
        }
    }

    pub(crate) fn while_held<T>(
        &self,
        worktree: &Worktree,
        session: Option<&LockSession>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match session {
            Some(session) => self.while_renewing(worktree, session, work),
            None => work(),
        }
    }

    /// Refuses to discard changes that are in no snapshot. Returns the scanned tree.
    fn refuse_unsaved(&self, worktree: &Worktree, progress: &dyn Progress) -> Result<Vec<Item>> {
        let root = Root::open_below(self.layout.root(), worktree.path.as_path())?;
        let items = self.scan_at_rest(&root, &IgnoreRules::default()).map_err(|error| {
            match error.facts().get("path") {
                Some(path) => changed_during_restore(path.as_str().unwrap_or_default()),
                None => error,
            }
        })?;
        let hashed = tree::hash(&*self.env.fs, &root, &items, ReadMode::Strict, progress)?;
        let found = TreeManifest::new(&hashed.records);
        let saved = match self.head(worktree)? {
            Some(head) => self.stored_manifest(&self.ready(&head)?)?,
            None => found.emptied(),
        };
        let unsaved = saved.differences(&found);
        let Some(first) = unsaved.first() else { return Ok(items) };
        Err(Error::invalid(format!(
            "the worktree has changes that are in no snapshot; `jvs restore --preview` lists them; take a \
             snapshot, or pass --discard-changes: differing={} first={first}",
            unsaved.len()
        )))
    }

    /// The fingerprint of the worktree's tree; refused if it differs from `checked`.
    fn about_to_replace(&self, worktree: &Worktree, checked: Option<&[Item]>) -> Result<Option<Digest>> {
        let now = Root::open_below(self.layout.root(), worktree.path.as_path())
            .and_then(|root| tree::scan(&root))
            .map(|now| (tree::fingerprint(&now), now));
        let Some(checked) = checked else {
            // All of it is discarded, even files that cannot be read.
            return Ok(now.ok().map(|(fingerprint, _)| fingerprint));
        };
        let (fingerprint, now) = now?;
        match tree::first_difference(checked, &now) {
            Some(path) => Err(changed_during_restore(&path.to_string())),
            None => Ok(Some(fingerprint)),
        }
    }

    fn stage(&self, snapshot: &Descriptor, stage: &Path, progress: &dyn Progress) -> Result<()> {
        let fs = &*self.env.fs;
        let stored = self.stored_manifest(snapshot)?;
        ensure_dir(fs, parent(stage), DIR_MODE).doing("create", stage)?;
        let tree = stage.join(TREE);
        for (dir, mode) in [(stage, DIR_MODE), (&tree, OWNER_ONLY)] {
            fs.make_dir(dir, mode).doing("create", dir)?;
        }
        let source = self.stored_tree(&snapshot.snapshot_id)?;
        let target = Root::open(&tree)?;
        let items = &source.items;
        tree::require_capacity(fs, &target, items)?;
        let is_cloned = self.clone_main_layer(snapshot, &source, &tree)?;
        let target = Root::open(&tree)?;
        let copy = if is_cloned { tree::copy_over_clone } else { tree::copy };
        let copied = copy(fs, &source, &target, items, ReadMode::Strict, progress)?;
        refuse_differences(&snapshot.snapshot_id, &stored, &TreeManifest::new(&copied.as_read()))?;
        tree::make_durable(fs, &target, items)
    }

    /// Clones the layer with most of the files, where the filesystem has a command for that.
    fn clone_main_layer(&self, snapshot: &Descriptor, source: &LayeredTree, tree: &Path) -> Result<bool> {
        let Some(root) = source.main_layer() else { return Ok(false) };
        let layers = self.manifest_chain(&snapshot.snapshot_id)?.layers;
        let oldest = self.layout.snapshot_tree(&layers[0]);
        tree::clone_whole(&*self.env.fs, root, &oldest, tree, &source.items)
    }

    fn write_stage_record(&self, stage: &Path, record: &StageRecord) -> Result<()> {
        let (fs, path) = (&*self.env.fs, stage.join(RECORD));
        let bytes = serde_json::to_vec(record).expect("a stage is plain data");
        fs.write_new(&path, &bytes, FILE_MODE, Durability::Synced).doing("write", &path)?;
        for dir in [stage, parent(stage), parent(parent(stage))] {
            fs.sync_dir(dir).doing("sync", dir)?;
        }
        Ok(())
    }

    /// Returns the number of the restore's entry.
    fn commit_restore(
        &self,
        worktree: &Worktree,
        session: Option<&LockSession>,
        staged: &StagedRestore,
    ) -> Result<EntryNumber> {
        let lock = self.lock(worktree);
        let event = |fencing_token: Option<FencingToken>| EntryEvent::Restore {
            fencing_token,
            snapshot_id: staged.record.snapshot_id.clone(),
            restore_id: staged.record.restore_id.clone(),
        };
        let committed = match session {
            // Loaded again: the lease was renewed while the files were staged.
            Some(session) => lock.session(&session.session_id).and_then(|session| {
                lock.check(&session)?;
                self.require_undisturbed(&lock.view()?, staged)?;
                lock.commit_under(&session, |_, token| event(Some(token)))
            }),
            None => lock.commit(None, |view| {
                self.require_undisturbed(view, staged)?;
                Ok(event(None))
            }),
        };
        Ok(committed?.n)
    }

    /// Refuses if another restore was committed since this one began.
    fn require_undisturbed(&self, view: &View, staged: &StagedRestore) -> Result<()> {
        let record = staged.path.join(RECORD);
        let ours = absent_is_none(self.env.fs.meta(&record)).doing("stat", &record)?.is_some();
        if ours && view.state().last_restore == staged.after {
            return Ok(());
        }
        Err(Error::new(
            ErrorClass::LockConflict,
            "another restore of this worktree was committed while this one was prepared, so this one was not \
             committed; check the files and retry",
        ))
    }

    fn is_still_ours(&self, worktree: &Worktree, session: Option<&LockSession>) -> bool {
        let lock = self.lock(worktree);
        session.is_none_or(|session| {
            lock.session(&session.session_id).and_then(|session| lock.check(&session)).is_ok()
        })
    }

    /// The outcome when another process took the stage over after the commit.
    fn taken_over(
        &self,
        worktree: &Worktree,
        session: Option<&LockSession>,
        record: &StageRecord,
    ) -> Result<()> {
        let done = self.is_swapped_in(record, worktree)?;
        let (class, detail) = match (self.is_still_ours(worktree, session), done) {
            (true, true) => return Ok(()),
            (true, false) => (
                ErrorClass::LockConflict,
                "the restore was committed, but a later one replaced it before the files were swapped; see \
                 `jvs info head`",
            ),
            (false, true) => (
                ErrorClass::FencingMismatch,
                "the lock passed to another tenure after the restore was committed, and its holder has \
                 finished the restore; stop writing",
            ),
            (false, false) => (
                ErrorClass::FencingMismatch,
                "the lock passed to another tenure after the restore was committed, and the files are not \
                 those of the snapshot; stop writing",
            ),
        };
        Err(Error::new(class, detail).with("restore", if done { "done" } else { "superseded" }))
    }
}

/// The outcome of swapping a stage in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swap {
    /// The staged files are the worktree's.
    Done,
    /// Another process took the stage over.
    TakenOver,
}

fn changed_during_restore(path: &str) -> Error {
    Error::new(
        ErrorClass::ConsistencyUnavailable,
        format!(
            "the worktree changed while the restore was prepared, and the change is in no snapshot; stop its \
             writers and retry, or pass --discard-changes: path={path}"
        ),
    )
    .with("path", path)
}

const TREE: &str = "tree";
const OLD: &str = "old";
const RECORD: &str = "stage.json";
const TRIAL: &str = "trial";
