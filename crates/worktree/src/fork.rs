//! A new worktree with the files of a snapshot.
//!
//! The fork begins with a restore of the snapshot, so its head is the snapshot, and the parent of its first
//! snapshot too: the lineage is kept. The files are copies; nothing that the fork does changes the worktree that
//! the snapshot was taken of.
//!
//! **Invariant.** A fork that fails leaves no worktree behind. Files that were in its directory before stay:
//! a restore refuses to discard them.

use crate::error::Result;
use crate::holder::HolderId;
use crate::lock::AcquireRequest;
use crate::repo::{NewWorktree, Repo};
use crate::restore::RestoreRequest;
use crate::snapshot::Descriptor;
use crate::tree::Progress;
use crate::worktree::{Mode, Worktree};

impl Repo {
    /// Adds the worktree `new` with the files of `snapshot`.
    pub fn fork(&self, snapshot: &Descriptor, new: NewWorktree, progress: &dyn Progress) -> Result<Worktree> {
        let worktree = self.add_worktree(new)?;
        match self.fill_worktree(&worktree, snapshot, progress) {
            Ok(()) => Ok(worktree),
            Err(error) => self.remove_worktree(&worktree.worktree_id).and(Err(error)),
        }
    }

    /// Restores a snapshot into a new worktree.
    pub(crate) fn fill_worktree(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        progress: &dyn Progress,
    ) -> Result<()> {
        let session = match worktree.mode {
            Mode::Shared => None,
            Mode::Exclusive => {
                let request = AcquireRequest {
                    holder: HolderId::this_process(),
                    policy: worktree.policy,
                    only_steal: false,
                    on_watch: &|_| {},
                };
                Some(self.acquire(worktree, &request)?.session.session_id)
            }
        };
        let request = RestoreRequest { session: session.clone(), discard_changes: false, progress };
        let restored = self.restore(worktree, snapshot, &request).map(drop);
        let released = session.map_or(Ok(()), |session| self.lock(worktree).release(&session).map(drop));
        restored.and(released)
    }
}
