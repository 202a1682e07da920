//! The connection of a waiter, and how long it may wait.
//!
//! The waiter, the wait queues and the task that serves the connection share one [`WaiterConnection`]. Connections
//! are compared by a unique number, not by address: addresses are reused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kernel::Span;

use crate::authorization::Authorization;

/// The terms on which a request for a lease waits.
#[derive(Clone, Debug)]
pub struct Wait {
    /// The maximum time to wait. There is no waiting without a timeout.
    pub timeout: Span,
    /// The connection that receives the reply. Once it is closed, or its client's authorization is withdrawn, the waiter
    /// is removed and not granted anything.
    pub connection: WaiterConnection,
}

/// The connection that waits for a reply. Clones are the same connection.
#[derive(Clone, Debug)]
pub struct WaiterConnection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    number: u64,
    closed: AtomicBool,
    authorization: Authorization,
}

impl Default for WaiterConnection {
    fn default() -> WaiterConnection {
        WaiterConnection::new(Authorization::default())
    }
}

impl WaiterConnection {
    /// The connection of a client with this authorization.
    pub fn new(authorization: Authorization) -> WaiterConnection {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        WaiterConnection(Arc::new(Shared { number, closed: AtomicBool::new(false), authorization }))
    }

    /// Marks the connection as closed: its waiter is not granted anything from now on.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
    }

    /// Whether the connection has closed, or its client may no longer act.
    pub fn is_closed(&self) -> bool {
        let is_withdrawn = self.0.authorization.is_withdrawn() && !planted!(WithdrawnWaits);
        self.0.closed.load(Ordering::Acquire) || is_withdrawn
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

    #[test]
    fn a_connection_is_closed_once_its_authorization_is_withdrawn() {
        let authorization = Authorization::new();
        let connection = WaiterConnection::new(authorization.clone());
        assert!(!connection.is_closed());
        authorization.withdraw();
        assert!(connection.is_closed());
    }
}
