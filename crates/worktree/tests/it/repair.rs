//! `doctor --repair` concurrent with other commands, and repeated releases.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use worktree::doctor::{DoctorRequest, Finding};
use worktree::error::ErrorClass;
use worktree::ids::SessionId;
use worktree::lock::ReleaseOutcome;
use worktree::policy::{LockPolicy, PolicyChanges};
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::snapshot::Consistency;
use worktree::tree::NoProgress;
use worktree::worktree::Mode;

use crate::interleave::just_before;
use crate::support::layer::{Call, CallOutcome, HookedFs, crash};
use crate::support::{Fixture, STEALABLE_MS, TestClock, class, request, request_with, snapshot};

const DAY_MS: u64 = 24 * 3600 * 1000;

fn repair(repo: &Repo) -> Vec<Finding> {
    repo.doctor(DoctorRequest { strict: true, repair: true, ..DoctorRequest::default() })
        .expect("readable")
        .findings
}

/// The repository with every call failing for which `is_it` holds.
fn failing_at(fixture: &Fixture, is_it: impl Fn(Call, &Path) -> bool + Send + Sync + 'static) -> Repo {
    let layer =
        HookedFs::new(
            move |call, path| {
                if is_it(call, path) { CallOutcome::Fail(crash()) } else { CallOutcome::Proceed }
            },
        );
    fixture.seen_by(Arc::new(layer), fixture.clock.clone())
}

fn is_session(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.ends_with("sessions")) && path.extension().is_some()
}

/// A snapshot of a large tree took more than a day on another host, under a lock that was renewed all the time. A repair
/// took it for abandoned and moved it to the trash, and right afterwards it was published, without its files.
#[test]
fn a_snapshot_that_takes_days_under_a_running_lease_is_left_alone() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    let (begun, is_begun) = mpsc::channel();
    let (go, may_copy) = mpsc::channel();
    let (may_copy, begun, paused) = (Mutex::new(may_copy), Mutex::new(begun), AtomicBool::new(false));
    let pausing = HookedFs::new(move |call, _| {
        if call == Call::Step && !paused.swap(true, Ordering::SeqCst) {
            begun.lock().expect("one thread").send(()).expect("the test waits");
            may_copy.lock().expect("one thread").recv_timeout(DEADLINE).expect("the test goes on");
        }
        CallOutcome::Proceed
    });
    let elsewhere = fixture.seen_by(Arc::new(pausing), Arc::new(TestClock::of_another_host("another host")));
    let main = fixture.main.clone();
    // Longer than the snapshot, in place of renewals.
    let days = PolicyChanges { lease_duration_ms: Some(4 * DAY_MS), ..PolicyChanges::default() };
    let policy = LockPolicy::DEFAULT.with(&days).expect("valid");
    let taking = std::thread::spawn(move || {
        let session = elsewhere.acquire(&main, &request_with(policy)).expect("free").session.session_id;
        snapshot(&elsewhere, &main, Some(&session), Consistency::BestEffort)
    });
    is_begun.recv_timeout(DEADLINE).expect("the snapshot gets this far");
    fixture.clock.advance(2 * DAY_MS);
    let found = repair(&fixture.repo);
    go.send(()).expect("it waits");
    let taken = taking.join().expect("it ends").expect("the lock is held").descriptor;
    assert!(found.is_empty(), "{found:?}");
    fixture.repo.verify(&taken, &NoProgress).expect("its files are there");
}

/// Doctor read a free lock and paused. Another process acquired and renewed it. Doctor resumed, took the
/// renewal for one of an earlier tenure, and removed it: the lease appeared to expire early, a second process
/// stole the lock, and the first still believed that it held it.
#[test]
fn a_renewal_made_after_doctor_read_the_lock_is_left_alone() {
    let fixture = Fixture::new();
    let (repo, main, clock) = (fixture.repo.clone(), fixture.main.clone(), fixture.clock.clone());
    let dir = fixture.repo.layout().sequence(&main.worktree_id);
    let doctor = just_before(
        &fixture,
        move |call, path| call == Call::List && path == dir,
        move || {
            let session = repo.acquire(&main, &request()).expect("a free lock").session.session_id;
            clock.advance(25_000);
            repo.lock(&main).renew(&session).expect("in time");
            clock.advance(10_000);
        },
    );
    let found = repair(&doctor);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(class(fixture.acquire()), ErrorClass::LockConflict, "the renewed lease runs");
}

