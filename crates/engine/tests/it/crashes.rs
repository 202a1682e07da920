//! Acknowledged decisions survive a power cut: decider, log and recovery over a simulated disk, in seeded
//! runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::internals::decider::Decider;
use engine::internals::recovery::{RecoveryError, replay};
use engine::{Clock, Origin, TenureConfig};
use kernel::{Kernel, Limits, Slots, Snapshot, Span, Store};
use sim::disk::{FaultPlan, SimFs};
use sim::generator::CommandGenerator;
use sim::rng::Rng;
use store::disk::{DiskLog, LogOptions};
use store::{BlobStore, ErrorKind, LogStore, Seq, StoreError};

/// A clock that the test advances. The wall clock jumps, which must have no effect.
#[derive(Clone, Default)]
struct TestClock {
    boot_clock: Arc<AtomicU64>,
    boot_id: u128,
}

impl Clock for TestClock {
    fn boot_clock(&self) -> Span {
        Span(self.boot_clock.load(Ordering::Relaxed))
    }

    fn boot_id(&self) -> u128 {
        self.boot_id
    }

    fn unix_micros(&self) -> u64 {
        let jump = self.boot_clock.load(Ordering::Relaxed) % 5 * 3_600_000_000;
        1_800_000_000_000_000 + jump
    }
}

const TENURE: TenureConfig = TenureConfig {
    store: Store { shard: kernel::Shard(1), shards: 4, hash_seed: 9 },
    writer: 3,
    limits: Limits {
        ttl_max: Span(1000),
        hold_max: Span(2000),
        leases_max: 12,
        leases_per_identity_max: 6,
        namespaces_max: 3,
        nodes_max: 60,
        documents_max: 3,
        agents_max: 4,
        agents_per_identity_max: 3,
        policies_max: 3,
        history_max: 6,
        history_members_max: 12,
        history_window: Span(400),
        requests_max: 6,
        requests_per_identity_max: 4,
        request_window: Span(300),
        step_max: 4,
    },
    slots: Slots::ALL,
};

fn open_log(fs: &SimFs) -> Result<DiskLog<SimFs>, StoreError> {
    let options = LogOptions { shard: 1, store_id: 9, segment_bytes: LogOptions::SEGMENT_BYTES_MIN * 4 };
    DiskLog::open(fs.clone(), Path::new("/store/log"), options).map(|(log, _)| log)
}

fn recover(log: &DiskLog<SimFs>) -> Result<Kernel, RecoveryError> {
    let mut kernel = Kernel::new();
    replay(&mut kernel, &mut *log.reader(), Seq(0), log.bounds().next)?;
    Ok(kernel)
}

/// The states that a recovery may lead to.
#[derive(Default)]
struct Expected {
    /// After the last batch that is certainly durable.
    durable: Option<Snapshot>,
    /// After the batch that was being appended when the power failed.
    in_flight: Option<Snapshot>,
}

/// One process: recovers, opens, decides and appends, until the power fails.
fn run(fs: &SimFs, clock: &TestClock, seed: u64, expected: &mut Expected) -> Result<(), StoreError> {
    let mut log = open_log(fs)?;
    let kernel = match recover(&log) {
        Ok(kernel) => kernel,
        // The power may also fail during recovery.
        Err(RecoveryError::Store(error)) if error.kind == ErrorKind::Io => return Err(error),
        Err(error) => panic!("seed {seed}: the log does not replay: {error}"),
    };
    let found = kernel.snapshot();
    let states = [expected.durable.as_ref(), expected.in_flight.as_ref()];
    assert!(
        expected.durable.is_none() || states.into_iter().flatten().any(|state| *state == found),
        "seed {seed}: recovered\n{found:#?}\nwhich is neither the durable state nor the one after the last append"
    );
    *expected = Expected { durable: Some(found), in_flight: None };
    let mut decider =
        Decider::open(kernel, log.bounds().next, Box::new(clock.clone()), &TENURE).expect("a valid clock");
    let (mut generator, mut rng) = (CommandGenerator::new(seed), Rng::new(seed));
    for _ in 0..200 {
        for _ in 0..=rng.below(6) {
            clock.boot_clock.fetch_add(rng.below(40), Ordering::Relaxed);
            let step = generator.step(decider.kernel());
            if step.command.action.is_internal() {
                continue;
            }
            let outcome = decider.decide(&step.command, &Origin::default(), None);
            generator.observe(&step, &outcome);
        }
        let Some(sealed) = decider.seal() else { continue };
        expected.in_flight = Some(decider.kernel().snapshot());
        log.reserve()?;
        log.append(sealed.seq, sealed.lsns, &sealed.payload)?;
        expected.durable = expected.in_flight.take();
    }
    Ok(())
}

