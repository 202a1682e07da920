//! Wait queues: FIFO, bundles granted as a whole, no barging; compared with a list that is scanned in full.

use engine::internals::decider::{Admission, Decider};
use engine::{Clock, Decision, TenureConfig, Ticket, WaiterConnection};
use kernel::{Action, Bundle, Command, Granted, Kernel, Limits, Outcome, Predicate, Response, Span, Store};
use sim::fixture::{grant, held, identity, key, member, one};
use sim::rng::Rng;
use store::Seq;

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

fn decider() -> Decider {
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let tenure = TenureConfig {
        store,
        writer: 1,
        limits: Limits { history_max: 0, ..Limits::default() },
        slots: kernel::Slots::ALL,
    };
    Decider::open(Kernel::new(), Seq(0), Box::new(FrozenClock), &tenure).expect("a valid clock")
}

fn acquire_command(bundle: Bundle) -> Command {
    Command::by(&identity("ada"), Action::Acquire(grant(bundle, Span(60_000))))
}

fn granted(decision: &Decision) -> Option<Granted> {
    match decision {
        Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)) => Some(*granted),
        _ => None,
    }
}

fn acquire(decider: &mut Decider, bundle: Bundle) -> Result<Granted, (Ticket, usize)> {
    match decider.ask(&acquire_command(bundle), 0, Some(&WaiterConnection::default())) {
        Admission::Decided(decision) => Ok(granted(&decision).expect("granted or waiting")),
        Admission::Waiting { ticket, position } => Err((ticket, position)),
    }
}

fn release(decider: &mut Decider, lease: &Granted) {
    let outcome = decider.decide(&Command::by(&identity("ada"), Action::Release(held(lease))), 0, None);
    assert!(matches!(outcome, Outcome::Applied(Response::Released, _)), "{outcome:?}");
}

fn served(decider: &mut Decider) -> Vec<(Ticket, Granted)> {
    let served = decider.take_served().into_iter();
    let granted =
        served.filter_map(|(ticket, decision)| Some((ticket, granted(&decision?).expect("granted"))));
    granted.collect()
}

#[test]
fn a_key_is_handed_off_in_order_of_arrival() {
    let mut decider = decider();
    let mut holder = acquire(&mut decider, key("k")).expect("free");
    let tickets: Vec<Ticket> = (0..5)
        .map(|n| {
            let (ticket, position) = acquire(&mut decider, key("k")).expect_err("held");
            assert_eq!(position, n);
            ticket
        })
        .collect();
    for ticket in tickets {
        release(&mut decider, &holder);
        let served = served(&mut decider);
        assert_eq!(served.len(), 1, "the next waiter only");
        assert_eq!(served[0].0, ticket);
        assert!(served[0].1.token > holder.token);
        holder = served[0].1;
    }
}

/// `x` was freed and granted to a later request for `x` alone, because the bundle ahead of it could not use it
/// yet; a stream of such requests starved the bundle.
#[test]
fn no_request_barges_past_a_waiting_bundle() {
    let mut decider = decider();
    let x = acquire(&mut decider, key("x")).expect("free");
    let y = acquire(&mut decider, key("y")).expect("free");
    let both = Bundle::new(vec![member(Predicate::Mutates, "KEY:x"), member(Predicate::Mutates, "KEY:y")]);
    let (bundle, _) = acquire(&mut decider, both.expect("two")).expect_err("held");
    release(&mut decider, &x);
    assert_eq!(served(&mut decider), [], "half of the bundle is still held");
    let (late, position) = acquire(&mut decider, key("x")).expect_err("the bundle is ahead");
    assert_eq!(position, 1);
    match decider.ask(&acquire_command(key("x")), 0, None) {
        Admission::Decided(decision) => assert!(matches!(decision, Decision::Blocked(_)), "{decision:?}"),
        Admission::Waiting { .. } => panic!("the request has no wait"),
    }
    release(&mut decider, &y);
    let bundle_grant = served(&mut decider);
    assert_eq!(bundle_grant.len(), 1);
    assert_eq!(bundle_grant[0].0, bundle);
    release(&mut decider, &bundle_grant[0].1);
    assert_eq!(served(&mut decider)[0].0, late);
}

#[test]
fn readers_are_served_together_but_not_past_a_writer_between_them() {
    let mut decider = decider();
    let writer = acquire(&mut decider, one(Predicate::Mutates, "FILE:/a/*")).expect("free");
    let reader = |decider: &mut Decider, path: &str| {
        acquire(decider, one(Predicate::Consumes, path)).expect_err("held").0
    };
    let first = reader(&mut decider, "FILE:/a/b");
    let second = reader(&mut decider, "FILE:/a/c");
    let (between, _) = acquire(&mut decider, one(Predicate::Mutates, "FILE:/a/*")).expect_err("held");
    let third = reader(&mut decider, "FILE:/a/d");
    release(&mut decider, &writer);
    let readers = served(&mut decider);
    assert_eq!(readers.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [first, second]);
    release(&mut decider, &readers[0].1);
    assert_eq!(served(&mut decider), []);
    release(&mut decider, &readers[1].1);
    let next = served(&mut decider);
    assert_eq!(next[0].0, between);
    release(&mut decider, &next[0].1);
    assert_eq!(served(&mut decider)[0].0, third);
}

