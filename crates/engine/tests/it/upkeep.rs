//! What upkeep says of a store that fails for a moment.

use engine::checkpoint::{CheckpointError, Mark, take};
use engine::clock::MachineClock;
use engine::decider::{Decider, Opening};
use engine::shard::State;
use kernel::{Action, Command, Kernel, Limits, Shard, Span, Store};
use sim::world::{grant, identity, key};
use store::faulty::{Call, Fault, Faulty};
use store::memory::{MemoryBlobs, MemoryLog};
use store::{ErrorKind, LogStore};

/// What was decided becomes the next batch; the mark after it.
fn append(decider: &mut Decider, log: &mut MemoryLog) -> Mark {
    let sealed = decider.seal().expect("something was decided");
    log.append(sealed.seq, sealed.lsns, &sealed.payload).expect("memory does not fail");
    let state = State { lsn: decider.kernel().last_lsn(), hash: decider.kernel().state_hash() };
    Mark { next: sealed.seq.next(), state, extents: log.extents() }
}

/// The filesystem failed while a snapshot was taken: the last one could not be opened. Upkeep said that the log does
/// not come to the state that was answered from, that a backup should be restored, and ended the process. With
/// no descriptors left for a moment it would have said the same.
#[test]
fn a_snapshot_that_cannot_be_opened_for_a_moment_is_no_divergence() {
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let opening = Opening { store, writer: 1, limits: Limits::default() };
    let mut log = MemoryLog::default();
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let mut decider =
        Decider::open(Kernel::new(), log.bounds().next, clock, &opening).expect("a right clock");
    let first = append(&mut decider, &mut log);
    decider.decide(&Command::by(&identity("ada"), Action::Acquire(grant(key("k"), Span(1000)))), 0, None);
    let second = append(&mut decider, &mut log);

    let mut refused = 0;
    let plan = move |call| {
        refused += u32::from(call == Call::ReadBlob);
        if call == Call::ReadBlob && refused == 1 { Fault::Before(ErrorKind::NoSpace) } else { Fault::None }
    };
    let blobs = Faulty::new(MemoryBlobs::default(), Box::new(plan));
    take(&blobs, &mut *log.reader(), Shard(0), &first).expect("there was none to read");
    match take(&blobs, &mut *log.reader(), Shard(0), &second).err() {
        Some(CheckpointError::Store(error)) => assert_eq!(error.kind, ErrorKind::NoSpace),
        other => panic!("to be tried again, not {other:?}"),
    }
    take(&blobs, &mut *log.reader(), Shard(0), &second).expect("it can be read now");
}
