//! Three writers share one log in an object store behind an unreliable network. They append, stall, take over,
//! truncate and resume late; a seed schedules their requests. Afterwards the journal of the object store is compared
//! with the responses of each writer.
//!
//! Every writer has a thread, and one thread runs at a time, from one request to the next: so any interleaving of
//! requests can occur, and the same seed repeats it.

pub(crate) mod scheduler;
mod history;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sized;
use history::{History, OPTIONS, Shared};
use scheduler::Scheduler;
use sim::objects::{NetworkFaults, SimObjects};
use sim::rng::Rng;
use store::conformance::{append_next, fill};
use store::object::{ObjectLog, ObjectOptions, RetryPolicy, WriterId, WriterRole};
use store::{ErrorKind, LogStore, Seq, StoreError};
use writer::WriterThread;

const WRITERS: usize = 3;

/// Prints the seed of the run if a thread panics.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

fn run(seed: u64) -> (SimObjects, History) {
    let _seed_on_panic = SeedOnPanic(seed);
    let mut rng = Rng::new(seed);
    let faults = NetworkFaults {
        fault_percent: [0, 10, 25, 40][usize::from(rng.small(4))],
        delay_max: 1 + rng.below(300),
        ..NetworkFaults::default()
    };
    let objects = SimObjects::new(rng.number(), faults);
    let (scheduler, history) = (Scheduler::new(WRITERS), Shared::default());
    std::thread::scope(|scope| {
        for name in 0..WRITERS {
            let writer = WriterThread::new(name, rng.number(), &objects, &scheduler, &history);
            scope.spawn(move || writer.run());
        }
        scheduler.run(&mut rng);
    });
    objects.heal();
    let history = std::mem::take(&mut *history.lock());
    (objects, history)
}

/// Without faults a new writer opens the log, reads all of it, and owns it.
fn check_aftermath(objects: &SimObjects, history: &mut History) {
    let mut log = open(objects, 99).expect("a sound log");
    let (bounds, mut reader) = (log.bounds(), log.reader());
    for seq in (bounds.floor.0..bounds.next.0).map(Seq) {
        history.read(reader.read(seq).expect("above the floor"));
    }
    check_index_objects(objects, &log);
    append_next(&mut log).expect("alive is no other writer");
    log.confirm().expect("alive is no other writer");
    history.found(bounds);
}

/// Index objects are derived data: without them the log is the same.
fn check_index_objects(objects: &SimObjects, log: &ObjectLog) {
    let scanned = objects.without("index/");
    let without = open(&scanned, 98).expect("a sound log");
    assert_eq!((without.bounds(), without.extents()), (log.bounds(), log.extents()));
    let (mut one, mut other) = (log.reader(), without.reader());
    for seq in (log.bounds().floor.0..log.bounds().next.0).map(Seq) {
        let batch = one.read(seq).expect("above the floor");
        assert_eq!(other.read(seq).expect("above the floor"), batch);
        assert_eq!(other.read_lsn(batch.lsns.last).expect("above the floor"), batch);
    }
}

/// Creates index objects, and deletes what is below the floor.
fn maintain(log: &mut ObjectLog) {
    let work = log.preparation().expect("something to delete");
    work().expect("a sound store");
}

fn open(objects: &SimObjects, writer: u128) -> Result<ObjectLog, StoreError> {
    let options = ObjectOptions { writer: WriterId(writer), ..OPTIONS };
    ObjectLog::open(Arc::new(objects.handle()), options, RetryPolicy::without_pause(2))
}

/// 150 seeds, or 400 with `LOCKD_LONG=1`; `SEEDS=10000 cargo test -p lockd-sim --test it object_takeover` runs that many.
#[test]
fn the_log_is_one_sequence_and_every_response_agrees() {
    let seeds: u64 = std::env::var("SEEDS").map_or(sized(150, 400), |seeds| seeds.parse().expect("a number"));
    let mut counts = BTreeMap::new();
    for seed in 0..seeds {
        let (objects, mut history) = run(seed);
        check_aftermath(&objects, &mut history);
        history.check(&objects.journal()).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        for (what, times) in history.counts {
            *counts.entry(what).or_insert(0) += times;
        }
    }
    for what in writer::COUNTED {
        assert!(
            counts.get(what).is_some_and(|times| *times >= seeds / 40),
            "too few of {what:?}: {counts:?}"
        );
    }
}

#[test]
fn the_same_seed_repeats_a_run() {
    for seed in [3, 4, 5] {
        assert_eq!(run(seed).0.journal(), run(seed).0.journal());
    }
}

/// A writer was partitioned while another took the log over and truncated all of it. Afterwards its next sequence
/// number was below the floor, and all batches around it were deleted.
#[test]
fn a_writer_partitioned_during_takeover_and_truncation_is_deposed() {
    let objects =
        SimObjects::new(1, NetworkFaults { fault_percent: 0, delay_max: 4, ..NetworkFaults::default() });
    let handle = objects.handle();
    let options = ObjectOptions { writer: WriterId(1), ..OPTIONS };
    let mut partitioned =
        ObjectLog::open(Arc::new(handle.clone()), options, RetryPolicy::without_pause(2)).expect("empty");
    fill(&mut partitioned, 7);
    handle.set_partitioned(true);
    assert_eq!(kind(partitioned.confirm()), ErrorKind::Undecided);
    let mut taker = open(&objects, 2).expect("a sound log");
    fill(&mut taker, 40);
    taker.raise_floor(Seq(40)).expect("all of it");
    maintain(&mut taker);
    assert_eq!(kind(append_next(&mut partitioned)), ErrorKind::Undecided, "it gets no response");
    handle.set_partitioned(false);
    assert_eq!(kind(append_next(&mut partitioned)), ErrorKind::Gone, "the floor is above it");
    assert_eq!(partitioned.role(), WriterRole::Deposed);
}

/// The same for a writer that had never owned the log: its sequence number was used by a batch, and is free again.
#[test]
fn a_standby_whose_first_append_is_delayed_past_a_truncation_is_deposed() {
    let objects =
        SimObjects::new(1, NetworkFaults { fault_percent: 0, delay_max: 4, ..NetworkFaults::default() });
    let mut owner = open(&objects, 1).expect("empty");
    fill(&mut owner, 7);
    let handle = objects.handle();
    let options = ObjectOptions { writer: WriterId(2), ..OPTIONS };
    let mut late =
        ObjectLog::open(Arc::new(handle.clone()), options, RetryPolicy::without_pause(1)).expect("sound");
    fill(&mut owner, 40);
    owner.raise_floor(Seq(30)).expect("within the log");
    maintain(&mut owner);
    handle.set_partitioned(true);
    assert_eq!(kind(append_next(&mut late)), ErrorKind::Undecided);
    owner.confirm().expect("an object below the floor takes nothing over");
    fill(&mut owner, 50);
    handle.set_partitioned(false);
    assert_eq!(kind(append_next(&mut late)), ErrorKind::Gone);
    assert_eq!(kind(append_next(&mut late)), ErrorKind::Taken);
    fill(&mut owner, 60);
    assert_eq!(open(&objects, 3).expect("sound").bounds(), owner.bounds());
}

fn kind<T>(result: Result<T, StoreError>) -> ErrorKind {
    result.err().expect("it must fail").kind
}
