//! The cost of waiting: however many waiters there are, a turn visits a bounded number of them, and the rest is done in
//! the next turns, in order.

use std::sync::atomic::Ordering;

use engine::internals::decider::Decider;
use engine::internals::shard::{Shard, Visits};
use engine::internals::waiting::VISITS_MAX;
use engine::waiters::{Advice, Wait, WaiterConnection};
use engine::{Decision, Reply, Submission};
use kernel::{
    Action, Age, Bundle, Command, Granted, Kernel, LeaseRequest, OnExpiry, Outcome, Predicate, Renewal,
    Response, SessionName, Span, Time,
};
use sim::fixture::{grant, held, identity, key, member, one};
use store::Seq;

use crate::fixture::{TENURE, TestClock};

/// A shard whose callers are numbers. The visits of every turn are compared with the bound.
struct Driver {
    shard: Shard<u32>,
    clock: TestClock,
    /// The largest number of visits of any turn.
    most: Visits,
    batches: usize,
}

impl Driver {
    fn new() -> Driver {
        let clock = TestClock::default();
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(clock.clone()), &TENURE);
        let shard = Shard::new(decider.expect("a valid clock"));
        let mut driver = Driver { shard, clock, most: Visits::default(), batches: 0 };
        driver.turn();
        driver
    }

    fn turn(&mut self) -> Vec<(u32, Reply)> {
        self.shard.housekeep();
        self.end_turn()
    }

    fn end_turn(&mut self) -> Vec<(u32, Reply)> {
        let visits = self.shard.visits();
        for visited in [visits.serving, visits.searching, visits.removing] {
            assert!(visited <= VISITS_MAX, "{visits:?}");
        }
        self.most.serving = self.most.serving.max(visits.serving);
        self.most.removing = self.most.removing.max(visits.removing);
        let turn = self.shard.end_turn();
        self.batches += usize::from(turn.sealed.is_some());
        for lease in turn.replies.iter().filter_map(|(.., lease)| *lease) {
            self.shard.delivered(lease, true);
        }
        turn.replies.into_iter().map(|(to, reply, _)| (to, reply)).collect()
    }

    fn submit(&mut self, to: u32, action: Action, wait: Option<u64>) -> WaiterConnection {
        let connection = WaiterConnection::default();
        let wait = wait.map(|ms| Wait { timeout: Span(ms), connection: connection.clone() });
        let command = Command::by(&identity("ada"), action);
        self.shard.submit(Submission { wait, ..Submission::new(command, to) });
        connection
    }

    /// Runs turns while work is due now.
    fn settle(&mut self) -> Vec<(u32, Reply)> {
        let mut replies = self.turn();
        for _ in 0..10_000 {
            if self.shard.until_due() != Some(Span(0)) {
                return replies;
            }
            replies.extend(self.turn());
        }
        panic!("there is work after 10,000 turns");
    }

    fn hold(&mut self, bundle: Bundle) -> Granted {
        self.shard.housekeep();
        self.submit(0, Action::Acquire(grant(bundle, Span(300_000))), None);
        granted(&self.end_turn()[0].1).expect("free")
    }

    /// Waiters with the numbers 1 to `count`.
    fn queue(&mut self, count: u32, bundle: &Bundle, timeout: u64) -> Vec<WaiterConnection> {
        self.shard.housekeep();
        let request = || Action::Acquire(grant(bundle.clone(), Span(300_000)));
        let connections = (1..=count).map(|n| self.submit(n, request(), Some(timeout))).collect();
        assert_eq!(self.end_turn().len(), 0, "all of them wait");
        connections
    }

    fn release(&mut self, lease: &Granted) -> Vec<(u32, Reply)> {
        self.most = Visits::default();
        self.shard.housekeep();
        self.submit(0, Action::Release(held(lease)), None);
        self.end_turn()
    }
}

fn granted(reply: &Reply) -> Option<Granted> {
    match reply {
        Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) => Some(*granted),
        _ => None,
    }
}

