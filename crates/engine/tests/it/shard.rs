//! A shard turn by turn: who may wait, who must die, what a retry replaces, what reached nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::internals::decider::Decider;
use engine::internals::shard::{LogSpace, Shard, TurnOutput};
use engine::{
    Advice, Blocked, Clock, ContentionOutcome, Decision, Reply, Submission, TenureConfig, Unavailable, Wait,
};
use kernel::{
    Action, Age, Bundle, Command, Granted, IdempotencyKey, Kernel, LeaseId, LeaseRequest, Limits, OnExpiry,
    Outcome, Party, Predicate, Rejection, Renewal, RequestKey, Response, SessionName, Span, Store, Time,
};
use sim::fixture::{default_namespace, grant, held, identity, key, member, one};
use store::Seq;

#[derive(Clone, Default)]
struct Hands(Arc<AtomicU64>);

impl Clock for Hands {
    fn boot_clock(&self) -> Span {
        Span(self.0.load(Ordering::Relaxed))
    }

    fn boot_id(&self) -> u128 {
        1
    }

    fn unix_micros(&self) -> u64 {
        1_800_000_000_000_000
    }
}

/// A shard whose callers are numbers, and a clock that the test moves.
struct World {
    shard: Shard<u32>,
    hands: Hands,
    replies: Vec<(u32, Reply, Option<LeaseId>)>,
    records: usize,
}

impl World {
    fn new() -> World {
        let hands = Hands::default();
        let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
        let opening = TenureConfig { store, writer: 1, limits: Limits::default() };
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(hands.clone()), &opening);
        let mut world = World {
            shard: Shard::new(decider.expect("a right clock")),
            hands,
            replies: Vec::new(),
            records: 0,
        };
        world.turn();
        world
    }

    fn turn(&mut self) {
        self.shard.housekeep();
        let TurnOutput { sealed, replies, .. } = self.shard.end_turn();
        if let Some(sealed) = sealed {
            self.records += engine::Record::decode_all(&sealed.payload).expect("records").len();
        }
        self.replies.extend(replies);
    }

    fn pass(&mut self, ms: u64) {
        self.hands.0.fetch_add(ms, Ordering::Relaxed);
        self.turn();
    }

    fn send(&mut self, to: u32, command: Command, wait: Option<u64>) {
        let wait = wait.map(|most| Wait { most: Span(most), gone: Arc::default() });
        self.shard.submit(Submission { command, correlation: 0, document: None, wait, on_decided: None, to });
        self.turn();
    }

    /// What the last reply to a caller said.
    fn said(&self, to: u32) -> Option<&Reply> {
        self.replies.iter().rev().find(|(caller, ..)| *caller == to).map(|(_, reply, _)| reply)
    }

    fn granted(&self, to: u32) -> Granted {
        match self.said(to) {
            Some(Ok(Decision::Outcome(
                Outcome::Applied(Response::Granted(granted), _)
                | Outcome::Unchanged(Response::Granted(granted)),
            ))) => *granted,
            other => panic!("{to} was not granted anything: {other:?}"),
        }
    }

    fn blocked(&self, to: u32) -> &Blocked {
        match self.said(to) {
            Some(Ok(Decision::Blocked(blocked))) => blocked,
            other => panic!("{to} is not told that others are in the way: {other:?}"),
        }
    }

    fn waits(&self, to: u32) -> bool {
        self.said(to).is_none()
    }
}

fn ask(who: &str, grant: LeaseRequest) -> Command {
    Command::by(&identity(who), Action::Acquire(grant))
}

fn session(name: &str, bundle: Bundle) -> LeaseRequest {
    let session = SessionName::new(name).expect("a valid name");
    LeaseRequest { session: Some(session), ..grant(bundle, Span(60_000)) }
}

fn attempt(at: u64, name: &str, bundle: Bundle) -> LeaseRequest {
    LeaseRequest { attempt: Some(Age { at: Time(at), tie: 0 }), ..session(name, bundle) }
}

