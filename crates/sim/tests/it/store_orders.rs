//! Every order of appends, stops, process deaths, failed syncs, power cuts and flipped bits, up to a length. Every
//! acknowledged batch is there after each of them, or the store refuses to open because a bit was flipped.

use std::path::Path;

use sim::disk::{FaultPlan, SimFs};
use sim::rng::Rng;
use store::disk::{DiskLog, LogOptions};
use store::frame::{SEGMENT_HEADER, decode_frame, frame_len};
use store::fs::{File, Fs};
use store::{ErrorKind, LogStore, LsnRange, Seq, StoreError};

const LOG: &str = "/store/log";
const OPTIONS: LogOptions =
    LogOptions { shard: 0, store_id: 9, segment_bytes: LogOptions::SEGMENT_BYTES_MIN };
const IO_ERROR: i32 = 5;
const NO_FAULT: FaultPlan = FaultPlan { crash_at: None, fail_at: None };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A process opens the log, appends a batch, and is killed.
    Append,
    /// The same, with a clean stop.
    AppendAndStop,
    /// A process opens the log and is killed.
    Restart,
    /// The process dies between the write and the sync of a batch.
    DeathBeforeSync,
    /// The sync of a batch fails, and the process ends.
    FailedSync,
    /// The power fails, and nothing unsynced survives.
    PowerCut,
    /// The power fails, and some of the unsynced changes survive.
    PowerCutInPart,
    /// A bit of the last batch is flipped.
    FlipInTail,
    /// A bit of the floor is flipped.
    FlipInFloor,
}

const EVENTS: [Event; 9] = [
    Event::Append,
    Event::AppendAndStop,
    Event::Restart,
    Event::DeathBeforeSync,
    Event::FailedSync,
    Event::PowerCut,
    Event::PowerCutInPart,
    Event::FlipInTail,
    Event::FlipInFloor,
];

/// The events after a flipped bit: others add nothing.
const EVENTS_AFTER_A_FLIP: [Event; 3] = [Event::Restart, Event::PowerCut, Event::PowerCutInPart];

/// A disk, and what its log must contain.
#[derive(Clone)]
struct World {
    fs: SimFs,
    /// The batches below this are acknowledged, or were accepted by an opening.
    acknowledged: u64,
    /// A batch behind them was begun.
    begun: bool,
    flip: Flip,
    history: Vec<Event>,
}

/// Whether a bit was flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flip {
    No,
    /// In bytes that are there.
    Yes,
    /// In bytes that a power cut may have lost since.
    Perhaps,
}

fn open(fs: &SimFs) -> Result<DiskLog<SimFs>, StoreError> {
    DiskLog::open(fs.clone(), Path::new(LOG), OPTIONS).map(|(log, _)| log)
}

fn payload(seq: u64) -> Vec<u8> {
    vec![u8::try_from(seq % 250 + 1).expect("a byte"); 1100]
}

fn append(log: &mut DiskLog<SimFs>) -> Result<(), StoreError> {
    let Seq(next) = log.bounds().next;
    log.append(Seq(next), LsnRange::new(next + 1, next + 1), &payload(next))
}

impl World {
    /// Two batches, and a floor above the first.
    fn new() -> World {
        let fs = SimFs::new(NO_FAULT);
        let mut log = open(&fs).expect("an empty log");
        (0..2).for_each(|_| append(&mut log).expect("space"));
        log.raise_floor(Seq(1)).expect("within the log");
        let fs = fs.after_power_cut(|_| false, NO_FAULT);
        World { fs, acknowledged: 2, begun: false, flip: Flip::No, history: Vec::new() }
    }

    fn after(&self, event: Event) -> World {
        let mut next = self.clone();
        next.history.push(event);
        next.fs = self.fs.after_process_death(NO_FAULT);
        match event {
            Event::Append => next.append(false),
            Event::AppendAndStop => next.append(true),
            Event::Restart => drop(next.checked_log()),
            Event::DeathBeforeSync => {
                next.fail_append(|call| FaultPlan { crash_at: Some(call), fail_at: None });
            }
            Event::FailedSync => {
                next.fail_append(|call| FaultPlan { crash_at: None, fail_at: Some((call, IO_ERROR)) });
            }
            Event::PowerCut => next.cut_power(|_| false),
            Event::PowerCutInPart => {
                let seed = next.history.len() as u64;
                next.cut_power(|change| Rng::new(seed * 1000 + change as u64).one_in(2));
            }
            Event::FlipInTail => next.flip_in_tail(),
            Event::FlipInFloor => {
                next.fs.flip_bit(&Path::new(LOG).join("floor"), 77);
                next.flip = Flip::Yes;
            }
        }
        next
    }

