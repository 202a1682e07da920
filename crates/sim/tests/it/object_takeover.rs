//! Three writers share one log of objects behind a bad network. They append, stall, take over, truncate and
//! come back late, and a seed decides who makes the next request. Afterwards the journal of the object
//! store is held against what each was told.
//!
//! Every writer has a thread, and one of them runs at a time, from one request to the next: so anything
//! can happen between any two requests, and the same seed repeats it.

mod gate;
mod history;
mod party;

use std::collections::BTreeMap;
use std::sync::Arc;

use gate::Gate;
use history::{History, OPTIONS, Shared};
use party::Party;
use sim::objects::{SimObjects, Weather};
use sim::rng::Rng;
use store::conformance::{append_next, fill};
use store::object::{ObjectLog, ObjectOptions, Patience, Standing, WriterId};
use store::{ErrorKind, LogStore, Seq, StoreError};

const PARTIES: usize = 3;

/// Says which run it was, whoever panics in it.
struct Naming(u64);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was seed {}", self.0);
        }
    }
}

fn run(seed: u64) -> (SimObjects, History) {
    let _naming = Naming(seed);
    let mut rng = Rng::new(seed);
    let weather =
        Weather { trouble: [0, 10, 25, 40][usize::from(rng.small(4))], late_max: 1 + rng.below(300) };
    let objects = SimObjects::new(rng.number(), weather);
    let (gate, history) = (Gate::new(PARTIES), Shared::default());
    std::thread::scope(|scope| {
        for name in 0..PARTIES {
            let party = Party::new(name, rng.number(), &objects, &gate, &history);
            scope.spawn(move || party.live());
        }
        gate.run(&mut rng);
    });
    objects.calm();
    let history = std::mem::take(&mut *history.lock());
    (objects, history)
}

/// When all is calm, whoever comes finds the log, reads it whole, and has it.
fn check_aftermath(objects: &SimObjects, history: &mut History) {
    let mut log = open(objects, 99).expect("a sound log");
    let (bounds, mut reader) = (log.bounds(), log.reader());
    for seq in (bounds.floor.0..bounds.next.0).map(Seq) {
        history.read(reader.read(seq).expect("above the floor"));
    }
    append_next(&mut log).expect("nobody else is there");
    log.confirm().expect("nobody else is there");
    history.found(bounds);
}

fn open(objects: &SimObjects, writer: u128) -> Result<ObjectLog, StoreError> {
    let options = ObjectOptions { writer: WriterId(writer), ..OPTIONS };
    ObjectLog::open(Arc::new(objects.handle()), options, Patience::without_pause(2))
}

/// `SEEDS=10000 cargo test -p sim --test it object_takeover` tries that many.
#[test]
fn there_is_one_sequence_and_nobody_is_told_otherwise() {
    let seeds: u64 = std::env::var("SEEDS").map_or(400, |seeds| seeds.parse().expect("a number"));
    let mut counts = BTreeMap::new();
    for seed in 0..seeds {
        let (objects, mut history) = run(seed);
        check_aftermath(&objects, &mut history);
        history.check(&objects.journal()).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        for (what, times) in history.counts {
            *counts.entry(what).or_insert(0) += times;
        }
    }
    for what in party::COUNTED {
        assert!(counts.get(what).is_some_and(|times| *times >= seeds / 40), "{what} is rare: {counts:?}");
    }
}

#[test]
fn the_same_seed_repeats_a_run() {
    for seed in [3, 4, 5] {
        assert_eq!(run(seed).0.journal(), run(seed).0.journal());
    }
}

/// A writer slept while another took the log over and truncated all of it. When it woke, the number at
/// which it went on was below the floor, and everything around it was gone.
#[test]
fn a_writer_that_slept_through_takeover_and_truncation_is_refused() {
    let objects = SimObjects::new(1, Weather { trouble: 0, late_max: 4 });
    let handle = objects.handle();
    let options = ObjectOptions { writer: WriterId(1), ..OPTIONS };
    let mut sleeper =
        ObjectLog::open(Arc::new(handle.clone()), options, Patience::without_pause(2)).expect("empty");
    fill(&mut sleeper, 7);
    handle.sleep(true);
    assert_eq!(kind(sleeper.confirm()), ErrorKind::Io);
    let mut taker = open(&objects, 2).expect("a sound log");
    fill(&mut taker, 40);
    taker.raise_floor(Seq(40)).expect("all of it");
    assert_eq!(kind(append_next(&mut sleeper)), ErrorKind::Io, "no answer reaches it");
    handle.sleep(false);
    assert_eq!(kind(append_next(&mut sleeper)), ErrorKind::Taken);
    assert_eq!(sleeper.standing(), Standing::Deposed);
}

/// The same for one that had never owned the log: its number was an ordinary batch, and is free again.
#[test]
fn a_stand_by_whose_first_object_lands_after_a_truncation_stands_down() {
    let objects = SimObjects::new(1, Weather { trouble: 0, late_max: 4 });
    let mut owner = open(&objects, 1).expect("empty");
    fill(&mut owner, 7);
    let handle = objects.handle();
    let options = ObjectOptions { writer: WriterId(2), ..OPTIONS };
    let mut late =
        ObjectLog::open(Arc::new(handle.clone()), options, Patience::without_pause(1)).expect("sound");
    fill(&mut owner, 40);
    owner.raise_floor(Seq(30)).expect("within the log");
    handle.sleep(true);
    assert_eq!(kind(append_next(&mut late)), ErrorKind::Io);
    owner.confirm().expect("what lands below the floor takes nothing over");
    fill(&mut owner, 50);
    handle.sleep(false);
    assert_eq!(kind(append_next(&mut late)), ErrorKind::Refused);
    assert_eq!(kind(append_next(&mut late)), ErrorKind::Taken);
    fill(&mut owner, 60);
    assert_eq!(open(&objects, 3).expect("sound").bounds(), owner.bounds());
}

fn kind<T>(result: Result<T, StoreError>) -> ErrorKind {
    result.err().expect("it must fail").kind
}
