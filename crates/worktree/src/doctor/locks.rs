//! Locks: the copy for readers, renewals that are left over, and the worktree's directory.

use super::{Checkup, shown};
use crate::atomic;
use crate::error::{Context, Result};
use crate::fs::{Durability, absent_is_none};
use crate::ids::FencingToken;
use crate::lock;
use crate::record::LockRecord;
use crate::view::View;
use crate::worktree::Worktree;

impl Checkup<'_> {
    /// Looks at what stands beside the sequence of one worktree.
    pub(super) fn look_at_lock(&mut self, worktree: &Worktree) -> Result<()> {
        let repo = self.repo;
        // What is wrong with the sequence itself, the audit has said already.
        let Ok(view) = View::look(&repo.env, &repo.layout, &worktree.worktree_id) else { return Ok(()) };
        self.look_at_payload(worktree)?;
        self.look_at_copy(worktree, view.lock.as_ref())?;
        if self.strict {
            self.look_for_old_renewals(worktree, &view)?;
        }
        Ok(())
    }

    fn look_at_payload(&mut self, worktree: &Worktree) -> Result<()> {
        let repo = self.repo;
        let path = repo.payload(worktree);
        let there = absent_is_none(repo.env.fs.meta(&path)).doing("look at", &path)?.is_some();
        if there {
            return Ok(());
        }
        if repo.has_stages(worktree)? {
            let detail = "a restore was cut off while the worktree's directory was being swapped";
            self.note_or_mend("payload_missing", shown(&path), detail, |repo| repo.settle(worktree));
        } else {
            let detail =
                "the worktree's directory is gone; make it again and `jvs restore head --discard-changes`";
            self.note("payload_missing", shown(&path), detail);
        }
        Ok(())
    }

    /// The copy may lag behind renewals of a lock that stands, never name another lock.
    fn look_at_copy(&mut self, worktree: &Worktree, current: Option<&LockRecord>) -> Result<()> {
        let (repo, id) = (self.repo, &worktree.worktree_id);
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
        let detail = "the copy of the current lock does not agree with the sequence, which is what counts";
        self.note_or_mend("lock_copy_stale", shown(&path), detail, |repo| match current {
            Some(lock) => {
                let bytes = lock::copy_of(lock);
                atomic::replace(&repo.env, &repo.layout.tmp(), &path, &bytes, Durability::Lazy)
                    .doing("write", &path)
            }
            None => repo.env.fs.remove_file(&path).doing("remove", &path),
        });
        Ok(())
    }

    /// Renewals of tenures that were over when `view` was taken. A token after the newest entry of that look
    /// is of a lock that was granted since, and may be in use.
    fn look_for_old_renewals(&mut self, worktree: &Worktree, view: &View) -> Result<()> {
        let is_over =
            |token: &FencingToken| token.entry() <= view.newest.n && Some(*token) != view.state().held;
        let dir = self.repo.layout.sequence(&worktree.worktree_id);
        for name in self.repo.env.fs.list(&dir).doing("list", &dir)? {
            let token = name.to_str().and_then(|name| name.strip_suffix(".renew")?.parse().ok());
            let Some(token) = token.map(FencingToken).filter(is_over) else { continue };
            let path = self.repo.layout.renewal(&worktree.worktree_id, token);
            let detail = "the renewal belongs to a tenure that is over";
            self.note_or_mend("renewal_left", shown(&path), detail, |repo| {
                absent_is_none(repo.env.fs.remove_file(&path)).doing("remove", &path).map(drop)
            });
        }
        Ok(())
    }
}
