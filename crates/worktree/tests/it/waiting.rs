//! Waiting for a lock: order, deadlines, and waiters that die.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use worktree::clock::SystemClock;
use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::repo::Repo;
use worktree::waiting::{WaitRequest, WaitStatus};

use crate::support::{Fixture, class, request};

/// Long enough for any machine; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// The fixture's repository with real clocks: a waiter must not make time pass for the holder.
fn in_real_time(fixture: &Fixture) -> Repo {
    fixture.seen_by(Arc::new(RealFs), Arc::new(SystemClock::new()))
}

fn tickets(repo: &Repo) -> usize {
    std::fs::read_dir(repo.layout().all_waiters().join("main")).map_or(0, Iterator::count)
}

/// Five waiters arrive one after the other; polling with random pauses, they would acquire in any of 120
/// orders.
#[test]
fn waiters_of_one_host_get_the_lock_in_the_order_in_which_they_came() {
    let fixture = Fixture::new();
    let repo = in_real_time(&fixture);
    let holder = repo.acquire(&fixture.main, &request()).expect("free");
    let order = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for waiter in 0..5 {
            let (queued, is_queued) = mpsc::channel();
            let (repo, order, main) = (&repo, &order, &fixture.main);
            scope.spawn(move || {
                let on_wait = |_: &WaitStatus| queued.send(()).unwrap_or_default();
                let wait = WaitRequest { limit_ms: Some(60_000), on_wait: &on_wait };
                let acquired = repo.acquire_waiting(main, &request(), &wait).expect("its turn comes");
                order.lock().expect("no panic").push(waiter);
                repo.lock(main).release(&acquired.session.session_id).expect("held");
            });
            is_queued.recv_timeout(DEADLINE).expect("it waits");
        }
        repo.lock(&fixture.main).release(&holder.session.session_id).expect("held");
    });
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3, 4]);
    assert_eq!(tickets(&repo), 0, "a waiter leaves no file behind");
}

#[test]
fn a_wait_ends_at_its_limit_and_names_the_holder() {
    let fixture = Fixture::new();
    let repo = in_real_time(&fixture);
    let holder = repo.acquire(&fixture.main, &request()).expect("free");
    let shown = Mutex::new(Vec::new());
    let on_wait = |status: &WaitStatus| {
        let held = status.lock.lock.as_ref().expect("held");
        shown.lock().expect("no panic").push((held.holder_id.clone(), status.position));
    };
    let wait = WaitRequest { limit_ms: Some(30), on_wait: &on_wait };
    let error = repo.acquire_waiting(&fixture.main, &request(), &wait).expect_err("held all the time");
    assert_eq!(error.class(), ErrorClass::LockConflict);
    assert_eq!(error.facts()["holder_id"], holder.lock.holder_id.as_str());
    assert!(error.facts()["waited_ms"].as_u64().expect("a number") >= 30);
    assert_eq!(shown.lock().expect("no panic").first(), Some(&(holder.lock.holder_id.clone(), 1)));
    assert_eq!(tickets(&repo), 0);
}

#[test]
fn a_limit_of_zero_is_one_attempt() {
    let fixture = Fixture::new();
    let wait = WaitRequest { limit_ms: Some(0), on_wait: &|_| panic!("nothing to wait for") };
    let acquired = fixture.repo.acquire_waiting(&fixture.main, &request(), &wait).expect("free");
    assert_eq!(
        class(fixture.repo.acquire_waiting(&fixture.main, &request(), &wait)),
        ErrorClass::LockConflict
    );
    fixture.repo.lock(&fixture.main).release(&acquired.session.session_id).expect("held");
}

/// A waiter that was killed leaves its ticket, which must not block those behind it.
#[test]
fn a_dead_waiter_is_passed_over_and_a_removed_ticket_is_taken_again() {
    let fixture = Fixture::new();
    let repo = in_real_time(&fixture);
    let queue = repo.layout().all_waiters().join("main");
    std::fs::create_dir_all(&queue).expect("writable");
    let dead = fixture.seen_by_the_dead(Arc::new(RealFs)).env().maker.clone();
    std::fs::write(queue.join(format!("{dead}.1")), b"").expect("writable");
    std::fs::write(queue.join("not-a-ticket"), b"").expect("writable");
    std::fs::write(queue.join("otherhost.1.1.1"), b"").expect("writable");
    let holder = repo.acquire(&fixture.main, &request()).expect("free");
    let polls = Mutex::new(0);
    let on_wait = |status: &WaitStatus| {
        assert_eq!(status.position, 1, "neither the dead nor another host is before us");
        let mut polls = polls.lock().expect("no panic");
        *polls += 1;
        if *polls == 1 {
            let ours = format!("{}.1", repo.env().maker);
            std::fs::remove_file(queue.join(ours)).expect("our ticket, as something else removes it");
        } else if *polls == 3 {
            repo.lock(&fixture.main).release(&holder.session.session_id).expect("held");
        }
    };
    let wait = WaitRequest { limit_ms: Some(60_000), on_wait: &on_wait };
    repo.acquire_waiting(&fixture.main, &request(), &wait).expect("released meanwhile");
    assert_eq!(tickets(&repo), 2, "foreign files and other hosts' tickets stay");
}

/// A waiter was suspended (Ctrl-Z) at the head of the queue. The lock was released, and all other waiters of that host
/// waited for ever for a lock that was free.
#[test]
fn a_waiter_that_does_not_run_is_overtaken() {
    let fixture = Fixture::new();
    let queue = fixture.repo.layout().all_waiters().join("main");
    std::fs::create_dir_all(&queue).expect("writable");
    // This process lives, and no thread of it serves this ticket.
    std::fs::write(queue.join(format!("{}.1", fixture.repo.env().maker)), b"").expect("writable");
    let positions = Mutex::new(Vec::new());
    let on_wait = |status: &WaitStatus| positions.lock().expect("no panic").push(status.position);
    let wait = WaitRequest { limit_ms: Some(60_000), on_wait: &on_wait };
    fixture.repo.acquire_waiting(&fixture.main, &request(), &wait).expect("the lock is free");
    let positions = positions.into_inner().expect("no panic");
    assert!(positions.len() > 3 && positions.iter().all(|position| *position == 2), "{positions:?}");
}

/// A lease that ends during the wait is stolen by the waiter, as a plain acquire would.
#[test]
fn a_waiter_steals_when_the_lease_has_ended() {
    let fixture = Fixture::new();
    let first = fixture.acquire().expect("free");
    let wait = WaitRequest { limit_ms: Some(120_000), on_wait: &|_| {} };
    let stolen = fixture.repo.acquire_waiting(&fixture.main, &request(), &wait).expect("the lease ends");
    assert_eq!(stolen.stolen_from, Some(first.lock.fencing_token));
}
