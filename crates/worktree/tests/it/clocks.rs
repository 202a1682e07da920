//! Clocks that are wrong, set back, or belong to another machine.

use std::sync::Arc;

use worktree::doctor::DoctorRequest;
use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::status::LockState;

use crate::support::layer::HookedFs;
use crate::support::{Fixture, STEALABLE_MS, TestClock, class, request};

#[test]
fn acquire_renew_and_steal_refuse_a_clock_that_is_too_far_off() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    for wrong_by in [5_000, -5_000] {
        let clock = Arc::new(TestClock::new());
        clock.set_wall_back_by(wrong_by);
        clock.advance(1);
        let there = fixture.seen_by(Arc::new(RealFs), clock.clone());
        assert_eq!(class(there.lock(&fixture.main).renew(&session)), ErrorClass::ClockSkewExceeded);
        clock.advance(STEALABLE_MS);
        let refused = there.acquire(&fixture.main, &request()).expect_err("nothing is stolen");
        assert_eq!(refused.class(), ErrorClass::ClockSkewExceeded);
        let skew = refused.facts()["skew_ms"].as_u64().expect("a number");
        assert!(skew >= 4_900, "about what it is off, or more on a slow machine: {skew}");
    }
    let lock = fixture.repo.status(&fixture.main).expect("readable").lock.expect("still held");
    assert_eq!(lock.session_id, session, "and the lock is as it was");
    let other = Fixture::new();
    other.clock.set_wall_back_by(5_000);
    assert_eq!(class(other.acquire()), ErrorClass::ClockSkewExceeded, "a free lock too");
}

#[test]
fn a_clock_within_the_bound_is_good_enough() {
    let fixture = Fixture::new();
    fixture.clock.set_wall_back_by(900);
    let session = fixture.acquire().expect("within the bound").session.session_id;
    fixture.repo.lock(&fixture.main).renew(&session).expect("within the bound");
}

#[test]
fn doctor_warns_at_half_the_bound() {
    let fixture = Fixture::new();
    let codes = |fixture: &Fixture, strict| -> Vec<_> {
        let report =
            fixture.repo.doctor(DoctorRequest { strict, ..DoctorRequest::default() }).expect("readable");
        report.findings.iter().map(|finding| finding.code).collect()
    };
    assert!(codes(&fixture, true).is_empty());
    fixture.clock.set_wall_back_by(1_500);
    assert_eq!(codes(&fixture, true), ["clock_offset"]);
    assert!(codes(&fixture, false).is_empty(), "only when asked to look closely");
}

#[test]
fn setting_the_wall_clock_back_revives_no_lease_on_the_same_boot() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    fixture.clock.advance(30_001);
    fixture.clock.set_wall_back_by(1_000);
    assert_eq!(class(fixture.repo.lock(&fixture.main).renew(&session)), ErrorClass::LockExpired);
}

#[test]
fn after_a_reboot_the_holder_is_expired_and_the_lock_must_be_watched() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let rebooted = fixture.seen_by(Arc::new(RealFs), Arc::new(TestClock::of_another_host("the next boot")));
    assert_eq!(class(rebooted.lock(&fixture.main).renew(&session)), ErrorClass::LockExpired);
    assert_eq!(class(rebooted.acquire(&fixture.main, &request())), ErrorClass::LockConflict);
    rebooted.lock(&fixture.main).release(&session).expect("giving back is always possible");
}

#[test]
fn another_host_waits_for_the_filesystems_time_and_then_watches() {
    let fixture = Fixture::new();
    let grant = fixture.acquire().expect("a free lock");
    let there = |ahead_ms: i64| {
        let clock = TestClock::of_another_host("another host");
        clock.set_wall_back_by(-ahead_ms);
        fixture.seen_by(Arc::new(HookedFs::with_clock_ahead_by(ahead_ms)), Arc::new(clock))
    };
    let early = there(32_000).acquire(&fixture.main, &request()).expect_err("too early");
    assert_eq!(early.class(), ErrorClass::LockConflict);
    let stealable_at = early.facts()["stealable_at"].as_i64().expect("a time");
    assert_eq!(stealable_at, grant.lock.lease_expires_at.0 + 3_000);
    let watched = std::cell::Cell::new(0);
    let on_watch = |ms| watched.set(ms);
    let mut patient = request();
    patient.on_watch = &on_watch;
    let stolen = there(60_000).acquire(&fixture.main, &patient).expect("long over");
    assert_eq!(stolen.stolen_from, Some(grant.lock.fencing_token));
    assert_eq!(watched.get(), 31_000);
}

/// Some filesystems stamp files with the client's clock. A holder whose clock is far behind then looks
/// expired to other hosts while it renews; only watching shows that it renews.
#[test]
fn a_holder_that_renews_while_it_is_watched_keeps_its_lock() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let clock = TestClock::of_another_host("a host with a fast clock");
    clock.set_wall_back_by(-60_000);
    let there = fixture.seen_by(Arc::new(HookedFs::with_clock_ahead_by(60_000)), Arc::new(clock));
    let renew = |_: u64| {
        fixture.clock.advance(10);
        fixture.repo.lock(&fixture.main).renew(&session).expect("it holds the lock");
    };
    let mut hasty = request();
    hasty.on_watch = &renew;
    assert_eq!(class(there.acquire(&fixture.main, &hasty)), ErrorClass::LockConflict);
}

#[test]
fn a_renewal_from_the_future_is_refused_as_skew() {
    let fixture = Fixture::new();
    fixture.acquire().expect("a free lock");
    let clock = TestClock::of_another_host("a host with a slow clock");
    clock.set_wall_back_by(60_000);
    let there = fixture.seen_by(Arc::new(HookedFs::with_clock_ahead_by(-60_000)), Arc::new(clock));
    assert_eq!(class(there.acquire(&fixture.main, &request())), ErrorClass::ClockSkewExceeded);
    assert_eq!(there.status(&fixture.main).expect("readable").state, LockState::ClockSkew);
}

#[test]
fn a_dead_holder_permits_no_early_steal() {
    let fixture = Fixture::new();
    let mut child = std::process::Command::new("true").spawn().expect("`true` exists");
    let mut dying = request();
    dying.holder = worktree::holder::HolderId::of_process(child.id());
    fixture.repo.acquire(&fixture.main, &dying).expect("a free lock");
    child.wait().expect("our own child");
    let status = fixture.repo.status(&fixture.main).expect("readable");
    assert_eq!(status.holder, Some(worktree::holder::ProcessState::Ended));
    fixture.clock.advance(30_000);
    assert_eq!(class(fixture.acquire()), ErrorClass::LockConflict);
}

/// Two virtual machines were resumed from one image: the boot ids are equal, the boot clock of one is 8000 s ahead.
/// It stole a lock half a second after it was granted. The filesystem's time has to agree.
#[test]
fn a_clone_whose_boot_clock_is_ahead_steals_nothing_before_its_time() {
    let fixture = Fixture::new();
    fixture.acquire().expect("a free lock");
    let clone = Arc::new(TestClock::new());
    clone.advance_boot_clock(8_000_000);
    let repo = fixture.seen_by(Arc::new(worktree::fs::RealFs), clone);
    assert_eq!(class(repo.acquire(&fixture.main, &request())), ErrorClass::LockConflict);
    fixture.clock.advance(STEALABLE_MS);
    repo.acquire(&fixture.main, &request()).expect("now the lease is over by both clocks");
}
