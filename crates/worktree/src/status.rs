//! Who holds a lock, for people and scripts: read-only, and as of one moment.
//!
//! Nothing is written, not even a probe of the clock, so this works on a read-only mount; in exchange it
//! believes the local clock. It informs and never permits.

use serde::Serialize;

use crate::clock::UnixMs;
use crate::error::Result;
use crate::holder::ProcessState;
use crate::ids::{EntryNumber, SnapshotId, WorktreeId};
use crate::lease::{self, LeaseState, LeaseTime};
use crate::record::LockRecord;
use crate::repo::Repo;
use crate::worktree::{Mode, Worktree};

/// What a lock is worth at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LockState {
    /// Nobody holds it.
    Free,
    /// Its lease runs.
    Live,
    /// Its lease has run out; it is too early to steal it.
    Expired,
    /// It may be stolen.
    Stealable,
    /// It was renewed in the future, so one of the clocks is wrong.
    ClockSkew,
}

/// What is known of a worktree's lock.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The worktree.
    pub worktree_id: WorktreeId,
    /// Whether it has one writer.
    pub mode: Mode,
    /// What the lock is worth.
    pub state: LockState,
    /// The lock that stands.
    pub lock: Option<LockRecord>,
    /// When it may be stolen.
    pub stealable_at: Option<UnixMs>,
    /// What is known here of the holder's process; a dead one permits nothing.
    pub holder: Option<ProcessState>,
    /// The worktree's head.
    pub head: Option<SnapshotId>,
    /// The newest entry of its sequence.
    pub newest_entry: EntryNumber,
}

impl Repo {
    /// Looks at the lock of `worktree`.
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
