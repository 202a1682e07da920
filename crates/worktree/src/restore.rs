//! Restoring a worktree's files from a snapshot.
//!
//! **Invariant.** The worktree's directory is the old one or the new one, whole. Once another session's
//! acquire has returned, no restore of an earlier holder can change it. And a restore that is finished by
//! another process never discards files written after its commit.
//!
//! The new files are staged in `.jvs/restores`. The restore is committed as an entry under the token; only
//! then are the two directories swapped.
//!
//! **What would break it.** A commits and pauses before the swap, B steals the lock and writes, A resumes and
//! swaps B's files away. So B, before its acquire returns, *settles* every stage: see `restore/settle.rs`.
//! Or: A commits and is killed before the swap, and its session goes on writing. So a stage also records a
//! fingerprint of the files it replaces, and settling skips the swap if the files no longer match.

mod swap_target;
mod settle;

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
use crate::tree::{self, Item, Progress, ReadMode, Root, TreeManifest};
use crate::verify::refuse_differences;
use crate::view::View;
use crate::worktree::{Mode, Worktree};

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
}

impl Repo {
    /// Replaces the files of `worktree` with those of the snapshot.
    pub fn restore(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        request: &RestoreRequest<'_>,
    ) -> Result<()> {
        let session = self.restorer(worktree, request)?;
        let restore_id = RestoreId::random(&*self.env.entropy);
        let stage = self.layout.restore(&worktree.worktree_id, &self.env.maker, &restore_id);
        let staged = self.while_held(worktree, session.as_ref(), || {
            self.prepare(worktree, snapshot, &restore_id, &stage, request)
        });
        let committed = staged
            .and_then(|staged| self.commit_restore(worktree, session.as_ref(), &staged).map(|()| staged));
        let staged = match committed {
            Ok(staged) => staged,
            // It may have been committed: the next acquire finds out, and needs the stage.
            Err(error) if error.facts().contains_key("indeterminate") => return Err(error),
            Err(error) => {
                drop(self.discard_stage(&stage));
                return Err(error);
            }
        };
        // An earlier committed restore that is paused before its swap would undo this one when it resumes.
        if self.is_still_ours(worktree, session.as_ref()) {
            self.take_others(worktree, &stage)?;
        }
        if !self.swap_in(&stage, worktree)? {
            return self.taken_over(worktree, session.as_ref(), &staged.record);
        }
        self.discard_stage(&stage).map_err(|error| {
            Error::new(
                error.class(),
                format!(
                    "the files were restored, but some of the old ones could not be removed; `jvs doctor \
                     --strict` lists them: {}",
                    error.detail()
                ),
            )
        })
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
        self.settle(worktree)?;
        let after = self.lock(worktree).view()?.state().last_restore;
        let checked = if request.discard_changes {
            None
        } else {
            Some(self.refuse_unsaved(worktree, request.progress)?)
        };
        self.stage(snapshot, stage, request.progress)?;
        let tree = stage.join(TREE);
        SwapTarget::of(self, worktree)?.require_swappable(&*self.env.fs, &tree)?;
        let record = StageRecord {
            restore_id: restore_id.clone(),
            snapshot_id: snapshot.snapshot_id.clone(),
            tree_inode: self.env.fs.meta(&tree).doing("stat", &tree)?.inode,
            replaces: self.about_to_replace(worktree, checked.as_deref())?,
        };
        self.write_stage_record(stage, &record)?;
        Ok(StagedRestore { path: stage.to_owned(), record, after })
    }

    fn restorer(&self, worktree: &Worktree, request: &RestoreRequest<'_>) -> Result<Option<LockSession>> {
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

    fn while_held<T>(
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
        let items = self.scan_at_rest(&root).map_err(|error| match error.facts().get("path") {
            Some(path) => changed_during_restore(path.as_str().unwrap_or_default()),
            None => error,
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
            "the worktree has changes that are in no snapshot; take a snapshot, or pass --discard-changes: \
             differing={} first={first}",
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
        let source = Root::open(&self.layout.snapshot_tree(&snapshot.snapshot_id))?;
        let target = Root::open(&tree)?;
        let items = tree::scan(&source)?;
        let copied = tree::copy(fs, &source, &target, &items, ReadMode::Strict, progress)?;
        refuse_differences(&snapshot.snapshot_id, &stored, &TreeManifest::new(&copied.as_read()))?;
        tree::make_durable(fs, &target, &items)
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

    fn commit_restore(
        &self,
        worktree: &Worktree,
        session: Option<&LockSession>,
        staged: &StagedRestore,
    ) -> Result<()> {
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
        committed.map(drop)
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
        let payload = self.payload(worktree);
        let there = absent_is_none(self.env.fs.meta(&payload)).doing("stat", &payload)?;
        let done = there.is_some_and(|meta| meta.inode == record.tree_inode);
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
        Err(Error::new(class, detail))
    }
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
