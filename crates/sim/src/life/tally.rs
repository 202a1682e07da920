//! What lives came to.

use std::fmt;

/// What a life came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Turns of servers.
    pub turns: u64,
    /// Answers that were given.
    pub answers: u64,
    /// Leases that were granted.
    pub grants: u64,
    /// Documents that were committed.
    pub commits: u64,
    /// Servers that died or were replaced.
    pub deaths: u64,
    /// Snapshots that let something go.
    pub snapshots: u64,
    /// Documents carried forward.
    pub moves: u64,
    /// Those who were refused because a wait would close a ring, or by wait-die.
    pub dead_ends: u64,
    /// Grants that reached nobody.
    pub undelivered: u64,
}

impl Tally {
    /// Counts another life in.
    pub fn add(&mut self, other: &Tally) {
        self.turns += other.turns;
        self.answers += other.answers;
        self.grants += other.grants;
        self.commits += other.commits;
        self.deaths += other.deaths;
        self.snapshots += other.snapshots;
        self.moves += other.moves;
        self.dead_ends += other.dead_ends;
        self.undelivered += other.undelivered;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "servers: {} turns, {} deaths, {} answers ({} grants, {} commits, {} told to die or of a deadlock), {} grants \
             undelivered, {} snapshots, {} documents carried forward; all that was told held",
            self.turns,
            self.deaths,
            self.answers,
            self.grants,
            self.commits,
            self.dead_ends,
            self.undelivered,
            self.snapshots,
            self.moves
        )
    }
}
