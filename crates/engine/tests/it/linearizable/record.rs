//! What was asked and answered, in the order in which it was: one counter for all threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use kernel::{Lsn, ResourceName};
use sim::linearizability::Call;
use sim::linearizability::key::Op;

/// One round: its keys, and what was done to each.
pub(crate) struct Recorder {
    counter: AtomicU64,
    keys: Vec<Recorded>,
}

struct Recorded {
    name: ResourceName,
    /// The last lease that anybody was granted, or 0: for those who revoke.
    last: AtomicU64,
    calls: Mutex<Vec<Call<Op>>>,
}

impl Recorder {
    pub(crate) fn new(round: u64, keys: usize) -> Recorder {
        let key = |number| Recorded {
            name: ResourceName::key(&format!("round-{round}-{number}")).expect("a valid key"),
            last: AtomicU64::new(0),
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

    /// To be called before a call is made, and after it was answered.
    pub(crate) fn count(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn record(&self, key: usize, asked: u64, answered: u64, op: Op) {
        if let Op::Granted { lease, .. } = &op {
            self.keys[key].last.store(lease.0, Ordering::SeqCst);
        }
        let mut calls = self.keys[key].calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(Call { op, asked, answered });
    }

    pub(crate) fn last(&self, key: usize) -> Option<Lsn> {
        Some(Lsn(self.keys[key].last.load(Ordering::SeqCst))).filter(|lease| lease.0 > 0)
    }

    pub(crate) fn histories(&self) -> Vec<Vec<Call<Op>>> {
        let calls = |key: &Recorded| key.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.keys.iter().map(calls).collect()
    }
}
