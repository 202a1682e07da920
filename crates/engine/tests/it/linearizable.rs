//! Threads against a whole engine on a real disk: what each of them was told is explained by one order of all
//! that happened to a key.
//!
//! The seed decides what the threads ask, the machine who comes first: a seed that failed may pass when it is
//! tried again. So a failure prints the key's state and the answers that do not fit. A round has keys of its own and
//! is short, so that the search for an order is.

mod client;
mod record;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::internals::engine::PanicOnFailure;
use engine::{Engine, MachineClock, Options, TenureConfig};
use kernel::{Limits, Span, Store};
use sim::linearizability::explain;
use sim::linearizability::key::{KeyModel, Op};
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::fs::RealFs;

use self::client::{Client, Habits};
use self::record::Recorder;

const KEYS: usize = 3;
const CLIENTS: u64 = 6;
const CALLS: u32 = 60;
const ROUNDS: u64 = 40;

/// With snapshots all the time, so that upkeep's own commands are in between.
fn open(dir: &Path) -> Engine {
    let log = LogOptions { shard: 0, store_id: 1, segment_bytes: 8 << 20 };
    let log = DiskLog::open(RealFs, &dir.join("log"), log).expect("a sound log").0;
    let blobs = Arc::new(DiskBlobs::open(RealFs, &dir.join("blob")).expect("a sound store"));
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let opening = TenureConfig { store, writer: 1, limits: Limits::default() };
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let options = Options {
        snapshot_every: 128 << 10,
        retain: 0,
        sweep_every: Duration::from_millis(50),
        ..Options::default()
    };
    Engine::open(Box::new(log), blobs, clock, &opening, options, Arc::new(PanicOnFailure))
        .expect("a sound store")
}

fn seed() -> u64 {
    std::env::var("LINEAR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Returns all that was answered.
fn run(test: &str, habits: Habits) -> Vec<Op> {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path());
    let first = seed() * ROUNDS;
    let mut answers = Vec::new();
    for round in first..first + ROUNDS {
        let recorder = Arc::new(Recorder::new(round, KEYS));
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let mut client =
                    Client::new(&engine, Arc::clone(&recorder), habits, round * CLIENTS + number);
                scope.spawn(move || client.run(CALLS));
            }
        });
        for (key, calls) in recorder.histories().into_iter().enumerate() {
            answers.extend(calls.iter().map(|call| call.op.clone()));
            if let Err(why) = explain(&KeyModel, calls) {
                let seed = seed();
                panic!(
                    "round {round}, key {key}: {why}\nto try the same commands again: \
                     LINEAR_SEED={seed} cargo test -p lockd-engine --test linearizable {test}"
                );
            }
        }
    }
    println!("{} answers in {ROUNDS} rounds, all explained", answers.len());
    answers
}

/// A kind of answer that never came was not checked.
fn came(answers: &[Op], kinds: &[fn(&Op) -> bool]) {
    for (number, kind) in kinds.iter().enumerate() {
        assert!(answers.iter().any(kind), "no answer of kind {number}; seed={}", seed());
    }
}

#[test]
fn one_order_explains_what_threads_were_told_of_leases_that_last() {
    let habits = Habits { ttls: &[Span(300_000)] };
    let answers = run("one_order_explains_what_threads_were_told_of_leases_that_last", habits);
    came(
        &answers,
        &[
            |op| matches!(op, Op::Granted { .. }),
            |op| matches!(op, Op::Blocked(_)),
            |op| matches!(op, Op::Renewed { .. }),
            |op| matches!(op, Op::Released(_)),
            |op| matches!(op, Op::Committed { if_version: Some(_), .. }),
            |op| matches!(op, Op::VersionConflict { .. }),
            |op| matches!(op, Op::Refused(..)),
            |op| matches!(op, Op::Revoking(_)),
            |op| matches!(op, Op::Reclaimed(_)),
            |op| matches!(op, Op::Read { holder: Some(_), .. }),
            |op| matches!(op, Op::ReadLease { .. }),
        ],
    );
}

/// Some leases run out while they are used. How many depends on the machine, that none is honoured longer does not.
#[test]
fn one_order_explains_what_threads_were_told_of_leases_that_run_out() {
    let habits = Habits { ttls: &[Span(1), Span(3), Span(10), Span(300_000)] };
    let answers = run("one_order_explains_what_threads_were_told_of_leases_that_run_out", habits);
    came(&answers, &[|op| matches!(op, Op::Granted { .. }), |op| matches!(op, Op::Committed { .. })]);
}
