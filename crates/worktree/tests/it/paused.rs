//! A holder that is paused beyond its lease, and resumes.

use std::sync::Arc;

use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::lock::ReleaseOutcome;
use worktree::restore::RestoreRequest;
use worktree::tree::NoProgress;

use crate::support::{Fixture, STEALABLE_MS, TestClock, class, request};

#[test]
fn a_paused_holder_that_wakes_after_the_steal_can_do_nothing() {
    let fixture = Fixture::new();
    fixture.write("file", b"first");
    let paused = fixture.acquire().expect("a free lock").session.session_id;
    let before = fixture.snapshot(&paused).expect("the holder's own").descriptor;
    fixture.clock.advance(STEALABLE_MS);
    let stealer = fixture.acquire().expect("the lease is long over");

    let lock = fixture.repo.lock(&fixture.main);
    assert_eq!(class(lock.renew(&paused)), ErrorClass::LockNotHeld);
    assert_eq!(class(lock.release(&paused)), ErrorClass::LockNotHeld);
    assert_eq!(class(fixture.snapshot(&paused)), ErrorClass::FencingMismatch);
    let restore = RestoreRequest { session: Some(paused), discard_changes: true, progress: &NoProgress };
    assert_eq!(class(fixture.repo.restore(&fixture.main, &before, &restore)), ErrorClass::FencingMismatch);

    let history = fixture.repo.history(&fixture.main, 10).expect("readable");
    assert_eq!(history.len(), 1, "no trace of what was refused");
    let status = fixture.repo.status(&fixture.main).expect("readable");
    assert_eq!(status.lock.expect("held").session_id, stealer.session.session_id);
    lock.renew(&stealer.session.session_id).expect("the stealer holds it undisturbed");
}

#[test]
fn an_expired_holder_may_only_release() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    fixture.clock.advance(30_001);
    let lock = fixture.repo.lock(&fixture.main);
    assert_eq!(class(lock.renew(&session)), ErrorClass::LockExpired);
    assert_eq!(class(fixture.snapshot(&session)), ErrorClass::LockExpired);
    assert_eq!(lock.release(&session).expect("not stolen yet"), ReleaseOutcome::Released);
    assert_eq!(lock.release(&session).expect("the same holder again"), ReleaseOutcome::AlreadyReleased);
}

#[test]
fn another_machine_steals_only_after_a_watch_without_renewals() {
    let fixture = Fixture::new();
    fixture.acquire().expect("a free lock");
    let elsewhere = Arc::new(TestClock::of_another_host("another-boot"));
    let there = fixture.seen_by(Arc::new(RealFs), elsewhere);
    assert_eq!(class(there.acquire(&fixture.main, &request())), ErrorClass::LockConflict);
}