fn request(n: u8, fingerprint: u8) -> IdempotencyKey {
    IdempotencyKey { key: RequestKey([n; 16]), fingerprint: [fingerprint; 16] }
}

fn release(lease: &Granted) -> Action {
    Action::Release(held(lease))
}

#[test]
fn two_sessions_that_want_what_the_other_has_are_told_and_one_goes_on() {
    let mut world = World::new();
    world.send(1, ask("ada", session("a", key("x"))), None);
    world.send(2, ask("bob", session("b", key("y"))), None);
    let (x, y) = (world.granted(1), world.granted(2));
    world.send(3, ask("ada", session("a", key("y"))), Some(60_000));
    assert!(world.waits(3));
    world.send(4, ask("bob", session("b", key("x"))), Some(60_000));
    let blocked = world.blocked(4).clone();
    assert_eq!((blocked.advice, blocked.release), (Advice::Deadlock, vec![y.lease]));
    assert_eq!(blocked.holders, [x.lease]);
    world.send(5, Command::by(&identity("bob"), release(&y)), None);
    assert!(world.granted(3).token > y.token, "the other one has it");
}

/// A ring of three, closed over a queue and not over a holder: `c` waits behind `b`, who holds nothing that
/// `c` wants.
#[test]
fn a_ring_over_those_who_wait_is_found_too() {
    let mut world = World::new();
    world.send(1, ask("ada", session("a", key("x"))), None);
    world.send(2, ask("cid", session("c", key("z"))), None);
    world.send(3, ask("dot", session("d", key("y"))), None);
    // b waits for x and y: for a and d.
    let both = Bundle::new(vec![member(Predicate::Mutates, "KEY:x"), member(Predicate::Mutates, "KEY:y")]);
    world.send(4, ask("bob", session("b", both.expect("two"))), Some(60_000));
    // a waits for z: for c.
    world.send(5, ask("ada", session("a", key("z"))), Some(60_000));
    assert!(world.waits(4) && world.waits(5));
    // c waits for y: for d, and for b who came first; b waits for a, and a for c.
    world.send(6, ask("cid", session("c", key("y"))), Some(60_000));
    assert_eq!(world.blocked(6).advice, Advice::Deadlock);
    // One that holds nothing closes no ring, whatever it waits for.
    world.send(7, ask("eve", session("e", key("y"))), Some(60_000));
    assert!(world.waits(7));
    // Without a session nobody knows what it holds.
    world.send(8, ask("cid", grant(key("y"), Span(60_000))), Some(60_000));
    assert!(world.waits(8));
}

#[test]
fn a_session_that_waits_is_not_let_wait_for_itself() {
    let mut world = World::new();
    world.send(1, ask("bob", grant(key("x"), Span(60_000))), None);
    world.send(2, ask("ada", session("a", key("x"))), Some(60_000));
    world.send(3, ask("ada", session("a", key("x"))), Some(60_000));
    assert!(world.waits(2));
    assert_eq!(world.blocked(3).advice, Advice::Deadlock);
}

#[test]
fn an_older_attempt_waits_and_a_younger_one_dies_with_what_it_has_to_give_back() {
    let mut world = World::new();
    world.hands.0.store(1000, Ordering::Relaxed);
    world.send(1, ask("ada", attempt(500, "a", key("x"))), None);
    world.send(2, ask("bob", attempt(600, "b", key("y"))), None);
    world.send(3, ask("bob", attempt(600, "b", key("x"))), Some(60_000));
    let died = world.blocked(3);
    assert_eq!((died.advice, &died.release), (Advice::Die, &vec![world.granted(2).lease]));
    world.send(4, ask("cid", attempt(400, "c", key("x"))), Some(60_000));
    assert!(world.waits(4), "older than the holder");
    world.send(5, ask("dot", attempt(450, "d", key("x"))), Some(60_000));
    assert_eq!(world.blocked(5).advice, Advice::Die, "older than the holder, younger than one who waits");
    world.send(6, ask("eve", attempt(300, "e", key("x"))), None);
    assert_eq!(world.blocked(6).advice, Advice::Wait, "advice: it did not ask to wait");
    assert_eq!(world.blocked(6).position, 1);
}

