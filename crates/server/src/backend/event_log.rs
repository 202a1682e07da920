//! Recent events of all shards: a buffer for subscribers, and the last conflicts and expiries for the contention view.
//! Everything here is bounded, and lost when the process ends.

pub(crate) mod event_buffer;
pub(crate) mod subscribers;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use engine::observe::ContentionEvent;
use kernel::{Event, LeaseId, Lsn, Shard};

use crate::backend::event_log::event_buffer::EventBuffer;
use crate::backend::moment::{WallClock, unix_ms};

/// How many conflicts are remembered.
const CONTENDED_MAX: usize = 4096;
/// How many expired leases are remembered.
const EXPIRED_MAX: usize = 512;

/// Recent events of all shards.
pub(crate) struct EventLog {
    pub(crate) events: EventBuffer,
    recent: Mutex<RecentActivity>,
    wall: WallClock,
}

/// The last conflicts and expiries, the oldest first.
#[derive(Clone, Default)]
pub(crate) struct RecentActivity {
    pub(crate) contended: VecDeque<Arc<ContentionEvent>>,
    pub(crate) expired: VecDeque<LeaseId>,
}

impl EventLog {
    /// An empty log; events get the time of this clock.
    pub(crate) fn new(wall: WallClock) -> EventLog {
        EventLog { events: EventBuffer::default(), recent: Mutex::default(), wall }
    }

    pub(crate) fn record(&self, events: &[(Lsn, Vec<Event>)]) {
        self.events.record(events, unix_ms(&self.wall));
        let expired = events.iter().flat_map(|(_, events)| events).filter_map(|event| match event {
            Event::Expired { lease, .. } => Some(*lease),
            _ => None,
        });
        let mut expired = expired.peekable();
        if expired.peek().is_some() {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            expired.for_each(|lease| push(&mut recent.expired, lease, EXPIRED_MAX));
        }
    }

    pub(crate) fn record_contention(&self, shard: Shard, contended: &[ContentionEvent]) {
        let now = unix_ms(&self.wall);
        for event in contended.iter().cloned().map(Arc::new) {
            self.events.record_contention(shard, &event, now);
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            push(&mut recent.contended, event, CONTENDED_MAX);
        }
    }

    pub(crate) fn recent(&self) -> RecentActivity {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Appends a value, and drops the oldest one of a full queue.
fn push<T>(queue: &mut VecDeque<T>, value: T, length_max: usize) {
    if queue.len() == length_max {
        queue.pop_front();
    }
    queue.push_back(value);
}
