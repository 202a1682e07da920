//! The status of a lock, for people and scripts: read-only, as of one moment.
//!
//! Nothing is written, not even a clock probe, so this works on a read-only mount; instead it trusts the
//! local clock. The status is informational and authorizes nothing.

use serde::Serialize;

use crate::clock::UnixMs;
use crate::error::Result;
use crate::holder::ProcessState;
use crate::ids::{EntryNumber, SnapshotId, WorktreeId};
use crate::lease::{self, LeaseState, LeaseTime};
use crate::record::LockRecord;
use crate::repo::Repo;
use crate::worktree::{Mode, Worktree};

/// The state of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LockState {
    /// No session holds it.
    Free,
    /// Its lease runs.
    Live,
    /// Its lease has expired; it may not be stolen yet.
    Expired,
    /// It may be stolen.
    Stealable,
    /// It was renewed in the future, so one of the clocks is wrong.
    ClockSkew,
}

/// The status of a worktree's lock.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The worktree.
    pub worktree_id: WorktreeId,
    /// Whether it has a single writer.
    pub mode: Mode,
    /// The state of the lock.
    pub state: LockState,
    /// The current lock.
    pub lock: Option<LockRecord>,
    /// When it may be stolen.
    pub stealable_at: Option<UnixMs>,
    /// The holder's process as seen from this machine; an ended one does not permit an early steal.
    pub holder: Option<ProcessState>,
    /// The worktree's head.
    pub head: Option<SnapshotId>,
    /// The newest entry of its sequence.
    pub newest_entry: EntryNumber,
}

impl Repo {
    /// The status of the lock of `worktree`.
    pub fn status(&self, worktree: &Worktree) -> Result<Status> {
        let view = self.lock(worktree).view()?;
        let clock = &self.env.clock;
        let now = LeaseTime { fs: clock.wall(), boot: clock.boot(), boot_id: clock.boot_id() };
        let state = view.lock.as_ref().map_or(LockState::Free, |lock| match lease::lease_state(lock, &now) {
            LeaseState::Live => LockState::Live,
            LeaseState::Expired => LockState::Expired,
            LeaseState::Stealable | LeaseState::StealableAfterWatch { .. } => LockState::Stealable,
            LeaseState::RenewedInFuture { .. } => LockState::ClockSkew,
        });
        Ok(Status {
            worktree_id: worktree.worktree_id.clone(),
            mode: worktree.mode,
            state,
            stealable_at: view.lock.as_ref().map(lease::stealable_at),
            holder: view
                .lock
                .as_ref()
                .map(|lock| ProcessState::of(&lock.holder_id, &lock.boot.boot_id, &now.boot_id)),
            head: view.state().head.clone(),
            newest_entry: view.newest.n,
            lock: view.lock,
        })
    }
}