/// An attempt waited for a lease that counted as youngest, since only an operator could have ended its hold.
/// Then its holder took it back, with the age that it had: the attempt stood behind an older holder, and
/// a ring could have closed.
#[test]
fn an_attempt_that_is_left_behind_an_older_holder_dies() {
    let mut world = World::new();
    world.hands.0.store(1000, Ordering::Relaxed);
    let manual = LeaseRequest { on_expiry: OnExpiry::Manual, ttl: Span(100), ..attempt(100, "a", key("x")) };
    world.send(1, ask("ada", manual), None);
    let lease = world.granted(1);
    world.pass(200);
    world.send(2, ask("bob", attempt(900, "b", key("x"))), Some(60_000));
    assert!(world.waits(2), "whoever holds it has no authority");
    world.send(3, Command::by(&identity("ada"), Action::Rebind(held(&lease))), None);
    world.granted(3);
    assert_eq!(world.blocked(2).advice, Advice::Die);
}

#[test]
fn what_no_waiting_would_help_against_is_said_before_the_wait() {
    let mut world = World::new();
    world.send(1, ask("ada", grant(key("x"), Span(60_000))), None);
    world.send(2, ask("bob", grant(key("x"), Span(60_000))), Some(60_000));
    world.send(3, ask("cid", grant(key("x"), Span(0))), Some(60_000));
    assert!(matches!(
        world.said(3),
        Some(Ok(Decision::Outcome(Outcome::Rejected(Rejection::InvalidTtl { .. }))))
    ));
}

/// The edge makes up the age of a first try. Its retry came with another age, and was refused as another request.
#[test]
fn a_retry_of_an_attempt_takes_its_waiters_place_and_is_as_old_as_the_first() {
    let mut world = World::new();
    world.hands.0.store(100, Ordering::Relaxed);
    world.send(1, ask("ada", grant(key("x"), Span(60_000))), None);
    let tried = |at| ask("bob", attempt(at, "b", key("x"))).with_request(request(7, 1));
    world.send(2, tried(5), Some(60_000));
    assert!(world.waits(2));
    world.send(3, tried(90), Some(1_000));
    assert_eq!(world.said(2), Some(&Err(Unavailable::Replaced)));
    world.pass(1_001);
    assert_eq!(world.blocked(3).age, Age { at: Time(5), tie: 0 });
}

/// A request that only waits has no answer and changes nothing: what it met must be told all the same.
#[test]
fn whoever_meets_others_in_its_way_is_told_of() {
    let mut world = World::new();
    world.hands.0.store(100, Ordering::Relaxed);
    world.send(1, ask("ada", grant(key("x"), Span(60_000))), None);
    let lease = world.granted(1).lease;
    let mut met = |command: Command, wait: Option<u64>| {
        let wait = wait.map(|most| Wait { most: Span(most), gone: Arc::default() });
        world.shard.submit(Submission { wait, ..Submission::new(command, 2) });
        let told = world.shard.end_turn().contended;
        assert!(told.iter().all(|one| one.holders == [lease] && one.members[0].resource.name() == "x"));
        told.iter().map(|one| one.outcome).collect::<Vec<_>>()
    };
    assert_eq!(met(ask("bob", grant(key("x"), Span(60_000))), None), [ContentionOutcome::Refused]);
    assert_eq!(met(ask("bob", attempt(101, "b", key("x"))), Some(1_000)), [ContentionOutcome::Died]);
    assert_eq!(met(ask("bob", attempt(5, "b", key("x"))), Some(1_000)), [ContentionOutcome::Queued]);
    world.hands.0.fetch_add(1_001, Ordering::Relaxed);
    world.shard.housekeep();
    let told = world.shard.end_turn().contended;
    assert_eq!(told.iter().map(|one| one.outcome).collect::<Vec<_>>(), [ContentionOutcome::TimedOut]);
}

