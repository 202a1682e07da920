//! Damaged snapshots lose nothing: neither at a restart, nor under a live engine, nor together with a power cut.

use std::path::Path;
use std::sync::{Arc, Mutex};

use engine::internals::checkpoint::CheckpointError;
use engine::internals::recovery::{RecoveryError, snapshots};
use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{Engine, Options};
use kernel::{Action, Command, Response, Shard, Snapshot, Span};
use sim::disk::{FaultPlan, SimFs};
use sim::fixture::{grant, held, identity, key};
use sim::rng::Rng;
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::memory::{MemoryBlobs, MemoryLog};
use store::{BlobName, BlobStore, BlobWriter, ErrorKind, LogStore, Seq, StoreError};

use crate::deadline::eventually;
use crate::driver::{Driver, bytes_of, flip, recovered, replace, snapshot_names};
use crate::fixture::{TENURE, TestClock, executor};

/// Offsets spread over a blob: its first and last bytes, and some in between.
fn samples(length: usize) -> Vec<usize> {
    let spread = (0..40).map(|n| n * (length - 1) / 39);
    (0..12).chain(spread).chain(length - 5..length).collect()
}

/// A bit of the newest snapshot flipped while the server was stopped. Recovery read only that one, and refused to
/// start; there was no older one, and the log before it was deleted.
#[test]
fn a_damaged_newest_snapshot_is_passed_over_at_a_restart() {
    let (log, blobs) = (MemoryLog::default(), MemoryBlobs::default());
    let mut driver = Driver::in_memory(&log, &blobs);
    driver.rounds(5);
    driver.batch().expect("writable");
    let state = driver.decider.kernel().snapshot();
    let names = snapshot_names(&blobs);
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(log.bounds().floor > Seq(0), "the log alone is not enough");
    let newest = names.last().expect("two snapshots");
    let sound = bytes_of(&blobs, newest);
    for at in samples(sound.len()) {
        flip(&blobs, newest, at);
        let (kernel, damaged) = recovered(&log, &blobs).unwrap_or_else(|error| panic!("at {at}: {error}"));
        assert_eq!(kernel.snapshot(), state, "at {at}");
        let names: Vec<&BlobName> = damaged.iter().map(|snapshot| &snapshot.name).collect();
        assert_eq!(names, [newest], "at {at}: the damaged file is named");
        replace(&blobs, newest, &sound);
    }
    // Cut off anywhere, or empty.
    for length in [0, 1, sound.len() / 2, sound.len() - 1] {
        replace(&blobs, newest, &sound[..length]);
        assert_eq!(recovered(&log, &blobs).expect("the older one").0.snapshot(), state, "{length} bytes");
    }
}

#[test]
fn without_a_readable_snapshot_the_log_alone_is_replayed_or_the_error_says_what_to_do() {
    let (log, blobs) = (MemoryLog::default(), MemoryBlobs::default());
    let mut driver = Driver::in_memory(&log, &blobs);
    // One snapshot: the floor stays, so the log is complete.
    driver.rounds(1);
    flip(&blobs, &snapshot_names(&blobs)[0], 100);
    let state = driver.decider.kernel().snapshot();
    assert_eq!(log.bounds().floor, Seq(0));
    let (kernel, damaged) = recovered(&log, &blobs).expect("the log alone is enough");
    assert_eq!((kernel.snapshot(), damaged.len()), (state, 1));

    let mark = driver.batch().expect("writable");
    driver.checkpoint(&mark).expect("it is replaced");
    driver.rounds(4);
    let names = snapshot_names(&blobs);
    for name in &names {
        flip(&blobs, name, 100);
    }
    let error = recovered(&log, &blobs).err().expect("the beginning of the log is deleted");
    assert!(matches!(error, RecoveryError::NoSnapshot { .. }), "{error}");
    let message = error.to_string();
    assert!(names.iter().all(|name| message.contains(name.as_str())), "{message}");
    assert!(message.contains("backup"), "{message}");
}

/// The log lost its end, and the newest snapshot was damaged: an older snapshot and the rest of the log would give a
/// state in which acknowledged leases are free.
#[test]
fn a_damaged_snapshot_beyond_the_end_of_the_log_is_not_passed_over() {
    let (log, blobs) = (MemoryLog::default(), MemoryBlobs::default());
    let mut driver = Driver::in_memory(&log, &blobs);
    driver.rounds(1);
    let (shorter, older) = (MemoryLog::default(), bytes_of(&blobs, &snapshot_names(&blobs)[0]));
    for seq in 0..log.bounds().next.0 {
        let batch = log.reader().read(Seq(seq)).expect("complete");
        shorter.clone().append(batch.seq, batch.lsns, &batch.payload).expect("writable");
    }
    driver.rounds(1);
    let names = snapshot_names(&blobs);
    assert_eq!(bytes_of(&blobs, &names[0]), older);
    flip(&blobs, &names[1], 100);
    let error = recovered(&shorter, &blobs).err().expect("batches are missing");
    assert!(matches!(error, RecoveryError::Gap { .. }), "{error}");
}

