//! The history of a round: calls with the times of their invocation and return, from one counter for all threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use kernel::{Lsn, ResourceName};
use sim::linearizability::Call;
use sim::linearizability::key::Op;

/// The keys of a round, and the calls on each.
pub(crate) struct Recorder {
    counter: AtomicU64,
    keys: Vec<KeyHistory>,
}

struct KeyHistory {
    name: ResourceName,
    /// LSN of the last lease that was granted, or 0: the target of revokes and reclaims.
    last_granted: AtomicU64,
    calls: Mutex<Vec<Call<Op>>>,
}

impl Recorder {
    pub(crate) fn new(round: u64, keys: usize) -> Recorder {
        let key = |number| KeyHistory {
            name: ResourceName::key(&format!("round-{round}-{number}")).expect("a valid key"),
            last_granted: AtomicU64::new(0),
            calls: Mutex::default(),
        };
        Recorder { counter: AtomicU64::new(0), keys: (0..keys).map(key).collect() }
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn name(&self, key: usize) -> &ResourceName {
        &self.keys[key].name
    }

    /// The next time stamp: taken before the invocation and after the return.
    pub(crate) fn count(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn record(&self, key: usize, invoked: u64, returned: u64, op: Op) {
        if let Op::Granted { lease, .. } = &op {
            self.keys[key].last_granted.store(lease.0, Ordering::SeqCst);
        }
        let mut calls = self.keys[key].calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(Call { op, invoked, returned });
    }

    pub(crate) fn last_granted(&self, key: usize) -> Option<Lsn> {
        Some(Lsn(self.keys[key].last_granted.load(Ordering::SeqCst))).filter(|lease| lease.0 > 0)
    }

    pub(crate) fn histories(&self) -> Vec<Vec<Call<Op>>> {
        let calls = |key: &KeyHistory| key.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.keys.iter().map(calls).collect()
    }
}