fn granted_to(replies: &[(u32, Reply)]) -> Vec<u32> {
    replies.iter().filter(|(_, reply)| granted(reply).is_some()).map(|(to, _)| *to).collect()
}

fn timed_out(reply: &Reply) -> bool {
    matches!(reply, Ok(Decision::Blocked(blocked)) if blocked.advice == Advice::Wait)
}

/// A release served 60,000 shared waiters at once: one batch, one hold of the lock. Meanwhile no renewal was decided.
#[test]
fn sixty_thousand_waiters_are_served_in_order_over_many_turns_with_renewals_between() {
    let mut driver = Driver::new();
    let holder = driver.hold(key("hot"));
    let other = driver.hold(key("other"));
    driver.queue(60_000, &one(Predicate::Consumes, "KEY:hot"), 60_000);
    let mut served = granted_to(&driver.release(&holder));
    let mut turns = 0;
    while driver.shard.is_handing_off() {
        assert_eq!(driver.shard.until_due(), Some(Span(0)));
        driver.shard.housekeep();
        let renewal = Renewal { held: held(&other), ttl: None };
        driver.submit(100_001, Action::Renew(vec![renewal]), None);
        // A newcomer queues behind the waiters that have not been tried.
        driver.submit(100_002 + turns, Action::Acquire(grant(key("hot"), Span(60_000))), Some(60_000));
        let replies = driver.end_turn();
        let renewed = |(to, reply): &(u32, Reply)| *to == 100_001 && reply.is_ok();
        assert!(replies.iter().any(renewed), "a renewal in every turn");
        served.extend(granted_to(&replies));
        turns += 1;
    }
    assert!(served.iter().copied().eq(1..=60_000), "in order of arrival, and no newcomer before them");
    assert!(driver.batches > 200 && turns > 200, "{} batches", driver.batches);
    assert_eq!(driver.shard.waiters().len(), turns as usize, "the newcomers wait");
}

/// 50,000 waiters for PROVIDES were visited whenever a reader of the same key released it: 85 ms each time, although a reader
/// had never blocked them.
#[test]
fn a_release_does_not_visit_waiters_that_it_cannot_unblock() {
    let mut driver = Driver::new();
    let bundle = one(Predicate::Provides, "KEY:k");
    let provider = driver.hold(bundle.clone());
    driver.queue(100_000, &bundle, 60_000);
    for _ in 0..10 {
        let reader = driver.hold(one(Predicate::Consumes, "KEY:k"));
        driver.release(&reader);
        assert_eq!((driver.most.serving, driver.shard.until_due() == Some(Span(0))), (0, false));
    }
    let replies = driver.release(&provider);
    assert_eq!(granted_to(&replies), [1]);
    assert!(driver.most.serving <= 2, "{:?}", driver.most);
}

/// 10,000 waiters for a directory were visited whenever a file beneath it was released: 29 ms each time.
#[test]
fn a_release_beneath_a_directory_visits_one_of_its_waiters() {
    for predicate in [Predicate::Mutates, Predicate::Provides, Predicate::Consumes] {
        let mut driver = Driver::new();
        let files: Vec<Granted> =
            (0..10).map(|n| driver.hold(one(Predicate::Mutates, &format!("FILE:/repo/{n}")))).collect();
        driver.queue(100_000, &one(predicate, "FILE:/repo/*"), 60_000);
        for file in &files[1..] {
            driver.release(file);
            assert_eq!(driver.most.serving, 1, "{predicate:?}");
            assert!(!driver.shard.is_handing_off());
        }
        let replies = driver.release(&files[0]);
        let first: Vec<u32> = granted_to(&replies);
        assert_eq!(first[0], 1, "{predicate:?}");
        assert_eq!(driver.shard.is_handing_off(), predicate == Predicate::Consumes, "readers share it");
    }
}

