//! Waiting: first come, first served, whole bundles, nobody barges; against a list that is scanned whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::internals::decider::{Admission, Decider};
use engine::{Clock, Decision, TenureConfig, Ticket};
use kernel::{Action, Bundle, Command, Granted, Kernel, Limits, Outcome, Predicate, Response, Span, Store};
use sim::fixture::{grant, held, identity, key, member, one};
use sim::rng::Rng;
use store::Seq;

/// Time stands still: nothing here is about time.
struct Stopped;

impl Clock for Stopped {
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
    let opening = TenureConfig { store, writer: 1, limits: Limits { history_max: 0, ..Limits::default() } };
    Decider::open(Kernel::new(), Seq(0), Box::new(Stopped), &opening).expect("a right clock")
}

fn acquire(bundle: Bundle) -> Command {
    Command::by(&identity("ada"), Action::Acquire(grant(bundle, Span(60_000))))
}

fn granted(said: &Decision) -> Option<Granted> {
    match said {
        Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)) => Some(*granted),
        _ => None,
    }
}

fn ask(decider: &mut Decider, bundle: Bundle) -> Result<Granted, (Ticket, usize)> {
    match decider.ask(&acquire(bundle), 0, Some(&Arc::default())) {
        Admission::Decided(said) => Ok(granted(&said).expect("granted, or it waits")),
        Admission::Waiting { ticket, position } => Err((ticket, position)),
    }
}

fn release(decider: &mut Decider, lease: &Granted) {
    let outcome = decider.decide(&Command::by(&identity("ada"), Action::Release(held(lease))), 0, None);
    assert!(matches!(outcome, Outcome::Applied(Response::Released, _)), "{outcome:?}");
}

fn served(decider: &mut Decider) -> Vec<(Ticket, Granted)> {
    let served = decider.take_served().into_iter();
    let granted = served.filter_map(|(ticket, answer)| Some((ticket, granted(&answer?).expect("granted"))));
    granted.collect()
}

#[test]
fn a_key_is_handed_on_in_the_order_in_which_they_came() {
    let mut decider = decider();
    let mut holder = ask(&mut decider, key("k")).expect("free");
    let tickets: Vec<Ticket> = (0..5)
        .map(|n| {
            let (ticket, position) = ask(&mut decider, key("k")).expect_err("held");
            assert_eq!(position, n);
            ticket
        })
        .collect();
    for ticket in tickets {
        release(&mut decider, &holder);
        let served = served(&mut decider);
        assert_eq!(served.len(), 1, "exactly the next");
        assert_eq!(served[0].0, ticket);
        assert!(served[0].1.token > holder.token);
        holder = served[0].1;
    }
}

/// `x` became free, and was given to whoever asked for `x` alone, since the bundle before it could not use
/// it yet; a stream of those kept the bundle waiting for ever.
#[test]
fn nobody_barges_past_a_bundle_that_waits() {
    let mut decider = decider();
    let x = ask(&mut decider, key("x")).expect("free");
    let y = ask(&mut decider, key("y")).expect("free");
    let both = Bundle::new(vec![member(Predicate::Mutates, "KEY:x"), member(Predicate::Mutates, "KEY:y")]);
    let (bundle, _) = ask(&mut decider, both.expect("two")).expect_err("held");
    release(&mut decider, &x);
    assert_eq!(served(&mut decider), [], "half of it is not enough");
    let (late, position) = ask(&mut decider, key("x")).expect_err("the bundle was first");
    assert_eq!(position, 1);
    match decider.ask(&acquire(key("x")), 0, None) {
        Admission::Decided(said) => assert!(matches!(said, Decision::Blocked(_)), "{said:?}"),
        Admission::Waiting { .. } => panic!("it does not want to wait"),
    }
    release(&mut decider, &y);
    let whole = served(&mut decider);
    assert_eq!(whole.len(), 1);
    assert_eq!(whole[0].0, bundle);
    release(&mut decider, &whole[0].1);
    assert_eq!(served(&mut decider)[0].0, late);
}

