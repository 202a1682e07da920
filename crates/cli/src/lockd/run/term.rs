//! For how long a command may run under a lease, and how it is ended.
//!
//! **Invariant.** Let the last renewal that came through have been sent at `s` on the boot clock, and `R` be what
//! remained of the lease by its answer. With `m`, the margin of [`client::Lease`] for clocks that run unevenly, and
//! `g`, the smaller of `--grace` and a third of the TTL:
//!
//! ```text
//!   s + R - m - g   the command's process group gets SIGTERM
//!   s + R - m       it gets SIGKILL
//!   s + R           the earliest moment at which the server may count the lease as over
//! ```
//!
//! The server decided after `s`, so its deadline is no earlier than `s + R`. Counted from when the answer arrived
//! instead, an answer that was held up for longer than `m` would let the command run on under another's lease.
//!
//! A lease that was revoked stays taken until it is reclaimed: the group has `g` to end, and no longer than until
//! `s + R - m`. One that the server says is over may be another's already: the group is killed at once. So it is when
//! this process was stopped, or its machine asleep, past `s + R - m`. Once the group was told to end there is no way back.

use std::time::Duration;

use cli::child::{Moment, Order};
use client::Lost;

/// How a lease stands.
#[derive(Clone, Copy)]
pub(super) struct Standing {
    /// Read before `left`, so that what is made of both is early, never late.
    pub(super) now: Moment,
    /// Until `s + R - m`. Read before `lost`, so that a lease that is lost in between is not taken for one that has
    /// run out.
    pub(super) left: Duration,
    pub(super) lost: Option<Lost>,
}

pub(super) struct Term {
    grace: Duration,
    /// `s + R - m`, as it was when it was looked at last: it only moves on.
    over_at: Moment,
    /// Why the command was told to end, and when it is killed.
    ending: Option<(Lost, Moment)>,
}

impl Term {
    pub(super) fn new(grace: Duration, ttl: Duration) -> Term {
        Term { grace: grace.min(ttl / 3), over_at: Moment::default(), ending: None }
    }

    /// What becomes of the command now.
    pub(super) fn order(&mut self, standing: Standing) -> Order<Lost> {
        let Standing { now, left, lost } = standing;
        if !left.is_zero() {
            self.over_at = now.after(left);
        }
        let begin = || match lost {
            None if left > self.grace => None,
            None => Some((Lost::Unreachable, self.over_at)),
            Some(Lost::Revoked) => Some((Lost::Revoked, now.after(self.grace).min(self.over_at))),
            Some(lost) => Some((lost, now)),
        };
        self.ending = self.ending.or_else(begin);
        match self.ending {
            None => Order::Run(left.saturating_sub(self.grace)),
            Some((_, kill_at)) if now < kill_at => Order::End(kill_at.since(now)),
            Some((lost, _)) => Order::Kill(lost),
        }
    }

    /// Whether the lease was over before the command was. One that was given back was so by the command itself, or by
    /// whoever has its credential from it: then that is how it wanted to end.
    pub(super) fn lost_at_the_end(&self, lost: Option<Lost>) -> Option<Lost> {
        let noticed = self.ending.map(|(lost, _)| lost);
        noticed.or_else(|| lost.filter(|lost| *lost != Lost::Released))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(now: u64) -> Moment {
        Moment::default().after(ms(now))
    }

    /// A lease whose `s + R - m` is at 9500, of a TTL of 10 s, with a grace of 2 s.
    fn standing(now: u64, lost: Option<Lost>) -> Standing {
        let left = if lost.is_some() { Duration::ZERO } else { ms(9500_u64.saturating_sub(now)) };
        Standing { now: at(now), left, lost }
    }

    fn term() -> Term {
        Term::new(ms(2000), ms(10_000))
    }

    #[track_caller]
    fn assert_order(order: &Order<Lost>, expected: &str) {
        let text = match order {
            Order::Run(within) => format!("run {}", within.as_millis()),
            Order::End(within) => format!("end {}", within.as_millis()),
            Order::Kill(lost) => format!("kill {lost:?}"),
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn without_news_the_command_is_told_to_end_and_then_killed_before_the_deadline() {
        let mut term = term();
        for (now, expected) in [
            (0, "run 7500"),
            (7499, "run 1"),
            (7500, "end 2000"),
            (9499, "end 1"),
            (9500, "kill Unreachable"),
            (20_000, "kill Unreachable"),
        ] {
            assert_order(&term.order(standing(now, None)), expected);
        }
        assert_eq!(term.lost_at_the_end(None), Some(Lost::Unreachable));
    }

    #[test]
    fn a_renewal_moves_the_end_but_not_that_of_a_command_that_was_told_to_end() {
        let mut term = term();
        assert_order(&term.order(standing(7000, None)), "run 500");
        let renewed = Standing { now: at(7100), left: ms(9500), lost: None };
        assert_order(&term.order(renewed), "run 7500");
        assert_order(&term.order(Standing { now: at(15_000), left: ms(1600), lost: None }), "end 1600");
        let late = Standing { now: at(16_600), left: ms(9000), lost: None };
        assert_order(&term.order(late), "kill Unreachable");
    }

    #[test]
    fn a_machine_that_slept_past_the_end_kills_at_once() {
        for now in [9500, 9501, 1_000_000] {
            let mut term = term();
            assert_order(&term.order(standing(0, None)), "run 7500");
            assert_order(&term.order(standing(now, None)), "kill Unreachable");
        }
    }

    #[test]
    fn a_revoked_lease_leaves_the_grace_but_nothing_past_its_end() {
        let mut early = term();
        assert_order(&early.order(standing(3000, None)), "run 4500");
        assert_order(&early.order(standing(3300, Some(Lost::Revoked))), "end 2000");
        assert_order(&early.order(standing(5300, Some(Lost::Revoked))), "kill Revoked");
        let mut late = term();
        assert_order(&late.order(standing(7000, None)), "run 500");
        assert_order(&late.order(standing(9000, Some(Lost::Revoked))), "end 500");
        assert_order(&late.order(standing(9500, Some(Lost::Revoked))), "kill Revoked");
    }

    #[test]
    fn what_may_be_anothers_already_is_killed_at_once() {
        for lost in [Lost::Expired, Lost::Released, Lost::Unreachable] {
            let mut term = term();
            assert_order(&term.order(standing(100, None)), "run 7400");
            assert_order(&term.order(standing(200, Some(lost))), &format!("kill {lost:?}"));
        }
    }

    #[test]
    fn a_short_lease_leaves_time_for_renewals_whatever_the_grace() {
        let mut term = Term::new(ms(60_000), ms(3000));
        assert_order(&term.order(Standing { now: at(0), left: ms(2850), lost: None }), "run 1850");
    }

    #[test]
    fn a_lease_that_is_over_when_the_command_ends_was_lost_unless_it_was_given_back() {
        let mut term = term();
        assert_order(&term.order(standing(0, None)), "run 7500");
        assert_eq!(term.lost_at_the_end(None), None);
        assert_eq!(term.lost_at_the_end(Some(Lost::Released)), None);
        assert_eq!(term.lost_at_the_end(Some(Lost::Unreachable)), Some(Lost::Unreachable));
    }
}
