//! The last things that happened, for those who follow.
//!
//! **Invariant.** Whoever follows from a place in the ring sees every entry after it, in order and once, or is told that it
//! missed some. What is kept does not grow with the number of readers, nor with how slow they are: each has a place in
//! the ring and nothing else, and one whose place has been written over has lost its connection.
//!
//! **What would break it.** A queue for each reader: the slowest one's grows until memory is full. To drop what a queue
//! has no room for: the reader believes that nothing happened.
//!
//! An entry names a lease, not what it covers: that does not change, and is looked up when somebody reads it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use engine::ContentionEvent;
use kernel::{AgentName, Event, Identity, Lsn, Member, Namespace, Shard};
use tokio::sync::watch;

/// How many entries are kept.
pub(crate) const RING_MAX: usize = 4096;

/// An event's place in what happened: the record, which of its events, and the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    pub(crate) lsn: Lsn,
    pub(crate) index: u32,
    pub(crate) shard: Shard,
}

impl EventId {
    /// `LSN.index`; of any shard but the first, `LSN.index.shard`.
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

/// What happened.
#[derive(Debug)]
pub(crate) enum What {
    /// To a lease.
    Lease(Event),
    /// Somebody met others in its way.
    ContentionEvent(Arc<ContentionEvent>),
}

/// Something that happened.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: EventId,
    pub(crate) what: What,
    /// Whose lease it was, once somebody has looked; `None` if its history was gone by then.
    pub(crate) subject: OnceLock<Option<Subject>>,
}

/// What does not change about a lease.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) namespace: Namespace,
    pub(crate) identity: Identity,
    pub(crate) agent: Option<AgentName>,
    pub(crate) members: Vec<Member>,
}

/// The ring, and those who wait for more.
pub(crate) struct Ring {
    kept: Mutex<Kept>,
    /// Changes when something happened; true once nothing will any more.
    closed: watch::Sender<bool>,
    /// One reader looks things up for all.
    pub(crate) resolving: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Kept {
    entries: VecDeque<Arc<Entry>>,
    /// The place of the next entry.
    next: u64,
    /// The next event of each shard.
    ids: BTreeMap<Shard, (Lsn, u32)>,
}

/// What is in the ring from a place on.
pub(crate) enum Taken {
    /// These, and where to go on.
    Entries(Vec<Arc<Entry>>, u64),
    /// That place has been written over.
    Lost,
}

impl Default for Ring {
    fn default() -> Ring {
        let closed = watch::Sender::new(false);
        Ring { kept: Mutex::default(), closed, resolving: tokio::sync::Mutex::new(()) }
    }
}

impl Ring {
    pub(crate) fn happened(&self, events: &[(Lsn, Vec<Event>)]) {
        let all =
            events.iter().flat_map(|(lsn, events)| events.iter().zip(0..).map(move |event| (*lsn, event)));
        self.add(all.filter_map(|(lsn, (event, index))| {
            let shard = lease_of(event)?.shard;
            Some((EventId { lsn, index, shard }, What::Lease(event.clone())))
        }));
    }

    /// It has no record of its own: it comes after all that was told before.
    pub(crate) fn contended(&self, shard: Shard, contended: &Arc<ContentionEvent>) {
        let (lsn, index) = match self.kept().ids.get(&shard) {
            Some((last, next)) if *last >= contended.after => (*last, *next),
            _ => (contended.after, 0),
        };
        self.add(std::iter::once((
            EventId { lsn, index, shard },
            What::ContentionEvent(Arc::clone(contended)),
        )));
    }

    fn add(&self, new: impl Iterator<Item = (EventId, What)>) {
        let mut kept = self.kept();
        for (id, what) in new {
            kept.ids.insert(id.shard, (id.lsn, id.index + 1));
            kept.next += 1;
            if kept.entries.len() == RING_MAX {
                kept.entries.pop_front();
            }
            kept.entries.push_back(Arc::new(Entry { id, what, subject: OnceLock::new() }));
        }
        drop(kept);
        // Whoever subscribes after this looks into the ring before it waits.
        if self.closed.receiver_count() > 0 {
            self.closed.send_modify(|_| {});
        }
    }

    /// Nothing will happen any more.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Tells when more has happened; what it holds is whether that was all.
    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// The place of what happens next.
    pub(crate) fn end(&self) -> u64 {
        self.kept().next
    }

    /// The place after an entry; `None` if that is not there any more.
    pub(crate) fn after(&self, id: EventId) -> Option<u64> {
        let kept = self.kept();
        let first = kept.next - kept.entries.len() as u64;
        let found = kept.entries.iter().position(|entry| entry.id == id)?;
        Some(first + found as u64 + 1)
    }

    /// At most so many entries from a place on.
    pub(crate) fn take(&self, from: u64, most: usize) -> Taken {
        let kept = self.kept();
        let first = kept.next - kept.entries.len() as u64;
        let Some(skip) = from.checked_sub(first) else { return Taken::Lost };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(kept.entries.len());
        let entries: Vec<_> = kept.entries.range(skip..).take(most).cloned().collect();
        let next = from + entries.len() as u64;
        Taken::Entries(entries, next)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lease that an event is about; `None` for what is not told.
pub(crate) fn lease_of(event: &Event) -> Option<kernel::LeaseId> {
    match event {
        Event::Granted(lease, _)
        | Event::Rebound(lease, _)
        | Event::Released(lease)
        | Event::Expired { lease, .. }
        | Event::Revoked(lease)
        | Event::Reclaimed(lease)
        | Event::Committed { lease, .. }
        | Event::Removed { lease, .. } => Some(*lease),
        // Its grant was told with the reservation; what goes with its namespace goes under no lease.
        Event::Activated(_) | Event::Dropped { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{LeaseId, Token};

    fn granted(ring: &Ring, shard: u32, lsn: u64) {
        let lease = LeaseId { shard: Shard(shard), lsn: Lsn(lsn) };
        ring.happened(&[(Lsn(lsn), vec![Event::Granted(lease, Token(lsn))])]);
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
    fn a_reader_goes_on_after_what_it_saw_until_that_is_written_over() {
        let ring = Ring::default();
        (1..=10).for_each(|lsn| granted(&ring, 0, lsn));
        let from = ring.after(id("7.0")).expect("it is there");
        let Taken::Entries(entries, next) = ring.take(from, 2) else { panic!("nothing is lost") };
        assert_eq!(entries.iter().map(|entry| entry.id.lsn.0).collect::<Vec<_>>(), [8, 9]);
        let Taken::Entries(rest, next) = ring.take(next, 100) else { panic!("nothing is lost") };
        assert_eq!((rest.len(), next), (1, ring.end()));
        (11..=RING_MAX as u64 + 10).for_each(|lsn| granted(&ring, 0, lsn));
        assert!(ring.after(id("7.0")).is_none());
        assert!(matches!(ring.take(from, 2), Taken::Lost));
        assert_eq!(ring.kept().entries.len(), RING_MAX, "and no more is kept");
        assert!(matches!(ring.take(next, 1), Taken::Entries(..)), "the first that is kept");
    }

    /// Shards count their records apart: two had the same LSN, and a reader of one went on in the other.
    #[test]
    fn the_same_record_of_another_shard_is_another_event() {
        let ring = Ring::default();
        granted(&ring, 0, 5);
        granted(&ring, 1, 5);
        assert_eq!((ring.after(id("5.0")), ring.after(id("5.0.1"))), (Some(1), Some(2)));
    }
}
