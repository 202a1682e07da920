//! Counters of simulated servers.

use std::fmt;

/// Counters of one or more simulations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Batches that servers decided.
    pub batches: u64,
    /// Responses sent.
    pub responses: u64,
    /// Leases granted.
    pub grants: u64,
    /// Documents committed.
    pub commits: u64,
    /// Servers that crashed or were killed.
    pub crashes: u64,
    /// Checkpoints taken.
    pub snapshots: u64,
    /// Documents relocated by checkpoints.
    pub relocations: u64,
    /// Requests rejected by wait-die or because waiting would close a deadlock cycle.
    pub deadlock_rejections: u64,
    /// Grants whose response was not delivered.
    pub undelivered: u64,
}

impl ServerStats {
    /// Adds another simulation's counters.
    pub fn add(&mut self, other: &ServerStats) {
        self.batches += other.batches;
        self.responses += other.responses;
        self.grants += other.grants;
        self.commits += other.commits;
        self.crashes += other.crashes;
        self.snapshots += other.snapshots;
        self.relocations += other.relocations;
        self.deadlock_rejections += other.deadlock_rejections;
        self.undelivered += other.undelivered;
    }
}

impl fmt::Display for ServerStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "servers: {} batches, {} crashes, {} responses ({} grants, {} commits, {} wait-die or deadlock rejections), {} grants \
             undelivered, {} checkpoints, {} documents relocated; every response held",
            self.batches,
            self.crashes,
            self.responses,
            self.grants,
            self.commits,
            self.deadlock_rejections,
            self.undelivered,
            self.snapshots,
            self.relocations
        )
    }
}
