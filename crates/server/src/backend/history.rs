//! The recent past of every resource and agent: a ring of events for each, for the timeline of a key.
//!
//! **Invariant.** A history is complete from the time that it names, and goes back at most one hour. The rings of all
//! subjects together, and each ring, have a maximum in bytes; the oldest entries are dropped first. A subject is known by
//! a hash of its name, so that long names cost nothing.
//!
//! **What would break it.** To drop an entry without raising the time from which the history is complete: a reader would
//! believe that nothing happened.
//!
//! **What is absent.** Durability: a history is lost when the process ends. Looking up leases: `history_feed` does that.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::limits::LimitUsage;
use engine::observe::ContentionOutcome;
use kernel::{AgentName, Event, Identity, LeaseId, Namespace, ResourceName, Token};

use crate::backend::event_log::event_buffer::EventId;

/// How long an entry is kept, in milliseconds.
pub(crate) const KEPT_MS: u64 = 3_600_000;
/// The largest ring of one subject, in bytes.
const RING_BYTES_MAX: u64 = 64 << 10;
/// A record with its allocation, in bytes, without names and lists.
const RECORD_BYTES: usize = size_of::<HistoryRecord>() + 32;
/// An entry of a ring and its place in the order of all, in bytes.
const ENTRY_BYTES: u64 = 64;
/// A ring without entries, in bytes.
const RING_BYTES: u64 = 128;
/// How many entries of a ring are searched for the last event of a lease: most often it is the last entry.
const SEARCHED_MAX: usize = 64;

/// One event, as all subjects that it concerns share it.
#[derive(Debug)]
pub(crate) struct HistoryRecord {
    pub(crate) id: EventId,
    pub(crate) unix_ms: u64,
    pub(crate) identity: Identity,
    pub(crate) agent: Option<AgentName>,
    pub(crate) fact: HistoryFact,
    /// The number of members of the lease or of the request.
    pub(crate) members: usize,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum HistoryFact {
    /// A lease changed, or a document under it.
    Lease {
        event: Event,
        lease: LeaseId,
        token: Token,
        /// The epoch after the event.
        epoch: u64,
    },
    /// A request met conflicting leases.
    Contention { outcome: ContentionOutcome, holders: Vec<LeaseId> },
}

impl HistoryRecord {
    fn bytes(&self) -> usize {
        let agent = self.agent.as_ref().map_or(0, |agent| agent.as_str().len());
        let listed = match &self.fact {
            HistoryFact::Contention { holders, .. } => size_of_val(holders.as_slice()),
            HistoryFact::Lease {
                event: Event::Committed { key, .. } | Event::Removed { key, .. }, ..
            } => key.as_str().len(),
            HistoryFact::Lease { .. } => 0,
        };
        RECORD_BYTES + self.identity.as_str().len() + agent + listed
    }

    fn lease(&self) -> Option<LeaseId> {
        match &self.fact {
            HistoryFact::Lease { lease, .. } => Some(*lease),
            HistoryFact::Contention { .. } => None,
        }
    }
}

/// A resource or an agent, as a hash of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HistorySubject([u8; 16]);

impl HistorySubject {
    pub(crate) fn resource(namespace: &Namespace, resource: &ResourceName) -> HistorySubject {
        HistorySubject::hash("resource", namespace, resource.as_str())
    }

    pub(crate) fn agent(namespace: &Namespace, agent: &AgentName) -> HistorySubject {
        HistorySubject::hash("agent", namespace, agent.as_str())
    }

    fn hash(kind: &str, namespace: &Namespace, name: &str) -> HistorySubject {
        let mut hasher = blake3::Hasher::new();
        // Names have no control characters, so the separator is unambiguous.
        for part in [kind, namespace.as_str(), name] {
            hasher.update(part.as_bytes()).update(&[0]);
        }
        let mut hash = [0; 16];
        hasher.finalize_xof().fill(&mut hash);
        HistorySubject(hash)
    }
}

/// Why a history does not go back further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryBound {
    Age,
    Start,
    Size,
}

