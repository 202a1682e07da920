//! When a command under a lease gets SIGTERM and SIGKILL.
//!
//! **Invariant.** Let the last successful renewal have been sent at `s` on the boot clock, and let `R` be the remaining time
//! in its response. With `m`, the clock-drift margin of [`lockd_client::Lease`], and `g`, the smaller of `--grace` and a third
//! of the TTL:
//!
//! ```text
//!   s + R - m - g   the command's process group gets SIGTERM
//!   s + R - m       it gets SIGKILL
//!   s + R           the earliest time at which the server may expire the lease
//! ```
//!
//! The server decided after `s`, so its deadline is not before `s + R`.
//!
//! **What would break it.** Counting from the arrival of the response: with a response delayed by more than `m`, the command
//! would run on while another client holds the lease.
//!
//! A revoked lease stays blocked until it is reclaimed: the group has `g` to exit, but not past `s + R - m`. A lease that
//! has ended by the server's account may already be granted to another client: the group is killed at once; so it is if this
//! process was stopped, or the machine suspended, past `s + R - m`. SIGTERM is final: a later renewal does not undo it.

use std::time::Duration;

use cli::child::{BootInstant, Order};
use lockd_client::LossReason;

/// The state of the lease at one point in time.
#[derive(Clone, Copy)]
pub(super) struct LeaseStatus {
    /// Read before `left`, so that the deadline computed from both is early, never late.
    pub(super) now: BootInstant,
    /// Time until `s + R - m`. Read before `lost`, so that a loss in between is not taken for an expiry.
    pub(super) left: Duration,
    pub(super) lost: Option<LossReason>,
}

pub(super) struct TerminationPolicy {
    grace: Duration,
    /// `s + R - m` at the last evaluation; it only moves forward.
    kill_by: BootInstant,
    /// Why SIGTERM was sent, and when SIGKILL follows.
    ending: Option<(LossReason, BootInstant)>,
}

impl TerminationPolicy {
    pub(super) fn new(grace: Duration, ttl: Duration) -> TerminationPolicy {
        TerminationPolicy { grace: grace.min(ttl / 3), kill_by: BootInstant::default(), ending: None }
    }

    /// What to do with the command now.
    pub(super) fn order(&mut self, status: LeaseStatus) -> Order<LossReason> {
        let LeaseStatus { now, left, lost } = status;
        if !left.is_zero() {
            self.kill_by = now.plus(left);
        }
        let begin = || match lost {
            None if left > self.grace => None,
            None => Some((LossReason::Unreachable, self.kill_by)),
            Some(LossReason::Revoked) => Some((LossReason::Revoked, now.plus(self.grace).min(self.kill_by))),
            Some(lost) => Some((lost, now)),
        };
        self.ending = self.ending.or_else(begin);
        match self.ending {
            None => Order::Run(left.saturating_sub(self.grace)),
            Some((_, kill_at)) if now < kill_at => Order::End(kill_at.since(now)),
            Some((lost, _)) => Order::Kill(lost),
        }
    }

    /// Why the lease was lost before the command exited, if it was. A released lease does not count: only the command, or a
    /// process that it gave the credential to, can have released it.
    pub(super) fn loss_at_exit(&self, lost: Option<LossReason>) -> Option<LossReason> {
        let noticed = self.ending.map(|(lost, _)| lost);
        noticed.or_else(|| lost.filter(|lost| *lost != LossReason::Released))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(now: u64) -> BootInstant {
        BootInstant::default().plus(ms(now))
    }

    /// A lease whose `s + R - m` is at 9500, of a TTL of 10 s, with a grace of 2 s.
    fn status(now: u64, lost: Option<LossReason>) -> LeaseStatus {
        let left = if lost.is_some() { Duration::ZERO } else { ms(9500_u64.saturating_sub(now)) };
        LeaseStatus { now: at(now), left, lost }
    }

    fn policy() -> TerminationPolicy {
        TerminationPolicy::new(ms(2000), ms(10_000))
    }

    #[track_caller]
    fn assert_order(order: &Order<LossReason>, expected: &str) {
        let text = match order {
            Order::Run(within) => format!("run {}", within.as_millis()),
            Order::End(within) => format!("end {}", within.as_millis()),
            Order::Kill(lost) => format!("kill {lost:?}"),
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn without_news_the_command_is_told_to_end_and_then_killed_before_the_deadline() {
        let mut policy = policy();
        for (now, expected) in [
            (0, "run 7500"),
            (7499, "run 1"),
            (7500, "end 2000"),
            (9499, "end 1"),
            (9500, "kill Unreachable"),
            (20_000, "kill Unreachable"),
        ] {
            assert_order(&policy.order(status(now, None)), expected);
        }
        assert_eq!(policy.loss_at_exit(None), Some(LossReason::Unreachable));
    }

    #[test]
    fn a_renewal_moves_the_end_but_not_that_of_a_command_that_was_told_to_end() {
        let mut policy = policy();
        assert_order(&policy.order(status(7000, None)), "run 500");
        let renewed = LeaseStatus { now: at(7100), left: ms(9500), lost: None };
        assert_order(&policy.order(renewed), "run 7500");
        assert_order(&policy.order(LeaseStatus { now: at(15_000), left: ms(1600), lost: None }), "end 1600");
        let late = LeaseStatus { now: at(16_600), left: ms(9000), lost: None };
        assert_order(&policy.order(late), "kill Unreachable");
    }

    #[test]
    fn a_machine_that_slept_past_the_end_kills_at_once() {
        for now in [9500, 9501, 1_000_000] {
            let mut policy = policy();
            assert_order(&policy.order(status(0, None)), "run 7500");
            assert_order(&policy.order(status(now, None)), "kill Unreachable");
        }
    }

    #[test]
    fn a_revoked_lease_leaves_the_grace_but_nothing_past_its_end() {
        let mut early = policy();
        assert_order(&early.order(status(3000, None)), "run 4500");
        assert_order(&early.order(status(3300, Some(LossReason::Revoked))), "end 2000");
        assert_order(&early.order(status(5300, Some(LossReason::Revoked))), "kill Revoked");
        let mut late = policy();
        assert_order(&late.order(status(7000, None)), "run 500");
        assert_order(&late.order(status(9000, Some(LossReason::Revoked))), "end 500");
        assert_order(&late.order(status(9500, Some(LossReason::Revoked))), "kill Revoked");
    }

    #[test]
    fn what_may_be_anothers_already_is_killed_at_once() {
        for lost in [LossReason::Expired, LossReason::Released, LossReason::Unreachable] {
            let mut policy = policy();
            assert_order(&policy.order(status(100, None)), "run 7400");
            assert_order(&policy.order(status(200, Some(lost))), &format!("kill {lost:?}"));
        }
    }

    #[test]
    fn a_short_lease_leaves_time_for_renewals_whatever_the_grace() {
        let mut policy = TerminationPolicy::new(ms(60_000), ms(3000));
        assert_order(&policy.order(LeaseStatus { now: at(0), left: ms(2850), lost: None }), "run 1850");
    }

    #[test]
    fn a_lease_that_is_over_when_the_command_ends_was_lost_unless_it_was_given_back() {
        let mut policy = policy();
        assert_order(&policy.order(status(0, None)), "run 7500");
        assert_eq!(policy.loss_at_exit(None), None);
        assert_eq!(policy.loss_at_exit(Some(LossReason::Released)), None);
        assert_eq!(policy.loss_at_exit(Some(LossReason::Unreachable)), Some(LossReason::Unreachable));
    }
}
