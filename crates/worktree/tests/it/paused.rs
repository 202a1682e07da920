//! A holder that sleeps through its own end, and wakes.

use std::sync::Arc;

use worktree::error::Class;
use worktree::fs::RealFs;
use worktree::lock::ReleaseOutcome;
use worktree::restore::RestoreRequest;
use worktree::tree::NoProgress;

use crate::support::{LyingClock, STEALABLE_MS, World, class, request};

#[test]
fn a_paused_holder_that_wakes_after_the_steal_can_do_nothing() {
    let world = World::new();
    world.write("file", b"first");
    let paused = world.acquire().expect("a free lock").session.session_id;
    let before = world.snapshot(&paused).expect("the holder's own").descriptor;
    world.clock.pass(STEALABLE_MS);
    let thief = world.acquire().expect("the lease is long over");

    let lock = world.repo.lock(&world.main);
    assert_eq!(class(lock.renew(&paused)), Class::LockNotHeld);
    assert_eq!(class(lock.release(&paused)), Class::LockNotHeld);
    assert_eq!(class(world.snapshot(&paused)), Class::FencingMismatch);
    let restore = RestoreRequest { session: Some(paused), discard_changes: true, progress: &NoProgress };
    assert_eq!(class(world.repo.restore(&world.main, &before, &restore)), Class::FencingMismatch);

    let history = world.repo.history(&world.main, 10).expect("readable");
    assert_eq!(history.len(), 1, "no trace of what was refused");
    let status = world.repo.status(&world.main).expect("readable");
    assert_eq!(status.lock.expect("held").session_id, thief.session.session_id);
    lock.renew(&thief.session.session_id).expect("the thief holds it undisturbed");
}

#[test]
fn an_expired_holder_may_only_release() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    world.clock.pass(30_001);
    let lock = world.repo.lock(&world.main);
    assert_eq!(class(lock.renew(&session)), Class::LockExpired);
    assert_eq!(class(world.snapshot(&session)), Class::LockExpired);
    assert_eq!(lock.release(&session).expect("not stolen yet"), ReleaseOutcome::Released);
    assert_eq!(lock.release(&session).expect("the same holder again"), ReleaseOutcome::AlreadyReleased);
}

#[test]
fn another_machine_steals_only_what_it_has_watched_stand_still() {
    let world = World::new();
    world.acquire().expect("a free lock");
    let elsewhere = Arc::new(LyingClock::elsewhere("another-boot"));
    let there = world.seen_by(Arc::new(RealFs), elsewhere);
    assert_eq!(class(there.acquire(&world.main, &request())), Class::LockConflict);
}