#[test]
fn a_retry_takes_its_waiters_place_in_the_queue() {
    let mut world = World::new();
    world.send(1, ask("ada", grant(key("x"), Span(60_000))), None);
    let holder = world.granted(1);
    let asked = || ask("bob", grant(key("x"), Span(60_000))).with_request(request(7, 1));
    world.send(2, asked(), Some(60_000));
    world.send(3, ask("cid", grant(key("x"), Span(60_000))), Some(60_000));
    world.send(4, asked(), Some(60_000));
    assert_eq!(world.said(2), Some(&Err(Unavailable::Replaced)));
    assert_eq!(world.shard.waiters().len(), 2);
    let other = ask("bob", grant(key("y"), Span(60_000))).with_request(request(7, 2));
    world.send(5, other, Some(60_000));
    assert!(matches!(
        world.said(5),
        Some(Ok(Decision::Outcome(Outcome::Rejected(Rejection::RequestMismatch))))
    ));
    world.send(6, Command::by(&identity("ada"), release(&holder)), None);
    assert!(world.granted(4).token > holder.token, "before the one who came between");
    assert!(world.waits(3));
    // Another retry is answered with the same lease.
    world.send(7, asked(), None);
    assert_eq!(world.granted(7).lease, world.granted(4).lease);
}

#[test]
fn one_who_waited_long_enough_is_told_who_is_in_the_way() {
    let mut world = World::new();
    world.send(1, ask("ada", grant(key("x"), Span(60_000))), None);
    world.send(2, ask("bob", grant(key("x"), Span(60_000))), Some(1000));
    world.send(3, ask("cid", grant(key("x"), Span(60_000))), Some(500));
    assert_eq!(world.shard.until_due(), Some(Span(501)));
    world.pass(500);
    assert!(world.waits(3), "not a moment early");
    world.pass(1);
    let tired = world.blocked(3);
    assert_eq!((tired.advice, tired.position), (Advice::Wait, 1));
    assert_eq!(tired.holders, [world.granted(1).lease]);
    assert!(world.waits(2));
}

/// A client's connection broke in the moment of the grant. Nobody had the lease, and everybody waited for it
/// until its TTL.
#[test]
fn what_nobody_waits_for_is_swept_late_and_honoured_not_a_moment_longer() {
    let mut world = World::new();
    world.shard.set_sweeper(Span(5000));
    world.send(1, ask("ada", grant(key("x"), Span(1000))), None);
    assert_eq!(world.shard.until_due(), Some(Span(6001)));
    world.pass(1001);
    assert_eq!(world.shard.kernel().counts().history, 0, "nothing is written down yet");
    let late = world.granted(1);
    world.send(
        2,
        Command::by(&identity("ada"), Action::Renew(vec![Renewal { held: held(&late), ttl: None }])),
        None,
    );
    assert!(matches!(world.said(2), Some(Ok(said)) if format!("{said:?}").contains("LeaseExpired")));
    // Whoever comes for it has it at once; whoever waits is served on time.
    world.send(3, ask("bob", grant(key("x"), Span(1000))), None);
    assert!(world.granted(3).token > late.token);
    world.send(4, ask("cid", grant(key("x"), Span(1000))), Some(60_000));
    assert_eq!(world.shard.until_due(), Some(Span(1001)));
    world.pass(1001);
    assert!(world.granted(4).token > world.granted(3).token);
    world.pass(6001);
    assert_eq!(world.shard.kernel().counts().leases, 0, "swept");
}

#[test]
fn a_grant_that_reached_nobody_is_undone_and_forgotten() {
    let mut world = World::new();
    let asked = || ask("bob", grant(key("x"), Span(60_000))).with_request(request(7, 1));
    world.send(1, asked(), None);
    let lost = world.granted(1).lease;
    assert_eq!(world.replies.last().and_then(|(.., lease)| *lease), Some(lost));
    world.send(2, ask("cid", grant(key("x"), Span(60_000))), Some(60_000));
    world.shard.delivered(lost, false);
    world.turn();
    assert_ne!(world.granted(2).lease, lost, "the next one has it");
    world.shard.delivered(world.granted(2).lease, true);
    world.send(3, asked(), None);
    assert_eq!(world.blocked(3).holders, [world.granted(2).lease], "a retry starts afresh");
}