#[test]
fn every_durable_state_is_recovered_over_many_power_cuts() {
    let mut crashes = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut clock = TestClock::default();
        let mut expected = Expected::default();
        let mut fs = SimFs::new(FaultPlan { crash_at: Some(rng.below(300)), fail_at: None });
        for process in 0..6 {
            crashes += u64::from(run(&fs, &clock, seed * 100 + process, &mut expected).is_err());
            let plan = FaultPlan { crash_at: Some(rng.below(400)), fail_at: None };
            fs = fs.after_crash(&mut rng, plan);
            if rng.one_in(2) {
                clock = TestClock { boot_clock: Arc::default(), boot_id: clock.boot_id + 1 };
            }
        }
        let fs = fs.after_crash(&mut rng, FaultPlan::default());
        run(&fs, &clock, seed, &mut expected).expect("no power cut");
    }
    assert!(crashes > 200, "{crashes}");
}

/// A store whose log was written under other rules than this build's must not start.
#[test]
fn a_log_that_does_not_replay_is_refused() {
    use engine::internals::record::Record;
    use kernel::{Action, Command, Lsn, Time};
    let fs = SimFs::new(FaultPlan::default());
    let mut log = open_log(&fs).expect("an empty log");
    let tick = Command::internal(Action::Tick);
    let tick = Record { lsn: Lsn(5), now: Time(0), correlation: 0, command: tick, document: None };
    let batch = Record::encode_batch(kernel::ClockReading::default(), &[tick]);
    log.append(Seq(0), store::LsnRange::new(5, 5), &batch).expect("writable");
    let error = recover(&log).err().expect("a tick before any open");
    assert!(matches!(error, RecoveryError::Diverged { lsn: Lsn(5), .. }), "{error}");
    let mut log = open_log(&SimFs::new(FaultPlan::default())).expect("an empty log");
    log.append(Seq(0), store::LsnRange::default(), b"not records").expect("writable");
    assert!(matches!(recover(&log).err().expect("no records"), RecoveryError::Decode(Seq(0), _)));
}

/// A kernel's state was corrupted and written as a snapshot; the log that proved it was truncated.
#[test]
fn a_state_that_the_log_does_not_reproduce_is_never_snapshotted() {
    use engine::internals::checkpoint::{CheckpointError, Mark, take};
    use engine::internals::shard::StateDigest;
    use store::memory::{MemoryBlobs, MemoryLog};
    let (mut log, blobs) = (MemoryLog::default(), MemoryBlobs::default());
    let clock = Box::new(TestClock::default());
    let mut decider = Decider::open(Kernel::new(), Seq(0), clock, &TENURE).expect("a valid clock");
    let sealed = decider.seal().expect("the open");
    log.append(sealed.seq, sealed.lsns, &sealed.payload).expect("writable");
    let state = StateDigest { lsn: decider.kernel().last_lsn(), hash: decider.kernel().state_hash() };
    let mark = Mark { next: Seq(1), state, extents: log.extents() };
    let wrong = Mark { state: StateDigest { hash: state.hash ^ 1, ..state }, ..mark.clone() };
    let failed = take(&blobs, &mut *log.reader(), TENURE.store.shard, &wrong, 0, &mut |_| ())
        .err()
        .expect("not the same");
    assert!(matches!(failed, CheckpointError::Diverged(_)), "{failed}");
    assert_eq!(blobs.list("").expect("a list"), []);
}
