//! Locks: the copy for readers, leftover renewals, and the worktree's directory.

use super::{Checkup, shown};
use crate::atomic;
use crate::error::{ErrorContext, Result};
use crate::fs::{Durability, FileKind, absent_is_none};
use crate::ids::{FencingToken, WorktreeId};
use crate::lock;
use crate::record::LockRecord;
use crate::sequence::renewed_token;
use crate::view::View;
use crate::worktree::Worktree;

impl Checkup<'_> {
    /// Checks the files that accompany the sequence of one worktree.
    pub(super) fn check_lock(&mut self, worktree: &Worktree) -> Result<()> {
        let repo = self.repo;
        self.check_payload(worktree)?;
        // The audit has reported damage of the sequence itself.
        if !self.is_whole(&worktree.worktree_id) {
            return Ok(());
        }
        let Ok(view) = View::read(&repo.env, &repo.layout, &worktree.worktree_id) else { return Ok(()) };
        self.check_copy(worktree, view.lock.as_ref())?;
        if self.strict {
            self.check_renewals(worktree, &view)?;
        }
        Ok(())
    }

    fn check_payload(&mut self, worktree: &Worktree) -> Result<()> {
        let repo = self.repo;
        let path = repo.payload(worktree);
        if let Some(meta) = absent_is_none(repo.env.fs.meta(&path)).doing("stat", &path)? {
            if meta.kind != FileKind::Dir {
                let detail = "this is not a directory, so the worktree cannot be locked, copied or restored \
                              safely; move it away and create the directory";
                self.note("payload_replaced", shown(&path), detail);
            }
            return Ok(());
        }
        if self.is_whole(&worktree.worktree_id) && repo.has_stages(worktree)? {
            let detail = "a restore was interrupted while it swapped the worktree's directory";
            self.note_or_repair("payload_missing", shown(&path), detail, |repo| {
                repo.settle(worktree).map(drop)
            });
        } else {
            let detail =
                "the worktree's directory is missing; create it and run `jvs restore head --discard-changes`";
            self.note("payload_missing", shown(&path), detail);
        }
        Ok(())
    }

    /// The copy may lag behind renewals of the current lock, but must not name another lock.
    fn check_copy(&mut self, worktree: &Worktree, current: Option<&LockRecord>) -> Result<()> {
        let (repo, id, now) = (self.repo, &worktree.worktree_id, self.now);
        let path = repo.layout.lock_copy(id);
        let copy = absent_is_none(repo.env.fs.read(&path)).doing("read", &path)?;
        let shown_token = copy.as_ref().map(|bytes| serde_json::from_slice::<LockRecord>(bytes).ok());
        let agrees = match (&shown_token, current) {
            (None, None) => true,
            (Some(Some(copy)), Some(current)) => copy.fencing_token == current.fencing_token,
            _ => false,
        };
        if agrees {
            return Ok(());
        }
        let detail = "the copy of the current lock does not match the sequence, which alone decides";
        self.note_or_repair("lock_copy_stale", shown(&path), detail, |repo| match current {
            Some(lock) => {
                let bytes = lock::copy_of(lock);
                atomic::replace(&repo.env, &repo.layout.tmp(), &path, &bytes, Durability::Lazy)
                    .doing("write", &path)
            }
            None => repo.move_to_trash(&path, now),
        });
        Ok(())
    }

    /// Renewals of tenures that had ended when `view` was read. A token after its newest entry belongs to a
    /// lock granted since, which may be in use.
    fn check_renewals(&mut self, worktree: &Worktree, view: &View) -> Result<()> {
        let is_over =
            |token: &FencingToken| token.entry() <= view.newest.n && Some(*token) != view.state().held;
        for token in self.renewals(&worktree.worktree_id)?.into_iter().filter(is_over) {
            let path = self.repo.layout.renewal(&worktree.worktree_id, token);
            let (detail, now) = ("the renewal belongs to a tenure that has ended", self.now);
            self.note_or_repair("renewal_left", shown(&path), detail, |repo| repo.move_to_trash(&path, now));
        }
        Ok(())
    }

    /// The tokens of all renewals of one worktree, in no order.
    fn renewals(&self, id: &WorktreeId) -> Result<Vec<FencingToken>> {
        let dir = self.repo.layout.sequence(id);
        let names = absent_is_none(self.repo.env.fs.list(&dir)).doing("list", &dir)?.unwrap_or_default();
        Ok(names.iter().filter_map(renewed_token).collect())
    }
}
