//! The interleavings that the protocol must survive, each forced at the critical call.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use worktree::clock::{BootId, BootMs, Clock, Millis, MonoMs, UnixMs};
use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::snapshot::Consistency;
use worktree::tree::NoProgress;
use worktree::worktree::Worktree;

use crate::support::layer::{Call, CallOutcome, HookedFs};
use crate::support::{Fixture, STEALABLE_MS, TestClock, class, request, snapshot};

/// The repository with `action` run once, right before the first call for which `is_it` holds.
pub(crate) fn just_before(
    fixture: &Fixture,
    is_it: impl Fn(Call, &Path) -> bool + Send + Sync + 'static,
    action: impl Fn() + Send + Sync + 'static,
) -> Repo {
    let done = AtomicBool::new(false);
    let layer = HookedFs::new(move |call, path| {
        if is_it(call, path) && !done.swap(true, Ordering::SeqCst) {
            action();
        }
        CallOutcome::Proceed
    });
    fixture.seen_by(Arc::new(layer), fixture.clock.clone())
}

/// Steals the lock when called.
fn stealer(fixture: &Fixture) -> impl Fn() + Send + Sync + use<> {
    let (repo, main, clock): (Repo, Worktree, Arc<TestClock>) =
        (fixture.repo.clone(), fixture.main.clone(), fixture.clock.clone());
    move || {
        clock.advance(STEALABLE_MS);
        repo.acquire(&main, &request()).expect("the lease is long over");
    }
}

fn is_entry(call: Call, path: &Path) -> bool {
    call == Call::Link && path.parent().is_some_and(|dir| dir.ends_with("main.d"))
}

#[test]
fn a_publish_that_was_checked_before_the_steal_is_fenced_after_it() {
    let fixture = Fixture::new();
    fixture.write("file", b"bytes");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let paused = just_before(&fixture, is_entry, stealer(&fixture));
    let refused = snapshot(&paused, &fixture.main, Some(&session), Consistency::Quiesced);
    assert_eq!(class(refused), ErrorClass::FencingMismatch);
    assert!(fixture.repo.history(&fixture.main, 9).expect("readable").is_empty());
    let left = std::fs::read_dir(fixture.repo.layout().snapshots()).expect("readable").count();
    assert_eq!(left, 0, "no trace of a partial publish");
}

#[test]
fn a_release_that_was_checked_before_the_steal_does_not_free_the_thiefs_lock() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let paused = just_before(&fixture, is_entry, stealer(&fixture));
    assert_eq!(class(paused.lock(&fixture.main).release(&session)), ErrorClass::LockNotHeld);
    let lock = fixture.repo.status(&fixture.main).expect("readable").lock.expect("the stealer's");
    assert_eq!(lock.acquire_seq, 2);
}

#[test]
fn a_renewal_that_the_steal_overtook_does_not_count() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let is_renewal =
        |call, path: &Path| call == Call::Rename && path.extension().is_some_and(|end| end == "renew");
    let paused = just_before(&fixture, is_renewal, stealer(&fixture));
    assert_eq!(class(paused.lock(&fixture.main).renew(&session)), ErrorClass::LockNotHeld);
    let lock = fixture.repo.status(&fixture.main).expect("readable").lock.expect("the stealer's");
    assert_eq!(lock.acquire_seq, 2, "and it leaves the stealer's lock as it was");
}

/// A stealer sees an expired lease, and pauses before its entry. The holder resumes; its renewal is written,
/// and found too late. If the next renewal extended that one, it would count, the stealer would go on, and
/// both would believe that they hold the lock.
#[test]
fn a_renewal_that_did_not_count_is_no_basis_for_the_next() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let clock = fixture.clock.clone();
    let is_renewal =
        |call, path: &Path| call == Call::Rename && path.extension().is_some_and(|end| end == "renew");
    fixture.clock.advance(25_000);
    let slow = just_before(&fixture, is_renewal, move || clock.advance(5_001));
    assert_eq!(class(slow.lock(&fixture.main).renew(&session)), ErrorClass::LockExpired);
    let status = fixture.repo.status(&fixture.main).expect("readable");
    assert_eq!(status.state, worktree::status::LockState::Live, "to others it looks renewed");
    assert_eq!(class(fixture.repo.lock(&fixture.main).renew(&session)), ErrorClass::LockExpired);
    assert_eq!(class(fixture.snapshot(&session)), ErrorClass::LockExpired);
}

