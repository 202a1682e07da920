//! Backups of a store that is in use: nothing that they need is deleted before it is copied.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use backup::{BackupError, BackupOptions, Progress, drill, take, verify};
use rustix::time::{ClockId, clock_gettime};
use store::disk::StoreView;

use crate::world::{BLOB, NOW, World, content, eventually, no_hook};

/// The backup had read the log, and was copying documents. A client replaced the next one, the server deleted its blob,
/// and the backup referred to a document that it did not have.
#[test]
fn a_document_that_is_replaced_while_it_is_copied_is_in_the_backup() {
    let world = World::new();
    let leases: Vec<_> = (0..8).map(|n| world.acquire(&format!("k{n}"))).collect();
    let replace = |round: usize| {
        for (n, lease) in leases.iter().enumerate() {
            world.put_blob(lease, &format!("k{n}"), &content(n + 100 * round, BLOB));
        }
    };
    replace(0);
    let (to, rounds) = (world.dir.path().join("backup"), Cell::new(0));
    let manifest = world.backup(&to, &|phase, bytes| {
        if phase == "copying" && bytes == BLOB as u64 && rounds.get() < 3 {
            rounds.set(rounds.get() + 1);
            replace(rounds.get());
        }
    });
    let manifest = manifest.expect("a backup");
    assert_eq!((rounds.get(), manifest.documents(), manifest.leases()), (3, 8, 8));
    verify(&to, &backup::Quiet).expect("a whole backup");
    // The deletions were only postponed.
    let blobs = world.store().join("blob/by-name/document/0");
    let count = || std::fs::read_dir(&blobs).expect("a directory").count();
    eventually("superseded blobs are deleted", || count() == 8);
    world.assert_nothing_failed();
}

/// The log was truncated while it was copied: the next segment was gone, in every attempt.
#[test]
fn a_log_that_is_truncated_while_it_is_copied_is_copied_whole() {
    let world = World::new();
    let lease = world.acquire("hot");
    world.write_until_checkpoints(&lease, "hot", 4);
    let (to, calls) = (world.dir.path().join("backup"), Cell::new(0));
    let floor = || StoreView::open(&world.store()).and_then(|view| view.log(0)).expect("readable").floor();
    let before = floor();
    let manifest = world.backup(&to, &|phase, bytes| {
        calls.set(calls.get() + usize::from(phase == "copying" && bytes > 60 << 10 && bytes != BLOB as u64));
        // Once per attempt would be enough; there are at most five.
        if phase == "copying" && bytes > 60 << 10 && calls.get() % 8 == 1 && calls.get() < 64 {
            world.write_until_checkpoints(&lease, "hot", 4);
        }
    });
    let manifest = manifest.expect("a backup");
    assert!(floor() > before, "the log was truncated meanwhile");
    assert_eq!(manifest.documents(), 1);
    verify(&to, &backup::Quiet).expect("a whole backup");
    world.assert_nothing_failed();
}

/// Snapshots were listed, then two checkpoints raised the floor past all of them, and the copied log began after its snapshot.
#[test]
fn a_floor_that_rises_past_the_listed_snapshots_is_not_used() {
    let world = World::new();
    let lease = world.acquire("hot");
    world.write_until_checkpoints(&lease, "hot", 4);
    let (to, is_first) = (world.dir.path().join("backup"), Cell::new(true));
    let manifest = world.backup(&to, &|phase, _| {
        // The first part is that of a snapshot.
        if phase == "copying" && is_first.replace(false) {
            world.write_until_checkpoints(&lease, "hot", 6);
        }
    });
    assert_eq!(manifest.expect("a backup").documents(), 1);
    verify(&to, &backup::Quiet).expect("a whole backup");
    world.assert_nothing_failed();
}

/// The server appended faster than it was copied, and the copy followed it until its timeout, without a backup.
#[test]
fn a_server_that_writes_faster_than_it_is_copied_is_backed_up() {
    const WRITES_MAX: usize = 400;
    let world = World::new();
    let lease = world.acquire("hot");
    world.put(&lease, "hot", &content(0, 60 << 10));
    let (to, writes) = (world.dir.path().join("backup"), Cell::new(0));
    let manifest = world.backup(&to, &|phase, bytes| {
        if phase == "copying" && bytes > 60 << 10 && writes.get() < WRITES_MAX {
            for n in 0..2 {
                world.put(&lease, "hot", &content(n, 60 << 10));
            }
            writes.set(writes.get() + 2);
        }
    });
    assert_eq!(manifest.expect("a backup").documents(), 1);
    assert!((2..WRITES_MAX).contains(&writes.get()), "the copy ended before the writes: {}", writes.get());
    verify(&to, &backup::Quiet).expect("a whole backup");
}

