//! The responses that writers got, and their comparison with the object store's journal.
//!
//! The log consists, for every sequence number, of the first object created there: an object created at that number
//! later, after a truncation, is not part of the log, and must not have been acknowledged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sim::objects::ObjectChange;
use store::frame::FrameHeader;
use store::object::format::{ObjectHeader, decode_object};
use store::object::{ObjectOptions, WriterId};
use store::{Batch, Bounds, Seq};

pub(crate) const OPTIONS: ObjectOptions =
    ObjectOptions { index_batches: 5, ..ObjectOptions::new(4, 44, WriterId(0)) };

/// The history of all writers. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<History>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
pub(crate) struct History {
    acknowledged: Vec<(WriterId, Batch)>,
    /// Batches whose writers know that they are not in the log.
    refused: Vec<(WriterId, Batch)>,
    /// Confirmed owners, with the length of the journal before the call.
    confirmed: Vec<(WriterId, usize)>,
    read: Vec<Batch>,
    found: Bounds,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

/// A batch of the log, as created in the object store.
struct LogObject {
    /// Its index in the journal.
    index: usize,
    header: ObjectHeader,
    frame: FrameHeader,
    batch: Batch,
}

/// The log, reconstructed from the journal.
#[derive(Default)]
struct ReconstructedLog {
    log: Vec<LogObject>,
    floor: Seq,
}

impl History {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn acknowledged(&mut self, writer: WriterId, batch: Batch) {
        self.acknowledged.push((writer, batch));
    }

    pub(crate) fn refused(&mut self, writer: WriterId, batch: Batch) {
        self.refused.push((writer, batch));
    }

    pub(crate) fn confirmed(&mut self, writer: WriterId, changes_count: usize) {
        self.confirmed.push((writer, changes_count));
    }

    pub(crate) fn read(&mut self, batch: Batch) {
        self.read.push(batch);
    }

    /// The bounds of the log at the end, without faults.
    pub(crate) fn found(&mut self, bounds: Bounds) {
        self.found = bounds;
    }

    pub(crate) fn check(&self, journal: &[ObjectChange]) -> Result<(), String> {
        let mut log = ReconstructedLog::default();
        for (index, change) in journal.iter().enumerate() {
            log.apply(index, change)?;
        }
        log.check_tenures()?;
        self.check_acknowledged(&log)?;
        self.check_refused(&log)?;
        self.check_confirmed(&log)?;
        for batch in &self.read {
            let object = log.at(batch.seq)?;
            ensure(object.batch == *batch, || format!("batch {} was read with other contents", batch.seq.0))?;
        }
        let bounds = Bounds { floor: log.floor, next: Seq(log.log.len() as u64 - 1) };
        ensure(self.found == bounds, || format!("the log has {bounds:?}, and {:?} was found", self.found))
    }

    fn check_acknowledged(&self, log: &ReconstructedLog) -> Result<(), String> {
        let mut owners = BTreeMap::new();
        for (writer, batch) in &self.acknowledged {
            let seq = batch.seq;
            let owner = *owners.entry(seq).or_insert(*writer);
            ensure(owner == *writer, || format!("{seq:?} was acknowledged to {owner:?} and to {writer:?}"))?;
            let object = log.at(seq)?;
            let theirs = object.header.writer == *writer && object.batch == *batch;
            ensure(theirs, || {
                format!("{seq:?} was acknowledged to {writer:?}, and is another writer's batch")
            })?;
        }
        Ok(())
    }

    fn check_refused(&self, log: &ReconstructedLog) -> Result<(), String> {
        for (writer, batch) in &self.refused {
            let is_logged = log
                .at(batch.seq)
                .is_ok_and(|object| object.header.writer == *writer && object.batch == *batch);
            ensure(!is_logged, || format!("{:?} of {writer:?} was refused, and is in the log", batch.seq))?;
        }
        Ok(())
    }