#[test]
fn a_grant_that_a_retry_delivered_or_its_holder_used_stays() {
    let mut world = World::new();
    let asked = || ask("bob", grant(key("x"), Span(60_000))).with_request(request(7, 1));
    world.send(1, asked(), None);
    world.send(2, asked(), None);
    let lease = world.granted(1).lease;
    world.shard.delivered(lease, false);
    world.shard.delivered(lease, true);
    world.turn();
    assert_eq!(world.shard.kernel().counts().leases, 1);
    // Nor the other way round: the first answer arrives, and the retry's is lost.
    let again = || ask("bob", grant(key("z"), Span(60_000))).with_request(request(8, 1));
    world.send(8, again(), None);
    world.send(9, again(), None);
    let lease = world.granted(8).lease;
    world.shard.delivered(lease, true);
    world.shard.delivered(lease, false);
    world.turn();
    assert_eq!(world.shard.kernel().counts().leases, 2);
    world.send(10, Command::by(&identity("bob"), release(&world.granted(8))), None);
    // A replay that is lost later on undoes nothing: the lease has reached its holder.
    world.send(3, asked(), None);
    assert_eq!(
        world.replies.last().and_then(|(.., lease)| *lease),
        None,
        "nobody keeps track of it any more"
    );

    world.send(4, ask("bob", grant(key("y"), Span(60_000))), None);
    let used = world.granted(4);
    let renewal = Action::Renew(vec![Renewal { held: held(&used), ttl: None }]);
    world.send(5, Command::by(&identity("bob"), renewal), None);
    world.shard.delivered(used.lease, false);
    world.turn();
    assert_eq!(world.shard.kernel().counts().leases, 2);
}

#[test]
fn a_long_command_becomes_records_of_256_and_others_get_their_turn_in_between() {
    let mut world = World::new();
    let mut renewals = Vec::new();
    for n in 0..700 {
        world.send(n, ask("ada", grant(key(&format!("k{n}")), Span(60_000))), None);
        renewals.push(Renewal { held: held(&world.granted(n)), ttl: Some(Span(90_000)) });
    }
    let before = world.records;
    let command = Command::by(&identity("ada"), Action::Renew(renewals));
    world.shard.submit(Submission {
        command,
        correlation: 0,
        document: None,
        wait: None,
        on_decided: None,
        to: 1000,
    });
    world.shard.submit(Submission {
        command: ask("bob", grant(key("other"), Span(60_000))),
        correlation: 0,
        document: None,
        wait: None,
        on_decided: None,
        to: 1001,
    });
    assert_eq!(world.shard.until_due(), Some(Span(0)), "there is more to do");
    for _ in 0..3 {
        world.turn();
    }
    let place = |to: u32| world.replies.iter().position(|(caller, ..)| *caller == to);
    assert!(place(1001) < place(1000));
    assert_eq!(world.records - before, 4);
    match world.said(1000) {
        Some(Ok(Decision::Outcome(Outcome::Applied(Response::Renewed(results), _)))) => {
            assert_eq!((results.len(), results.iter().filter(|result| result.is_ok()).count()), (700, 700));
        }
        other => panic!("{other:?}"),
    }
    let all = Action::RevokeAll(Party::Identity(default_namespace(), identity("ada")));
    world.send(1002, Command::by(&identity("op"), all), None);
    for _ in 0..3 {
        world.turn();
    }
    assert!(matches!(
        world.said(1002),
        Some(Ok(Decision::Outcome(Outcome::Applied(Response::RevokedAll { revoked: 700, more: false }, _))))
    ));
    let endless = vec![Renewal { held: held(&world.granted(0)), ttl: None }; engine::RENEWALS_MAX + 1];
    world.send(1003, Command::by(&identity("ada"), Action::Renew(endless)), None);
    assert!(matches!(
        world.said(1003),
        Some(Ok(Decision::Outcome(Outcome::Rejected(Rejection::InvalidBatch))))
    ));
}

