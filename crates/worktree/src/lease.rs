//! The state of a lease at a given time. Pure functions of times.
//!
//! **Invariant.** [`may_act`] turns false for the holder strictly before [`lease_state`] returns
//! [`LeaseState::Stealable`] to any other process, as long as clocks differ by at most `max_clock_skew_ms`.
//! Wall clocks can only delay a steal when both processes read the same boot clock, and when the stealer watched
//! for `watch_ms`.
//!
//! Left out: reading clocks (`clock`, `probe`) and acting on the result (`lock`).

use crate::clock::{BootId, BootMs, Millis, UnixMs};
use crate::record::{BootStamp, LockRecord};

/// The clocks that decide the state of a lease, read at one moment.
#[derive(Clone, Debug)]
pub struct LeaseTime {
    /// The filesystem's time.
    pub fs: UnixMs,
    /// The boot clock.
    pub boot: BootMs,
    /// The boot that `boot` counts from.
    pub boot_id: BootId,
}

impl LeaseTime {
    /// A lease of `duration_ms` that begins now.
    pub fn stamp(&self, duration_ms: Millis) -> (UnixMs, BootStamp) {
        let boot = BootStamp {
            boot_id: self.boot_id.clone(),
            renewed_boot_ms: self.boot,
            expires_boot_ms: self.boot.plus(duration_ms),
        };
        (self.fs.plus(duration_ms), boot)
    }
}

/// The state of a lock, as processes other than its holder see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// The lease runs.
    Live,
    /// The lease has expired, but the lock may not be stolen yet.
    Expired,
    /// The lock may be stolen after a watch of `watch_ms` in which it is not renewed.
    StealableAfterWatch {
        /// The length of the watch.
        watch_ms: Millis,
    },
    /// The lock may be stolen.
    Stealable,
    /// The lock was renewed in the future: one of the clocks is wrong, and the state is unknown.
    RenewedInFuture {
        /// How far in the future.
        ahead_ms: Millis,
    },
}

/// The state of `lock` for processes that do not hold it.
pub fn lease_state(lock: &LockRecord, now: &LeaseTime) -> LeaseState {
    if lock.boot.boot_id != now.boot_id {
        return by_wall_clock(lock, now);
    }
    match (by_boot_clock(lock, now.boot), by_wall_clock(lock, now)) {
        (LeaseState::Stealable, LeaseState::StealableAfterWatch { .. }) => LeaseState::Stealable,
        // The boot clock alone could be that of a clone, or of an image that was resumed.
        (LeaseState::Stealable, disagrees) => disagrees,
        (state, _) => state,
    }
}

fn by_wall_clock(lock: &LockRecord, now: &LeaseTime) -> LeaseState {
    let ahead_ms = lock.last_renewed_at.since(now.fs);
    if ahead_ms > lock.policy.max_clock_skew_ms() {
        return LeaseState::RenewedInFuture { ahead_ms };
    }
    if now.fs <= lock.lease_expires_at {
        LeaseState::Live
    } else if now.fs <= stealable_at(lock) {
        LeaseState::Expired
    } else {
        LeaseState::StealableAfterWatch { watch_ms: lock.policy.watch_ms() }
    }
}

fn by_boot_clock(lock: &LockRecord, boot: BootMs) -> LeaseState {
    let expires = lock.boot.expires_boot_ms;
    if boot <= expires {
        LeaseState::Live
    } else if boot <= expires.plus(lock.policy.steal_delay_ms()) {
        LeaseState::Expired
    } else {
        LeaseState::Stealable
    }
}

/// The last millisecond at which `lock` may not be stolen.
pub fn stealable_at(lock: &LockRecord) -> UnixMs {
    lock.lease_expires_at.plus(lock.policy.steal_delay_ms())
}

/// Whether the holder may still act under a lease that expires at `stamp`.
///
/// False on another boot: the time that has passed since is unknown, so the lease counts as expired.
pub fn may_act(stamp: &BootStamp, boot_id: &BootId, boot: BootMs) -> bool {
    stamp.boot_id == *boot_id && boot <= stamp.expires_boot_ms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::HolderId;
    use crate::ids::{Digest, FencingToken};
    use crate::policy::LockPolicy;

    fn now(fs: i64, boot: i64, boot_id: &str) -> LeaseTime {
        LeaseTime { fs: UnixMs(fs), boot: BootMs(boot), boot_id: BootId(boot_id.into()) }
    }

    /// Granted at filesystem time 1,000,000 and boot time 500 of the boot `a`, with the default policy.
    fn lock() -> LockRecord {
        let (lease_expires_at, boot) = now(1_000_000, 500, "a").stamp(30_000);
        LockRecord {
            lock_id: "l-1".parse().expect("valid"),
            worktree_id: "main".parse().expect("valid"),
            holder_id: HolderId::this_process(),
            holder_nonce: Digest::NONE,
            session_id: "s-1".parse().expect("valid"),
            acquire_seq: 1,
            created_at: UnixMs(1_000_000),
            last_renewed_at: UnixMs(1_000_000),
            policy: LockPolicy::DEFAULT,
            lease_expires_at,
            fencing_token: FencingToken(2),
            boot,
        }
    }

    #[test]
    fn a_steal_needs_expiry_and_skew_and_grace_to_have_passed_to_the_millisecond() {
        let elsewhere = |fs| lease_state(&lock(), &now(fs, 0, "b"));
        assert_eq!(elsewhere(1_030_000), LeaseState::Live);
        assert_eq!(elsewhere(1_030_001), LeaseState::Expired);
        assert_eq!(elsewhere(1_033_000), LeaseState::Expired);
        assert_eq!(elsewhere(1_033_001), LeaseState::StealableAfterWatch { watch_ms: 31_000 });
    }

    #[test]
    fn on_the_same_boot_both_clocks_must_have_passed_the_delay() {
        let here = |fs, boot| lease_state(&lock(), &now(fs, boot, "a"));
        assert_eq!(here(9_000_000, 30_500), LeaseState::Live);
        assert_eq!(here(9_000_000, 30_501), LeaseState::Expired);
        assert_eq!(here(9_000_000, 33_500), LeaseState::Expired);
        assert_eq!(here(1_033_001, 33_501), LeaseState::Stealable);
        // The boot clock of a clone runs ahead: the wall clock disagrees, and nothing is stolen.
        assert_eq!(here(1_033_000, 8_000_000), LeaseState::Expired);
        assert_eq!(here(1_000_500, 8_000_000), LeaseState::Live);
        assert_eq!(here(0, 8_000_000), LeaseState::RenewedInFuture { ahead_ms: 1_000_000 });
    }

    #[test]
    fn a_renewal_in_the_future_is_evidence_of_a_wrong_clock() {
        let elsewhere = |fs| lease_state(&lock(), &now(fs, 0, "b"));
        assert_eq!(elsewhere(998_000), LeaseState::Live);
        assert_eq!(elsewhere(997_999), LeaseState::RenewedInFuture { ahead_ms: 2001 });
    }

    #[test]
    fn the_holder_stops_at_expiry_and_after_a_reboot() {
        let stamp = lock().boot;
        assert!(may_act(&stamp, &BootId("a".into()), BootMs(30_500)));
        assert!(!may_act(&stamp, &BootId("a".into()), BootMs(30_501)));
        assert!(!may_act(&stamp, &BootId("b".into()), BootMs(501)));
    }
}