    /// A confirmed owner had the last tenure in the log when it called.
    fn check_confirmed(&self, log: &ReconstructedLog) -> Result<(), String> {
        for (writer, changes_count) in &self.confirmed {
            let mut before = log.log.iter().filter(|object| object.index < *changes_count);
            let last = before.next_back().map(|object| object.header.writer);
            ensure(last == Some(*writer), || {
                format!("{writer:?} was confirmed as the owner of the log of {last:?}")
            })?;
        }
        Ok(())
    }
}

impl ReconstructedLog {
    fn apply(&mut self, index: usize, change: &ObjectChange) -> Result<(), String> {
        let (ObjectChange::Put { name, .. }
        | ObjectChange::Replace { name, .. }
        | ObjectChange::Delete { name }) = change;
        if let Some(first) = number("index/4/", name) {
            return self.index_object(first, change);
        }
        match (change, number("log/4/", name), number("floor/4/", name)) {
            (ObjectChange::Put { bytes, .. }, Some(seq), _) => self.object(index, seq, bytes),
            (ObjectChange::Delete { .. }, Some(seq), _) => self.deleted(seq),
            (ObjectChange::Put { .. }, _, Some(floor)) => {
                self.floor = self.floor.max(floor);
                let next = self.log.len() as u64;
                ensure(floor.0 <= next, || format!("a floor at {} above a log of {next}", floor.0))
            }
            (ObjectChange::Delete { .. }, _, Some(floor)) => {
                ensure(floor < self.floor, || format!("the highest floor {} was deleted", floor.0))
            }
            _ => Err(format!("unexpected object: {name}")),
        }
    }

    fn object(&mut self, index: usize, seq: Seq, bytes: &[u8]) -> Result<(), String> {
        let next = Seq(self.log.len() as u64);
        if seq < next {
            return ensure(seq < self.floor, || format!("{seq:?} was created twice above the floor"));
        }
        ensure(seq == next, || format!("{seq:?} was created before {next:?}"))?;
        let (header, frame, batch) = decode_object(bytes)?;
        let chain = self.log.last().map_or(0, |object| object.frame.crc);
        ensure(frame.chain == chain, || format!("{seq:?} does not chain to its predecessor"))?;
        self.log.push(LogObject { index, header, frame, batch });
        Ok(())
    }

    /// An index object begins at a batch of the log. Its contents are checked by opening the log with it and without.
    fn index_object(&self, first: Seq, change: &ObjectChange) -> Result<(), String> {
        let is_put = matches!(change, ObjectChange::Put { .. });
        let next = self.log.len() as u64;
        ensure(!is_put || first.0 < next, || format!("an index object at {} of a log of {next}", first.0))?;
        ensure(is_put || first < self.floor, || format!("the index object {} was deleted", first.0))
    }

    fn deleted(&self, seq: Seq) -> Result<(), String> {
        ensure(seq < self.floor, || format!("{seq:?} was deleted above the floor"))?;
        let begins_tenure = self.at(seq)?.header.begins_tenure;
        ensure(!begins_tenure, || format!("{seq:?} begins a tenure and was deleted"))
    }

    /// Each writer has one contiguous run of batches, of which the first begins a tenure.
    fn check_tenures(&self) -> Result<(), String> {
        let mut writers = Vec::new();
        for object in &self.log {
            let continues = writers.last() == Some(&object.header.writer);
            let (seq, begins) = (object.batch.seq, object.header.begins_tenure);
            ensure(begins != continues, || format!("{seq:?} has the wrong tenure mark: begins={begins}"))?;
            if begins {
                let again = writers.contains(&object.header.writer);
                ensure(!again, || format!("{seq:?} is by a writer that was deposed before"))?;
                writers.push(object.header.writer);
            }
        }
        Ok(())
    }

    fn at(&self, seq: Seq) -> Result<&LogObject, String> {
        let index = usize::try_from(seq.0).map_err(|_| "a large number".to_string())?;
        self.log.get(index).ok_or_else(|| format!("{seq:?} is not in the log"))
    }
}

fn number(prefix: &str, name: &str) -> Option<Seq> {
    name.strip_prefix(prefix).and_then(|digits| u64::from_str_radix(digits, 16).ok()).map(Seq)
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
