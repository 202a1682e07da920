//! The budget of a turn: how many rows each kind of work on waiters may visit while the deciding lock is held.
//!
//! Work that exceeds its budget stops, and continues in the next turn from where it stopped. Each kind of work has a
//! budget of its own, so that none can starve another.

/// The maximum number of rows that one kind of work visits in one turn.
pub const VISITS_MAX: usize = 256;

/// A kind of work on waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Offering freed resources to waiters.
    Serving,
    /// Searching for deadlock cycles.
    Searching,
    /// Removing waiters that timed out, disconnected, or die behind an older holder.
    Removing,
}

/// The rows, waiters and leases, that each kind of work has visited in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visits {
    /// Waiters to which freed resources were offered.
    pub serving: usize,
    /// Waiters and leases that searches for deadlock cycles visited.
    pub searching: usize,
    /// Waiters that were removed without a grant.
    pub removing: usize,
}

/// The visits of the current turn, and their bound.
pub(crate) struct Budget {
    max: usize,
    visits: Visits,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { max: VISITS_MAX, visits: Visits::default() }
    }
}

impl Budget {
    /// Sets the maximum, at least 1. Tests use a small one, so that work is suspended often.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max.max(1);
    }

    /// Begins a turn.
    pub(crate) fn reset(&mut self) {
        self.visits = Visits::default();
    }

    /// The number of rows that this kind of work may still visit in this turn.
    pub(crate) fn left(&self, work: Work) -> usize {
        let visited = match work {
            Work::Serving => self.visits.serving,
            Work::Searching => self.visits.searching,
            Work::Removing => self.visits.removing,
        };
        if planted!(BudgetIgnored) { usize::MAX } else { self.max.saturating_sub(visited) }
    }

    /// Whether nothing is left for this kind of work.
    pub(crate) fn is_spent(&self, work: Work) -> bool {
        self.left(work) == 0
    }

    /// Counts visited rows.
    pub(crate) fn spend(&mut self, work: Work, rows: usize) {
        match work {
            Work::Serving => self.visits.serving += rows,
            Work::Searching => self.visits.searching += rows,
            Work::Removing => self.visits.removing += rows,
        }
    }

    /// The rows visited in this turn so far.
    pub(crate) fn visits(&self) -> Visits {
        self.visits
    }
}
