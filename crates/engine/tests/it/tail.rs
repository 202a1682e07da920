//! The tail of a log in an object store, which a start has to read: bounded by its bytes, and by its number of objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{Engine, Options};
use kernel::{Action, Command, Span};
use sim::fixture::{grant, identity, key};
use store::BlobStore;
use store::memory::MemoryBlobs;
use store::object::{MemoryObjects, ObjectLog, ObjectOptions, Objects, RetryPolicy, WriterId};

use crate::deadline::eventually;
use crate::fixture::{TENURE, TestClock, executor};

/// Batches between two snapshots.
const BATCHES: u64 = 16;

#[derive(Default)]
struct SnapshotCount(AtomicU64);

impl EngineObserver for SnapshotCount {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn maintained(&self, event: MaintenanceEvent) {
        if matches!(event, MaintenanceEvent::Snapshot { .. }) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Bucket {
    objects: Arc<dyn Objects>,
    blobs: Arc<dyn BlobStore>,
    clock: TestClock,
}

impl Bucket {
    fn open(&self, writer: u128, options: Options) -> (Engine, Arc<SnapshotCount>) {
        let log = ObjectOptions::new(0, 1, WriterId(writer));
        let log =
            ObjectLog::open(Arc::clone(&self.objects), log, RetryPolicy::without_pause(3)).expect("readable");
        let count = Arc::new(SnapshotCount::default());
        let (blobs, clock) = (Arc::clone(&self.blobs), Box::new(self.clock.clone()));
        let engine = Engine::open(
            Box::new(log),
            blobs,
            clock,
            &TENURE,
            options,
            Arc::<SnapshotCount>::clone(&count),
            &executor(),
        );
        (engine.expect("valid"), count)
    }
}

/// Small batches are far from the bytes after which a snapshot is due: a start read a hundred thousand of them, one request
/// for each.
#[test]
fn a_start_reads_at_most_the_batches_between_two_snapshots() {
    for (snapshot_batches, is_bounded) in [(BATCHES, true), (u64::MAX, false)] {
        let (objects, blobs) = (Arc::new(MemoryObjects::default()), Arc::new(MemoryBlobs::default()));
        let bucket = Bucket { objects, blobs, clock: TestClock::default() };
        let options = Options { snapshot_batches, ..Options::default() };
        let (engine, count) = bucket.open(1, options.clone());
        for number in 0..20 * BATCHES {
            let acquire = Action::Acquire(grant(key(&format!("key-{number}")), Span(60_000)));
            let command = Command::by(&identity("ana"), acquire);
            engine.sequencer().call(command, 0, None, None).expect("running").expect("accepted");
            if is_bounded && (number + 1) % BATCHES == 0 {
                let due = (number + 1) / BATCHES;
                eventually("the snapshot is durable", || count.0.load(Ordering::Relaxed) >= due);
            }
        }
        drop(engine);
        let (engine, _) = bucket.open(2, options);
        let (replayed, leases) = (engine.recovery().records, engine.recovery().leases);
        assert_eq!(leases as u64, 20 * BATCHES);
        // With the records of the beginning and the end of the tenure.
        let expected = if is_bounded { 0..=BATCHES + 2 } else { 20 * BATCHES..=20 * BATCHES + 3 };
        assert!(expected.contains(&replayed), "snapshot_batches={snapshot_batches} replayed={replayed}");
    }
}