/// A writer waits between readers. The readers behind it are blocked by it, and are not visited one by one.
#[test]
fn readers_behind_a_waiting_writer_are_not_visited() {
    let mut driver = Driver::new();
    let holder = driver.hold(key("k"));
    let reader = || Action::Acquire(grant(one(Predicate::Consumes, "KEY:k"), Span(60_000)));
    driver.submit(1, reader(), Some(60_000));
    driver.submit(2, Action::Acquire(grant(key("k"), Span(60_000))), Some(60_000));
    for n in 3..10_000 {
        driver.submit(n, reader(), Some(60_000));
    }
    driver.settle();
    assert_eq!(granted_to(&driver.release(&holder)), [1]);
    assert!(driver.most.serving <= 3 && !driver.shard.is_handing_off(), "{:?}", driver.most);
}

/// Waiters that stay blocked are visited once, not in every turn again: otherwise the waiter behind 300 of them would never
/// be tried.
#[test]
fn serving_continues_after_the_last_waiter_that_was_tried() {
    let mut driver = Driver::new();
    let hot = driver.hold(key("hot"));
    let bundle = |n: u32| {
        let own = format!("KEY:own{n}");
        Bundle::new(vec![member(Predicate::Consumes, "KEY:hot"), member(Predicate::Mutates, &own)])
    };
    for n in 1..=600 {
        driver.hold(key(&format!("own{n}")));
        driver.submit(n, Action::Acquire(grant(bundle(n).expect("two"), Span(60_000))), Some(60_000));
    }
    driver.submit(
        601,
        Action::Acquire(grant(one(Predicate::Consumes, "KEY:hot"), Span(60_000))),
        Some(60_000),
    );
    driver.settle();
    let mut replies = driver.release(&hot);
    for _ in 0..3 {
        replies.extend(driver.turn());
    }
    assert_eq!(granted_to(&replies), [601]);
    assert!(!driver.shard.is_handing_off());
}

/// A waiter must not time out while resources that were freed for it have not been offered to it.
#[test]
fn a_waiter_does_not_time_out_before_it_is_tried() {
    let mut driver = Driver::new();
    let holder = driver.hold(key("hot"));
    driver.queue(2000, &one(Predicate::Consumes, "KEY:hot"), 1000);
    let mut replies = driver.release(&holder);
    driver.clock.0.fetch_add(1001, Ordering::Relaxed);
    replies.extend(driver.settle());
    assert!(granted_to(&replies).iter().copied().eq(1..=2000), "freed before their deadline");
}

#[test]
fn timeouts_are_bounded_per_turn_and_in_order() {
    let mut driver = Driver::new();
    driver.hold(key("hot"));
    driver.queue(2000, &key("hot"), 1000);
    driver.clock.0.fetch_add(1001, Ordering::Relaxed);
    let first = driver.turn();
    assert_eq!(first.len(), VISITS_MAX);
    assert_eq!(driver.shard.until_due(), Some(Span(0)));
    let mut replies = first;
    replies.extend(driver.settle());
    assert!(replies.iter().map(|(to, _)| *to).eq(1..=2000));
    assert!(replies.iter().all(|(_, reply)| timed_out(reply)));
}

#[test]
fn disconnects_are_bounded_per_turn_and_a_disconnected_waiter_gets_nothing() {
    let mut driver = Driver::new();
    let holder = driver.hold(key("hot"));
    let connections = driver.queue(2000, &key("hot"), 60_000);
    driver.shard.housekeep();
    for connection in &connections[..1999] {
        driver.shard.disconnect(connection);
    }
    driver.end_turn();
    assert_eq!(driver.shard.waiters().len(), 2000 - VISITS_MAX);
    let mut replies = driver.release(&holder);
    replies.extend(driver.settle());
    assert_eq!(granted_to(&replies), [2000]);
    assert!(driver.shard.waiters().is_empty());
}

