//! Checkpointing with a store that fails temporarily.

use engine::internals::checkpoint::{CheckpointError, Mark, take};
use engine::internals::decider::Decider;
use engine::internals::shard::StateDigest;
use engine::{MachineClock, TenureConfig};
use kernel::{Action, Command, Kernel, Limits, Shard, Span, Store};
use sim::fixture::{grant, identity, key};
use store::faulty::{Call, Fault, Faulty};
use store::memory::{MemoryBlobs, MemoryLog};
use store::{ErrorKind, LogStore};

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
    decider.decide(&Command::by(&identity("ada"), Action::Acquire(grant(key("k"), Span(1000)))), 0, None);
    let second = append(&mut decider, &mut log);

    let mut reads = 0;
    let plan = move |call| {
        reads += u32::from(call == Call::ReadBlob);
        if call == Call::ReadBlob && reads == 1 { Fault::Before(ErrorKind::NoSpace) } else { Fault::None }
    };
    let blobs = Faulty::new(MemoryBlobs::default(), Box::new(plan));
    take(&blobs, &mut *log.reader(), Shard(0), &first).expect("no snapshot to read yet");
    match take(&blobs, &mut *log.reader(), Shard(0), &second).err() {
        Some(CheckpointError::Store(error)) => assert_eq!(error.kind, ErrorKind::NoSpace),
        other => panic!("expected a store error, which is retried: {other:?}"),
    }
    take(&blobs, &mut *log.reader(), Shard(0), &second).expect("readable again");
}
