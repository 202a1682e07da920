//! Wait queues: FIFO, bundles granted as a whole, no barging; compared with a list that is scanned in full.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::internals::decider::Decider;
use engine::internals::shard::Shard;
use engine::waiters::{Ticket, Wait, WaiterConnection};
use engine::{Clock, Decision, Reply, Submission, TenureConfig};
use kernel::{
    Action, Bundle, Command, Granted, Kernel, LeaseRequest, Limits, Outcome, Predicate, Response, Span, Store,
};
use sim::fixture::{default_namespace, grant, held, identity, key, member, one};
use sim::rng::Rng;
use store::Seq;

use crate::fixture::TestClock;

/// These tests do not depend on time.
struct FrozenClock;

impl Clock for FrozenClock {
    fn boot_clock(&self) -> Span {
        Span(1)
    }

    fn boot_id(&self) -> u128 {
        1
    }

    fn unix_micros(&self) -> u64 {
        1_800_000_000_000_000
    }
}

/// A shard whose callers are numbers; each step is a turn.
struct Driver {
    shard: Shard<u32>,
    next: u32,
    connections: BTreeMap<u32, WaiterConnection>,
    /// Waiters that were granted a lease, not taken yet.
    served: Vec<(u32, Granted)>,
}

impl Driver {
    fn new() -> Driver {
        Driver::with_clock(FrozenClock)
    }

    fn with_clock(clock: impl Clock + 'static) -> Driver {
        let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
        let limits = Limits { history_max: 0, ..Limits::default() };
        let tenure = TenureConfig { store, writer: 1, limits, slots: kernel::Slots::ALL };
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(clock), &tenure);
        let shard = Shard::new(decider.expect("a valid clock"));
        Driver { shard, next: 0, connections: BTreeMap::new(), served: Vec::new() }
    }

    /// Ends the turn; returns the reply to `to`.
    fn end_turn(&mut self, to: u32) -> Option<Reply> {
        let mut own = None;
        for (other, reply, _) in self.shard.end_turn().replies {
            if other == to {
                own = Some(reply);
            } else {
                let lease = reply.as_ref().ok().and_then(granted).expect("a waiter was granted a lease");
                self.served.push((other, lease));
            }
        }
        own
    }

    fn submit(&mut self, action: Action, wait: Option<Wait>) -> (u32, Option<Reply>) {
        self.next += 1;
        self.shard.housekeep();
        let command = Command::by(&identity("ada"), action);
        self.shard.submit(Submission { wait, ..Submission::new(command, self.next) });
        (self.next, self.end_turn(self.next))
    }

    /// The lease, or the number of the waiter and its queue position.
    fn acquire(&mut self, bundle: Bundle) -> Result<Granted, (u32, usize)> {
        let position = self.shard.waiters().count_ahead(&default_namespace(), &bundle, Ticket::LAST);
        let connection = WaiterConnection::default();
        let wait = Some(Wait { timeout: Span(60_000), connection: connection.clone() });
        match self.submit(Action::Acquire(request(bundle)), wait) {
            (_, Some(reply)) => Ok(reply.as_ref().ok().and_then(granted).expect("granted or waiting")),
            (number, None) => {
                self.connections.insert(number, connection);
                Err((number, position))
            }
        }
    }

    fn release(&mut self, lease: &Granted) {
        let reply = self.submit(Action::Release(held(lease)), None).1;
        assert!(
            matches!(reply, Some(Ok(Decision::Outcome(Outcome::Applied(Response::Released, _))))),
            "{reply:?}"
        );
    }

    fn disconnect(&mut self, waiter: u32) {
        self.shard.housekeep();
        self.shard.disconnect(&self.connections[&waiter]);
        assert_eq!(self.end_turn(waiter), None, "a disconnected waiter gets no reply");
    }

    fn take_served(&mut self) -> Vec<(u32, Granted)> {
        std::mem::take(&mut self.served)
    }

    fn take_served_numbers(&mut self) -> Vec<u32> {
        self.take_served().into_iter().map(|(number, _)| number).collect()
    }
}

fn request(bundle: Bundle) -> LeaseRequest {
    grant(bundle, Span(60_000))
}

fn granted(decision: &Decision) -> Option<Granted> {
    match decision {
        Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)) => Some(*granted),
        _ => None,
    }
}

#[test]
fn a_key_is_handed_off_in_order_of_arrival() {
    let mut driver = Driver::new();
    let mut holder = driver.acquire(key("k")).expect("free");
    let waiters: Vec<u32> = (0..5)
        .map(|n| {
            let (waiter, position) = driver.acquire(key("k")).expect_err("held");
            assert_eq!(position, n);
            waiter
        })
        .collect();
    for waiter in waiters {
        driver.release(&holder);
        let served = driver.take_served();
        assert_eq!(served.len(), 1, "the next waiter only");
        assert_eq!(served[0].0, waiter);
        assert!(served[0].1.token > holder.token);
        holder = served[0].1;
    }
}