/// Every snapshot of a live server was damaged. Nothing could be checked any more; the state in memory was right, and
/// the process ended itself over it.
#[test]
fn a_live_server_outlives_the_damage_of_all_its_snapshots() {
    let (log, blobs) = (MemoryLog::default(), MemoryBlobs::default());
    let mut driver = Driver::in_memory(&log, &blobs);
    driver.rounds(5);
    let floor = log.bounds().floor;
    for name in snapshot_names(&blobs) {
        flip(&blobs, &name, 100);
    }
    let mark = driver.batch().expect("writable");
    match driver.checkpoint(&mark) {
        Err(CheckpointError::Store(error)) => {
            assert_eq!(error.kind, ErrorKind::Damaged);
            assert!(error.to_string().contains("cannot be restarted"), "{error}");
        }
        other => panic!("expected a failure that is reported and retried: {other:?}"),
    }
    assert_eq!(log.bounds().floor, floor, "nothing more is deleted");
}

/// Blobs of which one byte of one blob reads wrong.
#[derive(Clone, Default)]
struct FlippedByte {
    inner: MemoryBlobs,
    flip: Arc<Mutex<Option<(BlobName, u64)>>>,
}

impl BlobStore for FlippedByte {
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError> {
        self.inner.create(name)
    }

    fn len(&self, name: &BlobName) -> Result<u64, StoreError> {
        self.inner.len(name)
    }

    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = self.inner.read(name, offset, length)?;
        let flip = self.flip.lock().expect("not poisoned").clone();
        if let Some((_, at)) = flip.filter(|(flipped, at)| flipped == name && *at >= offset) {
            let at = usize::try_from(at - offset).expect("small");
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 0x10;
            }
        }
        Ok(bytes)
    }

    fn delete(&self, name: &BlobName) -> Result<(), StoreError> {
        self.inner.delete(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<BlobName>, StoreError> {
        self.inner.list(prefix)
    }
}

#[derive(Default)]
struct MaintenanceLog {
    snapshots: Mutex<usize>,
    damaged: Mutex<Vec<BlobName>>,
    fatal: Mutex<Vec<String>>,
}

impl EngineObserver for MaintenanceLog {
    fn fatal(&self, why: Fatal) {
        self.fatal.lock().expect("not poisoned").push(why.to_string());
    }

    fn maintained(&self, event: MaintenanceEvent) {
        match event {
            MaintenanceEvent::Snapshot { .. } => *self.snapshots.lock().expect("not poisoned") += 1,
            MaintenanceEvent::SnapshotDamaged(snapshot) => {
                self.damaged.lock().expect("not poisoned").push(snapshot.name);
            }
            MaintenanceEvent::Swept(_) => {}
            MaintenanceEvent::Failed(error) => panic!("{error}"),
        }
    }
}

/// A bit of the newest snapshot flipped under a running server. At the next mark the server could not read it, took
/// that for a divergence, and ended itself; it did not start again.
#[test]
fn a_live_engine_replaces_a_damaged_snapshot_and_goes_on() {
    let (log, blobs, observer) =
        (MemoryLog::default(), FlippedByte::default(), Arc::new(MaintenanceLog::default()));
    let options = Options { snapshot_every: 20_000, retain: 0, ..Options::default() };
    let clock = Box::new(TestClock::default());
    let shared: Arc<dyn EngineObserver> = Arc::clone(&observer) as Arc<dyn EngineObserver>;
    let stores = (Box::new(log.clone()), Arc::new(blobs.clone()));
    let engine = Engine::open(stores.0, stores.1, clock, &TENURE, options, shared, &executor())
        .expect("an empty store");
    let call = |action| {
        let command = Command::by(&identity("ada"), action);
        engine.sequencer().call(command, 0, None, None).expect("running").expect("accepted")
    };
    // The state stays small: the maintenance thread has the lowest priority.
    let until_next_snapshot = || {
        let taken = || *observer.snapshots.lock().expect("not poisoned");
        let before = taken();
        eventually("a snapshot is taken", || {
            let granted = call(Action::Acquire(grant(key(&"k".repeat(500)), Span(300_000))));
            let Some(Response::Granted(lease)) = granted.response() else { panic!("{granted:?}") };
            call(Action::Release(held(lease)));
            taken() > before
        });
    };
    until_next_snapshot();
    until_next_snapshot();
    for sample in 0..12_u64 {
        // A checkpoint that was already under way may not read the damaged one.
        loop {
            let newest = snapshot_names(&blobs).pop().expect("a snapshot");
            let at = sample * (blobs.len(&newest).unwrap_or(1) - 1) / 11;
            *blobs.flip.lock().expect("not poisoned") = Some((newest.clone(), at));
            until_next_snapshot();
            if observer.damaged.lock().expect("not poisoned").contains(&newest) {
                break;
            }
        }
        assert_eq!(*observer.fatal.lock().expect("not poisoned"), Vec::<String>::new());
    }
    drop(engine);
    *blobs.flip.lock().expect("not poisoned") = None;
    let (_, damaged) = recovered(&log, &blobs).expect("the store opens again");
    assert!(damaged.is_empty(), "{damaged:?}");
}

const SEGMENT: u64 = LogOptions::SEGMENT_BYTES_MIN;

fn open_on(fs: &SimFs) -> Result<(DiskLog<SimFs>, DiskBlobs<SimFs>), StoreError> {
    let options = LogOptions { shard: 0, store_id: 9, segment_bytes: SEGMENT };
    let (log, _) = DiskLog::open(fs.clone(), Path::new("/store/log"), options)?;
    Ok((log, DiskBlobs::open(fs.clone(), Path::new("/store/blob"))?))
}

/// The states that a recovery may find.
#[derive(Default)]
struct Expected {
    durable: Option<Snapshot>,
    in_flight: Option<Snapshot>,
}

/// Batches and checkpoints, until the power fails.
fn script(fs: &SimFs, expected: &mut Expected) -> Option<()> {
    let (log, blobs) = open_on(fs).ok()?;
    let mut driver = Driver::open(Box::new(log), Arc::new(blobs)).ok()?;
    for round in 0..8 {
        // What a batch leads to is known once it was appended; before, only that it may be in the log.
        let appended = driver.batch();
        expected.in_flight = Some(driver.decider.kernel().snapshot());
        let mark = appended.ok()?;
        expected.durable = expected.in_flight.take();
        if round % 2 == 1 {
            driver.checkpoint(&mark).ok()?;
        }
    }
    Some(())
}

/// After a power cut: the state is there, also if the newest snapshot is damaged on top of it.
fn check_after_power_cut(fs: &SimFs, expected: &Expected, what: &str) {
    let (log, blobs) = open_on(fs).unwrap_or_else(|error| panic!("{what}: {error}"));
    let state = |why: &str| {
        let found = recovered(&log, &blobs).unwrap_or_else(|error| panic!("{what}, {why}: {error}"));
        found.0.snapshot()
    };
    let found = state("recovered");
    let states = [expected.durable.as_ref(), expected.in_flight.as_ref()];
    assert!(
        expected.durable.is_none() || states.into_iter().flatten().any(|state| *state == found),
        "{what}: another state than was acknowledged"
    );
    let floor = log.bounds().floor;
    let usable =
        snapshots(&blobs, Shard(0)).expect("a list").iter().filter(|(_, next)| *next >= floor).count();
    assert!(floor == Seq(0) || usable >= 2, "{what}: floor={floor:?} usable={usable}");
    if let Some(newest) = snapshot_names(&blobs).pop() {
        let bytes = bytes_of(&blobs, &newest);
        flip(&blobs, &newest, bytes.len() / 2);
        assert!(state("with its newest snapshot damaged") == found, "{what}: the fallback differs");
    }
}

/// The power fails at each call of appending, taking snapshots, deleting older ones and raising the floor.
#[test]
fn a_power_cut_at_any_step_of_a_checkpoint_leaves_two_ways_to_the_state() {
    let whole = SimFs::new(FaultPlan::default());
    script(&whole, &mut Expected::default()).expect("no power cut");
    assert!(open_on(&whole).expect("sound").0.bounds().floor > Seq(0), "the floor rises in this script");
    for crash_at in 0..whole.calls() {
        let fs = SimFs::new(FaultPlan { crash_at: Some(crash_at), fail_at: None });
        let mut expected = Expected::default();
        script(&fs, &mut expected);
        for seed in 0..2 {
            let after = fs.after_crash(&mut Rng::new(crash_at * 2 + seed), FaultPlan::default());
            check_after_power_cut(&after, &expected, &format!("power cut at call {crash_at}, seed {seed}"));
        }
    }
}