/// The entries of a subject, the oldest first.
pub(crate) struct HistoryRead {
    pub(crate) since_unix_ms: u64,
    pub(crate) bound: HistoryBound,
    pub(crate) records: Vec<Arc<HistoryRecord>>,
}

/// The histories of all subjects.
pub(crate) struct History {
    rings: Mutex<Rings>,
    bytes_max: u64,
    /// The position in the event buffer up to which events are in the rings. Held while they are looked up.
    pub(crate) fed: tokio::sync::Mutex<u64>,
}

struct Rings {
    by_subject: BTreeMap<HistorySubject, Ring>,
    /// Every entry in the order of its arrival; entries that a ring has dropped by itself are still in it.
    order: VecDeque<(HistorySubject, u64)>,
    bytes: u64,
    next: u64,
    since_unix_ms: u64,
    bound: HistoryBound,
}

#[derive(Default)]
struct Ring {
    entries: VecDeque<RingEntry>,
    bytes: u64,
    /// Set when the ring alone was too large.
    since_unix_ms: Option<u64>,
}

struct RingEntry {
    number: u64,
    bytes: u64,
    record: Arc<HistoryRecord>,
}

impl History {
    /// Empty histories, complete from now on.
    pub(crate) fn new(bytes_max: u64, now_unix_ms: u64) -> History {
        let rings = Rings {
            by_subject: BTreeMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            next: 0,
            since_unix_ms: now_unix_ms,
            bound: HistoryBound::Start,
        };
        History { rings: Mutex::new(rings), bytes_max, fed: tokio::sync::Mutex::new(0) }
    }

    /// Appends a record to the rings of its subjects.
    pub(crate) fn record(&self, subjects: &[HistorySubject], record: HistoryRecord) {
        let shared = record.bytes() as u64 / subjects.len().max(1) as u64;
        let (record, mut rings) = (Arc::new(record), self.rings());
        rings.expire(record.unix_ms);
        for subject in subjects {
            rings.append(*subject, shared + ENTRY_BYTES, &record);
        }
        while rings.bytes > self.bytes_max && rings.drop_oldest(HistoryBound::Size) {}
    }

    /// Some events up to now were lost: no history is complete before.
    pub(crate) fn lost(&self, now_unix_ms: u64) {
        let mut rings = self.rings();
        rings.raise(now_unix_ms, HistoryBound::Size);
    }

    /// The last hour of a subject, or as much of it as there is.
    pub(crate) fn read(&self, subject: HistorySubject, now_unix_ms: u64) -> HistoryRead {
        let mut rings = self.rings();
        rings.expire(now_unix_ms);
        let ring = rings.by_subject.get(&subject);
        let records = ring.map(|ring| ring.entries.iter().map(|entry| Arc::clone(&entry.record)).collect());
        let hour = now_unix_ms.saturating_sub(KEPT_MS);
        let of_ring = ring.and_then(|ring| ring.since_unix_ms).map(|since| (since, HistoryBound::Size));
        let bounds = [Some((hour, HistoryBound::Age)), Some((rings.since_unix_ms, rings.bound)), of_ring];
        let (since_unix_ms, bound) =
            bounds.into_iter().flatten().max_by_key(|(since, _)| *since).expect("there are at least two");
        HistoryRead { since_unix_ms, bound, records: records.unwrap_or_default() }
    }

    /// The bytes of all histories, and their maximum.
    pub(crate) fn usage(&self) -> LimitUsage {
        LimitUsage { name: "history_bytes_max", used: self.rings().bytes, max: self.bytes_max }
    }

    /// The time of the last event of a subject within the hour.
    pub(crate) fn last_unix_ms(&self, subject: HistorySubject) -> Option<u64> {
        let rings = self.rings();
        rings.by_subject.get(&subject)?.entries.back().map(|entry| entry.record.unix_ms)
    }

