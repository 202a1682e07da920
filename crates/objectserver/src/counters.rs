//! Requests by operation, and bytes of bodies in both directions.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::call::Operation;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: [AtomicU64; Operation::ALL.len()],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, operation: Operation, received_bytes: u64) {
        self.requests[operation as usize].fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(received_bytes, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> RequestCounts {
        RequestCounts {
            requests: std::array::from_fn(|index| self.requests[index].load(Ordering::Relaxed)),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn reset(&self) {
        let bytes = [&self.received_bytes, &self.sent_bytes];
        self.requests.iter().chain(bytes).for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

/// The requests that a server has received since its start or the last reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestCounts {
    requests: [u64; Operation::ALL.len()],
    /// Bytes of request bodies.
    pub received_bytes: u64,
    /// Bytes of response bodies.
    pub sent_bytes: u64,
}

impl RequestCounts {
    /// The number of requests of one kind, also those that were refused or failed.
    pub fn of(&self, operation: Operation) -> u64 {
        self.requests[operation as usize]
    }

    /// The number of all requests.
    pub fn total(&self) -> u64 {
        self.requests.iter().sum()
    }
}

impl fmt::Display for RequestCounts {
    /// `put=3 get=1 received_bytes=12 sent_bytes=4`, without the operations that did not occur.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for operation in Operation::ALL.into_iter().filter(|operation| self.of(*operation) > 0) {
            write!(formatter, "{}={} ", operation.name(), self.of(operation))?;
        }
        write!(formatter, "received_bytes={} sent_bytes={}", self.received_bytes, self.sent_bytes)
    }
}