#[test]
fn a_cancelled_waiter_is_never_granted_and_unblocks_the_waiters_behind_it() {
    let mut decider = decider();
    let reader = acquire(&mut decider, one(Predicate::Consumes, "KEY:k")).expect("free");
    let (writer, _) = acquire(&mut decider, one(Predicate::Mutates, "KEY:k")).expect_err("held");
    let (behind, position) =
        acquire(&mut decider, one(Predicate::Consumes, "KEY:k")).expect_err("behind the writer");
    assert_eq!(position, 1);
    decider.call_off(writer);
    assert_eq!(served(&mut decider)[0].0, behind);
    release(&mut decider, &reader);
    assert_eq!(served(&mut decider), []);
    assert!(decider.waiters().is_empty());
}

/// A connection closed while its request waited; the lease that it was granted later blocked all waiters behind
/// it until its TTL ended.
#[test]
fn a_disconnected_waiter_is_skipped() {
    let mut decider = decider();
    let holder = acquire(&mut decider, key("k")).expect("free");
    let connection = WaiterConnection::default();
    assert!(matches!(
        decider.ask(&acquire_command(key("k")), 0, Some(&connection)),
        Admission::Waiting { .. }
    ));
    let (behind, _) = acquire(&mut decider, key("k")).expect_err("held");
    connection.close();
    release(&mut decider, &holder);
    assert_eq!(served(&mut decider).iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [behind]);
    assert!(decider.waiters().is_empty());
}

/// With 10,000 waiters for one key, a hand-off must visit one or two of them.
#[test]
fn a_hand_off_does_not_scan_a_long_queue() {
    let mut decider = decider();
    let mut holder = acquire(&mut decider, key("k")).expect("free");
    for _ in 0..10_000 {
        acquire(&mut decider, key("k")).expect_err("held");
    }
    for left in (9_000..10_000).rev() {
        release(&mut decider, &holder);
        let next = served(&mut decider);
        assert_eq!(next.len(), 1);
        holder = next[0].1;
        assert_eq!(decider.waiters().len(), left);
    }
}

/// The reference model: holders and waiters in order of arrival, scanned in full after every change.
#[derive(Default)]
struct ModelQueue {
    holders: Vec<(Granted, Bundle)>,
    waiting: Vec<(Ticket, Bundle)>,
}

impl ModelQueue {
    fn is_free(&self, bundle: &Bundle, ahead: &[(Ticket, Bundle)]) -> bool {
        let holders = self.holders.iter().map(|(_, held)| held);
        !holders.chain(ahead.iter().map(|(_, wanted)| wanted)).any(|other| other.conflicts_with(bundle))
    }

    /// Removes the waiters that can be served, in order. The decider must have served exactly them.
    fn serve(&mut self, mut served: Vec<(Ticket, Granted)>, context: &str) {
        let mut n = 0;
        while n < self.waiting.len() {
            if !self.is_free(&self.waiting[n].1, &self.waiting[..n]) {
                n += 1;
                continue;
            }
            let (ticket, bundle) = self.waiting.remove(n);
            let index = served.iter().position(|(other, _)| *other == ticket);
            let index = index.unwrap_or_else(|| panic!("{context}: {ticket:?} should have been served"));
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
        let (mut decider, mut model) = (decider(), ModelQueue::default());
        for step in 0..200 {
            let context = format!("seed {seed}, step {step}");
            match rng.below(10) {
                0..5 => {
                    let bundle = random_bundle(&mut rng);
                    let free = model.is_free(&bundle, &model.waiting);
                    match acquire(&mut decider, bundle.clone()) {
                        Ok(lease) => {
                            assert!(free, "{context}: granted despite a conflict");
                            model.holders.push((lease, bundle));
                        }
                        Err((ticket, _)) => {
                            assert!(!free, "{context}: waits without a conflict");
                            model.waiting.push((ticket, bundle));
                        }
                    }
                }
                5..9 if !model.holders.is_empty() => {
                    let index = usize::from(rng.small(250)) % model.holders.len();
                    let (lease, _) = model.holders.remove(index);
                    release(&mut decider, &lease);
                }
                _ if !model.waiting.is_empty() => {
                    let index = usize::from(rng.small(250)) % model.waiting.len();
                    let (ticket, _) = model.waiting.remove(index);
                    decider.call_off(ticket);
                }
                _ => {}
            }
            model.serve(served(&mut decider), &context);
            assert_eq!(decider.waiters().len(), model.waiting.len(), "{context}");
        }
    }
}