/// A rebind gives a lease its age back: all attempts behind it are younger, and die.
#[test]
fn younger_attempts_die_in_bounded_steps() {
    let mut driver = Driver::new();
    driver.clock.0.store(1000, Ordering::Relaxed);
    let attempt = |at, name: &str| LeaseRequest {
        agent: Some(kernel::AgentName::new(name).expect("valid")),
        attempt: Some(Age { at: Time(at), tie: 0 }),
        session: Some(SessionName::new(name).expect("a valid name")),
        ..grant(key("x"), Span(60_000))
    };
    driver.shard.housekeep();
    let manual = LeaseRequest { on_expiry: OnExpiry::Manual, ttl: Span(100), ..attempt(100, "old") };
    driver.submit(0, Action::Acquire(manual), None);
    let lease = granted(&driver.end_turn()[0].1).expect("free");
    driver.clock.0.store(1200, Ordering::Relaxed);
    driver.turn();
    for n in 1..=1000 {
        let request = attempt(1200 - u64::from(n), &format!("s{n}"));
        driver.shard.housekeep();
        driver.submit(n, Action::Acquire(request), Some(60_000));
        assert_eq!(driver.end_turn().len(), 0, "it waits");
    }
    driver.shard.housekeep();
    driver.submit(2000, Action::Rebind(held(&lease)), None);
    let first = driver.end_turn();
    assert_eq!(first.len(), 1 + VISITS_MAX);
    let mut replies = first;
    replies.extend(driver.settle());
    let died =
        |reply: &Reply| matches!(reply, Ok(Decision::Blocked(blocked)) if blocked.advice == Advice::Die);
    assert_eq!(replies.iter().filter(|(_, reply)| died(reply)).count(), 1000);
}

/// A waiter returns to its place before all attempts behind it: they are younger, and die.
#[test]
fn overtaken_attempts_die_in_bounded_steps() {
    let mut driver = Driver::new();
    driver.clock.0.store(100, Ordering::Relaxed);
    let before = driver.hold(key("x"));
    driver.shard.housekeep();
    driver.submit(3000, Action::Acquire(grant(key("x"), Span(60_000))), None);
    let returning = match &driver.end_turn()[0].1 {
        Ok(Decision::Blocked(blocked)) => blocked.attempt,
        other => panic!("{other:?}"),
    };
    driver.release(&before);
    driver.clock.0.store(1200, Ordering::Relaxed);
    driver.hold(key("x"));
    for n in 1..=1000 {
        let name = format!("s{n}");
        let request = LeaseRequest {
            agent: Some(kernel::AgentName::new(&name).expect("valid")),
            attempt: Some(Age { at: Time(1200 - u64::from(n)), tie: 0 }),
            session: Some(SessionName::new(&name).expect("valid")),
            ..grant(key("x"), Span(60_000))
        };
        driver.shard.housekeep();
        driver.submit(n, Action::Acquire(request), Some(60_000));
        assert_eq!(driver.end_turn().len(), 0, "it waits");
    }
    driver.shard.housekeep();
    let command = Command::by(&identity("ada"), Action::Acquire(grant(key("x"), Span(60_000))));
    let wait = Some(Wait { timeout: Span(60_000), connection: WaiterConnection::default() });
    driver.shard.submit(Submission { wait, attempt: Some(returning), ..Submission::new(command, 3000) });
    let mut replies = driver.end_turn();
    assert_eq!(replies.len(), VISITS_MAX);
    replies.extend(driver.settle());
    let died =
        |reply: &Reply| matches!(reply, Ok(Decision::Blocked(blocked)) if blocked.advice == Advice::Die);
    assert_eq!(replies.iter().filter(|(_, reply)| died(reply)).count(), 1000);
    assert_eq!(driver.shard.waiters().len(), 1, "the one that returned");
}

#[test]
fn queue_positions_are_counted_up_to_a_hundred() {
    let mut driver = Driver::new();
    driver.hold(key("hot"));
    driver.queue(1000, &key("hot"), 60_000);
    driver.shard.housekeep();
    driver.submit(2000, Action::Acquire(grant(key("hot"), Span(60_000))), None);
    match &driver.end_turn()[0].1 {
        Ok(Decision::Blocked(blocked)) => assert_eq!(blocked.position, 100),
        other => panic!("{other:?}"),
    }
}
