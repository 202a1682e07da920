//! The interleavings that the protocol is there for, each forced at the exact call where it hurts.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use worktree::clock::{BootId, BootMs, Clock, Millis, MonoMs, UnixMs};
use worktree::error::Class;
use worktree::fs::RealFs;
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::snapshot::Consistency;
use worktree::tree::NoProgress;
use worktree::worktree::Worktree;

use crate::support::layer::{Call, Layer, Verdict};
use crate::support::{LyingClock, STEALABLE_MS, World, class, request, snapshot};

/// A view of the world in which `deed` happens once, right before the first call that `is_it`.
pub(crate) fn just_before(
    world: &World,
    is_it: impl Fn(Call, &Path) -> bool + Send + Sync + 'static,
    deed: impl Fn() + Send + Sync + 'static,
) -> Repo {
    let done = AtomicBool::new(false);
    let layer = Layer::new(move |call, path| {
        if is_it(call, path) && !done.swap(true, Ordering::SeqCst) {
            deed();
        }
        Verdict::Go
    });
    world.seen_by(Arc::new(layer), world.clock.clone())
}

/// Everything that a thread of the test needs to steal.
fn thief(world: &World) -> impl Fn() + Send + Sync + use<> {
    let (repo, main, clock): (Repo, Worktree, Arc<LyingClock>) =
        (world.repo.clone(), world.main.clone(), world.clock.clone());
    move || {
        clock.pass(STEALABLE_MS);
        repo.acquire(&main, &request()).expect("the lease is long over");
    }
}

fn is_entry(call: Call, path: &Path) -> bool {
    call == Call::Link && path.parent().is_some_and(|dir| dir.ends_with("main.d"))
}

#[test]
fn a_publish_that_was_checked_before_the_steal_is_fenced_after_it() {
    let world = World::new();
    world.write("file", b"bytes");
    let session = world.acquire().expect("a free lock").session.session_id;
    let paused = just_before(&world, is_entry, thief(&world));
    let refused = snapshot(&paused, &world.main, Some(&session), Consistency::Quiesced);
    assert_eq!(class(refused), Class::FencingMismatch);
    assert!(world.repo.history(&world.main, 9).expect("readable").is_empty());
    let left = std::fs::read_dir(world.repo.layout().snapshots()).expect("readable").count();
    assert_eq!(left, 0, "no trace of a partial publish");
}

#[test]
fn a_release_that_was_checked_before_the_steal_does_not_free_the_thiefs_lock() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    let paused = just_before(&world, is_entry, thief(&world));
    assert_eq!(class(paused.lock(&world.main).release(&session)), Class::LockNotHeld);
    let lock = world.repo.status(&world.main).expect("readable").lock.expect("the thief's");
    assert_eq!(lock.acquire_seq, 2);
}

#[test]
fn a_renewal_that_the_steal_overtook_does_not_count() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    let is_renewal =
        |call, path: &Path| call == Call::Rename && path.extension().is_some_and(|end| end == "renew");
    let paused = just_before(&world, is_renewal, thief(&world));
    assert_eq!(class(paused.lock(&world.main).renew(&session)), Class::LockNotHeld);
    let lock = world.repo.status(&world.main).expect("readable").lock.expect("the thief's");
    assert_eq!(lock.acquire_seq, 2, "and it leaves the thief's lock as it was");
}

/// A stealer decides by an expired lease, and pauses before its entry. The holder wakes; its renewal is
/// written, and found too late. If its next renewal took that one as the lease it extends, it would count,
/// the stealer would go on, and both would believe that they hold the lock.
#[test]
fn a_renewal_that_did_not_count_is_no_basis_for_the_next() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    let clock = world.clock.clone();
    let is_renewal =
        |call, path: &Path| call == Call::Rename && path.extension().is_some_and(|end| end == "renew");
    world.clock.pass(25_000);
    let slow = just_before(&world, is_renewal, move || clock.pass(5_001));
    assert_eq!(class(slow.lock(&world.main).renew(&session)), Class::LockExpired);
    let status = world.repo.status(&world.main).expect("readable");
    assert_eq!(status.state, worktree::status::LockState::Live, "to others it looks renewed");
    assert_eq!(class(world.repo.lock(&world.main).renew(&session)), Class::LockExpired);
    assert_eq!(class(world.snapshot(&session)), Class::LockExpired);
}