/// Doctor read that a snapshot was not published, and paused. On another host the snapshot was published, and
/// its lock released. Doctor resumed, saw that the snapshot's token was no longer current, and removed the
/// snapshot. So the publish is tried before each of doctor's reads of the sequence.
#[test]
fn a_snapshot_published_between_two_reads_of_doctor_is_left_alone() {
    for look in 1..=4 {
        let fixture = Fixture::new();
        fixture.write("file", b"1");
        let (built, is_built) = mpsc::channel();
        let (go, may_publish) = mpsc::channel();
        let (may_publish, built) = (Mutex::new(may_publish), Mutex::new(built));
        let pausing = HookedFs::new(move |call, path| {
            if call == Call::Link && path.ends_with("main.d/3") {
                built.lock().expect("one thread").send(()).expect("the test waits");
                may_publish.lock().expect("one thread").recv_timeout(DEADLINE).expect("the test goes on");
            }
            CallOutcome::Proceed
        });
        let elsewhere =
            fixture.seen_by(Arc::new(pausing), Arc::new(TestClock::of_another_host("another host")));
        let main = fixture.main.clone();
        let taking = std::thread::spawn(move || {
            let session = elsewhere.acquire(&main, &request()).expect("a free lock").session.session_id;
            let taken = snapshot(&elsewhere, &main, Some(&session), Consistency::Quiesced);
            elsewhere.lock(&main).release(&session).expect("ours");
            taken.expect("the lock was held").descriptor
        });
        is_built.recv_timeout(DEADLINE).expect("the snapshot gets this far");

        let (looks, taking) = (AtomicU64::new(0), Arc::new(Mutex::new(Some(taking))));
        let taken = Arc::new(Mutex::new(None));
        let finish = {
            let (taking, taken) = (taking.clone(), taken.clone());
            move || {
                if let Some(taking) = taking.lock().expect("one thread").take() {
                    go.send(()).expect("it waits");
                    *taken.lock().expect("one thread") = Some(taking.join().expect("it ends well"));
                }
            }
        };
        let (finish_in_time, reading) = (finish.clone(), AtomicBool::new(false));
        let layer = HookedFs::new(move |call, path| {
            let of_intents = path.parent().is_some_and(|dir| dir.ends_with("intents"));
            reading.fetch_or(call == Call::Read && of_intents, Ordering::SeqCst);
            // Every read of a sequence lists it.
            let begins = call == Call::List && path.ends_with("main.d");
            if begins && reading.load(Ordering::SeqCst) && looks.fetch_add(1, Ordering::SeqCst) + 1 == look {
                finish_in_time();
            }
            CallOutcome::Proceed
        });
        repair(&fixture.seen_by(Arc::new(layer), fixture.clock.clone()));
        finish();
        let taken = taken.lock().expect("one thread").take().expect("published");
        fixture.repo.verify(&taken, &NoProgress).unwrap_or_else(|error| panic!("look {look}: {error}"));
    }
}

/// The descriptor of a published snapshot was damaged, so doctor did not find its worktree, took it for an
/// unpublished snapshot, and removed its files.
#[test]
fn a_published_snapshot_whose_descriptor_is_damaged_keeps_its_files() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let id = fixture.snapshot(&session).expect("ours").descriptor.snapshot_id;
    std::fs::write(fixture.repo.layout().snapshot_ready(&id), b"{").expect("writable");
    let found = repair(&fixture.repo);
    assert!(found.iter().any(|finding| finding.code == "snapshot_damaged" && !finding.repaired), "{found:?}");
    assert!(fixture.repo.layout().snapshot_tree(&id).join("file").exists());
}

/// The lock was granted, and the disk for sessions was full when its token was saved. Doctor compared tokens,
/// found none, and removed the secret of a held lock, which could no longer be released.
#[test]
fn the_secret_of_a_lock_that_stands_survives_a_lost_token_and_doctor() {
    let fixture = Fixture::new();
    let saves = AtomicU64::new(0);
    let full = failing_at(&fixture, move |call, path| {
        call == Call::Rename && is_session(path) && saves.fetch_add(1, Ordering::SeqCst) == 1
    });
    let error = full.acquire(&fixture.main, &request()).expect_err("its token could not be saved");
    assert_eq!(error.facts()["indeterminate"], true);
    let session: SessionId = error.facts()["session_id"].as_str().expect("named").parse().expect("valid");
    assert!(repair(&fixture.repo).iter().all(|finding| finding.code != "session_left"));
    assert_eq!(
        fixture.repo.lock(&fixture.main).release(&session).expect("its secret is there"),
        ReleaseOutcome::Released
    );
}

/// An acquire saves its secret first, and then may watch the lock for a long time.
#[test]
fn a_session_that_waits_for_its_lock_is_left_alone_while_its_process_may_run() {
    let fixture = Fixture::new();
    let cannot_link = || {
        HookedFs::new(
            |call, _| if call == Call::Link { CallOutcome::Fail(crash()) } else { CallOutcome::Proceed },
        )
    };
    let elsewhere = Arc::new(TestClock::of_another_host("another host"));
    for waiting in [
        fixture.seen_by(Arc::new(cannot_link()), fixture.clock.clone()),
        fixture.seen_by(Arc::new(cannot_link()), elsewhere),
    ] {
        drop(waiting.acquire(&fixture.main, &request()));
        let found = repair(&fixture.repo);
        assert!(found.is_empty(), "{found:?}");
    }
    drop(fixture.seen_by_the_dead(Arc::new(cannot_link())).acquire(&fixture.main, &request()));
    let found: Vec<&str> = repair(&fixture.repo).iter().map(|finding| finding.code).collect();
    assert!(found.contains(&"session_left"), "{found:?}");
    let a_day_later =
        fixture.seen_by(Arc::new(HookedFs::with_probes_ahead_by(25 * HOUR_MS)), fixture.clock.clone());
    let found: Vec<&str> = repair(&a_day_later).iter().map(|finding| finding.code).collect();
    assert!(found.contains(&"session_left"), "the other host's is very old by now: {found:?}");
}

