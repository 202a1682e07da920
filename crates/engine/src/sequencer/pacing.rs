//! When a batch is appended: at once, or after a moment in which it may grow.
//!
//! An append to an object store takes tens of milliseconds and costs the same for one command as for a thousand. Clients
//! that wait for their replies send the next request when they get them, all within a few milliseconds. A batch that left
//! without them would make them wait for two appends, and clients would form two groups that never meet. So when an append
//! ends, the next batch waits for as many commands as have just had their replies, beside those that it has already, but
//! for at most a twelfth of the time that the append took. If a quarter of them is there by then, the others are on their way:
//! thousands of clients need longer to come back than some do. The batch then waits for up to a quarter of that time. Requests
//! that arrive at random are never that many. A caller alone never waits.
//!
//! Beside that, an operator may set a minimum interval between appends, to pay for fewer of them.
//!
//! **Invariant.** A batch is held back by at most the larger of the two, and a full batch, or one of a sequencer that
//! stops, not at all.

use kernel::{Span, Time};

/// A batch waits at most this part of the time that the last append took.
const PART: u64 = 12;
/// The same, while clients come back.
const PART_RETURNING: u64 = 4;
/// Clients come back if this part of those that had their replies is there again.
const RETURNED: usize = 4;
/// A batch waits at most this long for more commands.
const LINGER_MAX: Span = Span(8);

/// When the next batch may be appended.
#[derive(Debug)]
pub(super) struct Pacing {
    /// An append is a request to another machine.
    is_remote: bool,
    /// Minimum interval between the beginnings of two appends.
    interval: Span,
    /// The beginning of the last append.
    began: Option<Time>,
    /// The number of commands of the last batch.
    sent: usize,
    /// The batch waits until here, if it has fewer commands than `expected`.
    lingers_until: Time,
    expected: usize,
    /// It waits until here, if it has at least as many commands as `returning`.
    lingers_longer_until: Time,
    returning: usize,
}

impl Pacing {
    pub(super) fn new(is_remote: bool, interval: Span) -> Pacing {
        Pacing {
            is_remote,
            interval,
            began: None,
            sent: 0,
            lingers_until: Time(0),
            expected: 0,
            lingers_longer_until: Time(0),
            returning: 0,
        }
    }

    /// A batch with this many commands leaves.
    pub(super) fn appending(&mut self, now: Time, commands: usize) {
        (self.began, self.sent) = (Some(now), commands);
    }

    /// The batch is durable, and its replies were sent. The next one has this many commands so far.
    pub(super) fn appended(&mut self, now: Time, commands: usize) {
        self.expected = self.sent + commands;
        let took = self.began.map_or(0, |began| now.0.saturating_sub(began.0));
        self.returning = commands + self.sent.div_ceil(RETURNED);
        let lingers = self.is_remote && self.expected > 1;
        let until = |part: u64| now.after(Span(if lingers { (took / part).min(LINGER_MAX.0) } else { 0 }));
        (self.lingers_until, self.lingers_longer_until) = (until(PART), until(PART_RETURNING));
    }

    /// How long a batch has to wait, of which this is known; zero if it may be appended now.
    pub(super) fn wait(&self, now: Time, commands: usize, has_records: bool) -> Span {
        let lingers_until = match commands {
            commands if commands >= self.expected => now,
            commands if commands >= self.returning => self.lingers_longer_until,
            _ => self.lingers_until,
        };
        // Results of queries are confirmed without an append.
        let next = self.began.filter(|_| has_records).map_or(now, |began| began.after(self.interval));
        Span(lingers_until.max(next).0.saturating_sub(now.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_waits_for_as_many_commands_as_the_last_one_had_but_not_for_long() {
        let mut pacing = Pacing::new(true, Span(0));
        assert_eq!(pacing.wait(Time(1000), 1, true), Span(0), "the first one waits for nothing");
        pacing.appending(Time(1000), 64);
        pacing.appended(Time(1032), 0);
        assert_eq!(pacing.wait(Time(1032), 15, true), Span(2));
        assert_eq!(pacing.wait(Time(1033), 1, false), Span(1));
        assert_eq!(pacing.wait(Time(1032), 64, true), Span(0), "all are here");
        assert_eq!(pacing.wait(Time(1034), 1, true), Span(0));
        pacing.appending(Time(1034), 64);
        pacing.appended(Time(9034), 0);
        assert_eq!(pacing.wait(Time(9034), 1, true), LINGER_MAX);
        assert_eq!(pacing.wait(Time(9034), 63, true), LINGER_MAX);
    }

    /// Of 2,048 clients some hundreds were back after a twelfth of the append. The batch left with these, and the clients
    /// formed groups that waited for each other's appends.
    #[test]
    fn a_batch_waits_longer_while_clients_come_back() {
        let mut pacing = Pacing::new(true, Span(0));
        pacing.appending(Time(0), 2048);
        pacing.appended(Time(32), 100);
        assert_eq!(pacing.wait(Time(34), 611, true), Span(0), "fewer than a quarter are back");
        assert_eq!(pacing.wait(Time(34), 612, true), Span(6));
        assert_eq!(pacing.wait(Time(39), 2147, true), Span(1));
        assert_eq!(pacing.wait(Time(39), 2148, true), Span(0), "all are here");
        assert_eq!(pacing.wait(Time(40), 612, true), Span(0), "not for ever");
    }

    /// Two groups of clients took turns: each waited for the appends of the other, and cycles took twice as long.
    #[test]
    fn two_groups_of_clients_become_one() {
        let mut pacing = Pacing::new(true, Span(0));
        pacing.appending(Time(0), 30);
        pacing.appended(Time(30), 34);
        assert_eq!(pacing.wait(Time(30), 34, true), Span(2), "the 30 are about to come back");
        assert_eq!(pacing.wait(Time(31), 64, true), Span(0));
    }

    #[test]
    fn one_caller_alone_and_a_log_on_disk_never_wait() {
        let mut alone = Pacing::new(true, Span(0));
        alone.appending(Time(0), 1);
        alone.appended(Time(100), 0);
        assert_eq!(alone.wait(Time(100), 1, true), Span(0));
        let mut disk = Pacing::new(false, Span(0));
        disk.appending(Time(0), 64);
        disk.appended(Time(100), 40);
        assert_eq!(disk.wait(Time(100), 1, true), Span(0));
    }

    #[test]
    fn appends_keep_the_interval_and_queries_need_none() {
        let mut pacing = Pacing::new(false, Span(250));
        pacing.appending(Time(1000), 1);
        pacing.appended(Time(1030), 0);
        assert_eq!(pacing.wait(Time(1030), 5, true), Span(220));
        assert_eq!(pacing.wait(Time(1030), 5, false), Span(0));
        assert_eq!(pacing.wait(Time(1250), 1, true), Span(0));
    }
}
