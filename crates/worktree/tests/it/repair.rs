//! `doctor --repair` beside commands that run, and releases that are repeated.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use worktree::doctor::{DoctorRequest, Finding};
use worktree::error::Class;
use worktree::ids::SessionId;
use worktree::lock::ReleaseOutcome;
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::snapshot::Consistency;
use worktree::tree::NoProgress;
use worktree::worktree::Mode;

use crate::interleave::just_before;
use crate::support::layer::{Call, Layer, Verdict, crash};
use crate::support::{LyingClock, STEALABLE_MS, World, class, request, snapshot};

fn repair(repo: &Repo) -> Vec<Finding> {
    repo.doctor(DoctorRequest { strict: true, repair: true }).expect("readable").findings
}

/// A view of the world in which every call that `is_it` fails.
fn failing_at(world: &World, is_it: impl Fn(Call, &Path) -> bool + Send + Sync + 'static) -> Repo {
    let layer =
        Layer::new(move |call, path| if is_it(call, path) { Verdict::Fail(crash()) } else { Verdict::Go });
    world.seen_by(Arc::new(layer), world.clock.clone())
}

fn is_session(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.ends_with("sessions")) && path.extension().is_some()
}

/// Doctor looked at a free lock and paused. Someone acquired it and renewed. Doctor went on, took the renewal
/// for one of an earlier tenure, and removed it: the lease seemed to end when its first one did, a second
/// holder stole the lock, and the first went on in good faith.
#[test]
fn a_renewal_made_after_doctors_look_is_left_alone() {
    let world = World::new();
    let (repo, main, clock) = (world.repo.clone(), world.main.clone(), world.clock.clone());
    let dir = world.repo.layout().sequence(&main.worktree_id);
    let doctor = just_before(
        &world,
        move |call, path| call == Call::List && path == dir,
        move || {
            let session = repo.acquire(&main, &request()).expect("a free lock").session.session_id;
            clock.pass(25_000);
            repo.lock(&main).renew(&session).expect("in time");
            clock.pass(10_000);
        },
    );
    let found = repair(&doctor);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(class(world.acquire()), Class::LockConflict, "the renewed lease runs");
}

/// Doctor read that a snapshot was not published, and paused. On another host the snapshot was published, and
/// its lock released. Doctor went on, saw that the snapshot's token was no longer current, and removed the
/// snapshot. So it must not matter at which look of doctor's the publish falls.
#[test]
fn a_snapshot_published_between_two_looks_of_doctors_is_left_alone() {
    for look in 1..=4 {
        let world = World::new();
        world.write("file", b"1");
        let (built, is_built) = mpsc::channel();
        let (go, may_publish) = mpsc::channel();
        let (may_publish, built) = (Mutex::new(may_publish), Mutex::new(built));
        let pausing = Layer::new(move |call, path| {
            if call == Call::Link && path.ends_with("main.d/3") {
                built.lock().expect("one thread").send(()).expect("the test waits");
                may_publish.lock().expect("one thread").recv_timeout(DEADLINE).expect("the test goes on");
            }
            Verdict::Go
        });
        let elsewhere = world.seen_by(Arc::new(pausing), Arc::new(LyingClock::elsewhere("another host")));
        let main = world.main.clone();
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
        let layer = Layer::new(move |call, path| {
            let of_intents = path.parent().is_some_and(|dir| dir.ends_with("intents"));
            reading.fetch_or(call == Call::Read && of_intents, Ordering::SeqCst);
            // Every look at a sequence begins with its first entry.
            let begins = call == Call::Meta && path.ends_with("main.d/1");
            if begins && reading.load(Ordering::SeqCst) && looks.fetch_add(1, Ordering::SeqCst) + 1 == look {
                finish_in_time();
            }
            Verdict::Go
        });
        repair(&world.seen_by(Arc::new(layer), world.clock.clone()));
        finish();
        let taken = taken.lock().expect("one thread").take().expect("published");
        world.repo.verify(&taken, &NoProgress).unwrap_or_else(|error| panic!("look {look}: {error}"));
    }
}

/// The descriptor of a published snapshot was damaged, so doctor could not tell whose snapshot it was, took it
/// for one that was never published, and removed the files as well.
#[test]
fn a_published_snapshot_whose_descriptor_is_damaged_keeps_its_files() {
    let world = World::new();
    world.write("file", b"1");
    let session = world.acquire().expect("a free lock").session.session_id;
    let id = world.snapshot(&session).expect("ours").descriptor.snapshot_id;
    std::fs::write(world.repo.layout().snapshot_ready(&id), b"{").expect("writable");
    let found = repair(&world.repo);
    assert!(found.iter().any(|finding| finding.code == "snapshot_damaged" && !finding.repaired), "{found:?}");
    assert!(world.repo.layout().snapshot_tree(&id).join("file").exists());
}

/// The lock was granted, and the disk for sessions was full when its token was to be written down. Doctor
/// compared the token, found none, and threw away the secret of a lock that stood: nobody could release it.
#[test]
fn the_secret_of_a_lock_that_stands_survives_a_lost_token_and_doctor() {
    let world = World::new();
    let saves = AtomicU64::new(0);
    let full = failing_at(&world, move |call, path| {
        call == Call::Rename && is_session(path) && saves.fetch_add(1, Ordering::SeqCst) == 1
    });
    let error = full.acquire(&world.main, &request()).expect_err("its token could not be saved");
    assert_eq!(error.facts()["indeterminate"], true);
    let session: SessionId = error.facts()["session_id"].as_str().expect("named").parse().expect("valid");
    assert!(repair(&world.repo).iter().all(|finding| finding.code != "session_left"));
    assert_eq!(
        world.repo.lock(&world.main).release(&session).expect("its secret is there"),
        ReleaseOutcome::Released
    );
}

