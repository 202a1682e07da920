//! What agents came to.

use std::fmt;

/// What the agents of some seeds came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Turns of servers, after each of which everyone who waited was looked at.
    pub turns: u64,
    /// Tries of attempts that reached a server.
    pub tries: u64,
    /// Attempts that were granted.
    pub grants: u64,
    /// Tries that were told to die.
    pub deaths: u64,
    /// Tries that waited.
    pub waits: u64,
    /// Waits that were over before their turn came.
    pub timeouts: u64,
    /// Tries that had to be the last, since nothing older was there.
    pub oldest: u64,
    /// Servers that crashed.
    pub crashes: u64,
    /// Agents that crashed or restarted.
    pub restarts: u64,
    /// Attempts of good times that were granted within their bound.
    pub in_time: u64,
    /// The longest that one of those took, in milliseconds after the wild time was over.
    pub longest_ms: u64,
    /// The most tries that one of those took.
    pub most_tries: u64,
}

impl Tally {
    /// Counts others in.
    pub fn add(&mut self, other: &Tally) {
        self.turns += other.turns;
        self.tries += other.tries;
        self.grants += other.grants;
        self.deaths += other.deaths;
        self.waits += other.waits;
        self.timeouts += other.timeouts;
        self.oldest += other.oldest;
        self.crashes += other.crashes;
        self.restarts += other.restarts;
        self.in_time += other.in_time;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        self.most_tries = self.most_tries.max(other.most_tries);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "agents: {} tries ({} granted, {} died, {} waited, {} of them in vain) over {} turns, {} crashes of servers and {} of \
             agents; {} had to be the last and were, {} were granted in time, after {} ms and {} tries at the most",
            self.tries,
            self.grants,
            self.deaths,
            self.waits,
            self.timeouts,
            self.turns,
            self.crashes,
            self.restarts,
            self.oldest,
            self.in_time,
            self.longest_ms,
            self.most_tries
        )
    }
}
