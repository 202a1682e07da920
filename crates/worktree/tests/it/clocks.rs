//! Clocks that are wrong, set back, or belong to another machine.

use std::sync::Arc;

use worktree::doctor::DoctorRequest;
use worktree::error::Class;
use worktree::fs::RealFs;
use worktree::status::LockState;

use crate::support::layer::Layer;
use crate::support::{LyingClock, STEALABLE_MS, World, class, request};

#[test]
fn acquire_renew_and_steal_refuse_a_clock_that_is_too_far_off() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    for wrong_by in [5_000, -5_000] {
        let clock = Arc::new(LyingClock::new());
        clock.set_wall_back_by(wrong_by);
        clock.pass(1);
        let there = world.seen_by(Arc::new(RealFs), clock.clone());
        assert_eq!(class(there.lock(&world.main).renew(&session)), Class::ClockSkewExceeded);
        clock.pass(STEALABLE_MS);
        let refused = there.acquire(&world.main, &request()).expect_err("nothing is stolen");
        assert_eq!(refused.class(), Class::ClockSkewExceeded);
        let skew = refused.facts()["skew_ms"].as_u64().expect("a number");
        assert!(skew >= 4_900, "about what it is off, or more on a slow machine: {skew}");
    }
    let lock = world.repo.status(&world.main).expect("readable").lock.expect("still held");
    assert_eq!(lock.session_id, session, "and the lock is as it was");
    let other = World::new();
    other.clock.set_wall_back_by(5_000);
    assert_eq!(class(other.acquire()), Class::ClockSkewExceeded, "a free lock too");
}

#[test]
fn a_clock_within_the_bound_is_good_enough() {
    let world = World::new();
    world.clock.set_wall_back_by(900);
    let session = world.acquire().expect("within the bound").session.session_id;
    world.repo.lock(&world.main).renew(&session).expect("within the bound");
}

#[test]
fn doctor_warns_at_half_the_bound() {
    let world = World::new();
    let codes = |world: &World, strict| -> Vec<_> {
        let report = world.repo.doctor(DoctorRequest { strict, repair: false }).expect("readable");
        report.findings.iter().map(|finding| finding.code).collect()
    };
    assert!(codes(&world, true).is_empty());
    world.clock.set_wall_back_by(1_500);
    assert_eq!(codes(&world, true), ["clock_offset"]);
    assert!(codes(&world, false).is_empty(), "only when asked to look closely");
}

#[test]
fn setting_the_wall_clock_back_revives_nobody_on_the_same_boot() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    world.clock.pass(30_001);
    world.clock.set_wall_back_by(1_000);
    assert_eq!(class(world.repo.lock(&world.main).renew(&session)), Class::LockExpired);
}

#[test]
fn after_a_reboot_the_holder_is_expired_and_the_lock_must_be_watched() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    let rebooted = world.seen_by(Arc::new(RealFs), Arc::new(LyingClock::elsewhere("the next boot")));
    assert_eq!(class(rebooted.lock(&world.main).renew(&session)), Class::LockExpired);
    assert_eq!(class(rebooted.acquire(&world.main, &request())), Class::LockConflict);
    rebooted.lock(&world.main).release(&session).expect("giving back is always possible");
}

#[test]
fn another_host_waits_for_the_filesystems_time_and_then_watches() {
    let world = World::new();
    let grant = world.acquire().expect("a free lock");
    let there = |ahead_ms: i64| {
        let clock = LyingClock::elsewhere("another host");
        clock.set_wall_back_by(-ahead_ms);
        world.seen_by(Arc::new(Layer::with_clock_ahead_by(ahead_ms)), Arc::new(clock))
    };
    let early = there(32_000).acquire(&world.main, &request()).expect_err("too early");
    assert_eq!(early.class(), Class::LockConflict);
    let stealable_at = early.facts()["stealable_at"].as_i64().expect("a time");
    assert_eq!(stealable_at, grant.lock.lease_expires_at.0 + 3_000);
    let watched = std::cell::Cell::new(0);
    let on_watch = |ms| watched.set(ms);
    let mut patient = request();
    patient.on_watch = &on_watch;
    let stolen = there(60_000).acquire(&world.main, &patient).expect("long over");
    assert_eq!(stolen.stolen_from, Some(grant.lock.fencing_token));
    assert_eq!(watched.get(), 31_000);
}

/// Some filesystems stamp files with the client's clock. A holder whose clock is far behind then looks
/// expired to everyone else while it renews; only seeing it renew tells.
#[test]
fn a_holder_that_renews_while_it_is_watched_keeps_its_lock() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    let clock = LyingClock::elsewhere("a host with a fast clock");
    clock.set_wall_back_by(-60_000);
    let there = world.seen_by(Arc::new(Layer::with_clock_ahead_by(60_000)), Arc::new(clock));
    let renew = |_: u64| {
        world.clock.pass(10);
        world.repo.lock(&world.main).renew(&session).expect("it holds the lock");
    };
    let mut hasty = request();
    hasty.on_watch = &renew;
    assert_eq!(class(there.acquire(&world.main, &hasty)), Class::LockConflict);
}

#[test]
fn a_renewal_from_the_future_is_refused_as_skew() {
    let world = World::new();
    world.acquire().expect("a free lock");
    let clock = LyingClock::elsewhere("a host with a slow clock");
    clock.set_wall_back_by(60_000);
    let there = world.seen_by(Arc::new(Layer::with_clock_ahead_by(-60_000)), Arc::new(clock));
    assert_eq!(class(there.acquire(&world.main, &request())), Class::ClockSkewExceeded);
    assert_eq!(there.status(&world.main).expect("readable").state, LockState::ClockSkew);
}

#[test]
fn a_dead_holder_permits_no_early_steal() {
    let world = World::new();
    let mut child = std::process::Command::new("true").spawn().expect("`true` exists");
    let mut dying = request();
    dying.holder = worktree::holder::HolderId::of_process(child.id());
    world.repo.acquire(&world.main, &dying).expect("a free lock");
    child.wait().expect("our own child");
    let status = world.repo.status(&world.main).expect("readable");
    assert_eq!(status.holder, Some(worktree::holder::ProcessState::Ended));
    world.clock.pass(30_000);
    assert_eq!(class(world.acquire()), Class::LockConflict);
}
