//! When a lock may be stolen from its holder.
//!
//! **Invariant.** A caller that passes has read the lock as it is in the view, and has seen its lease expired
//! for long enough by a clock that can be trusted. The append detects any later change.

use super::{AcquireRequest, Lock};
use crate::clock::Millis;
use crate::error::{Error, ErrorClass, Result};
use crate::lease::{self, LeaseState};
use crate::record::LockRecord;
use crate::view::View;

impl Lock<'_> {
    /// Refuses unless `held` may be stolen now.
    pub(super) fn permit_steal(
        &self,
        view: &View,
        held: &LockRecord,
        request: &AcquireRequest<'_>,
    ) -> Result<()> {
        let bound = held.policy.max_clock_skew_ms().min(request.policy.max_clock_skew_ms());
        let reading = self.read_clocks(bound)?;
        // Renewals take no number. A renewal between reading the view and reading the clock would go unseen,
        // and a running lease would be judged by an outdated expiry.
        let latest = self.view()?;
        if latest.newest.n != view.newest.n {
            // The append that follows meets the new entry, and retries with a fresh view.
            return Ok(());
        }
        if let Some(renewed) = latest.lock.as_ref().filter(|lock| *lock != held) {
            return Err(conflict(renewed));
        }
        match lease::lease_state(held, &reading.now) {
            LeaseState::Live | LeaseState::Expired => Err(conflict(held)),
            LeaseState::Stealable => Ok(()),
            LeaseState::StealableAfterWatch { watch_ms } => {
                (request.on_watch)(watch_ms);
                self.watch(view, held, watch_ms)
            }
            LeaseState::RenewedInFuture { ahead_ms } => Err(Error::new(
                ErrorClass::ClockSkewExceeded,
                format!(
                    "the lock was renewed in the future of this filesystem's clock, so one of the clocks is \
                     wrong; synchronize them and retry: ahead_ms={ahead_ms} max_clock_skew_ms={}",
                    held.policy.max_clock_skew_ms()
                ),
            )
            .with("ahead_ms", ahead_ms)),
        }
    }

    /// Waits until the lock has not changed for `watch_ms` of the monotonic clock; refuses if it does.
    fn watch(&self, view: &View, held: &LockRecord, watch_ms: Millis) -> Result<()> {
        let began = self.env.clock.monotonic();
        loop {
            let passed = self.env.clock.monotonic().since(began);
            let latest = self.view()?;
            if latest.newest.n != view.newest.n {
                // The append that follows meets the new entry, and retries with a fresh view.
                return Ok(());
            }
            match &latest.lock {
                Some(lock) if lock != held => return Err(conflict(lock)),
                _ if passed > watch_ms => return Ok(()),
                _ => self.env.clock.wait((watch_ms - passed + 1).min(WATCH_STEP_MS)),
            }
        }
    }
}

/// The longest sleep between two reads of a watched lock.
const WATCH_STEP_MS: Millis = 250;

fn conflict(held: &LockRecord) -> Error {
    let stealable_at = lease::stealable_at(held);
    Error::new(
        ErrorClass::LockConflict,
        format!(
            "the worktree is locked; `jvs run --wait` and `jvs lock acquire --wait` wait for it, and after stealable_at it \
             can be stolen: holder={} lease_expires_at={} stealable_at={}",
            held.holder_id,
            held.lease_expires_at.rfc3339(),
            stealable_at.rfc3339()
        ),
    )
    .with("holder_id", held.holder_id.as_str())
    .with("session_id", &held.session_id)
    .with("fencing_token", held.fencing_token)
    .with("lease_expires_at", held.lease_expires_at)
    .with("stealable_at", stealable_at)
}