    /// Opens the log, and compares it with what was acknowledged. `None` if a flipped bit is reported as damage.
    fn checked_log(&mut self) -> Option<DiskLog<SimFs>> {
        let history = self.history.clone();
        let log = match open(&self.fs).and_then(|log| self.check_batches(&log).map(|()| log)) {
            Err(error) if self.flip != Flip::No && error.kind == ErrorKind::Damaged => return None,
            opened => opened.unwrap_or_else(|error| panic!("{history:?}: {error}")),
        };
        assert_ne!(self.flip, Flip::Yes, "{history:?}: the flipped bit went unnoticed");
        let Seq(next) = log.bounds().next;
        let most = self.acknowledged + u64::from(self.begun);
        assert!((self.acknowledged..=most).contains(&next), "{history:?}: {next}, not {}", self.acknowledged);
        (self.acknowledged, self.begun) = (next, false);
        Some(log)
    }

    fn check_batches(&self, log: &DiskLog<SimFs>) -> Result<(), StoreError> {
        let mut reader = log.reader();
        for seq in log.bounds().floor.0..log.bounds().next.0 {
            assert_eq!(reader.read(Seq(seq))?.payload, payload(seq), "{:?}", self.history);
        }
        Ok(())
    }

    fn append(&mut self, stop: bool) {
        let Some(mut log) = self.checked_log() else { return };
        append(&mut log).expect("space");
        self.acknowledged += 1;
        if stop {
            log.mark_clean_stop().expect("writable");
        }
    }

    /// The sync of the batch is the last call of an append.
    fn fail_append(&mut self, fault: impl Fn(u64) -> FaultPlan) {
        let found = self.fs.after_process_death(NO_FAULT);
        if self.checked_log().is_none() {
            return;
        }
        let probe = found.after_process_death(NO_FAULT);
        append(&mut open(&probe).expect("it was opened before")).expect("space");
        self.fs = found.after_process_death(fault(probe.calls() - 1));
        append(&mut open(&self.fs).expect("it was opened before")).expect_err("as planned");
        self.begun = true;
    }

    fn cut_power(&mut self, survives: impl Fn(usize) -> bool) {
        self.fs = self.fs.after_power_cut(survives, NO_FAULT);
        if self.flip == Flip::Yes {
            self.flip = Flip::Perhaps;
        }
    }

    fn flip_in_tail(&mut self) {
        let names = self.fs.list(Path::new(LOG)).expect("a directory");
        let is_segment = |name: &&String| Path::new(name).extension().is_some_and(|kind| kind == "seg");
        let last = names.iter().rfind(is_segment).expect("a segment");
        let path = Path::new(LOG).join(last);
        let file = self.fs.open(&path).expect("there");
        let mut bytes = vec![0; usize::try_from(file.length().expect("readable")).expect("small")];
        file.read_at(&mut bytes, 0).expect("readable");
        let (mut at, mut last) = (SEGMENT_HEADER, None);
        while let Some((header, _)) = decode_frame(&bytes[at..]) {
            last = Some(at);
            at += frame_len(header.length);
        }
        if let Some(last) = last {
            self.fs.flip_bit(&path, (last + 500) * 8 + 3);
            self.flip = Flip::Yes;
        }
    }

    fn explore(&self, depth: usize, worlds: &mut u64) {
        let events = if self.flip == Flip::No { &EVENTS[..] } else { &EVENTS_AFTER_A_FLIP };
        for event in events {
            let next = self.after(*event);
            *worlds += 1;
            if depth > 1 {
                next.explore(depth - 1, worlds);
            } else {
                World { fs: next.fs.after_process_death(NO_FAULT), ..next }.checked_log();
            }
        }
    }
}

#[test]
fn every_order_of_events_keeps_what_was_acknowledged() {
    let mut worlds = 0;
    World::new().explore(usize::try_from(crate::sized(5, 6)).expect("small"), &mut worlds);
    assert!(worlds > 10_000, "{worlds}");
}
