//! Linearizability of a whole engine, in memory and on a real disk: the responses to concurrent clients agree with one
//! sequential order of the calls on each group of keys.
//!
//! The seed decides the requests, the scheduler their order: a seed that failed may pass when it is run again. So a
//! failure prints the group's state and the calls that cannot come next. Each round has its own keys and is short, to
//! bound the search.

mod client;
mod record;
mod request;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::internals::engine::PanicOnFailure;
use engine::{Engine, MachineClock, Options, TenureConfig};
use kernel::{Limits, OnExpiry, Span, Store};
use sim::linearizability::explain;
use sim::linearizability::operation::{CallResult, CredentialRefusal, Op};
use sim::linearizability::resources::ResourcesModel;
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::fs::RealFs;
use store::memory::{MemoryBlobs, MemoryLog};
use store::{BlobStore, LogStore};

use self::client::{Client, Workload};
use self::record::Recorder;
use crate::fixture::executor;

const GROUPS: usize = 2;
/// The keys of a group.
const KEYS: usize = 2;
const CLIENTS: u64 = 6;
const CALLS: u32 = 60;
const ROUNDS: u64 = 30;
const ROUNDS_MAX: u64 = 20 * ROUNDS;

/// Where the engine stores its log.
enum Storage<'a> {
    Memory,
    Disk(&'a Path),
}

/// Takes snapshots frequently, so that the commands of maintenance are interleaved with those of the clients.
fn open(storage: &Storage<'_>) -> Engine {
    let (log, blobs): (Box<dyn LogStore>, Arc<dyn BlobStore>) = match storage {
        Storage::Memory => (Box::new(MemoryLog::default()), Arc::new(MemoryBlobs::default())),
        Storage::Disk(dir) => {
            let log = LogOptions { shard: 0, store_id: 1, segment_bytes: 8 << 20 };
            let log = DiskLog::open(RealFs, &dir.join("log"), log).expect("a sound log").0;
            (Box::new(log), Arc::new(DiskBlobs::open(RealFs, &dir.join("blob")).expect("a sound store")))
        }
    };
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let options = Options {
        snapshot_every: 128 << 10,
        retain: 0,
        sweep_every: Duration::from_millis(50),
        ..Options::default()
    };
    Engine::open(log, blobs, clock, &tenure, options, Arc::new(PanicOnFailure), &executor())
        .expect("a sound store")
}

fn seed() -> u64 {
    std::env::var("LINEAR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Runs rounds and checks them, until every kind of response has occurred: which do depends on the schedule, and a kind
/// that did not occur was not checked.
fn run(test: &str, storage: &Storage<'_>, workload: Workload, kinds: &[fn(&Op) -> bool]) {
    let engine = open(storage);
    let first = seed() * ROUNDS_MAX;
    let mut ops = Vec::new();
    let missing = |ops: &[Op]| kinds.iter().position(|kind| !ops.iter().any(kind));
    for round in first..first + ROUNDS_MAX {
        if round >= first + ROUNDS && missing(&ops).is_none() {
            break;
        }
        let recorder = Arc::new(Recorder::new(round, GROUPS, KEYS));
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let mut client =
                    Client::new(&engine, Arc::clone(&recorder), workload, round * CLIENTS + number);
                scope.spawn(move || client.run(CALLS));
            }
        });
        for (group, calls) in recorder.histories().into_iter().enumerate() {
            ops.extend(calls.iter().map(|call| call.op.clone()));
            if let Err(why) = explain(&ResourcesModel { resources: KEYS }, calls) {
                let seed = seed();
                panic!(
                    "round {round}, group {group}: {why}\nto run the same requests again: \
                     LINEAR_SEED={seed} cargo test -p lockd-engine --test it linearizable::{test}"
                );
            }
        }
    }
    println!("{} calls are linearizable", ops.len());
    assert_eq!(missing(&ops), None, "no response of this kind: seed={}", seed());
}

const LONG: Workload = Workload { ttls: &[Span(300_000)], on_expiry: &[OnExpiry::Free] };
/// Some leases expire while they are used; how many depends on the machine.
const EXPIRING: Workload = Workload {
    ttls: &[Span(1), Span(3), Span(10), Span(300_000)],
    on_expiry: &[OnExpiry::Free, OnExpiry::Hold(Span(2)), OnExpiry::Hold(Span(20)), OnExpiry::Manual],
};

#[test]
fn responses_are_linearizable_with_long_leases() {
    let dir = tempfile::tempdir().expect("a directory");
    let storage = Storage::Disk(dir.path());
    run(
        "responses_are_linearizable_with_long_leases",
        &storage,
        LONG,
        &[
            |op| matches!(&op.result, CallResult::Granted { members, .. } if members.len() > 1),
            |op| matches!(op.result, CallResult::Blocked { .. }),
            |op| matches!(op.result, CallResult::Renewed { .. }),
            |op| matches!(op.result, CallResult::Released(_)),
            |op| matches!(op.result, CallResult::Committed { write, .. } if write.if_version.is_some()),
            |op| matches!(op.result, CallResult::Removed { removed: true, .. }),
            |op| matches!(op.result, CallResult::VersionConflict { .. }),
            |op| matches!(op.result, CallResult::Refused { .. }),
            |op| matches!(op.result, CallResult::Revoking(_)),
            |op| matches!(op.result, CallResult::Reclaimed(_)),
            |op| matches!(op.result, CallResult::RequestMismatch),
            |op| matches!(op.result, CallResult::ReplayRefused(_)),
            |op| matches!(op.result, CallResult::NotRebound(_, CredentialRefusal::Live)),
            |op| matches!(&op.result, CallResult::Read { holders: Some(holders), .. } if holders.len() > 1),
            |op| matches!(op.result, CallResult::ReadLease { .. }),
        ],
    );
}

#[test]
fn responses_are_linearizable_with_expiring_leases() {
    let dir = tempfile::tempdir().expect("a directory");
    let storage = Storage::Disk(dir.path());
    run(
        "responses_are_linearizable_with_expiring_leases",
        &storage,
        EXPIRING,
        &[
            |op| matches!(op.result, CallResult::Granted { .. }),
            |op| matches!(op.result, CallResult::Committed { .. }),
            |op| matches!(op.result, CallResult::Rebound { .. }),
        ],
    );
}

#[test]
fn responses_are_linearizable_in_memory() {
    run(
        "responses_are_linearizable_in_memory",
        &Storage::Memory,
        EXPIRING,
        &[
            |op| matches!(op.result, CallResult::Granted { .. }),
            |op| matches!(op.result, CallResult::Committed { .. }),
        ],
    );
}
