//! Tells whether one connection alone sends requests.
//!
//! A thread of the event loop must not block: others wait for it. But when a single client sends one request after the
//! other, nothing waits, and handing each batch to another thread costs more than the sync itself. So a connection that has
//! sent the last few requests of the server may append on its own thread.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Requests in a row after which a connection counts as alone.
const REQUESTS: u32 = 4;

/// The last requests of all connections.
#[derive(Default)]
pub(crate) struct LoneCaller {
    /// The connection of the last request.
    last: AtomicUsize,
    /// How many requests in a row it has sent before.
    requests: AtomicU32,
}

impl LoneCaller {
    /// Counts a request of this connection. Whether the last requests were all its own.
    pub(crate) fn count(&self, connection: usize) -> bool {
        if self.last.swap(connection, Ordering::Relaxed) != connection {
            self.requests.store(0, Ordering::Relaxed);
            return false;
        }
        // Counts of two connections may mix: then one of them blocks for one request, as it may.
        self.requests.fetch_add(1, Ordering::Relaxed) + 1 >= REQUESTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_alone_until_another_sends_a_request() {
        let callers = LoneCaller::default();
        let alone: Vec<bool> = [1, 1, 1, 1, 1, 1, 2, 1, 1].map(|connection| callers.count(connection)).into();
        assert_eq!(alone, [false, false, false, false, true, true, false, false, false]);
    }
}