    /// The epoch after the last event of a lease on a subject, if it is among the last ones of that.
    pub(crate) fn epoch(&self, subject: HistorySubject, lease: LeaseId) -> Option<u64> {
        let rings = self.rings();
        let mut entries = rings.by_subject.get(&subject)?.entries.iter().rev().take(SEARCHED_MAX);
        let last = entries.find(|entry| entry.record.lease() == Some(lease))?;
        match last.record.fact {
            HistoryFact::Lease { epoch, .. } => Some(epoch),
            HistoryFact::Contention { .. } => None,
        }
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rings {
    fn append(&mut self, subject: HistorySubject, bytes: u64, record: &Arc<HistoryRecord>) {
        let number = self.next;
        self.next += 1;
        let ring = self.by_subject.entry(subject).or_insert_with(|| {
            self.bytes += RING_BYTES;
            Ring::default()
        });
        ring.entries.push_back(RingEntry { number, bytes, record: Arc::clone(record) });
        (ring.bytes, self.bytes) = (ring.bytes + bytes, self.bytes + bytes);
        self.order.push_back((subject, number));
        while ring.bytes > RING_BYTES_MAX && ring.entries.len() > 1 {
            let dropped = ring.entries.pop_front().expect("it has more than one");
            let freed = dropped.bytes - ENTRY_BYTES;
            // Its place in the order stays until it is the oldest.
            (ring.bytes, self.bytes) = (ring.bytes - dropped.bytes, self.bytes - freed);
            ring.since_unix_ms = Some(dropped.record.unix_ms + 1);
        }
    }

    /// Drops entries that are older than an hour.
    fn expire(&mut self, now_unix_ms: u64) {
        let hour = now_unix_ms.saturating_sub(KEPT_MS);
        while self.oldest_unix_ms().is_some_and(|oldest| oldest < hour) {
            self.drop_oldest(HistoryBound::Age);
        }
    }

    /// The time of the oldest entry; of one that its ring has dropped, 0, so that its place is dropped too.
    fn oldest_unix_ms(&self) -> Option<u64> {
        let (subject, number) = self.order.front()?;
        let front = self.by_subject.get(subject).and_then(|ring| ring.entries.front());
        Some(front.filter(|entry| entry.number == *number).map_or(0, |entry| entry.record.unix_ms))
    }

    /// Drops the oldest entry of all; false if there is none.
    fn drop_oldest(&mut self, bound: HistoryBound) -> bool {
        let Some((subject, number)) = self.order.pop_front() else { return false };
        let ring = self.by_subject.get_mut(&subject);
        let is_front = |ring: &Ring| ring.entries.front().is_some_and(|entry| entry.number == number);
        let Some(ring) = ring.filter(|ring| is_front(ring)) else {
            self.bytes -= ENTRY_BYTES;
            return true;
        };
        let entry = ring.entries.pop_front().expect("it is the front");
        (ring.bytes, self.bytes) = (ring.bytes - entry.bytes, self.bytes - entry.bytes);
        if ring.entries.is_empty() {
            self.by_subject.remove(&subject);
            self.bytes -= RING_BYTES;
        }
        if bound == HistoryBound::Size {
            self.raise(entry.record.unix_ms + 1, bound);
        }
        true
    }

    fn raise(&mut self, since_unix_ms: u64, bound: HistoryBound) {
        if since_unix_ms > self.since_unix_ms {
            (self.since_unix_ms, self.bound) = (since_unix_ms, bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{Lsn, Shard};

    const START: u64 = 10_000_000;

    fn record(number: u64, unix_ms: u64) -> HistoryRecord {
        let lease = LeaseId { shard: Shard(0), lsn: Lsn(number) };
        HistoryRecord {
            id: EventId { lsn: Lsn(number), index: 0, shard: Shard(0) },
            unix_ms,
            identity: Identity::new("ada").expect("a name"),
            agent: None,
            fact: HistoryFact::Lease {
                event: Event::Granted(lease, Token(number)),
                lease,
                token: Token(number),
                epoch: 1,
            },
            members: 1,
        }
    }

    fn key(name: &str) -> HistorySubject {
        let namespace = Namespace::new("default").expect("a name");
        HistorySubject::resource(&namespace, &ResourceName::key(name).expect("a name"))
    }

    fn numbers(read: &HistoryRead) -> Vec<u64> {
        read.records.iter().map(|record| record.id.lsn.0).collect()
    }

    #[test]
    fn a_history_begins_with_the_server_then_goes_back_one_hour() {
        let history = History::new(1 << 20, START);
        history.record(&[key("k")], record(1, START + 10));
        let read = history.read(key("k"), START + 20);
        assert_eq!((numbers(&read), read.since_unix_ms, read.bound), (vec![1], START, HistoryBound::Start));
        history.record(&[key("k")], record(2, START + KEPT_MS));
        let later = START + KEPT_MS + 11;
        let read = history.read(key("k"), later);
        assert_eq!((numbers(&read), read.since_unix_ms), (vec![2], later - KEPT_MS));
        assert_eq!(read.bound, HistoryBound::Age);
        assert!(numbers(&history.read(key("other"), later)).is_empty());
    }

    /// A key with a thousand grants in an hour must not displace the history of all others.
    #[test]
    fn a_busy_key_drops_its_own_oldest_entries_and_says_so() {
        let history = History::new(1 << 20, START);
        history.record(&[key("quiet")], record(1, START));
        for number in 2..3000 {
            history.record(&[key("busy")], record(number, START + number));
        }
        let read = history.read(key("busy"), START + 3000);
        let first = numbers(&read)[0];
        assert!(first > 1000, "{first}");
        assert_eq!((read.since_unix_ms, read.bound), (START + first, HistoryBound::Size));
        let quiet = history.read(key("quiet"), START + 3000);
        assert_eq!((numbers(&quiet), quiet.bound), (vec![1], HistoryBound::Start));
    }

    /// Each grant searched the whole ring of its key for an earlier event of the new lease: on a key with a full ring that
    /// was a twentieth of the server's processor time.
    #[test]
    fn the_search_for_the_last_event_of_a_lease_is_bounded() {
        let history = History::new(1 << 20, START);
        for number in 1..=SEARCHED_MAX as u64 + 1 {
            history.record(&[key("k")], record(number, START + number));
        }
        let epoch = |number| history.epoch(key("k"), LeaseId { shard: Shard(0), lsn: Lsn(number) });
        assert_eq!((epoch(2), epoch(SEARCHED_MAX as u64 + 1)), (Some(1), Some(1)));
        assert_eq!(epoch(1), None, "behind the last {SEARCHED_MAX} entries");
    }

    #[test]
    fn all_histories_together_stay_within_their_maximum() {
        let history = History::new(20_000, START);
        for number in 0..5000 {
            history.record(&[key(&format!("k{number}"))], record(number, START + number));
            assert!(history.rings().bytes <= 20_000);
        }
        let gone = history.read(key("k0"), START + 5000);
        assert_eq!((numbers(&gone).len(), gone.bound), (0, HistoryBound::Size));
        assert!(gone.since_unix_ms > START + 4000, "complete only since {}", gone.since_unix_ms - START);
        assert_eq!(numbers(&history.read(key("k4999"), START + 5000)), [4999]);
        let rings = history.rings();
        assert_eq!(rings.order.len(), rings.by_subject.len());
    }

    #[test]
    fn after_an_hour_of_silence_nothing_is_left() {
        let history = History::new(1 << 20, START);
        for number in 0..2000 {
            history.record(&[key("busy"), key(&format!("k{number}"))], record(number, START));
        }
        history.read(key("busy"), START + KEPT_MS + 1);
        let rings = history.rings();
        assert_eq!((rings.bytes, rings.order.len(), rings.by_subject.len()), (0, 0, 0));
    }
}
