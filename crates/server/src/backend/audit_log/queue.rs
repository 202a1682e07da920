//! The queue between the threads that publish entries and the thread that writes them.
//!
//! **Invariant.** Its entries and those being written never occupy more than `bytes_max`. Once one entry is lost, all
//! further ones are, until the writer has taken the count: a gap in the file is at one place.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::line::AuditItem;
use crate::backend::metrics::Metrics;

/// The queue.
pub(super) struct AuditQueue {
    bytes_max: usize,
    state: Mutex<QueueState>,
    changed: Condvar,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct QueueState {
    items: VecDeque<AuditItem>,
    /// The size of all items, and of those that the writer has taken.
    bytes: usize,
    taken_bytes: usize,
    /// Items that did not fit after the last one of the queue.
    lost: u64,
    is_closed: bool,
    has_ended: bool,
}

/// What the writer takes at once: items, then the number of items that are missing behind them.
#[derive(Default)]
pub(super) struct QueuedChunk {
    pub(super) items: Vec<AuditItem>,
    pub(super) lost: u64,
    pub(super) is_closed: bool,
}

impl AuditQueue {
    pub(super) fn new(bytes_max: usize, metrics: Arc<Metrics>) -> AuditQueue {
        AuditQueue { bytes_max, state: Mutex::default(), changed: Condvar::new(), metrics }
    }

    pub(super) fn push(&self, items: impl Iterator<Item = AuditItem>) {
        let mut lost = 0;
        let mut state = self.state();
        for item in items {
            let bytes = item.bytes();
            let fits = state.bytes + bytes <= self.bytes_max && state.lost == 0 && !state.is_closed;
            if fits {
                state.bytes += bytes;
                state.items.push_back(item);
            } else {
                state.lost += 1;
                lost += 1;
            }
        }
        self.metrics.audit_queue_bytes(state.bytes);
        drop(state);
        self.metrics.audit_lost(lost);
        self.changed.notify_all();
    }

    /// Takes items of about `bytes`, or none after `timeout`. They count as queued until [`AuditQueue::note_written`].
    pub(super) fn take(&self, bytes: usize, timeout: Duration) -> QueuedChunk {
        let is_idle = |state: &mut QueueState| state.items.is_empty() && state.lost == 0 && !state.is_closed;
        let waited = self.changed.wait_timeout_while(self.state(), timeout, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let mut taken = QueuedChunk { is_closed: state.is_closed, ..QueuedChunk::default() };
        while state.taken_bytes < bytes
            && let Some(item) = state.items.pop_front()
        {
            state.taken_bytes += item.bytes();
            taken.items.push(item);
        }
        if state.items.is_empty() {
            taken.lost = std::mem::take(&mut state.lost);
        }
        taken
    }

    /// Everything that was taken is in the file.
    pub(super) fn note_written(&self) {
        let mut state = self.state();
        state.bytes -= std::mem::take(&mut state.taken_bytes);
        self.metrics.audit_queue_bytes(state.bytes);
    }

    /// Waits until the queue is closed, or for `timeout`. Whether it is closed.
    pub(super) fn wait_until_closed(&self, timeout: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), timeout, |state| !state.is_closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    /// Takes nothing more; the writer writes what is left, and ends.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// The writer has ended. Returns the number of items that it has left.
    pub(super) fn note_ended(&self) -> u64 {
        let mut state = self.state();
        state.has_ended = true;
        let left = state.items.len() as u64;
        state.items.clear();
        drop(state);
        self.changed.notify_all();
        left
    }

    /// Whether the writer has ended in time.
    pub(super) fn wait_until_ended(&self, timeout: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), timeout, |state| !state.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