#[test]
fn readers_are_served_together_and_a_writer_between_them_keeps_its_place() {
    let mut decider = decider();
    let writer = ask(&mut decider, one(Predicate::Mutates, "FILE:/a/*")).expect("free");
    let reader =
        |decider: &mut Decider, path: &str| ask(decider, one(Predicate::Consumes, path)).expect_err("held").0;
    let first = reader(&mut decider, "FILE:/a/b");
    let second = reader(&mut decider, "FILE:/a/c");
    let (between, _) = ask(&mut decider, one(Predicate::Mutates, "FILE:/a/*")).expect_err("held");
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
fn one_who_is_called_off_is_never_granted_and_lets_those_behind_it_through() {
    let mut decider = decider();
    let reader = ask(&mut decider, one(Predicate::Consumes, "KEY:k")).expect("free");
    let (writer, _) = ask(&mut decider, one(Predicate::Mutates, "KEY:k")).expect_err("held");
    let (behind, position) =
        ask(&mut decider, one(Predicate::Consumes, "KEY:k")).expect_err("behind the writer");
    assert_eq!(position, 1);
    decider.call_off(writer);
    assert_eq!(served(&mut decider)[0].0, behind);
    release(&mut decider, &reader);
    assert_eq!(served(&mut decider), []);
    assert!(decider.waiters().is_empty());
}

/// A connection closed while its request waited; the grant that it got later held up everyone behind it
/// until its TTL.
#[test]
fn one_who_is_gone_is_passed_by_when_its_turn_comes() {
    let mut decider = decider();
    let holder = ask(&mut decider, key("k")).expect("free");
    let gone = Arc::new(AtomicBool::new(false));
    assert!(matches!(decider.ask(&acquire(key("k")), 0, Some(&gone)), Admission::Waiting { .. }));
    let (behind, _) = ask(&mut decider, key("k")).expect_err("held");
    gone.store(true, Ordering::Release);
    release(&mut decider, &holder);
    assert_eq!(served(&mut decider).iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [behind]);
    assert!(decider.waiters().is_empty());
}

/// With ten thousand who wait for one key, handing it on must look at one or two of them.
#[test]
fn a_long_queue_is_not_walked() {
    let mut decider = decider();
    let mut holder = ask(&mut decider, key("k")).expect("free");
    for _ in 0..10_000 {
        ask(&mut decider, key("k")).expect_err("held");
    }
    for left in (9_000..10_000).rev() {
        release(&mut decider, &holder);
        let next = served(&mut decider);
        assert_eq!(next.len(), 1);
        holder = next[0].1;
        assert_eq!(decider.waiters().len(), left);
    }
}

/// Those who hold and those who wait, in order: scanned whole after every change.
#[derive(Default)]
struct Naive {
    holders: Vec<(Granted, Bundle)>,
    waiting: Vec<(Ticket, Bundle)>,
}

impl Naive {
    fn is_free(&self, bundle: &Bundle, ahead: &[(Ticket, Bundle)]) -> bool {
        let holders = self.holders.iter().map(|(_, held)| held);
        !holders.chain(ahead.iter().map(|(_, wanted)| wanted)).any(|other| other.conflicts_with(bundle))
    }

    /// Takes out everyone whose turn has come, in order, and believes the decider's grants.
    fn serve(&mut self, mut served: Vec<(Ticket, Granted)>, story: &str) {
        let mut n = 0;
        while n < self.waiting.len() {
            if !self.is_free(&self.waiting[n].1, &self.waiting[..n]) {
                n += 1;
                continue;
            }
            let (ticket, bundle) = self.waiting.remove(n);
            let place = served.iter().position(|(other, _)| *other == ticket);
            let place = place.unwrap_or_else(|| panic!("{story}: {ticket:?} should have been served"));
            self.holders.push((served.remove(place).1, bundle));
        }
        assert!(served.is_empty(), "{story}: served too early: {served:?}");
    }
}

fn some_bundle(rng: &mut Rng) -> Bundle {
    let names = ["KEY:a", "KEY:b", "FILE:/x", "FILE:/x/y", "FILE:/x/*", "FILE:/*", "FILE:/z", "TABLE:t"];
    let members = (0..=rng.below(2)).map(|_| {
        let predicate = if rng.one_in(2) { Predicate::Mutates } else { *rng.pick(&Predicate::ALL) };
        member(predicate, rng.pick::<&str>(&names))
    });
    Bundle::merged(members.collect()).expect("one or two members")
}

#[test]
fn queues_agree_with_a_list_that_is_scanned_whole() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut decider, mut naive) = (decider(), Naive::default());
        for step in 0..200 {
            let story = format!("seed {seed}, step {step}");
            match rng.below(10) {
                0..5 => {
                    let bundle = some_bundle(&mut rng);
                    let free = naive.is_free(&bundle, &naive.waiting);
                    match ask(&mut decider, bundle.clone()) {
                        Ok(lease) => {
                            assert!(free, "{story}: granted past somebody");
                            naive.holders.push((lease, bundle));
                        }
                        Err((ticket, _)) => {
                            assert!(!free, "{story}: nobody is in the way");
                            naive.waiting.push((ticket, bundle));
                        }
                    }
                }
                5..9 if !naive.holders.is_empty() => {
                    let place = usize::from(rng.small(250)) % naive.holders.len();
                    let (lease, _) = naive.holders.remove(place);
                    release(&mut decider, &lease);
                }
                _ if !naive.waiting.is_empty() => {
                    let place = usize::from(rng.small(250)) % naive.waiting.len();
                    let (ticket, _) = naive.waiting.remove(place);
                    decider.call_off(ticket);
                }
                _ => {}
            }
            naive.serve(served(&mut decider), &story);
            assert_eq!(decider.waiters().len(), naive.waiting.len(), "{story}");
        }
    }
}
