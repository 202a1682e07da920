//! Making a worktree's files those of a snapshot.
//!
//! Invariant: the worktree's directory is the old one or the new one, whole; and once another session's
//! acquire has returned, no restore of an earlier holder can change it any more.
//!
//! The new files are staged beside it. The restore is committed as an entry under the token; only then are
//! the two directories swapped. The interleaving that would break it: A commits and pauses before the swap,
//! B steals and starts to work, A wakes and swaps B's files away. So B, before its acquire returns, *settles*
//! every stage that it finds: it renames the stage away, which makes A's swap fail, then swaps by itself if
//! the restore was committed and had not been done, and removes the rest.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::atomic::{DIR_MODE, FILE_MODE, parent};
use crate::error::{Class, Context, Error, Result};
use crate::fs::{Durability, absent_is_none, ensure_dir};
use crate::ids::{FencingToken, RestoreId, SessionId, SnapshotId};
use crate::lock::{Grant, Request};
use crate::record::Event;
use crate::repo::Repo;
use crate::sequence::Sequence;
use crate::session::Session;
use crate::snapshot::Descriptor;
use crate::tree::{self, Manifest, Progress, Reading, Root};
use crate::verify::refuse_differences;
use crate::worktree::{Mode, Worktree};

/// What to restore.
pub struct RestoreRequest<'a> {
    /// The session that holds the lock; none in a shared worktree.
    pub session: Option<SessionId>,
    /// Whether files that are in no snapshot may be lost.
    pub discard_changes: bool,
    /// Told how the copy gets on.
    pub progress: &'a dyn Progress,
}

/// What a stage says about itself: the content of `stage.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Stage {
    restore_id: RestoreId,
    snapshot_id: SnapshotId,
    /// The inode of the staged directory, which tells whether it was swapped in.
    tree_inode: u64,
}

impl Repo {
    /// Takes the lock of `worktree`, and finishes what an earlier holder left half done.
    pub fn acquire(&self, worktree: &Worktree, request: &Request<'_>) -> Result<Grant> {
        let grant = self.lock(worktree).acquire(request)?;
        // A lock over files that an earlier holder may still change is worth nothing.
        self.settle(worktree)
            .inspect_err(|_| drop(self.lock(worktree).release(&grant.session.session_id)))?;
        Ok(grant)
    }

    /// Makes the files of `worktree` those of the snapshot.
    pub fn restore(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        request: &RestoreRequest<'_>,
    ) -> Result<()> {
        let session = self.restorer(worktree, request)?;
        let restore_id = RestoreId::random(&*self.env.entropy);
        let stage = self.layout.restore(&worktree.worktree_id, &restore_id);
        let staged = self.while_held(worktree, session.as_ref(), || {
            if !request.discard_changes {
                self.refuse_unsaved(worktree, request.progress)?;
            }
            // Without a lock there is no acquire that would have done it.
            if worktree.mode == Mode::Shared {
                self.settle(worktree)?;
            }
            self.stage(worktree, snapshot, &restore_id, request.progress)
        });
        let committed =
            staged.and_then(|()| self.commit_restore(worktree, session.as_ref(), snapshot, &restore_id));
        match committed {
            Ok(()) => {}
            // It may have been committed: whoever acquires next finds out, and needs the stage for it.
            Err(error) if error.facts().contains_key("indeterminate") => return Err(error),
            Err(error) => return tree::remove(&*self.env.fs, &stage).and(Err(error)),
        }
        self.swap_in(&stage, worktree)?;
        tree::remove(&*self.env.fs, &stage)
    }

    /// Finishes or undoes restores that were left behind, so that nobody else can any more.
    pub(crate) fn settle(&self, worktree: &Worktree) -> Result<()> {
        let dir = self.layout.restores(&worktree.worktree_id);
        let Some(names) = absent_is_none(self.env.fs.list(&dir)).doing("list", &dir)? else {
            return Ok(());
        };
        for name in names {
            let stage = self.take_stage(&dir.join(name))?;
            self.finish_if_committed(&stage, worktree)?;
            tree::remove(&*self.env.fs, &stage)?;
        }
        Ok(())
    }

    /// Whether anything is left of a restore of `worktree`.
    pub(crate) fn has_stages(&self, worktree: &Worktree) -> Result<bool> {
        let dir = self.layout.restores(&worktree.worktree_id);
        Ok(absent_is_none(self.env.fs.list(&dir)).doing("list", &dir)?.is_some_and(|names| !names.is_empty()))
    }

    fn restorer(&self, worktree: &Worktree, request: &RestoreRequest<'_>) -> Result<Option<Session>> {
        let lock = self.lock(worktree);
        lock.look()?;
        match (worktree.mode, &request.session) {
            (Mode::Shared, _) => Ok(None),
            (Mode::Exclusive, Some(id)) => {
                let session = lock.session(id)?;
                lock.check(&session)?;
                Ok(Some(session))
            }
            (Mode::Exclusive, None) => Err(Error::new(
                Class::LockNotHeld,
                "a restore needs the lock; run `jvs lock acquire` and pass its --session-id",
            )),
        }
    }

    fn while_held<T>(
        &self,
        worktree: &Worktree,
        session: Option<&Session>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match session {
            Some(session) => self.while_renewing(worktree, session, work),
            None => work(),
        }
    }

