//! Counters of simulated servers.

use std::fmt;

/// Counters of one or more simulations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
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
    /// Commands that were applied while an earlier batch was not durable yet.
    pub pipelined: u64,
    /// Jobs after which the outcome of an append was unknown.
    pub undecided: u64,
    /// Jobs after which the log had no space.
    pub out_of_space: u64,
    /// Servers whose log another server had taken over.
    pub deposed: u64,
    /// Servers that were closed, and ended when every request had its response.
    pub clean_stops: u64,
    /// Servers that ended because a turn panicked.
    pub panics: u64,
    /// Bounds of the sequencer.
    pub bounds: BoundsReached,
}

/// How often worlds of real size reached each bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundsReached {
    /// A batch had its maximum number of bytes.
    pub full_by_bytes: u64,
    /// A batch had its maximum number of commands.
    pub full_by_commands: u64,
    /// A hand-off left half of a batch to other commands, and waited for the next.
    pub hand_off_by_bytes: u64,
    /// A hand-off had served its maximum number of waiters, and waited for the next batch.
    pub hand_off_by_count: u64,
    /// A request was refused because the inbox was full.
    pub inbox_full: u64,
    /// A log had more than one segment.
    pub rotations: u64,
    /// A log took releases only.
    pub reserve: u64,
}

impl BoundsReached {
    /// Adds other counters.
    pub fn add(&mut self, other: &BoundsReached) {
        self.full_by_bytes += other.full_by_bytes;
        self.full_by_commands += other.full_by_commands;
        self.hand_off_by_bytes += other.hand_off_by_bytes;
        self.hand_off_by_count += other.hand_off_by_count;
        self.inbox_full += other.inbox_full;
        self.rotations += other.rotations;
        self.reserve += other.reserve;
    }
}

impl fmt::Display for BoundsReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bounds reached: batch full by bytes {}, by commands {}; hand-off stopped by bytes {}, by count {}; inbox full \
             {}; several segments {}; log space for releases only {}",
            self.full_by_bytes,
            self.full_by_commands,
            self.hand_off_by_bytes,
            self.hand_off_by_count,
            self.inbox_full,
            self.rotations,
            self.reserve
        )
    }
}

impl ServerStats {
    /// Adds another simulation's counters.
    pub fn add(&mut self, other: &ServerStats) {
        self.responses += other.responses;
        self.grants += other.grants;
        self.commits += other.commits;
        self.crashes += other.crashes;
        self.snapshots += other.snapshots;
        self.relocations += other.relocations;
        self.deadlock_rejections += other.deadlock_rejections;
        self.undelivered += other.undelivered;
        self.pipelined += other.pipelined;
        self.undecided += other.undecided;
        self.out_of_space += other.out_of_space;
        self.deposed += other.deposed;
        self.clean_stops += other.clean_stops;
        self.panics += other.panics;
        self.bounds.add(&other.bounds);
    }
}

impl fmt::Display for ServerStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "servers: {} crashes ({} deposed, {} stopped, {} panics), {} responses ({} grants, {} commits, {} wait-die or \
             deadlock rejections), {} grants undelivered, {} commands pipelined, {} checkpoints, {} documents relocated, {} \
             jobs with an undecided append, {} without log space; every response held\n{}",
            self.crashes,
            self.deposed,
            self.clean_stops,
            self.panics,
            self.responses,
            self.grants,
            self.commits,
            self.deadlock_rejections,
            self.undelivered,
            self.pipelined,
            self.snapshots,
            self.relocations,
            self.undecided,
            self.out_of_space,
            self.bounds
        )
    }
}
