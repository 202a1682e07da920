//! Checkpointing with a store that fails, temporarily or for good, and with snapshots that are not what was written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use engine::internals::checkpoint::{CheckpointError, Mark, take};
use engine::internals::decider::Decider;
use engine::internals::recovery::{SnapshotDamage, snapshot_name};
use engine::internals::shard::StateDigest;
use engine::internals::snapshot;
use engine::{MachineClock, Origin, TenureConfig};
use kernel::{Action, Command, Kernel, Limits, Shard, Span, Store};
use sim::fixture::{grant, identity, key};
use store::faulty::{Call, Fault, Faulty};
use store::memory::{MemoryBlobs, MemoryLog};
use store::{BlobName, BlobStore, BlobWriter, ErrorKind, LogStore, StoreError};

use crate::driver::{Driver, flip, recovered, snapshot_names};

/// Appends the decided commands as the next batch, and returns the mark after it.
fn append(decider: &mut Decider, log: &mut MemoryLog) -> Mark {
    let sealed = decider.seal().expect("something was decided");
    log.append(sealed.seq, sealed.lsns, &sealed.payload).expect("memory does not fail");
    let state = StateDigest { lsn: decider.kernel().last_lsn(), hash: decider.kernel().state_hash() };
    Mark { next: sealed.seq.next(), state, extents: log.extents() }
}

/// The filesystem failed during a checkpoint: the last snapshot could not be opened. Maintenance reported
/// that the log does not reproduce the live state, advised to restore a backup, and ended the process. A
/// temporary lack of descriptors would have had the same effect.
#[test]
fn a_temporary_failure_to_read_a_snapshot_is_not_reported_as_divergence() {
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let opening = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
    let mut log = MemoryLog::default();
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let mut decider =
        Decider::open(Kernel::new(), log.bounds().next, clock, &opening).expect("a right clock");
    let first = append(&mut decider, &mut log);
    decider.decide(
        &Command::by(&identity("ada"), Action::Acquire(grant(key("k"), Span(1000)))),
        &Origin::default(),
        None,
    );
    let second = append(&mut decider, &mut log);

    // A snapshot is read in two calls: the first two read back the first one.
    let mut reads = 0;
    let plan = move |call| {
        reads += u32::from(call == Call::ReadBlob);
        if call == Call::ReadBlob && reads == 3 { Fault::Before(ErrorKind::NoSpace) } else { Fault::None }
    };
    let blobs = Faulty::new(MemoryBlobs::default(), Box::new(plan));
    take(&blobs, &mut *log.reader(), Shard(0), &first, 0, &mut |_| ()).expect("no snapshot to read yet");
    match take(&blobs, &mut *log.reader(), Shard(0), &second, 0, &mut |_| ()).err() {
        Some(CheckpointError::Store(error)) => assert_eq!(error.kind, ErrorKind::NoSpace),
        other => panic!("expected a store error, which is retried: {other:?}"),
    }
    take(&blobs, &mut *log.reader(), Shard(0), &second, 0, &mut |_| ()).expect("readable again");
}

/// Changes the bytes of every blob on their way to the device.
type Damage = fn(&[u8]) -> Vec<u8>;

/// A device that stores other bytes than were written, behind a cache that has the right ones until a blob is evicted.
#[derive(Clone)]
struct BadDevice {
    device: MemoryBlobs,
    cache: Arc<Mutex<BTreeMap<BlobName, Vec<u8>>>>,
    damage: Arc<Mutex<Option<Damage>>>,
}

impl BadDevice {
    fn new() -> BadDevice {
        BadDevice { device: MemoryBlobs::default(), cache: Arc::default(), damage: Arc::default() }
    }

    fn set_damage(&self, damage: Option<Damage>) {
        *self.damage.lock().expect("not poisoned") = damage;
    }
}

impl BlobStore for BadDevice {
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError> {
        Ok(Box::new(BadWriter { blobs: self.clone(), name: name.clone(), bytes: Vec::new() }))
    }

    fn len(&self, name: &BlobName) -> Result<u64, StoreError> {
        self.device.len(name)
    }

    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        match self.cache.lock().expect("not poisoned").get(name) {
            Some(bytes) => {
                let from = usize::try_from(offset).expect("small").min(bytes.len());
                Ok(bytes[from..].iter().copied().take(length).collect())
            }
            None => self.device.read(name, offset, length),
        }
    }

    fn evict(&self, name: &BlobName) {
        self.cache.lock().expect("not poisoned").remove(name);
    }

    fn delete(&self, name: &BlobName) -> Result<(), StoreError> {
        self.evict(name);
        self.device.delete(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<BlobName>, StoreError> {
        self.device.list(prefix)
    }
}

struct BadWriter {
    blobs: BadDevice,
    name: BlobName,
    bytes: Vec<u8>,
}

impl BlobWriter for BadWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<u64, StoreError> {
        let damage = *self.blobs.damage.lock().expect("not poisoned");
        let stored = damage.map_or_else(|| self.bytes.clone(), |damage| damage(&self.bytes));
        let mut writer = self.blobs.device.create(&self.name)?;
        writer.write(&stored)?;
        writer.finish()?;
        self.blobs.cache.lock().expect("not poisoned").insert(self.name.clone(), self.bytes);
        Ok(stored.len() as u64)
    }
}

