//! The history of a round: one call for each request, from its first try to its response.
//!
//! A grant that reached no client is undone, and until then it blocks other requests: an unseen lease. So a conflict is
//! judged only if no conflicting acquire was unsettled at that time: one with a lost try, until a grant is stored under
//! its key, or one that waits in the queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sim::linearizability::Call;
use sim::linearizability::operation::{CallResult, Members, Op};

/// The keys of a round.
pub(super) const KEYS: usize = 2;

pub(super) struct History {
    round: u64,
    counter: AtomicU64,
    resets: AtomicU64,
    calls: Mutex<Vec<Call<Op>>>,
    unsettled: Mutex<Vec<UnsettledAcquire>>,
}

/// An acquire that may have held its resources, or its place in the queue, without a response that shows it.
struct UnsettledAcquire {
    members: Members,
    invoked: u64,
    settled: u64,
}

impl History {
    pub(super) fn new(round: u64) -> History {
        let counter = || AtomicU64::new(0);
        let (calls, unsettled) = (Mutex::default(), Mutex::default());
        History { round, counter: counter(), resets: counter(), calls, unsettled }
    }

    pub(super) fn key(&self, resource: usize) -> String {
        format!("round-{}-{resource}", self.round)
    }

    /// The next time stamp.
    pub(super) fn count(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) fn count_reset(&self) {
        self.resets.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }

    pub(super) fn record(&self, invoked: u64, returned: u64, op: Op) {
        lock(&self.calls).push(Call { op, invoked, returned });
    }

    /// An acquire was lost at least once, or may have waited. `settled`: the time from which it is known that no try of it
    /// will be granted any more.
    pub(super) fn unsettled(&self, members: Members, invoked: u64, settled: Option<u64>) {
        let settled = settled.unwrap_or(u64::MAX);
        lock(&self.unsettled).push(UnsettledAcquire { members, invoked, settled });
    }

    /// All calls that can be judged.
    pub(super) fn calls(&self) -> Vec<Call<Op>> {
        let unsettled = lock(&self.unsettled);
        let overlaps = |call: &Call<Op>, members: &Members, other: &UnsettledAcquire| {
            let shares = |resource: usize| other.members.iter().any(|(theirs, _)| *theirs == resource);
            let is_other = call.invoked != other.invoked;
            let at_once = call.invoked < other.settled && other.invoked < call.returned;
            is_other && at_once && members.iter().any(|(resource, _)| shares(*resource))
        };
        let judged = |call: &&Call<Op>| match &call.op.result {
            CallResult::Blocked { members, .. } => {
                !unsettled.iter().any(|other| overlaps(call, members, other))
            }
            _ => true,
        };
        lock(&self.calls).iter().filter(judged).cloned().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
