//! Holds: requests that stop at a chosen moment until a test releases them.
//!
//! **Invariant.** A held write that is released takes effect, also if its client has closed the connection meanwhile.
//! **What would break it.** Running it as a part of the connection: `serve` gives such requests a task of their own.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::call::{Call, Operation};

/// The moment at which a request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The server has received the request; it has had no effect.
    BeforeEffect,
    /// The request has taken effect; the response has not been sent.
    BeforeResponse,
}

/// Keeps the requests that it concerns until it is released or dropped.
#[derive(Debug)]
pub struct Hold(pub(crate) Arc<Gate>);

impl Hold {
    /// The number of requests that are held now.
    pub fn waiting(&self) -> usize {
        self.0.waiting()
    }

    /// Blocks until `count` requests are held. Returns false if they are not within `timeout`.
    pub fn wait_for(&self, count: usize, timeout: Duration) -> bool {
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.0.arrived.wait_timeout_while(waiting, timeout, |waiting| *waiting < count);
        result.is_ok_and(|(waiting, _)| *waiting >= count)
    }

    /// Lets the held requests, and all later ones, proceed.
    pub fn release(self) {}
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.open.send_replace(true);
    }
}

#[derive(Debug)]
pub(crate) struct Gate {
    operation: Operation,
    key_prefix: String,
    moment: Moment,
    open: watch::Sender<bool>,
    waiting: Mutex<usize>,
    arrived: Condvar,
}

impl Gate {
    pub(crate) fn new(operation: Operation, key_prefix: &str, moment: Moment) -> Self {
        Self {
            operation,
            key_prefix: key_prefix.to_owned(),
            moment,
            open: watch::Sender::new(false),
            waiting: Mutex::new(0),
            arrived: Condvar::new(),
        }
    }

    pub(crate) fn moment(&self) -> Moment {
        self.moment
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    pub(crate) fn concerns(&self, call: &Call) -> bool {
        !self.is_open() && call.operation() == self.operation && call.concerns(&self.key_prefix)
    }

    pub(crate) async fn pass(&self) {
        self.count(1);
        let mut open = self.open.subscribe();
        // An error means that the sender is gone, which is as good as open.
        let _ = open.wait_for(|open| *open).await;
        self.count(-1);
    }

    fn count(&self, change: isize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = waiting.saturating_add_signed(change);
        self.arrived.notify_all();
    }

    fn waiting(&self) -> usize {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