fn flip_one_bit(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    bytes
}

/// A well-formed snapshot, with checksums that match, of a state without the last lease.
fn lose_one_lease(bytes: &[u8]) -> Vec<u8> {
    let mut input = |offset: u64, length: usize| {
        let from = usize::try_from(offset).expect("small").min(bytes.len());
        Ok(bytes[from..].iter().copied().take(length).collect())
    };
    let (mut state, next) = snapshot::read(&mut input).expect("sound");
    state.leases.pop().expect("a lease");
    let mut without = Vec::new();
    let written = snapshot::write(&state, next, &mut |part| {
        without.extend_from_slice(part);
        Ok(())
    });
    written.expect("memory does not fail");
    without
}

/// Takes two good snapshots and a bad one, and returns what is wrong with it. The bad one must not displace a good one.
fn damage_of_a_bad_snapshot(damage: Damage) -> SnapshotDamage {
    let (log, blobs) = (MemoryLog::default(), BadDevice::new());
    let mut driver = Driver::open(Box::new(log.clone()), Arc::new(blobs.clone())).expect("an empty store");
    driver.rounds(3);
    let (good, floor) = (snapshot_names(&blobs), log.bounds().floor);
    blobs.set_damage(Some(damage));
    let mark = driver.batch().expect("writable");
    let failed = driver.checkpoint(&mark).expect_err("the new snapshot is bad");
    let CheckpointError::Unreadable(snapshot) = failed else {
        panic!("not fatal, and not retried: {failed}")
    };
    assert_eq!(snapshot.name, snapshot_name(Shard(0), mark.next));
    assert_eq!(snapshot_names(&blobs), good, "the bad one is deleted, and no good one");
    assert_eq!(log.bounds().floor, floor);
    // The next one is good.
    blobs.set_damage(None);
    driver.rounds(1);
    let state = driver.decider.kernel().snapshot();
    assert_eq!(recovered(&log, &blobs).expect("sound").0.snapshot(), state);
    snapshot.damage
}

/// A new snapshot was damaged on its way to the device. The page cache had the right bytes, so reading it back
/// noticed nothing, and the older snapshots were deleted.
#[test]
fn a_new_snapshot_is_read_back_from_the_device_before_an_older_one_is_deleted() {
    let damage = damage_of_a_bad_snapshot(flip_one_bit);
    assert!(matches!(damage, SnapshotDamage::Format(_)), "{damage}");
}

/// A snapshot lost a row. Its checksums matched, and so did the state hash, which a snapshot carries along: the lease
/// was free after the next restart.
#[test]
fn a_snapshot_that_lost_a_row_is_caught_when_it_is_read_back() {
    let damage = damage_of_a_bad_snapshot(lose_one_lease);
    assert!(matches!(damage, SnapshotDamage::Content), "{damage}");
}

/// A checkpoint was repeated after a power cut, for the same batches. The damaged snapshot that the first try had left
/// had the same name, so the new one was never stored.
#[test]
fn a_damaged_snapshot_is_removed_before_its_name_is_used_again() {
    let (log, blobs) = (MemoryLog::default(), MemoryBlobs::default());
    let mut driver = Driver::in_memory(&log, &blobs);
    driver.rounds(2);
    let mark = driver.batch().expect("writable");
    driver.checkpoint(&mark).expect("taken");
    let name = snapshot_name(Shard(0), mark.next);
    flip(&blobs, &name, 200);
    let damaged = driver.checkpoint(&mark).expect("taken again");
    assert_eq!(damaged.iter().map(|snapshot| &snapshot.name).collect::<Vec<_>>(), [&name]);
    assert_eq!(snapshot_names(&blobs).len(), 2);
    assert!(recovered(&log, &blobs).expect("sound").1.is_empty(), "the new one has its place");
}

/// The newest snapshot had lost rows before they were compared, and was read without an error. The replay from it led
/// elsewhere, and a live state that was right was called a divergence.
#[test]
fn a_snapshot_with_wrong_rows_is_passed_over_if_an_older_one_leads_to_the_live_state() {
    let (log, blobs) = (MemoryLog::default(), MemoryBlobs::default());
    let mut driver = Driver::in_memory(&log, &blobs);
    driver.rounds(3);
    let newest = snapshot_names(&blobs).pop().expect("two snapshots");
    let mut state = driver.decider.kernel().snapshot();
    state.state_hash ^= 1;
    let (next, mut wrong) = (log.bounds().next, Vec::new());
    let written = snapshot::write(&state, next, &mut |part| {
        wrong.extend_from_slice(part);
        Ok(())
    });
    written.expect("memory does not fail");
    crate::driver::replace(&blobs, &newest, &wrong);
    let mark = driver.batch().expect("writable");
    let damaged = driver.checkpoint(&mark).expect("the older one leads to the live state");
    assert_eq!(damaged.into_iter().map(|snapshot| snapshot.name).collect::<Vec<_>>(), [newest]);
    assert!(recovered(&log, &blobs).expect("sound").1.is_empty());
}
