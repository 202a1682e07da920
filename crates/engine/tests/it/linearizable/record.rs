//! The history of a round: calls with the times of their invocation and return, from one counter for all threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use kernel::{Lsn, ResourceName};
use sim::linearizability::Call;
use sim::linearizability::operation::{CallResult, Op, ResourceNumber};

/// A group of keys that bundles may join: the calls on it are checked together.
pub(crate) type GroupNumber = usize;

/// The groups of a round, and the calls on each.
pub(crate) struct Recorder {
    counter: AtomicU64,
    groups: Vec<GroupHistory>,
}

struct GroupHistory {
    names: Vec<ResourceName>,
    /// LSN of the last lease that was granted, or 0: the target of revokes and reclaims.
    last_granted: AtomicU64,
    calls: Mutex<Vec<Call<Op>>>,
}

impl Recorder {
    pub(crate) fn new(round: u64, groups: usize, keys: usize) -> Recorder {
        let name = |group: usize, key: usize| {
            ResourceName::key(&format!("round-{round}-{group}-{key}")).expect("a valid key")
        };
        let group = |group| GroupHistory {
            names: (0..keys).map(|key| name(group, key)).collect(),
            last_granted: AtomicU64::new(0),
            calls: Mutex::default(),
        };
        Recorder { counter: AtomicU64::new(0), groups: (0..groups).map(group).collect() }
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    pub(crate) fn keys(&self) -> usize {
        self.groups[0].names.len()
    }

    pub(crate) fn name(&self, group: GroupNumber, key: ResourceNumber) -> &ResourceName {
        &self.groups[group].names[key]
    }

    /// The next time stamp: taken before the invocation and after the return.
    pub(crate) fn count(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn record(&self, group: GroupNumber, invoked: u64, returned: u64, op: Op) {
        if let CallResult::Granted { lease, .. } = &op.result {
            self.groups[group].last_granted.store(lease.0, Ordering::SeqCst);
        }
        let mut calls = self.groups[group].calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(Call { op, invoked, returned });
    }

    pub(crate) fn last_granted(&self, group: GroupNumber) -> Option<Lsn> {
        Some(Lsn(self.groups[group].last_granted.load(Ordering::SeqCst))).filter(|lease| lease.0 > 0)
    }

    pub(crate) fn histories(&self) -> Vec<Vec<Call<Op>>> {
        let calls = |group: &GroupHistory| group.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.groups.iter().map(calls).collect()
    }
}
