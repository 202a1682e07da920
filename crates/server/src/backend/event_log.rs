//! What happens, as the engines tell it: kept for those who follow events, and for those who ask who is in whose way.
//! Everything here is bounded, and gone with the process.

pub(crate) mod ring;
pub(crate) mod subscribers;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use engine::ContentionEvent;
use kernel::{Event, LeaseId, Lsn, Shard};

use crate::backend::event_log::ring::Ring;

/// How many are remembered who met others in their way.
const CONTENDED_MAX: usize = 4096;
/// How many leases are remembered that ran out.
const EXPIRED_MAX: usize = 512;

/// What happened lately.
#[derive(Default)]
pub(crate) struct News {
    pub(crate) events: Ring,
    lately: Mutex<Lately>,
}

/// The last ones of each kind, the oldest first.
#[derive(Clone, Default)]
pub(crate) struct Lately {
    pub(crate) contended: VecDeque<Arc<ContentionEvent>>,
    pub(crate) expired: VecDeque<LeaseId>,
}

impl News {
    pub(crate) fn happened(&self, events: &[(Lsn, Vec<Event>)]) {
        self.events.happened(events);
        let expired = events.iter().flat_map(|(_, events)| events).filter_map(|event| match event {
            Event::Expired { lease, .. } => Some(*lease),
            _ => None,
        });
        let mut expired = expired.peekable();
        if expired.peek().is_some() {
            let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
            expired.for_each(|lease| push(&mut lately.expired, lease, EXPIRED_MAX));
        }
    }

    pub(crate) fn contended(&self, shard: Shard, contended: &[ContentionEvent]) {
        for one in contended.iter().cloned().map(Arc::new) {
            self.events.contended(shard, &one);
            let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
            push(&mut lately.contended, one, CONTENDED_MAX);
        }
    }

    pub(crate) fn lately(&self) -> Lately {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One more; the oldest makes room.
fn push<T>(queue: &mut VecDeque<T>, one: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(one);
}
