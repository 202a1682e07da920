//! A committed restore whose files cannot be swapped in: undone by an entry.
//!
//! **Invariant.** A restore is undone only by a process that has its stage and has seen that the files were not
//! swapped in, and only while it is the newest restore. After the entry, no process swaps the stage in, because the
//! newest restore is no longer its own.
//!
//! **What would break it.** Undoing after an error that came after the swap, such as a failed sync: the head
//! would name files that are gone. So the inode of the worktree's directory decides. Failing every later acquire
//! instead of undoing: the worktree could not be used until a person changed a file in it.

use std::io;
use std::path::Path;

use super::{OLD, RestoreState, StageRecord, Swap, SwapTarget, TREE};
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::EntryNumber;
use crate::record::EntryEvent;
use crate::repo::Repo;
use crate::sequence::Sequence;
use crate::worktree::Worktree;

impl Repo {
    /// Swaps the staged directory in. If that fails, the restore, which is entry `n`, is undone; the error says
    /// which of the two stands.
    pub(super) fn swap_or_undo(
        &self,
        stage: &Path,
        record: &StageRecord,
        n: EntryNumber,
        worktree: &Worktree,
    ) -> Result<Swap> {
        let error = match self.swap_in(stage, worktree) {
            Ok(swap) => return Ok(swap),
            Err(error) => error,
        };
        match self.is_swapped_in(record, worktree) {
            Ok(true) => {
                Err(RestoreState::Done.mark(error.and("a power cut could still bring the old ones back")))
            }
            Ok(false) => match self.undo_restore(n, worktree) {
                Ok(()) => {
                    // A stage that still has the worktree's directory in it must not be removed.
                    if self.put_back(stage, worktree).is_ok() {
                        drop(self.discard_stage(stage));
                    }
                    Err(RestoreState::Undone.mark(error))
                }
                Err(failed) => Err(RestoreState::Pending.mark(error.and(failed.detail()))),
            },
            Err(failed) => Err(RestoreState::Pending.mark(error.and(failed.detail()))),
        }
    }

    /// Swaps the staged directory with the worktree's.
    pub(super) fn swap_in(&self, stage: &Path, worktree: &Worktree) -> Result<Swap> {
        let (fs, tree, target) = (&*self.env.fs, stage.join(TREE), SwapTarget::of(self, worktree)?);
        let payload = target.path();
        let there = absent_is_none(fs.meta(&payload)).doing("stat", target.shown())?.is_some();
        let swapped = match if there { fs.exchange(&tree, &payload) } else { fs.rename(&tree, &payload) } {
            // Without RENAME_EXCHANGE the directory is missing for a moment; `settle` puts it back after a
            // crash.
            Err(cause) if cause.kind() == io::ErrorKind::Unsupported => {
                fs.rename(&payload, &stage.join(OLD)).and_then(|()| fs.rename(&tree, &payload))
            }
            other => other,
        };
        if let Err(cause) = swapped {
            let taken = cause.kind() == io::ErrorKind::NotFound
                && absent_is_none(fs.meta(stage)).doing("stat", stage)?.is_none();
            return if taken {
                Ok(Swap::TakenOver)
            } else {
                Err(Error::io("swap the restored files into", target.shown(), &cause))
            };
        }
        fs.sync_dir(&target.parent()).doing("sync the directory of", target.shown())?;
        absent_is_none(fs.sync_dir(stage)).doing("sync", stage)?;
        Ok(Swap::Done)
    }

    /// Whether the worktree's directory is the staged one.
    pub(super) fn is_swapped_in(&self, record: &StageRecord, worktree: &Worktree) -> Result<bool> {
        let payload = self.payload(worktree);
        let there = absent_is_none(self.env.fs.meta(&payload)).doing("stat", &payload)?;
        Ok(there.is_some_and(|meta| meta.inode == record.tree_inode))
    }

    /// Appends the entry that puts the head back to that before the restore `n`.
    pub(super) fn undo_restore(&self, n: EntryNumber, worktree: &Worktree) -> Result<()> {
        let sequence = Sequence::new(&self.env, &self.layout, &worktree.worktree_id);
        let head = sequence.read(EntryNumber(n.0 - 1))?.entry.state.head;
        let committed = self.lock(worktree).commit(None, |view| {
            if view.state().last_restore == Some(n) {
                return Ok(EntryEvent::UndoRestore { restore: n, head: head.clone() });
            }
            Err(Error::new(ErrorClass::LockConflict, "another restore was committed or undone since"))
        });
        committed.map(drop)
    }
}