/// `x` was freed and granted to a later request for `x` alone, because the bundle ahead of it could not use it
/// yet; a stream of such requests starved the bundle.
#[test]
fn no_request_barges_past_a_waiting_bundle() {
    let mut driver = Driver::new();
    let x = driver.acquire(key("x")).expect("free");
    let y = driver.acquire(key("y")).expect("free");
    let both = Bundle::new(vec![member(Predicate::Mutates, "KEY:x"), member(Predicate::Mutates, "KEY:y")]);
    let (bundle, _) = driver.acquire(both.expect("two")).expect_err("held");
    driver.release(&x);
    assert_eq!(driver.take_served(), [], "half of the bundle is still held");
    let (late, position) = driver.acquire(key("x")).expect_err("the bundle is ahead");
    assert_eq!(position, 1);
    let reply = driver.submit(Action::Acquire(request(key("x"))), None).1;
    assert!(matches!(reply, Some(Ok(Decision::Blocked(_)))), "{reply:?}");
    driver.release(&y);
    let bundle_grant = driver.take_served();
    assert_eq!(bundle_grant.len(), 1);
    assert_eq!(bundle_grant[0].0, bundle);
    driver.release(&bundle_grant[0].1);
    assert_eq!(driver.take_served_numbers(), [late]);
}

#[test]
fn readers_are_served_together_but_not_past_a_writer_between_them() {
    let mut driver = Driver::new();
    let writer = driver.acquire(one(Predicate::Mutates, "FILE:/a/*")).expect("free");
    let mut waits = |predicate, path| driver.acquire(one(predicate, path)).expect_err("held").0;
    let first = waits(Predicate::Consumes, "FILE:/a/b");
    let second = waits(Predicate::Consumes, "FILE:/a/c");
    let between = waits(Predicate::Mutates, "FILE:/a/*");
    let third = waits(Predicate::Consumes, "FILE:/a/d");
    driver.release(&writer);
    let readers = driver.take_served();
    assert_eq!(readers.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [first, second]);
    driver.release(&readers[0].1);
    assert_eq!(driver.take_served(), []);
    driver.release(&readers[1].1);
    let next = driver.take_served();
    assert_eq!(next[0].0, between);
    driver.release(&next[0].1);
    assert_eq!(driver.take_served_numbers(), [third]);
}

#[test]
fn a_disconnected_waiter_is_never_granted_and_unblocks_the_waiters_behind_it() {
    let mut driver = Driver::new();
    let reader = driver.acquire(one(Predicate::Consumes, "KEY:k")).expect("free");
    let (writer, _) = driver.acquire(one(Predicate::Mutates, "KEY:k")).expect_err("held");
    let (behind, position) =
        driver.acquire(one(Predicate::Consumes, "KEY:k")).expect_err("behind the writer");
    assert_eq!(position, 1);
    driver.disconnect(writer);
    assert_eq!(driver.take_served_numbers(), [behind]);
    driver.release(&reader);
    assert_eq!(driver.take_served(), []);
    assert!(driver.shard.waiters().is_empty());
}

/// A connection closed while its request waited; the lease that it was granted later blocked all waiters behind
/// it until its TTL ended.
#[test]
fn a_waiter_whose_connection_has_closed_is_skipped() {
    let mut driver = Driver::new();
    let holder = driver.acquire(key("k")).expect("free");
    let (gone, _) = driver.acquire(key("k")).expect_err("held");
    let (behind, _) = driver.acquire(key("k")).expect_err("held");
    driver.connections[&gone].close();
    driver.release(&holder);
    assert_eq!(driver.take_served_numbers(), [behind]);
    assert!(driver.shard.waiters().is_empty());
}

/// A clock that advances with every reading, in milliseconds.
struct RestlessClock(AtomicU64);