/// A restore in a shared worktree has no lock that shows that it runs, so doctor removed its files.
#[test]
fn a_restore_that_runs_in_a_shared_worktree_is_left_alone() {
    let fixture = Fixture::with_mode(Mode::Shared);
    fixture.write("file", b"old");
    let old = snapshot(&fixture.repo, &fixture.main, None, Consistency::Quiesced).expect("shared").descriptor;
    fixture.write("file", b"newer");
    let doctor = fixture.repo.clone();
    let running = just_before(
        &fixture,
        |call, _| call == Call::Exchange,
        move || assert!(repair(&doctor).iter().all(|finding| finding.code != "restore_left")),
    );
    let request = || RestoreRequest { session: None, discard_changes: true, progress: &NoProgress };
    running.restore(&fixture.main, &old, &request()).expect("undisturbed");
    assert_eq!(std::fs::read(fixture.payload("file")).expect("there"), b"old");

    let dies = HookedFs::killed_from(Call::Exchange);
    let cut_off = fixture.seen_by_the_dead(Arc::new(dies));
    assert!(cut_off.restore(&fixture.main, &old, &request()).is_err());
    assert!(repair(&fixture.repo).iter().any(|finding| finding.code == "restore_left" && finding.repaired));
}

/// Releases once, completely or interrupted after its entry.
fn released_once(fixture: &Fixture, cut_off: bool) -> SessionId {
    let session = fixture.acquire().expect("a free lock").session.session_id;
    if cut_off {
        let dying = failing_at(fixture, |call, path| call == Call::RemoveFile && is_session(path));
        assert!(dying.lock(&fixture.main).release(&session).is_err(), "killed after its entry was there");
    } else {
        fixture.repo.lock(&fixture.main).release(&session).expect("ours");
    }
    session
}

/// A release was killed after its entry was appended, and the calling script retried: the error said that the
/// lock was lost. The same happened if the lock had been acquired, or a snapshot taken, in between.
#[test]
fn releasing_twice_is_fine_whatever_happened_in_between() {
    for cut_off in [false, true] {
        let nothing = |_: &Fixture| {};
        let taken = |fixture: &Fixture| drop(fixture.acquire().expect("a free lock"));
        let passed_on = |fixture: &Fixture| {
            let session = fixture.acquire().expect("a free lock").session.session_id;
            fixture.repo.lock(&fixture.main).release(&session).expect("ours");
        };
        let snapped = |fixture: &Fixture| {
            snapshot(&fixture.repo, &fixture.main, None, Consistency::BestEffort).expect("beside the lock");
        };
        let between: [&dyn Fn(&Fixture); 4] = [&nothing, &taken, &passed_on, &snapped];
        for (case, action) in between.iter().enumerate() {
            let fixture = Fixture::new();
            fixture.write("file", b"1");
            let session = released_once(&fixture, cut_off);
            action(&fixture);
            let held = fixture.repo.status(&fixture.main).expect("readable").lock.map(|lock| lock.session_id);
            for _ in 0..2 {
                let again = fixture.repo.lock(&fixture.main).release(&session);
                assert_eq!(again.expect("released before"), ReleaseOutcome::AlreadyReleased, "case {case}");
            }
            let holds =
                fixture.repo.status(&fixture.main).expect("readable").lock.map(|lock| lock.session_id);
            assert_eq!(held, holds, "the next holder keeps its lock");
        }
    }
}

#[test]
fn releasing_a_lock_that_was_stolen_is_refused_for_ever() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    fixture.clock.advance(STEALABLE_MS);
    let stealer = fixture.acquire().expect("stealable").session.session_id;
    let lock = fixture.repo.lock(&fixture.main);
    assert_eq!(class(lock.release(&session)), ErrorClass::LockNotHeld);
    lock.release(&stealer).expect("the stealer's own");
    assert_eq!(class(lock.release(&session)), ErrorClass::LockNotHeld, "the release was another's");
    repair(&fixture.repo);
    assert_eq!(class(lock.release(&session)), ErrorClass::LockNotHeld, "nor is it without its file");
}

/// How long one side of an interleaving may wait for the other.
const DEADLINE: Duration = Duration::from_secs(60);
const HOUR_MS: i64 = 3600 * 1000;