/// A restart copies the end of the log to another segment, and replaces the segment that was being read.
#[test]
fn a_server_that_is_restarted_while_it_is_copied_starts_and_the_backup_is_whole() {
    let world = World::new();
    for n in 0..30 {
        let lease = world.acquire(&format!("k{n}"));
        world.put(&lease, &format!("k{n}"), &content(n, 20_000));
    }
    let (to, restarts) = (world.dir.path().join("backup"), Cell::new(0));
    let manifest = world.backup(&to, &|phase, bytes| {
        if phase == "copying" && bytes > 20_000 && restarts.get() < 3 {
            restarts.set(restarts.get() + 1);
            world.stop();
            world.start();
        }
    });
    assert_eq!((manifest.expect("a backup").documents(), restarts.get()), (30, 3));
    verify(&to, &backup::Quiet).expect("a whole backup");
    world.acquire("still granting");
}

#[test]
fn a_stopped_store_is_copied_with_its_mark_and_nothing_in_it_is_changed() {
    let world = World::new();
    let lease = world.acquire("k");
    world.put(&lease, "k", b"{}");
    world.stop();
    let before = crate::damage::files(&world.store());
    let to = world.dir.path().join("backup");
    let manifest = world.backup(&to, &no_hook).expect("a backup");
    assert_eq!(crate::damage::files(&world.store()), before);
    let mark = |store: &std::path::Path| std::fs::read(store.join("log/0/clean-stop")).expect("a mark");
    assert_eq!(mark(&to.join("store")), mark(&world.store()));
    assert_eq!((manifest.documents(), manifest.leases()), (1, 1));
}

/// The time of a clock.
fn time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.try_into().expect("positive"), time.tv_nsec.try_into().expect("positive"))
}

/// Notes how long each phase lasts, and how long its thread has a processor meanwhile.
struct Stopwatch {
    phase: Cell<&'static str>,
    begun: Cell<(Duration, Duration)>,
    phases: RefCell<Vec<(&'static str, Duration, Duration)>>,
}

impl Stopwatch {
    fn start() -> Stopwatch {
        let begun = Cell::new(Stopwatch::now());
        Stopwatch { phase: Cell::new("beginning"), begun, phases: RefCell::default() }
    }

    fn now() -> (Duration, Duration) {
        (time(ClockId::Monotonic), time(ClockId::ThreadCPUTime))
    }

    /// Elapsed time and processor time of the phases from the first of this name on, until the first of the other.
    fn between(&self, first: &str, end: &str) -> (Duration, Duration) {
        let phases = self.phases.borrow();
        let phases =
            phases.iter().skip_while(|(name, ..)| *name != first).take_while(|(name, ..)| *name != end);
        phases.fold(Default::default(), |(elapsed, worked), phase| (elapsed + phase.1, worked + phase.2))
    }
}

impl Progress for Stopwatch {
    fn begin(&self, what: &'static str, _: u64) {
        let (now, (elapsed, worked)) = (Stopwatch::now(), self.begun.get());
        let phase = (self.phase.replace(what), now.0.saturating_sub(elapsed), now.1.saturating_sub(worked));
        self.phases.borrow_mut().push(phase);
        self.begun.set(now);
    }

    fn advance(&self, _: u64) {}
}

/// Runs something at the pace of a copy beside a server. For each of these spans of phases, each of which ends with a
/// pause, the thread had a processor for a tenth of the time: however fast the machine is, and however busy.
fn assert_a_tenth(
    spans: &[(&str, &str)],
    run: impl FnOnce(&std::path::Path, &BackupOptions, &Stopwatch) -> Result<(), BackupError>,
) {
    let world = World::new();
    for n in 0..60 {
        let lease = world.acquire(&format!("k{n}"));
        world.put_blob(&lease, &format!("k{n}"), &content(n, 400_000));
    }
    let options = BackupOptions {
        key: None,
        now_unix_ms: NOW,
        rate: Some(u64::MAX),
        timeout: Duration::from_secs(600),
    };
    let stopwatch = Stopwatch::start();
    run(&world.store(), &options, &stopwatch).expect("a sound store");
    stopwatch.begin("end", 0);
    for (first, end) in spans {
        let (elapsed, worked) = stopwatch.between(first, end);
        assert!(!worked.is_zero(), "{first} is no phase: {:?}", stopwatch.phases);
        // A tenth, and something for what is done outside of the copy itself.
        assert!(elapsed >= worked * 8, "{first}: {elapsed:?} {worked:?} {:?}", stopwatch.phases);
    }
}

/// The pauses were tested on their own: nothing showed that copying, verifying and packing make them.
#[test]
fn every_phase_of_a_backup_beside_a_server_works_for_a_tenth_of_the_time() {
    let to = tempfile::tempdir().expect("a directory");
    let spans = [("copying", "verifying"), ("verifying", "packing"), ("packing", "end")];
    assert_a_tenth(&spans, |store, options, stopwatch| {
        take(store, &to.path().join("b.tar"), options, stopwatch, &mut |what| panic!("{what}")).map(drop)
    });
}

/// A drill is said to run beside a server. It took its backup in small parts, and then restored it as fast as the machine
/// could.
#[test]
fn a_drill_beside_a_server_restores_for_a_tenth_of_the_time() {
    let scratch = tempfile::tempdir().expect("a directory");
    assert_a_tenth(&[("restoring", "end")], |store, options, stopwatch| {
        drill(store, scratch.path(), options, stopwatch, &mut |what| panic!("{what}")).map(drop)
    });
}