#[test]
fn without_space_what_gives_back_goes_on_and_then_nothing() {
    let mut world = World::new();
    for n in 0..3 {
        world.send(n, ask("ada", grant(key(&format!("k{n}")), Span(1000))), None);
    }
    world.shard.set_space(LogSpace::Reserve);
    world.send(10, ask("ada", grant(key("new"), Span(1000))), None);
    assert_eq!(world.said(10), Some(&Err(Unavailable::NoSpace)));
    world.send(11, Command::by(&identity("ada"), release(&world.granted(0))), None);
    assert!(matches!(world.said(11), Some(Ok(_))));
    world.shard.set_space(LogSpace::Nothing);
    world.send(12, Command::by(&identity("ada"), release(&world.granted(1))), None);
    assert_eq!(world.said(12), Some(&Err(Unavailable::NoSpace)));
    let before = world.records;
    world.pass(5000);
    assert_eq!(world.records, before, "not even what is due is written");
    assert_eq!(world.shard.until_due(), None);
    world.shard.set_space(LogSpace::Plenty);
    world.pass(1);
    assert_eq!(world.shard.kernel().counts().leases, 0, "what was due has ended");
}

#[test]
fn when_it_stops_those_who_wait_are_told() {
    let mut world = World::new();
    world.send(1, ask("ada", one_reader()), None);
    world.send(2, ask("bob", grant(key("x"), Span(60_000))), Some(60_000));
    world.send(3, ask("cid", one_reader()), Some(60_000));
    assert!(world.waits(3));
    world.shard.stop();
    world.turn();
    for to in [2, 3] {
        assert_eq!(world.said(to), Some(&Err(Unavailable::Stopped)), "{to}");
    }
    assert_eq!(world.shard.kernel().counts().leases, 1, "nobody is granted anything on the way out");
}

fn one_reader() -> LeaseRequest {
    grant(one(Predicate::Consumes, "KEY:x"), Span(60_000))
}

/// A client that gave up stayed in the queue until its turn, and everybody behind it was told a place too far back.
#[test]
fn one_who_hangs_up_is_out_of_the_queue_at_once() {
    let mut world = World::new();
    world.send(1, ask("ada", grant(key("x"), Span(60_000))), None);
    let gone = Arc::default();
    let wait = Some(Wait { most: Span(60_000), gone: Arc::clone(&gone) });
    let command = ask("bob", grant(key("x"), Span(60_000)));
    world.shard.submit(Submission { wait, ..Submission::new(command, 2) });
    world.send(3, ask("cid", grant(key("x"), Span(60_000))), Some(60_000));
    assert_eq!(world.shard.waiters().len(), 2);
    world.shard.hang_up(&gone);
    world.turn();
    assert_eq!(world.shard.waiters().len(), 1);
    assert!(world.waits(2), "nobody listens, and nothing is said");
    world.send(4, Command::by(&identity("ada"), release(&world.granted(1))), None);
    world.granted(3);
    world.shard.hang_up(&gone);
}

#[test]
fn what_a_peek_sees_is_the_state_in_which_its_command_was_decided() {
    let mut world = World::new();
    let (send, receive) = std::sync::mpsc::channel();
    for (to, name) in [(1, "x"), (2, "x"), (3, "y")] {
        let send = send.clone();
        let on_decided: engine::OnDecided = Box::new(move |kernel, _, said| {
            let blocked = matches!(said, Decision::Blocked(_));
            send.send((to, kernel.counts().leases, blocked)).expect("the test listens");
        });
        let command = ask("ada", grant(key(name), Span(60_000)));
        world.shard.submit(Submission { on_decided: Some(on_decided), ..Submission::new(command, to) });
    }
    world.turn();
    assert_eq!(receive.try_iter().collect::<Vec<_>>(), [(1, 1, false), (2, 1, true), (3, 2, false)]);
}
