//! Whether the connection of a waiter has closed.
//!
//! The waiter, the wait queue and the task that serves the connection share one [`WaiterConnection`]. It is told from
//! others by its number, never by its address: an address is used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The connection that waits for a reply. Clones are the same connection.
#[derive(Clone, Debug)]
pub struct WaiterConnection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    number: u64,
    closed: AtomicBool,
}

impl Default for WaiterConnection {
    fn default() -> WaiterConnection {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        WaiterConnection(Arc::new(Shared { number, closed: AtomicBool::new(false) }))
    }
}

impl WaiterConnection {
    /// From now on the waiter is not granted anything.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
    }

    /// Whether it has closed.
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// Unique within the process.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }
}

impl PartialEq for WaiterConnection {
    fn eq(&self, other: &WaiterConnection) -> bool {
        self.number() == other.number()
    }
}

impl Eq for WaiterConnection {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_one_connection_and_others_are_not() {
        let (one, other) = (WaiterConnection::default(), WaiterConnection::default());
        let clone = one.clone();
        assert!(one == clone && one != other);
        clone.close();
        assert!(one.is_closed() && !other.is_closed());
    }
}