/// A stealer looks at a lease that runs, and pauses before it reads the clock. The holder renews in time. When
/// the stealer wakes, the expiry that it saw is long past; renewals take no number, so its entry would go
/// through, and two would hold the lock.
#[test]
fn a_steal_is_not_decided_by_a_look_from_before_the_clock_was_read() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    let (repo, main, clock) = (world.repo.clone(), world.main.clone(), world.clock.clone());
    let renewing = session.clone();
    let deed = move || {
        clock.pass(25_000);
        repo.lock(&main).renew(&renewing).expect("in time");
        clock.pass(10_000);
    };
    let pausing = PausingClock { clock: world.clock.clone(), deed: Mutex::new(Some(Box::new(deed))) };
    let thief = world.seen_by(Arc::new(RealFs), Arc::new(pausing));
    assert_eq!(class(thief.acquire(&world.main, &request())), Class::LockConflict);
    world.repo.lock(&world.main).renew(&session).expect("the lease runs, undisturbed");
}

/// A clock that lets something happen before it is first read.
struct PausingClock {
    clock: Arc<LyingClock>,
    deed: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Clock for PausingClock {
    fn wall(&self) -> UnixMs {
        let deed = self.deed.lock().expect("one thread").take();
        if let Some(deed) = deed {
            deed();
        }
        self.clock.wall()
    }

    fn boot(&self) -> BootMs {
        self.clock.boot()
    }

    fn monotonic(&self) -> MonoMs {
        self.clock.monotonic()
    }

    fn boot_id(&self) -> BootId {
        self.clock.boot_id()
    }

    fn wait(&self, ms: Millis) {
        self.clock.wait(ms);
    }
}

/// A commits a restore and pauses before the swap. B steals and starts to work. If A's swap still went
/// through, it would put B's files away.
#[test]
fn a_restore_that_pauses_before_its_swap_cannot_take_the_next_holders_files_away() {
    let world = World::new();
    world.write("file", b"old");
    let session = world.acquire().expect("a free lock").session.session_id;
    let old = world.snapshot(&session).expect("ours").descriptor;
    world.write("file", b"newer");
    let (steal, payload) = (thief(&world), world.payload("file"));
    let paused = just_before(
        &world,
        |call, _| call == Call::Exchange,
        move || {
            steal();
            std::fs::write(&payload, b"the thief's").expect("writable");
        },
    );
    let request = RestoreRequest { session: Some(session), discard_changes: true, progress: &NoProgress };
    assert_eq!(class(paused.restore(&world.main, &old, &request)), Class::FencingMismatch);
    assert_eq!(std::fs::read(world.payload("file")).expect("there"), b"the thief's");
}

#[test]
fn a_filesystem_that_cannot_exchange_names_still_restores() {
    let world = World::new();
    world.write("file", b"old");
    let session = world.acquire().expect("a free lock").session.session_id;
    let old = world.snapshot(&session).expect("ours").descriptor;
    world.write("file", b"newer");
    let poor = Layer::new(|call, _| match call {
        Call::Exchange => Verdict::Fail(std::io::ErrorKind::Unsupported.into()),
        _ => Verdict::Go,
    });
    let repo = world.seen_by(Arc::new(poor), world.clock.clone());
    let request = RestoreRequest { session: Some(session), discard_changes: true, progress: &NoProgress };
    repo.restore(&world.main, &old, &request).expect("by two renames");
    assert_eq!(std::fs::read(world.payload("file")).expect("there"), b"old");
}

/// An NFS server may carry out a `link`, lose the answer, and refuse the repetition.
#[test]
fn a_repeated_link_that_is_refused_is_known_to_be_ones_own() {
    let world = World::new();
    let forgetful = Layer::new(|call, _| if call == Call::Link { Verdict::LoseAnswer } else { Verdict::Go });
    let repo = world.seen_by(Arc::new(forgetful), world.clock.clone());
    let grant = repo.acquire(&world.main, &request()).expect("the bytes are ours");
    let lock = world.repo.status(&world.main).expect("readable").lock.expect("held");
    assert_eq!(lock.session_id, grant.session.session_id);
}
