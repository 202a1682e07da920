//! Linearizability of a whole engine on a real disk: the responses to concurrent clients agree with one sequential
//! order of the calls on each key.
//!
//! The seed decides the requests, the scheduler their order: a seed that failed may pass when it is run again. So a
//! failure prints the key's state and the calls that cannot come next. Each round has its own keys and is short, to
//! bound the search.

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

use self::client::{Client, Workload};
use self::record::Recorder;

const KEYS: usize = 3;
const CLIENTS: u64 = 6;
const CALLS: u32 = 60;
const ROUNDS: u64 = 40;

/// Takes snapshots frequently, so that the commands of maintenance are interleaved with those of the clients.
fn open(dir: &Path) -> Engine {
    let log = LogOptions { shard: 0, store_id: 1, segment_bytes: 8 << 20 };
    let log = DiskLog::open(RealFs, &dir.join("log"), log).expect("a sound log").0;
    let blobs = Arc::new(DiskBlobs::open(RealFs, &dir.join("blob")).expect("a sound store"));
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let options = Options {
        snapshot_every: 128 << 10,
        retain: 0,
        sweep_every: Duration::from_millis(50),
        ..Options::default()
    };
    Engine::open(Box::new(log), blobs, clock, &tenure, options, Arc::new(PanicOnFailure))
        .expect("a sound store")
}

fn seed() -> u64 {
    std::env::var("LINEAR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Runs all rounds, checks them, and returns their calls with the responses.
fn run(test: &str, workload: Workload) -> Vec<Op> {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path());
    let first = seed() * ROUNDS;
    let mut ops = Vec::new();
    for round in first..first + ROUNDS {
        let recorder = Arc::new(Recorder::new(round, KEYS));
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let mut client =
                    Client::new(&engine, Arc::clone(&recorder), workload, round * CLIENTS + number);
                scope.spawn(move || client.run(CALLS));
            }
        });
        for (key, calls) in recorder.histories().into_iter().enumerate() {
            ops.extend(calls.iter().map(|call| call.op.clone()));
            if let Err(why) = explain(&KeyModel, calls) {
                let seed = seed();
                panic!(
                    "round {round}, key {key}: {why}\nto run the same requests again: \
                     LINEAR_SEED={seed} cargo test -p lockd-engine --test it linearizable::{test}"
                );
            }
        }
    }
    println!("{} calls in {ROUNDS} rounds are linearizable", ops.len());
    ops
}

/// A kind of response that did not occur was not checked.
fn assert_covered(ops: &[Op], kinds: &[fn(&Op) -> bool]) {
    for (number, kind) in kinds.iter().enumerate() {
        assert!(ops.iter().any(kind), "no response of this kind: kind={number} seed={}", seed());
    }
}

#[test]
fn responses_are_linearizable_with_long_leases() {
    let workload = Workload { ttls: &[Span(300_000)] };
    let ops = run("responses_are_linearizable_with_long_leases", workload);
    assert_covered(
        &ops,
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

/// Some leases expire while they are used; how many depends on the machine.
#[test]
fn responses_are_linearizable_with_expiring_leases() {
    let workload = Workload { ttls: &[Span(1), Span(3), Span(10), Span(300_000)] };
    let ops = run("responses_are_linearizable_with_expiring_leases", workload);
    assert_covered(&ops, &[|op| matches!(op, Op::Granted { .. }), |op| matches!(op, Op::Committed { .. })]);
}
