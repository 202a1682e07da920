//! What the writers were told, and whether the object store's journal bears it out.
//!
//! The log is, for every number, the object that was first made there: whatever is made at that number
//! again, after a truncation, is not of the log, and nobody may have been told that it is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sim::objects::Deed;
use store::frame::FrameHeader;
use store::object::format::{ObjectHeader, decode_object};
use store::object::{ObjectOptions, WriterId};
use store::{Batch, Bounds, Seq};

pub(crate) const OPTIONS: ObjectOptions = ObjectOptions { shard: 4, store_id: 44, writer: WriterId(0) };

/// The history that all write into. Clones are the same one.
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
    /// Who was told that it still had the log, and how much had happened when it asked.
    confirmed: Vec<(WriterId, usize)>,
    read: Vec<Batch>,
    found: Bounds,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

/// A batch of the log.
struct Made {
    /// Its place in the journal.
    place: usize,
    header: ObjectHeader,
    frame: FrameHeader,
    batch: Batch,
}

/// The journal, as far as one log is concerned.
#[derive(Default)]
struct Truth {
    log: Vec<Made>,
    floor: Seq,
}

impl History {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn acknowledged(&mut self, writer: WriterId, batch: Batch) {
        self.acknowledged.push((writer, batch));
    }

    pub(crate) fn confirmed(&mut self, writer: WriterId, deeds: usize) {
        self.confirmed.push((writer, deeds));
    }

    pub(crate) fn read(&mut self, batch: Batch) {
        self.read.push(batch);
    }

    /// What was found at the end, when all was calm.
    pub(crate) fn found(&mut self, bounds: Bounds) {
        self.found = bounds;
    }

    pub(crate) fn check(&self, journal: &[Deed]) -> Result<(), String> {
        let mut truth = Truth::default();
        for (place, deed) in journal.iter().enumerate() {
            truth.follow(place, deed)?;
        }
        truth.check_tenures()?;
        self.check_acknowledged(&truth)?;
        self.check_confirmed(&truth)?;
        for batch in &self.read {
            let made = truth.at(batch.seq)?;
            ensure(made.batch == *batch, || format!("batch {} was read as another", batch.seq.0))?;
        }
        let bounds = Bounds { floor: truth.floor, next: Seq(truth.log.len() as u64 - 1) };
        ensure(self.found == bounds, || format!("the log is {bounds:?}, and {:?} was found", self.found))
    }

    fn check_acknowledged(&self, truth: &Truth) -> Result<(), String> {
        let mut owners = BTreeMap::new();
        for (writer, batch) in &self.acknowledged {
            let seq = batch.seq;
            let owner = *owners.entry(seq).or_insert(*writer);
            ensure(owner == *writer, || {
                format!("{owner:?} and {writer:?} were both told that {seq:?} is theirs")
            })?;
            let made = truth.at(seq)?;
            let theirs = made.header.writer == *writer && made.batch == *batch;
            ensure(theirs, || {
                format!("{writer:?} was told that {seq:?} is in the log, and it is another's")
            })?;
        }
        Ok(())
    }

    /// Who was told that it had the log, had it after it asked: nobody had begun a tenure after its own before.
    fn check_confirmed(&self, truth: &Truth) -> Result<(), String> {
        for (writer, deeds) in &self.confirmed {
            let mut before = truth.log.iter().filter(|made| made.place < *deeds);
            let last = before.next_back().map(|made| made.header.writer);
            ensure(last == Some(*writer), || format!("{writer:?} was told that it has the log of {last:?}"))?;
        }
        Ok(())
    }
}

impl Truth {
    fn follow(&mut self, place: usize, deed: &Deed) -> Result<(), String> {
        let (Deed::Put { name, .. } | Deed::Delete { name }) = deed;
        match (deed, number("log/4/", name), number("floor/4/", name)) {
            (Deed::Put { bytes, .. }, Some(seq), _) => self.made(place, seq, bytes),
            (Deed::Delete { .. }, Some(seq), _) => self.deleted(seq),
            (Deed::Put { .. }, _, Some(floor)) => {
                self.floor = self.floor.max(floor);
                let next = self.log.len() as u64;
                ensure(floor.0 <= next, || format!("a floor at {} above a log of {next}", floor.0))
            }
            (Deed::Delete { .. }, _, Some(floor)) => {
                ensure(floor < self.floor, || format!("the highest floor {} was deleted", floor.0))
            }
            _ => Err(format!("what is {name}?")),
        }
    }

    fn made(&mut self, place: usize, seq: Seq, bytes: &[u8]) -> Result<(), String> {
        let next = Seq(self.log.len() as u64);
        if seq < next {
            return ensure(seq < self.floor, || format!("{seq:?} was made twice above the floor"));
        }
        ensure(seq == next, || format!("{seq:?} was made before {next:?}"))?;
        let (header, frame, batch) = decode_object(bytes)?;
        let chain = self.log.last().map_or(0, |made| made.frame.crc);
        ensure(frame.chain == chain, || format!("{seq:?} does not follow the one before it"))?;
        self.log.push(Made { place, header, frame, batch });
        Ok(())
    }

    fn deleted(&self, seq: Seq) -> Result<(), String> {
        ensure(seq < self.floor, || format!("{seq:?} was deleted above the floor"))?;
        let begins_tenure = self.at(seq)?.header.begins_tenure;
        ensure(!begins_tenure, || format!("{seq:?} begins a tenure and was deleted"))
    }

    /// Each writer has one run of batches, and its first one says so.
    fn check_tenures(&self) -> Result<(), String> {
        let mut seen = Vec::new();
        for made in &self.log {
            let goes_on = seen.last() == Some(&made.header.writer);
            let (seq, begins) = (made.batch.seq, made.header.begins_tenure);
            ensure(begins != goes_on, || format!("{seq:?} says of its tenure: begins={begins}"))?;
            if begins {
                let again = seen.contains(&made.header.writer);
                ensure(!again, || format!("{seq:?} is by one who was deposed before"))?;
                seen.push(made.header.writer);
            }
        }
        Ok(())
    }

    fn at(&self, seq: Seq) -> Result<&Made, String> {
        let place = usize::try_from(seq.0).map_err(|_| "a large number".to_string())?;
        self.log.get(place).ok_or_else(|| format!("{seq:?} is not in the log"))
    }
}

fn number(prefix: &str, name: &str) -> Option<Seq> {
    name.strip_prefix(prefix).and_then(|digits| u64::from_str_radix(digits, 16).ok()).map(Seq)
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
