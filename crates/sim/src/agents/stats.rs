//! Counters of simulated agents.

use std::fmt;

/// Counters of one or more simulations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentStats {
    /// Times a server came to rest, after each of which all waiters were checked.
    pub settled: u64,
    /// Tries that reached a server.
    pub tries: u64,
    /// Attempts that were granted.
    pub grants: u64,
    /// Tries that died under wait-die.
    pub deaths: u64,
    /// Tries that waited.
    pub waits: u64,
    /// Waits that timed out.
    pub timeouts: u64,
    /// Tries of the oldest attempt, which had to be granted.
    pub oldest: u64,
    /// Servers that crashed.
    pub crashes: u64,
    /// Agents that crashed or restarted.
    pub restarts: u64,
    /// Attempts of fault-free periods that were granted within their bound.
    pub in_time: u64,
    /// The longest of those, in milliseconds after the end of the faulty period.
    pub longest_ms: u64,
    /// The maximum number of tries of those.
    pub most_tries: u64,
}

impl AgentStats {
    /// Adds another simulation's counters.
    pub fn add(&mut self, other: &AgentStats) {
        self.settled += other.settled;
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

impl fmt::Display for AgentStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "agents: {} tries ({} granted, {} died, {} waited, {} timed out), {} checks of all waiters, {} server crashes, {} agent \
             restarts; {} tries of the oldest attempt, all granted; {} attempts granted within their bound, after at \
             most {} ms and {} tries",
            self.tries,
            self.grants,
            self.deaths,
            self.waits,
            self.timeouts,
            self.settled,
            self.crashes,
            self.restarts,
            self.oldest,
            self.in_time,
            self.longest_ms,
            self.most_tries
        )
    }
}
