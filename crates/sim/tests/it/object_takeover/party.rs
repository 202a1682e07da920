//! One of those who want the log: it opens it, uses it as chance has it, and dies, several times over.

use std::sync::Arc;

use sim::objects::SimObjects;
use sim::rng::Rng;
use store::object::{ObjectLog, ObjectOptions, Patience, Standing, WriterId};
use store::{Batch, ErrorKind, LogStore, Lsns, Seq, StoreError};

use super::gate::{Gate, InTurn, Leaving};
use super::history::{OPTIONS, Shared};

/// What has to happen in the runs for them to mean anything.
pub(crate) const COUNTED: [&str; 13] = [
    "opened",
    "acknowledged",
    "taken over",
    "quicker",
    "read on",
    "too late to read on",
    "deposed",
    "stood down",
    "undecided",
    "decided later",
    "floor raised",
    "confirmed",
    "read",
];

const LIVES: u64 = 5;

pub(crate) struct Party {
    name: usize,
    rng: Rng,
    objects: SimObjects,
    way: InTurn,
    history: Shared,
    _leaving: Leaving,
}

impl Party {
    pub(crate) fn new(name: usize, seed: u64, objects: &SimObjects, gate: &Gate, history: &Shared) -> Party {
        let way = InTurn { gate: gate.clone(), name, handle: objects.handle() };
        let (objects, history) = (objects.clone(), history.clone());
        Party { name, rng: Rng::new(seed), objects, way, history, _leaving: Leaving(gate.clone(), name) }
    }

    pub(crate) fn live(mut self) {
        for life in 0..LIVES {
            self.way.gate.pass(self.name);
            let writer = WriterId(u128::from(life + 1) << 64 | self.name as u128);
            let patience = Patience::without_pause(1 + u32::from(self.rng.small(4)));
            let options = ObjectOptions { writer, ..OPTIONS };
            match ObjectLog::open(Arc::new(self.way.clone()), options, patience) {
                Ok(log) => {
                    self.count("opened");
                    Life { party: &mut self, log, writer }.live();
                }
                Err(error) => assert_eq!(error.kind, ErrorKind::Io, "{error}"),
            }
        }
    }

    fn count(&self, what: &'static str) {
        self.history.lock().count(what);
    }
}

/// One opening of the log.
struct Life<'a> {
    party: &'a mut Party,
    log: ObjectLog,
    writer: WriterId,
}

impl Life<'_> {
    fn live(mut self) {
        for _ in 0..self.party.rng.below(40) {
            match self.party.rng.below(12) {
                0 => self.raise_floor(),
                1 => self.confirm(),
                2 | 3 => self.read(),
                _ => self.append(),
            }
            if self.log.standing() == Standing::Behind && !self.read_on() {
                return;
            }
            // One that was deposed goes on for a while: it must not get anywhere.
            if self.log.standing() == Standing::Deposed && self.party.rng.one_in(3) {
                return;
            }
        }
    }

    fn payload(&mut self) -> Vec<u8> {
        if self.party.rng.one_in(3) {
            return b"the same for all".to_vec();
        }
        self.party.rng.number().to_le_bytes()[..self.party.rng.small(9).into()].to_vec()
    }

    /// Appends, and takes note if it is told that the batch is in the log.
    fn offer(&mut self, seq: Seq, payload: &[u8]) -> Result<(), StoreError> {
        let lsns = Lsns { first: seq.0 * 10, last: seq.0 * 10 + 9 };
        let first = self.log.standing() == Standing::Reader;
        self.log.append(seq, lsns, payload)?;
        let mut history = self.party.history.lock();
        history.count(if first { "taken over" } else { "acknowledged" });
        history.acknowledged(self.writer, Batch { seq, lsns, payload: payload.to_vec() });
        Ok(())
    }

    fn append(&mut self) {
        let (seq, payload) = (self.log.bounds().next, self.payload());
        match self.offer(seq, &payload) {
            Ok(()) => {}
            Err(error) if error.kind == ErrorKind::Io => self.decide_later(seq, &payload),
            Err(error) => self.lost(&error),
        }
    }

    /// Others act meanwhile. It may try another batch, which it must not; or give up and die.
    fn decide_later(&mut self, seq: Seq, payload: &[u8]) {
        self.party.count("undecided");
        for _ in 0..self.party.rng.below(12) {
            if self.party.rng.one_in(4) {
                let another = [payload, b"!"].concat();
                if let Err(error) = self.offer(seq, &another) {
                    assert_eq!(error.kind, ErrorKind::Refused, "{error}");
                }
            }
            match self.offer(seq, payload) {
                Ok(()) => return self.party.count("decided later"),
                Err(error) if error.kind == ErrorKind::Io => {}
                Err(error) => return self.lost(&error),
            }
        }
    }

    fn lost(&self, error: &StoreError) {
        match (error.kind, self.log.standing()) {
            (ErrorKind::Taken, Standing::Behind) => self.party.count("quicker"),
            (ErrorKind::Taken, Standing::Deposed) => self.party.count("deposed"),
            (ErrorKind::Refused, Standing::Deposed) => self.party.count("stood down"),
            // It had given up on a batch that is still undecided, and has another now.
            (ErrorKind::Refused, _) if error.what.contains("undecided") => {}
            other => panic!("{other:?}: {error}"),
        }
    }

    /// False if it has to open the log again.
    fn read_on(&mut self) -> bool {
        match self.log.read_on().map_err(|error| error.kind) {
            Ok(_) => self.party.count("read on"),
            Err(ErrorKind::Io) => {}
            Err(ErrorKind::Gone) => {
                self.party.count("too late to read on");
                return false;
            }
            Err(other) => panic!("{other:?}"),
        }
        true
    }

    fn raise_floor(&mut self) {
        let bounds = self.log.bounds();
        let floor = Seq(bounds.floor.0 + self.party.rng.below(bounds.next.0 - bounds.floor.0 + 1));
        match self.log.raise_floor(floor).map_err(|error| error.kind) {
            Ok(()) => self.party.count("floor raised"),
            Err(kind) => assert!(matches!(kind, ErrorKind::Io | ErrorKind::Taken), "{kind:?}"),
        }
    }

    fn confirm(&mut self) {
        let deeds = self.party.objects.deeds();
        if self.log.confirm().is_ok() {
            let mut history = self.party.history.lock();
            history.count("confirmed");
            history.confirmed(self.writer, deeds);
        }
    }

    fn read(&mut self) {
        let bounds = self.log.bounds();
        if bounds.floor == bounds.next {
            return;
        }
        let seq = Seq(bounds.floor.0 + self.party.rng.below(bounds.next.0 - bounds.floor.0));
        match self.log.reader().read(seq) {
            Ok(batch) => {
                let mut history = self.party.history.lock();
                history.count("read");
                history.read(batch);
            }
            Err(error) => assert!(matches!(error.kind, ErrorKind::Io | ErrorKind::Gone), "{error}"),
        }
    }
}
