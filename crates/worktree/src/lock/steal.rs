//! When a lock may be taken from its holder.
//!
//! Invariant: whoever is let through has seen the lock as it stands in the view, and has seen its lease over
//! for long enough, by the clock that can be believed. Whatever changes after that, the append finds.

use super::{AcquireRequest, Lock};
use crate::clock::Millis;
use crate::error::{Class, Error, Result};
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
        // Renewals take no number. One that came after the look and before the clock was read would go
        // unseen, and a lease that runs would be judged by an expiry that is no longer its own.
        let latest = self.view()?;
        if latest.newest.n != view.newest.n {
            // Whatever was appended, the append that follows meets it and looks again.
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
                Class::ClockSkewExceeded,
                format!(
                    "the lock was renewed in the future of this filesystem's clock, so one of the clocks is \
                     wrong; set them right and try again: ahead_ms={ahead_ms} max_clock_skew_ms={}",
                    held.policy.max_clock_skew_ms()
                ),
            )
            .with("ahead_ms", ahead_ms)),
        }
    }

    /// Sees the lock stand still for `watch_ms` on the monotonic clock, or refuses.
    fn watch(&self, view: &View, held: &LockRecord, watch_ms: Millis) -> Result<()> {
        let began = self.env.clock.monotonic();
        loop {
            let passed = self.env.clock.monotonic().since(began);
            let latest = self.view()?;
            if latest.newest.n != view.newest.n {
                // Whatever was appended, the append that follows meets it and looks again.
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

/// How long a watcher sleeps between two looks.
const WATCH_STEP_MS: Millis = 250;

fn conflict(held: &LockRecord) -> Error {
    let stealable_at = lease::stealable_at(held);
    Error::new(
        Class::LockConflict,
        format!(
            "the worktree is locked; wait for its holder, or steal the lock once its lease has been over for \
             long enough: holder={} lease_expires_at={} stealable_at={}",
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