impl Clock for RestlessClock {
    fn boot_clock(&self) -> Span {
        Span(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn boot_id(&self) -> u128 {
        1
    }

    fn unix_micros(&self) -> u64 {
        1_800_000_000_000_000
    }
}

/// A request read the clock, a lease expired, a waiter was granted it at a later time, and the request was applied with its
/// earlier time. Here a lease expires between any two readings of the clock.
#[test]
fn time_does_not_go_back_between_a_hand_off_and_the_request_that_caused_it() {
    for ttl in 1..100 {
        let mut driver = Driver::with_clock(RestlessClock(AtomicU64::new(1)));
        let holder = LeaseRequest { ttl: Span(ttl), ..request(key("k")) };
        driver.submit(Action::Acquire(holder), None);
        let waits = driver.acquire(key("k")).is_err();
        for n in 0..40 {
            driver.acquire(key(&format!("other{n}"))).expect("free");
        }
        assert_eq!(driver.take_served().len(), usize::from(waits), "ttl {ttl}");
    }
}

/// The reference model: holders and waiters in order of arrival, scanned in full after every change.
#[derive(Default)]
struct ModelQueue {
    holders: Vec<(Granted, Bundle)>,
    waiting: Vec<(u32, Bundle)>,
}

impl ModelQueue {
    fn is_free(&self, bundle: &Bundle, ahead: &[(u32, Bundle)]) -> bool {
        let holders = self.holders.iter().map(|(_, held)| held);
        !holders.chain(ahead.iter().map(|(_, wanted)| wanted)).any(|other| other.conflicts_with(bundle))
    }

    /// Removes the waiters that can be served, in order. The shard must have served exactly them.
    fn serve(&mut self, mut served: Vec<(u32, Granted)>, context: &str) {
        let mut n = 0;
        while n < self.waiting.len() {
            if !self.is_free(&self.waiting[n].1, &self.waiting[..n]) {
                n += 1;
                continue;
            }
            let (waiter, bundle) = self.waiting.remove(n);
            let index = served.iter().position(|(other, _)| *other == waiter);
            let index = index.unwrap_or_else(|| panic!("{context}: {waiter} should have been served"));
            self.holders.push((served.remove(index).1, bundle));
        }
        assert!(served.is_empty(), "{context}: served too early: {served:?}");
    }
}

fn random_bundle(rng: &mut Rng) -> Bundle {
    let names = ["KEY:a", "KEY:b", "FILE:/x", "FILE:/x/y", "FILE:/x/*", "FILE:/*", "FILE:/z", "TABLE:t"];
    let members = (0..=rng.below(2)).map(|_| {
        let predicate = if rng.one_in(2) { Predicate::Mutates } else { *rng.pick(&Predicate::ALL) };
        member(predicate, rng.pick::<&str>(&names))
    });
    Bundle::merged(members.collect()).expect("one or two members")
}

#[test]
fn queues_agree_with_a_list_that_is_scanned_in_full() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut driver, mut model) = (Driver::new(), ModelQueue::default());
        for step in 0..200 {
            let context = format!("seed {seed}, step {step}");
            match rng.below(10) {
                0..5 => {
                    let bundle = random_bundle(&mut rng);
                    let free = model.is_free(&bundle, &model.waiting);
                    match driver.acquire(bundle.clone()) {
                        Ok(lease) => {
                            assert!(free, "{context}: granted despite a conflict");
                            model.holders.push((lease, bundle));
                        }
                        Err((waiter, _)) => {
                            assert!(!free, "{context}: waits without a conflict");
                            model.waiting.push((waiter, bundle));
                        }
                    }
                }
                5..9 if !model.holders.is_empty() => {
                    let index = usize::from(rng.small(250)) % model.holders.len();
                    let (lease, _) = model.holders.remove(index);
                    driver.release(&lease);
                }
                _ if !model.waiting.is_empty() => {
                    let index = usize::from(rng.small(250)) % model.waiting.len();
                    let (waiter, _) = model.waiting.remove(index);
                    driver.disconnect(waiter);
                }
                _ => {}
            }
            model.serve(driver.take_served(), &context);
            assert_eq!(driver.shard.waiters().len(), model.waiting.len(), "{context}");
        }
    }
}

/// A thousand shared leases on a name had expired and were not ended yet. A writer had to wait, without a holder to
/// wait for, although the name was free.
#[test]
fn a_name_whose_many_shared_holders_have_all_expired_is_granted_at_once() {
    let clock = TestClock::default();
    let mut driver = Driver::with_clock(clock.clone());
    for n in 0..2000 {
        // Others expire first, so that ticks end them first.
        driver.acquire(key(&format!("other-{n}"))).expect("free");
    }
    for _ in 0..2000 {
        driver.acquire(one(Predicate::Consumes, "KEY:shared")).expect("readers share");
    }
    clock.0.fetch_add(60_001, Ordering::Relaxed);
    let (_, reply) = driver.submit(Action::Acquire(request(one(Predicate::Mutates, "KEY:shared"))), None);
    let is_granted = matches!(&reply, Some(Ok(decision)) if granted(decision).is_some());
    assert!(is_granted, "it is told to wait for leases that have expired: {reply:?}");
}

/// A bundle waited for `x` and `y`, and a later request for `x` alone behind it; `y` was held. Both timed out in one turn,
/// and the second was refused although nothing conflicted with it any more.
#[test]
fn a_waiter_whose_last_obstacle_times_out_with_it_is_granted_its_lease() {
    let clock = TestClock::default();
    let mut driver = Driver::with_clock(clock.clone());
    driver.submit(Action::Acquire(grant(key("y"), Span(100_000))), None);
    let bundle = Bundle::new(vec![member(Predicate::Mutates, "KEY:x"), member(Predicate::Mutates, "KEY:y")]);
    let (first, _) = driver.acquire(bundle.expect("two members")).expect_err("y is held");
    let (second, position) = driver.acquire(key("x")).expect_err("the bundle is first");
    assert_eq!(position, 1);
    clock.0.fetch_add(60_001, Ordering::Relaxed);
    driver.shard.housekeep();
    let replies = driver.shard.end_turn().replies;
    let reply_to = |number: u32| replies.iter().find(|(to, ..)| *to == number).map(|(_, reply, _)| reply);
    assert!(matches!(reply_to(first), Some(Ok(Decision::Blocked(_)))), "{:?}", reply_to(first));
    let is_granted = matches!(reply_to(second), Some(Ok(decision)) if granted(decision).is_some());
    assert!(is_granted, "{:?}", reply_to(second));
}