/// An acquire saves its secret first, and then waits, perhaps long, for the lock.
#[test]
fn a_session_that_waits_for_its_lock_is_left_alone_while_its_process_may_run() {
    let world = World::new();
    let cannot_link =
        || Layer::new(|call, _| if call == Call::Link { Verdict::Fail(crash()) } else { Verdict::Go });
    let elsewhere = Arc::new(LyingClock::elsewhere("another host"));
    for waiting in [
        world.seen_by(Arc::new(cannot_link()), world.clock.clone()),
        world.seen_by(Arc::new(cannot_link()), elsewhere),
    ] {
        drop(waiting.acquire(&world.main, &request()));
        let found = repair(&world.repo);
        assert!(found.is_empty(), "{found:?}");
    }
    drop(world.seen_by_the_dead(Arc::new(cannot_link())).acquire(&world.main, &request()));
    let found: Vec<&str> = repair(&world.repo).iter().map(|finding| finding.code).collect();
    assert!(found.contains(&"session_left"), "{found:?}");
    let a_day_later = world.seen_by(Arc::new(Layer::with_probes_ahead_by(25 * HOUR_MS)), world.clock.clone());
    let found: Vec<&str> = repair(&a_day_later).iter().map(|finding| finding.code).collect();
    assert!(found.contains(&"session_left"), "the other host's is very old by now: {found:?}");
}

/// A restore in a shared worktree has no lock that would show that it runs, so doctor took its files away.
#[test]
fn a_restore_that_runs_in_a_shared_worktree_is_left_alone() {
    let world = World::with_mode(Mode::Shared);
    world.write("file", b"old");
    let old = snapshot(&world.repo, &world.main, None, Consistency::Quiesced).expect("shared").descriptor;
    world.write("file", b"newer");
    let doctor = world.repo.clone();
    let running = just_before(
        &world,
        |call, _| call == Call::Exchange,
        move || assert!(repair(&doctor).iter().all(|finding| finding.code != "restore_left")),
    );
    let request = || RestoreRequest { session: None, discard_changes: true, progress: &NoProgress };
    running.restore(&world.main, &old, &request()).expect("undisturbed");
    assert_eq!(std::fs::read(world.payload("file")).expect("there"), b"old");

    let dies =
        Layer::new(|call, _| if call == Call::Exchange { Verdict::Fail(crash()) } else { Verdict::Go });
    let cut_off = world.seen_by_the_dead(Arc::new(dies));
    assert!(cut_off.restore(&world.main, &old, &request()).is_err());
    assert!(repair(&world.repo).iter().any(|finding| finding.code == "restore_left" && finding.repaired));
}

/// Ways in which a session can come to release a second time.
fn released_once(world: &World, cut_off: bool) -> SessionId {
    let session = world.acquire().expect("a free lock").session.session_id;
    if cut_off {
        let dying = failing_at(world, |call, path| call == Call::RemoveFile && is_session(path));
        assert!(dying.lock(&world.main).release(&session).is_err(), "killed after its entry was there");
    } else {
        world.repo.lock(&world.main).release(&session).expect("ours");
    }
    session
}

/// A release was killed after its entry was there, and the script that ran it tried again: it was told that
/// the lock was lost. The same if anyone had taken the lock or a snapshot in between.
#[test]
fn releasing_twice_is_fine_whatever_happened_in_between() {
    for cut_off in [false, true] {
        let nothing = |_: &World| {};
        let taken = |world: &World| drop(world.acquire().expect("a free lock"));
        let passed_on = |world: &World| {
            let session = world.acquire().expect("a free lock").session.session_id;
            world.repo.lock(&world.main).release(&session).expect("ours");
        };
        let snapped = |world: &World| {
            snapshot(&world.repo, &world.main, None, Consistency::BestEffort).expect("beside the lock");
        };
        let between: [&dyn Fn(&World); 4] = [&nothing, &taken, &passed_on, &snapped];
        for (case, deed) in between.iter().enumerate() {
            let world = World::new();
            world.write("file", b"1");
            let session = released_once(&world, cut_off);
            deed(&world);
            let held = world.repo.status(&world.main).expect("readable").lock.map(|lock| lock.session_id);
            for _ in 0..2 {
                let again = world.repo.lock(&world.main).release(&session);
                assert_eq!(again.expect("released before"), ReleaseOutcome::AlreadyReleased, "case {case}");
            }
            let holds = world.repo.status(&world.main).expect("readable").lock.map(|lock| lock.session_id);
            assert_eq!(held, holds, "the next holder keeps its lock");
        }
    }
}

#[test]
fn releasing_a_lock_that_was_stolen_is_refused_for_ever() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    world.clock.pass(STEALABLE_MS);
    let thief = world.acquire().expect("stealable").session.session_id;
    let lock = world.repo.lock(&world.main);
    assert_eq!(class(lock.release(&session)), Class::LockNotHeld);
    lock.release(&thief).expect("the thief's own");
    assert_eq!(class(lock.release(&session)), Class::LockNotHeld, "the release was another's");
    repair(&world.repo);
    assert_eq!(class(lock.release(&session)), Class::LockNotHeld, "nor is it without its file");
}

/// How long one side of an interleaving may wait for the other.
const DEADLINE: Duration = Duration::from_secs(60);
const HOUR_MS: i64 = 3600 * 1000;
