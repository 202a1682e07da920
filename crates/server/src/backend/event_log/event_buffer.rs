//! A ring buffer of the last events, which subscribers read.
//!
//! **Invariant.** A subscriber that reads from a position sees every later event, in order and once, or learns that some
//! were overwritten. Memory grows neither with the number of subscribers nor with their lag: a subscriber is a position
//! in the buffer, and loses its connection when that position is overwritten.
//!
//! **What would break it.** A queue per subscriber: the queue of a slow one grows without bound. A bounded queue that
//! drops events: the subscriber believes that nothing happened.
//!
//! An entry holds the id of a lease, not its members: they never change, and are looked up when the entry is first read.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use engine::observe::ContentionEvent;
use kernel::{AgentName, Event, Identity, Lsn, Member, Namespace, Shard};
use tokio::sync::watch;

/// Capacity of the buffer, in events.
pub(crate) const EVENTS_MAX: usize = 4096;

/// Identifies an event: the LSN of its record, its index in that record, and the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    pub(crate) lsn: Lsn,
    pub(crate) index: u32,
    pub(crate) shard: Shard,
}

impl EventId {
    /// Parses `LSN.index`, or `LSN.index.shard` for any shard but the first.
    pub(crate) fn parse(text: &str) -> Option<EventId> {
        let mut parts = text.split('.').map(|part| {
            let plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            part.parse::<u64>().ok().filter(|_| plain)
        });
        let (lsn, index) = (parts.next()??, parts.next()??);
        let shard = parts.next().map_or(Some(0), |shard| shard)?;
        let small = |number: u64| u32::try_from(number).ok();
        let id = EventId { lsn: Lsn(lsn), index: small(index)?, shard: Shard(small(shard)?) };
        parts.next().is_none().then_some(id)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.lsn.0, self.index)?;
        match self.shard.0 {
            0 => Ok(()),
            shard => write!(f, ".{shard}"),
        }
    }
}

/// The content of a buffered event.
#[derive(Debug)]
pub(crate) enum EventKind {
    /// A change of a lease or of a document under it.
    Lease(Event),
    /// A request met conflicting leases.
    Contention(Arc<ContentionEvent>),
}

/// One event in the buffer.
#[derive(Debug)]
pub(crate) struct BufferedEvent {
    pub(crate) id: EventId,
    /// When it was recorded, by the server's wall clock.
    pub(crate) unix_ms: u64,
    pub(crate) kind: EventKind,
    /// Set when the event is first read; `None` if the lease's history was deleted by then.
    pub(crate) subject: OnceLock<Option<Subject>>,
}

/// The attributes of a lease that never change.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) namespace: Namespace,
    pub(crate) identity: Identity,
    pub(crate) agent: Option<AgentName>,
    pub(crate) members: Vec<Member>,
}

/// The buffer, and the signal that wakes its subscribers.
pub(crate) struct EventBuffer {
    state: Mutex<BufferState>,
    /// Signals new events; true once the buffer is closed.
    closed: watch::Sender<bool>,
    /// Held by the subscriber that looks up subjects, for all others.
    pub(crate) resolving: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct BufferState {
    entries: VecDeque<Arc<BufferedEvent>>,
    /// The position of the next event.
    next: u64,
    /// The LSN and the index of the next event of each shard.
    ids: BTreeMap<Shard, (Lsn, u32)>,
}

/// The events from a position on.
pub(crate) enum BufferRead {
    /// These events, and the position after them.
    Events(Vec<Arc<BufferedEvent>>, u64),
    /// The position was overwritten.
    Overwritten,
}

impl Default for EventBuffer {
    fn default() -> EventBuffer {
        let closed = watch::Sender::new(false);
        EventBuffer { state: Mutex::default(), closed, resolving: tokio::sync::Mutex::new(()) }
    }
}

impl EventBuffer {
    pub(crate) fn record(&self, events: &[(Lsn, Vec<Event>)], unix_ms: u64) {
        let all =
            events.iter().flat_map(|(lsn, events)| events.iter().zip(0..).map(move |event| (*lsn, event)));
        self.append(
            all.filter_map(|(lsn, (event, index))| {
                let shard = lease_of(event)?.shard;
                Some((EventId { lsn, index, shard }, EventKind::Lease(event.clone())))
            }),
            unix_ms,
        );
    }

    /// A conflict has no record in the log: its id follows that of the shard's last event.
    pub(crate) fn record_contention(&self, shard: Shard, contended: &Arc<ContentionEvent>, unix_ms: u64) {
        let (lsn, index) = match self.state().ids.get(&shard) {
            Some((last, next)) if *last >= contended.after => (*last, *next),
            _ => (contended.after, 0),
        };
        self.append(
            std::iter::once((EventId { lsn, index, shard }, EventKind::Contention(Arc::clone(contended)))),
            unix_ms,
        );
    }

