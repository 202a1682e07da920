//! Attempts: a request for a lease and its retries, which keep the place and the age of the first try.
//!
//! The reply to a blocked request carries its [`Attempt`]; the edge hands it to the client as a token, and a retry
//! presents it. Nothing is stored for an attempt until it is granted a lease.
//!
//! **Invariant.** A waiter whose wait was cut off by a timeout, a broken connection or a restart, and who returns in
//! time, is not overtaken by requests that arrived after its first try. An attempt is granted at most one lease, and has
//! at most one place in the queues.
//!
//! **What would break it.** A client that keeps the token of an attempt that was granted: it would stand before
//! everybody at each later request. So granted attempts are remembered until their tokens have lapsed; those of earlier
//! tenures are read from leases and history when the log is opened. A client that collects tokens for later: one lapses
//! unless it is presented again soon after each reply, and in any case an hour after its first try.
//!
//! After a restart kernel time may be behind that of a token. Arrivals are ordered by tenure first: a token of an earlier
//! tenure is older than everything since, and such tokens keep the order of their first tries.

use std::collections::{BTreeMap, VecDeque};

use kernel::{Age, Kernel, Span, Time};

use super::queues::Ticket;

/// The place of a first try in the order of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival {
    /// The tenure in which it arrived.
    pub term: u64,
    /// Its number in that tenure.
    pub number: u64,
}

/// An attempt to be granted a lease: what a retry presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The arrival of its first try.
    pub arrival: Arrival,
    /// Its age: when the first try was made.
    pub age: Age,
    /// When the last reply to it was decided.
    pub last: Time,
}

impl Attempt {
    /// By default, how long after its last reply an attempt may be retried: a wait of a minute, and a pause.
    pub const IDLE_MAX: Span = Span(75_000);
}

/// The attempt of a request that is being decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CurrentAttempt {
    /// What a retry presents.
    pub(super) attempt: Attempt,
    /// Its age among those of this tenure.
    pub(super) age: Age,
    /// Its place in the queues.
    pub(super) place: Ticket,
    /// Whether it is a retry.
    pub(super) is_retry: bool,
}

/// The attempts of a shard.
pub(super) struct Attempts {
    term: u64,
    opened: Time,
    /// The number of the next arrival.
    next: u64,
    /// How long after its last reply an attempt may be retried.
    idle_max: Span,
    /// Granted attempts by age, with the time of the grant.
    granted: BTreeMap<Age, Time>,
    /// Grants in order; those that were undone included.
    grants: VecDeque<(Time, Age)>,
    /// Grants up to this time may have been forgotten because there were too many.
    forgotten: Option<Time>,
}

impl Attempts {
    /// The maximum number of granted attempts that are remembered.
    const GRANTED_MAX: usize = 100_000;

    /// Begins with the state after a tenure was opened.
    pub(super) fn new(kernel: &Kernel) -> Attempts {
        let mut attempts = Attempts {
            term: kernel.tenure().map_or(0, |tenure| tenure.open.term),
            opened: kernel.now(),
            next: 0,
            idle_max: Attempt::IDLE_MAX,
            granted: BTreeMap::new(),
            grants: VecDeque::new(),
            forgotten: None,
        };
        attempts.read_grants(kernel);
        attempts
    }

    /// Sets how long after its last reply an attempt may be retried.
    pub(super) fn set_idle_max(&mut self, idle_max: Span, kernel: &Kernel) {
        let is_longer = idle_max > self.idle_max;
        self.idle_max = idle_max;
        if is_longer {
            self.read_grants(kernel);
        }
    }

    /// Remembers the grants of earlier tenures whose tokens may not have lapsed.
    fn read_grants(&mut self, kernel: &Kernel) {
        if planted!(GrantsForgottenAtOpen) {
            return;
        }
        let since = Time(self.opened.0.saturating_sub(self.idle_max.0));
        for age in kernel.attempts_granted_since(since) {
            self.note_granted(self.opened, age);
        }
    }

    /// The attempt of a request that presents one, if that counts; otherwise a new one. `first` is the age of a new
    /// attempt, if the request has one.
    pub(super) fn recognize(
        &mut self,
        now: Time,
        presented: Option<Attempt>,
        first: Option<Age>,
    ) -> CurrentAttempt {
        if let Some(attempt) = presented.filter(|attempt| self.counts(now, attempt)) {
            let (age, place) = (self.age_of(&attempt), Ticket::of(attempt.arrival));
            return CurrentAttempt { attempt, age, place, is_retry: true };
        }
        let arrival = self.next_arrival();
        let age =
            first.unwrap_or(Age { at: now, tie: self.term.wrapping_shl(48).wrapping_add(arrival.number) });
        let attempt = Attempt { arrival, age, last: now };
        CurrentAttempt { attempt, age, place: Ticket::of(arrival), is_retry: false }
    }

    /// The place behind all arrivals so far.
    pub(super) fn next_arrival(&mut self) -> Arrival {
        let number = if planted!(Lifo) { u64::MAX / 2 - self.next } else { self.next };
        self.next += 1;
        Arrival { term: self.term, number }
    }

    fn counts(&self, now: Time, attempt: &Attempt) -> bool {
        let Attempt { arrival, age, last } = attempt;
        let was_issued = *arrival < Arrival { term: self.term, number: self.next } || planted!(Lifo);
        let is_recent = age.at.until(now) <= Age::ATTEMPT_MAX && last.until(now) <= self.idle_max;
        let is_forgotten = arrival.term == self.term && self.forgotten.is_some_and(|time| *last <= time);
        // Its lease has the age of this tenure, or of the one in which it was granted.
        let ages = [*age, self.age_of(attempt)];
        let was_granted = is_forgotten || ages.iter().any(|age| self.granted.contains_key(age));
        let is_recent = is_recent || planted!(LapsedAttemptCounts);
        let is_unused = !was_granted || planted!(GrantedAttemptCounts);
        was_issued && is_recent && is_unused && !planted!(AttemptAgeReset)
    }

    /// The age of an attempt among those of this tenure. One that is ahead of kernel time since a restart is as old as
    /// the last moment before it; ties keep their order.
    fn age_of(&self, attempt: &Attempt) -> Age {
        let age = attempt.age;
        if attempt.arrival.term == self.term || age.at < self.opened {
            return age;
        }
        let tie = age.at.0.wrapping_shl(20) | (age.tie & 0xf_ffff);
        Age { at: Time(self.opened.0.saturating_sub(1)), tie }
    }

    /// An attempt of this age was granted a lease.
    pub(super) fn note_granted(&mut self, now: Time, age: Age) {
        self.granted.insert(age, now);
        self.grants.push_back((now, age));
        while let Some((granted, age)) = self.grants.front().copied() {
            let is_lapsed = granted.until(now) > self.idle_max;
            if !is_lapsed && self.grants.len() <= Attempts::GRANTED_MAX {
                break;
            }
            self.grants.pop_front();
            if self.granted.get(&age) == Some(&granted) {
                self.granted.remove(&age);
                self.forgotten = self.forgotten.max((!is_lapsed).then_some(granted));
            }
        }
    }

    /// A grant was undone because its client never received it: the attempt may be retried.
    pub(super) fn note_retracted(&mut self, age: Age) {
        self.granted.remove(&age);
    }
}