/// A stealer reads a running lease, and pauses before it reads the clock. The holder renews in time. When the
/// stealer resumes, the expiry that it read has long passed; renewals take no number, so its entry would go
/// through, and two sessions would hold the lock.
#[test]
fn a_steal_is_not_decided_by_a_view_older_than_the_clock() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let (repo, main, clock) = (fixture.repo.clone(), fixture.main.clone(), fixture.clock.clone());
    let renewing = session.clone();
    let action = move || {
        clock.advance(25_000);
        repo.lock(&main).renew(&renewing).expect("in time");
        clock.advance(10_000);
    };
    let pausing = PausingClock { clock: fixture.clock.clone(), action: Mutex::new(Some(Box::new(action))) };
    let stealer = fixture.seen_by(Arc::new(RealFs), Arc::new(pausing));
    assert_eq!(class(stealer.acquire(&fixture.main, &request())), ErrorClass::LockConflict);
    fixture.repo.lock(&fixture.main).renew(&session).expect("the lease runs, undisturbed");
}

/// A clock that runs `action` before it is first read.
struct PausingClock {
    clock: Arc<TestClock>,
    action: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Clock for PausingClock {
    fn wall(&self) -> UnixMs {
        let action = self.action.lock().expect("one thread").take();
        if let Some(action) = action {
            action();
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

/// A commits a restore and pauses before the swap. B steals the lock and writes. If A's swap still went
/// through, it would replace B's files.
#[test]
fn a_restore_that_pauses_before_its_swap_cannot_replace_the_next_holders_files() {
    let fixture = Fixture::new();
    fixture.write("file", b"old");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let old = fixture.snapshot(&session).expect("ours").descriptor;
    fixture.write("file", b"newer");
    let (steal, payload) = (stealer(&fixture), fixture.payload("file"));
    let paused = just_before(
        &fixture,
        |call, _| call == Call::Exchange,
        move || {
            steal();
            std::fs::write(&payload, b"the stealer's").expect("writable");
        },
    );
    let request = RestoreRequest { session: Some(session), discard_changes: true, progress: &NoProgress };
    assert_eq!(class(paused.restore(&fixture.main, &old, &request)), ErrorClass::FencingMismatch);
    assert_eq!(std::fs::read(fixture.payload("file")).expect("there"), b"the stealer's");
}

#[test]
fn a_filesystem_that_cannot_exchange_names_still_restores() {
    let fixture = Fixture::new();
    fixture.write("file", b"old");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let old = fixture.snapshot(&session).expect("ours").descriptor;
    fixture.write("file", b"newer");
    let poor = HookedFs::new(|call, _| match call {
        Call::Exchange => CallOutcome::Fail(std::io::ErrorKind::Unsupported.into()),
        _ => CallOutcome::Proceed,
    });
    let repo = fixture.seen_by(Arc::new(poor), fixture.clock.clone());
    let request = RestoreRequest { session: Some(session), discard_changes: true, progress: &NoProgress };
    repo.restore(&fixture.main, &old, &request).expect("by two renames");
    assert_eq!(std::fs::read(fixture.payload("file")).expect("there"), b"old");
}

/// An NFS server may execute a `link`, lose the reply, and reject the retransmission.
#[test]
fn a_retransmitted_link_is_recognised_as_ones_own() {
    let fixture = Fixture::new();
    let forgetful =
        HookedFs::new(
            |call, _| if call == Call::Link { CallOutcome::LoseReply } else { CallOutcome::Proceed },
        );
    let repo = fixture.seen_by(Arc::new(forgetful), fixture.clock.clone());
    let grant = repo.acquire(&fixture.main, &request()).expect("the bytes are ours");
    let lock = fixture.repo.status(&fixture.main).expect("readable").lock.expect("held");
    assert_eq!(lock.session_id, grant.session.session_id);
}