    fn append(&self, new: impl Iterator<Item = (EventId, EventKind)>, unix_ms: u64) {
        let mut state = self.state();
        for (id, kind) in new {
            state.ids.insert(id.shard, (id.lsn, id.index + 1));
            state.next += 1;
            if state.entries.len() == EVENTS_MAX {
                state.entries.pop_front();
            }
            state.entries.push_back(Arc::new(BufferedEvent { id, unix_ms, kind, subject: OnceLock::new() }));
        }
        drop(state);
        // A subscriber that comes after this check reads the buffer before it waits.
        if self.closed.receiver_count() > 0 {
            self.closed.send_modify(|_| {});
        }
    }

    /// A shard has another owner now, or had one until now, and its events are missing here: what is in the buffer is
    /// forgotten, and every reader learns that it has missed something.
    pub(crate) fn interrupt(&self) {
        let mut state = self.state();
        state.entries.clear();
        state.next += 1;
        drop(state);
        self.closed.send_modify(|_| {});
    }

    /// Ends all subscriptions.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Changes with every new event; its value is whether the buffer is closed.
    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// The position of the next event.
    pub(crate) fn end(&self) -> u64 {
        self.state().next
    }

    /// The position after an event; `None` if that was overwritten.
    pub(crate) fn after(&self, id: EventId) -> Option<u64> {
        let state = self.state();
        let first = state.next - state.entries.len() as u64;
        let found = state.entries.iter().position(|entry| entry.id == id)?;
        Some(first + found as u64 + 1)
    }

    /// Reads at most `events_max` events from a position on.
    pub(crate) fn read(&self, from: u64, events_max: usize) -> BufferRead {
        let state = self.state();
        let first = state.next - state.entries.len() as u64;
        let Some(skip) = from.checked_sub(first) else { return BufferRead::Overwritten };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(state.entries.len());
        let entries: Vec<_> = state.entries.range(skip..).take(events_max).cloned().collect();
        let next = from + entries.len() as u64;
        BufferRead::Events(entries, next)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lease of an event; `None` for events that subscribers do not get.
pub(crate) fn lease_of(event: &Event) -> Option<kernel::LeaseId> {
    // The grant was sent with the reservation.
    event.lease().filter(|_| !matches!(event, Event::Activated(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{LeaseId, Token};

    fn granted(buffer: &EventBuffer, shard: u32, lsn: u64) {
        let lease = LeaseId { shard: Shard(shard), lsn: Lsn(lsn) };
        buffer.record(&[(Lsn(lsn), vec![Event::Granted(lease, Token(lsn))])], lsn);
    }

    fn id(text: &str) -> EventId {
        EventId::parse(text).expect(text)
    }

    #[test]
    fn ids_are_spelled_in_one_way() {
        for text in ["5.0", "5.12", "9007199254740991.3.7"] {
            assert_eq!(id(text).to_string(), text);
        }
        for bad in ["", "5", "5.", ".5", "5.-1", "5.+1", "5.0.0.0", "a.b", "5.4294967296", "5 .0"] {
            assert_eq!(EventId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_reader_resumes_after_an_event_until_it_is_overwritten() {
        let buffer = EventBuffer::default();
        (1..=10).for_each(|lsn| granted(&buffer, 0, lsn));
        let from = buffer.after(id("7.0")).expect("it is there");
        let BufferRead::Events(entries, next) = buffer.read(from, 2) else {
            panic!("nothing is overwritten")
        };
        assert_eq!(entries.iter().map(|entry| entry.id.lsn.0).collect::<Vec<_>>(), [8, 9]);
        let BufferRead::Events(rest, next) = buffer.read(next, 100) else { panic!("nothing is overwritten") };
        assert_eq!((rest.len(), next), (1, buffer.end()));
        (11..=EVENTS_MAX as u64 + 10).for_each(|lsn| granted(&buffer, 0, lsn));
        assert!(buffer.after(id("7.0")).is_none());
        assert!(matches!(buffer.read(from, 2), BufferRead::Overwritten));
        assert_eq!(buffer.state().entries.len(), EVENTS_MAX, "the capacity");
        assert!(matches!(buffer.read(next, 1), BufferRead::Events(..)), "the oldest event");
    }

    /// LSNs are per shard: two shards had the same LSN, and a reader of one resumed in the other.
    /// A server lost a shard and got it back. A subscriber resumed behind an event from before, which was still in the buffer,
    /// and never learned what the other owner had granted.
    #[test]
    fn a_reader_from_before_another_owner_learns_that_it_missed_something() {
        let buffer = EventBuffer::default();
        granted(&buffer, 0, 5);
        let (known, at_end) = (id("5.0"), buffer.end());
        buffer.interrupt();
        granted(&buffer, 0, 9);
        assert_eq!(buffer.after(known), None);
        assert!(matches!(buffer.read(at_end, 10), BufferRead::Overwritten));
        assert!(matches!(buffer.read(buffer.end(), 10), BufferRead::Events(events, _) if events.is_empty()));
        assert!(buffer.after(id("9.0")).is_some());
    }

    #[test]
    fn equal_lsns_of_two_shards_are_two_events() {
        let buffer = EventBuffer::default();
        granted(&buffer, 0, 5);
        granted(&buffer, 1, 5);
        assert_eq!((buffer.after(id("5.0")), buffer.after(id("5.0.1"))), (Some(1), Some(2)));
    }
}