    /// Refuses to throw away files that no snapshot has.
    fn refuse_unsaved(&self, worktree: &Worktree, progress: &dyn Progress) -> Result<()> {
        let root = Root::open_below(self.layout.root(), worktree.path.as_path())?;
        let found = self.manifest_of(&root, progress)?;
        let saved = match self.head(worktree)? {
            Some(head) => self.stored_manifest(&self.ready(&head)?)?,
            None => found.emptied(),
        };
        let unsaved = saved.differences(&found);
        let Some(first) = unsaved.first() else { return Ok(()) };
        Err(Error::invalid(format!(
            "the worktree has changes that are in no snapshot; take one first, or pass --discard-changes \
             differing={} first={first}",
            unsaved.len()
        )))
    }

    fn stage(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        restore_id: &RestoreId,
        progress: &dyn Progress,
    ) -> Result<()> {
        let fs = &*self.env.fs;
        let stored = self.stored_manifest(snapshot)?;
        let stage = self.layout.restore(&worktree.worktree_id, restore_id);
        ensure_dir(fs, parent(&stage), DIR_MODE).doing("make", &stage)?;
        let tree = stage.join(TREE);
        for dir in [&stage, &tree] {
            fs.make_dir(dir, DIR_MODE).doing("make", dir)?;
        }
        let source = Root::open(&self.layout.snapshot_tree(&snapshot.snapshot_id))?;
        let target = Root::open(&tree)?;
        let items = tree::scan(&source)?;
        let copied = tree::copy(fs, &source, &target, &items, Reading::Strict, progress)?;
        refuse_differences(&snapshot.snapshot_id, &stored, &Manifest::new(&copied.as_read()))?;
        tree::make_durable(fs, &target, &items)?;
        let record = Stage {
            restore_id: restore_id.clone(),
            snapshot_id: snapshot.snapshot_id.clone(),
            tree_inode: fs.meta(&tree).doing("look at", &tree)?.inode,
        };
        let path = stage.join(RECORD);
        let bytes = serde_json::to_vec(&record).expect("a stage is plain data");
        fs.write_new(&path, &bytes, FILE_MODE, Durability::Synced).doing("write", &path)?;
        for dir in [&*stage, parent(&stage), parent(parent(&stage))] {
            fs.sync_dir(dir).doing("sync", dir)?;
        }
        Ok(())
    }

    fn commit_restore(
        &self,
        worktree: &Worktree,
        session: Option<&Session>,
        snapshot: &Descriptor,
        restore_id: &RestoreId,
    ) -> Result<()> {
        let lock = self.lock(worktree);
        let event = |fencing_token: Option<FencingToken>| Event::Restore {
            fencing_token,
            snapshot_id: snapshot.snapshot_id.clone(),
            restore_id: restore_id.clone(),
        };
        let committed = match session {
            // Read again: it has been renewed while the files were staged.
            Some(session) => lock
                .session(&session.session_id)
                .and_then(|session| lock.commit_under(&session, |_, token| event(Some(token)))),
            None => lock.commit(None, |_| Ok(event(None))),
        };
        committed.map(drop)
    }

    /// Puts the staged directory in the place of the worktree's.
    fn swap_in(&self, stage: &Path, worktree: &Worktree) -> Result<()> {
        let (fs, payload, tree) = (&*self.env.fs, self.payload(worktree), stage.join(TREE));
        let there = absent_is_none(fs.meta(&payload)).doing("look at", &payload)?.is_some();
        let swapped = match if there { fs.exchange(&tree, &payload) } else { fs.rename(&tree, &payload) } {
            // Where names cannot be exchanged the directory is away for a moment; `settle` puts it back.
            Err(cause) if cause.kind() == io::ErrorKind::Unsupported => {
                fs.rename(&payload, &stage.join("old")).and_then(|()| fs.rename(&tree, &payload))
            }
            other => other,
        };
        swapped.map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => Error::new(
                Class::FencingMismatch,
                "the lock passed to another tenure after the restore was committed, and its holder has \
                 finished the restore; stop writing",
            ),
            _ => Error::io("swap the restored files into", &payload, &cause),
        })?;
        for dir in [parent(&payload), stage] {
            fs.sync_dir(dir).doing("sync", dir)?;
        }
        Ok(())
    }

    /// Renames a stage away, so that nobody who knew it by its name can use it any more.
    fn take_stage(&self, stage: &Path) -> Result<PathBuf> {
        if stage.extension().is_some_and(|extension| extension == TAKEN) {
            return Ok(stage.to_owned());
        }
        let taken = stage.with_extension(TAKEN);
        self.env.fs.rename(stage, &taken).doing("take over", stage)?;
        Ok(taken)
    }

    fn finish_if_committed(&self, stage: &Path, worktree: &Worktree) -> Result<()> {
        let path = stage.join(RECORD);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
        // A stage without its record, or with half of it, was never committed.
        let record = bytes.and_then(|bytes| serde_json::from_slice::<Stage>(&bytes).ok());
        let Some(record) = record else { return Ok(()) };
        if !self.was_committed(worktree, &record.restore_id)? {
            return Ok(());
        }
        let tree = stage.join(TREE);
        let staged = absent_is_none(self.env.fs.meta(&tree)).doing("look at", &tree)?;
        match staged {
            Some(meta) if meta.inode == record.tree_inode => self.swap_in(stage, worktree),
            _ => Ok(()),
        }
    }

    fn was_committed(&self, worktree: &Worktree, restore_id: &RestoreId) -> Result<bool> {
        let Some(last) = self.lock(worktree).look()?.state().last_restore else { return Ok(false) };
        let sequence = Sequence::new(&self.env, &self.layout, &worktree.worktree_id);
        match sequence.read(last)?.entry.event {
            Event::Restore { restore_id: committed, .. } => Ok(committed == *restore_id),
            _ => Ok(false),
        }
    }
}

const TREE: &str = "tree";
const RECORD: &str = "stage.json";
const TAKEN: &str = "taken";
