//! A shard, batch by batch: wait-die, deadlock cycles, retries of waiters, undelivered grants, long commands.

use std::sync::atomic::Ordering;

use engine::internals::decider::Decider;
use engine::internals::shard::{LogSpace, Shard, TurnOutput};
use engine::observe::ContentionOutcome;
use engine::waiters::{Advice, Blocked, Wait, WaiterConnection};
use engine::{Decision, Reply, Submission, TenureConfig, Unavailable};
use kernel::{
    Action, Age, AgentName, Bundle, Close, Command, Granted, IdempotencyKey, Kernel, LeaseId, LeaseRequest,
    Limits, OnExpiry, Outcome, Party, Predicate, Rejection, Renewal, RequestKey, Response, SessionName, Span,
    Store, Time,
};
use sim::fixture::{default_namespace, grant, held, identity, key, member, one};
use store::Seq;

use crate::fixture::{TENURE, TestClock};

/// A shard whose callers are numbers, and a clock that the test advances.
struct Driver {
    shard: Shard<u32>,
    clock: TestClock,
    replies: Vec<(u32, Reply, Option<LeaseId>)>,
    records: usize,
}

impl Driver {
    fn new() -> Driver {
        let clock = TestClock::default();
        let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
        let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(clock.clone()), &tenure);
        let mut driver = Driver {
            shard: Shard::new(decider.expect("a valid clock")),
            clock,
            replies: Vec::new(),
            records: 0,
        };
        driver.turn();
        driver
    }

    fn turn(&mut self) {
        self.shard.housekeep();
        let TurnOutput { sealed, replies, .. } = self.shard.end_turn();
        if let Some(sealed) = sealed {
            self.records +=
                engine::internals::record::Record::decode_all(&sealed.payload).expect("records").len();
        }
        self.replies.extend(replies);
    }

    fn advance(&mut self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
        self.turn();
    }

    fn send(&mut self, to: u32, command: Command, wait: Option<u64>) {
        let wait = wait.map(|most| Wait { timeout: Span(most), connection: WaiterConnection::default() });
        self.shard.submit(Submission { wait, ..Submission::new(command, to) });
        self.turn();
    }

    /// The last reply to a caller.
    fn reply_to(&self, to: u32) -> Option<&Reply> {
        self.replies.iter().rev().find(|(caller, ..)| *caller == to).map(|(_, reply, _)| reply)
    }

    fn granted(&self, to: u32) -> Granted {
        match self.reply_to(to) {
            Some(Ok(Decision::Outcome(
                Outcome::Applied(Response::Granted(granted), _)
                | Outcome::Unchanged(Response::Granted(granted)),
            ))) => *granted,
            other => panic!("{to} was not granted a lease: {other:?}"),
        }
    }

    fn blocked(&self, to: u32) -> &Blocked {
        match self.reply_to(to) {
            Some(Ok(Decision::Blocked(blocked))) => blocked,
            other => panic!("{to} was not blocked: {other:?}"),
        }
    }

    fn waits(&self, to: u32) -> bool {
        self.reply_to(to).is_none()
    }
}

fn acquire(name: &str, request: LeaseRequest) -> Command {
    Command::by(&identity(name), Action::Acquire(request))
}

fn session(name: &str, bundle: Bundle) -> LeaseRequest {
    let session = SessionName::new(name).expect("a valid name");
    LeaseRequest { session: Some(session), ..grant(bundle, Span(60_000)) }
}

fn attempt(at: u64, name: &str, bundle: Bundle) -> LeaseRequest {
    let agent = Some(AgentName::new(name).expect("valid"));
    LeaseRequest { agent, attempt: Some(Age { at: Time(at), tie: 0 }), ..session(name, bundle) }
}

fn idempotency_key(n: u8, fingerprint: u8) -> IdempotencyKey {
    IdempotencyKey { key: RequestKey([n; 16]), fingerprint: [fingerprint; 16] }
}

fn release(lease: &Granted) -> Action {
    Action::Release(held(lease))
}

#[test]
fn a_wait_that_would_close_a_deadlock_cycle_is_refused_and_the_other_session_proceeds() {
    let mut driver = Driver::new();
    driver.send(1, acquire("ada", session("a", key("x"))), None);
    driver.send(2, acquire("bob", session("b", key("y"))), None);
    let (x, y) = (driver.granted(1), driver.granted(2));
    driver.send(3, acquire("ada", session("a", key("y"))), Some(60_000));
    assert!(driver.waits(3));
    driver.send(4, acquire("bob", session("b", key("x"))), Some(60_000));
    let blocked = driver.blocked(4).clone();
    assert_eq!((blocked.advice, blocked.release), (Advice::Deadlock, vec![y.lease]));
    assert_eq!(blocked.holders, [x.lease]);
    driver.send(5, Command::by(&identity("bob"), release(&y)), None);
    assert!(driver.granted(3).token > y.token, "the release hands it to the other session");
}

/// A cycle of three sessions that closes over a queue, not over a holder: `c` queues behind `b`, which holds
/// nothing that `c` wants.
#[test]
fn a_deadlock_cycle_over_waiters_is_found() {
    let mut driver = Driver::new();
    driver.send(1, acquire("ada", session("a", key("x"))), None);
    driver.send(2, acquire("cid", session("c", key("z"))), None);
    driver.send(3, acquire("dot", session("d", key("y"))), None);
    // b waits for x and y, held by a and d.
    let both = Bundle::new(vec![member(Predicate::Mutates, "KEY:x"), member(Predicate::Mutates, "KEY:y")]);
    driver.send(4, acquire("bob", session("b", both.expect("two"))), Some(60_000));
    // a waits for z, held by c.
    driver.send(5, acquire("ada", session("a", key("z"))), Some(60_000));
    assert!(driver.waits(4) && driver.waits(5));
    // c would wait for y, held by d, and behind b; b waits for a, and a for c.
    driver.send(6, acquire("cid", session("c", key("y"))), Some(60_000));
    assert_eq!(driver.blocked(6).advice, Advice::Deadlock);
    // A session that holds nothing cannot close a cycle.
    driver.send(7, acquire("eve", session("e", key("y"))), Some(60_000));
    assert!(driver.waits(7));
    // Without a session, the leases of a request are unknown: it may wait.
    driver.send(8, acquire("cid", grant(key("y"), Span(60_000))), Some(60_000));
    assert!(driver.waits(8));
}

#[test]
fn a_session_may_not_queue_behind_itself() {
    let mut driver = Driver::new();
    driver.send(1, acquire("bob", grant(key("x"), Span(60_000))), None);
    driver.send(2, acquire("ada", session("a", key("x"))), Some(60_000));
    driver.send(3, acquire("ada", session("a", key("x"))), Some(60_000));
    assert!(driver.waits(2));
    assert_eq!(driver.blocked(3).advice, Advice::Deadlock);
}

#[test]
fn an_older_attempt_waits_and_a_younger_one_dies_and_learns_which_leases_to_release() {
    let mut driver = Driver::new();
    driver.clock.0.store(1000, Ordering::Relaxed);
    driver.send(1, acquire("ada", attempt(500, "a", key("x"))), None);
    driver.send(2, acquire("bob", attempt(600, "b", key("y"))), None);
    driver.send(3, acquire("bob", attempt(600, "b", key("x"))), Some(60_000));
    let died = driver.blocked(3);
    assert_eq!((died.advice, &died.release), (Advice::Die, &vec![driver.granted(2).lease]));
    driver.send(4, acquire("cid", attempt(400, "c", key("x"))), Some(60_000));
    assert!(driver.waits(4), "older than the holder");
    driver.send(5, acquire("dot", attempt(450, "d", key("x"))), Some(60_000));
    assert_eq!(driver.blocked(5).advice, Advice::Die, "older than the holder, younger than a waiter");
    driver.send(6, acquire("eve", attempt(300, "e", key("x"))), None);
    assert_eq!(driver.blocked(6).advice, Advice::Wait, "only advice: the request has no wait");
    assert_eq!(driver.blocked(6).position, 1);
}

/// An attempt waited for an expired lease in manual mode, which counts as the youngest until an operator ends
/// it. Then its holder rebound it with its old age: the attempt waited for an older holder, and a deadlock cycle
/// could have closed.
#[test]
fn an_attempt_dies_when_a_rebind_makes_its_holder_older() {
    let mut driver = Driver::new();
    driver.clock.0.store(1000, Ordering::Relaxed);
    let manual = LeaseRequest { on_expiry: OnExpiry::Manual, ttl: Span(100), ..attempt(100, "a", key("x")) };
    driver.send(1, acquire("ada", manual), None);
    let lease = driver.granted(1);
    driver.advance(200);
    driver.send(2, acquire("bob", attempt(900, "b", key("x"))), Some(60_000));
    assert!(driver.waits(2), "the lease has expired, its holder has no authority");
    driver.send(3, Command::by(&identity("ada"), Action::Rebind(held(&lease))), None);
    driver.granted(3);
    assert_eq!(driver.blocked(2).advice, Advice::Die);
}

#[test]
fn an_invalid_request_is_rejected_before_it_waits() {
    let mut driver = Driver::new();
    driver.send(1, acquire("ada", grant(key("x"), Span(60_000))), None);
    driver.send(2, acquire("bob", grant(key("x"), Span(60_000))), Some(60_000));
    driver.send(3, acquire("cid", grant(key("x"), Span(0))), Some(60_000));
    assert!(matches!(
        driver.reply_to(3),
        Some(Ok(Decision::Outcome(Outcome::Rejected(Rejection::InvalidTtl { .. }))))
    ));
}

/// The server chooses the age of a first attempt. Its retry came with another age, and was rejected as another request.
#[test]
fn a_retried_attempt_replaces_its_waiter_and_keeps_the_first_age() {
    let mut driver = Driver::new();
    driver.clock.0.store(100, Ordering::Relaxed);
    driver.send(1, acquire("ada", grant(key("x"), Span(60_000))), None);
    let request = |at| acquire("bob", attempt(at, "b", key("x"))).with_request(idempotency_key(7, 1));
    driver.send(2, request(5), Some(60_000));
    assert!(driver.waits(2));
    driver.send(3, request(90), Some(1_000));
    assert_eq!(driver.reply_to(2), Some(&Err(Unavailable::Replaced)));
    driver.advance(1_001);
    assert_eq!(driver.blocked(3).attempt.age, Age { at: Time(5), tie: 0 });
}

/// A request that only waits has no reply and changes no state: its contention must still be reported.
#[test]
fn every_contention_is_reported() {
    let mut driver = Driver::new();
    driver.clock.0.store(100, Ordering::Relaxed);
    driver.send(1, acquire("ada", grant(key("x"), Span(60_000))), None);
    let lease = driver.granted(1).lease;
    let mut submit = |command: Command, wait: Option<u64>| {
        let wait = wait.map(|most| Wait { timeout: Span(most), connection: WaiterConnection::default() });
        driver.shard.submit(Submission { wait, ..Submission::new(command, 2) });
        let contended = driver.shard.end_turn().contended;
        assert!(
            contended.iter().all(|event| event.holders == [lease] && event.members[0].resource.name() == "x")
        );
        contended.iter().map(|event| event.outcome).collect::<Vec<_>>()
    };
    assert_eq!(submit(acquire("bob", grant(key("x"), Span(60_000))), None), [ContentionOutcome::Refused]);
    assert_eq!(submit(acquire("bob", attempt(101, "b", key("x"))), Some(1_000)), [ContentionOutcome::Died]);
    assert_eq!(submit(acquire("bob", attempt(5, "b", key("x"))), Some(1_000)), [ContentionOutcome::Queued]);
    driver.clock.0.fetch_add(1_001, Ordering::Relaxed);
    driver.shard.housekeep();
    let contended = driver.shard.end_turn().contended;
    assert_eq!(
        contended.iter().map(|event| event.outcome).collect::<Vec<_>>(),
        [ContentionOutcome::TimedOut]
    );
}

#[test]
fn a_retry_keeps_its_queue_position() {
    let mut driver = Driver::new();
    driver.send(1, acquire("ada", grant(key("x"), Span(60_000))), None);
    let holder = driver.granted(1);
    let request = || acquire("bob", grant(key("x"), Span(60_000))).with_request(idempotency_key(7, 1));
    driver.send(2, request(), Some(60_000));
    driver.send(3, acquire("cid", grant(key("x"), Span(60_000))), Some(60_000));
    driver.send(4, request(), Some(60_000));
    assert_eq!(driver.reply_to(2), Some(&Err(Unavailable::Replaced)));
    assert_eq!(driver.shard.waiters().len(), 2);
    let other = acquire("bob", grant(key("y"), Span(60_000))).with_request(idempotency_key(7, 2));
    driver.send(5, other, Some(60_000));
    assert!(matches!(
        driver.reply_to(5),
        Some(Ok(Decision::Outcome(Outcome::Rejected(Rejection::RequestMismatch))))
    ));
    driver.send(6, Command::by(&identity("ada"), release(&holder)), None);
    assert!(driver.granted(4).token > holder.token, "served before the waiter that came between");
    assert!(driver.waits(3));
    // A further retry is a replay: it returns the same lease.
    driver.send(7, request(), None);
    assert_eq!(driver.granted(7).lease, driver.granted(4).lease);
}

#[test]
fn a_waiter_that_times_out_learns_the_conflicting_leases() {
    let mut driver = Driver::new();
    driver.send(1, acquire("ada", grant(key("x"), Span(60_000))), None);
    driver.send(2, acquire("bob", grant(key("x"), Span(60_000))), Some(1000));
    driver.send(3, acquire("cid", grant(key("x"), Span(60_000))), Some(500));
    assert_eq!(driver.shard.until_due(), Some(Span(501)));
    driver.advance(500);
    assert!(driver.waits(3), "not a millisecond early");
    driver.advance(1);
    let timed_out = driver.blocked(3);
    assert_eq!((timed_out.advice, timed_out.position), (Advice::Wait, 1));
    assert_eq!(timed_out.holders, [driver.granted(1).lease]);
    assert!(driver.waits(2));
    assert_eq!(driver.shard.waiters().len(), 1, "it has left the queue");
}

/// The expiry of a lease without waiters may be logged up to 5 s late; it has no effect on authority.
#[test]
fn expiry_is_logged_late_without_waiters_but_ends_authority_on_time() {
    let mut driver = Driver::new();
    driver.shard.set_sweeper(Span(5000));
    driver.send(1, acquire("ada", grant(key("x"), Span(1000))), None);
    assert_eq!(driver.shard.until_due(), Some(Span(6001)));
    driver.advance(1001);
    assert_eq!(driver.shard.kernel().counts().history, 0, "the expiry is not logged yet");
    let late = driver.granted(1);
    driver.send(
        2,
        Command::by(&identity("ada"), Action::Renew(vec![Renewal { held: held(&late), ttl: None }])),
        None,
    );
    assert!(
        matches!(driver.reply_to(2), Some(Ok(decision)) if format!("{decision:?}").contains("LeaseExpired"))
    );
    // A new request is granted at once, and a waiter on time.
    driver.send(3, acquire("bob", grant(key("x"), Span(1000))), None);
    assert!(driver.granted(3).token > late.token);
    driver.send(4, acquire("cid", grant(key("x"), Span(1000))), Some(60_000));
    assert_eq!(driver.shard.until_due(), Some(Span(1001)));
    driver.advance(1001);
    assert!(driver.granted(4).token > driver.granted(3).token);
    driver.advance(6001);
    assert_eq!(driver.shard.kernel().counts().leases, 0, "the expiry is logged");
}

/// A connection broke at the moment of the grant. No client knew of the lease, and all waited until its TTL ended.
#[test]
fn an_undelivered_grant_is_undone_and_its_idempotency_key_forgotten() {
    let mut driver = Driver::new();
    let request = || acquire("bob", grant(key("x"), Span(60_000))).with_request(idempotency_key(7, 1));
    driver.send(1, request(), None);
    let lost = driver.granted(1).lease;
    assert_eq!(driver.replies.last().and_then(|(.., lease)| *lease), Some(lost));
    driver.send(2, acquire("cid", grant(key("x"), Span(60_000))), Some(60_000));
    driver.shard.delivered(lost, false);
    driver.turn();
    assert_ne!(driver.granted(2).lease, lost, "the next waiter has it");
    driver.shard.delivered(driver.granted(2).lease, true);
    driver.send(3, request(), None);
    assert_eq!(driver.blocked(3).holders, [driver.granted(2).lease], "a retry is a new request");
}

#[test]
fn a_grant_delivered_by_a_replay_or_used_by_its_holder_is_not_undone() {
    let mut driver = Driver::new();
    let request = || acquire("bob", grant(key("x"), Span(60_000))).with_request(idempotency_key(7, 1));
    driver.send(1, request(), None);
    driver.send(2, request(), None);
    let lease = driver.granted(1).lease;
    driver.shard.delivered(lease, false);
    driver.shard.delivered(lease, true);
    driver.turn();
    assert_eq!(driver.shard.kernel().counts().leases, 1);
    // Nor in the other order: the first reply is delivered, the replay is lost.
    let again = || acquire("bob", grant(key("z"), Span(60_000))).with_request(idempotency_key(8, 1));
    driver.send(8, again(), None);
    driver.send(9, again(), None);
    let lease = driver.granted(8).lease;
    driver.shard.delivered(lease, true);
    driver.shard.delivered(lease, false);
    driver.turn();
    assert_eq!(driver.shard.kernel().counts().leases, 2);
    driver.send(10, Command::by(&identity("bob"), release(&driver.granted(8))), None);
    // A replay that is lost later undoes nothing: the lease was delivered.
    driver.send(3, request(), None);
    assert_eq!(
        driver.replies.last().and_then(|(.., lease)| *lease),
        None,
        "its delivery is no longer tracked"
    );

    driver.send(4, acquire("bob", grant(key("y"), Span(60_000))), None);
    let used = driver.granted(4);
    let renewal = Action::Renew(vec![Renewal { held: held(&used), ttl: None }]);
    driver.send(5, Command::by(&identity("bob"), renewal), None);
    driver.shard.delivered(used.lease, false);
    driver.turn();
    assert_eq!(driver.shard.kernel().counts().leases, 2);
}

#[test]
fn a_long_command_is_logged_in_records_of_256_with_others_in_between() {
    let mut driver = Driver::new();
    let mut renewals = Vec::new();
    for n in 0..700 {
        driver.send(n, acquire("ada", grant(key(&format!("k{n}")), Span(60_000))), None);
        renewals.push(Renewal { held: held(&driver.granted(n)), ttl: Some(Span(90_000)) });
    }
    let before = driver.records;
    let command = Command::by(&identity("ada"), Action::Renew(renewals));
    driver.shard.submit(Submission::new(command, 1000));
    driver.shard.submit(Submission::new(acquire("bob", grant(key("other"), Span(60_000))), 1001));
    assert_eq!(driver.shard.until_due(), Some(Span(0)), "there is more to do");
    for _ in 0..3 {
        driver.turn();
    }
    let reply_index = |to: u32| driver.replies.iter().position(|(caller, ..)| *caller == to);
    assert!(reply_index(1001) < reply_index(1000));
    assert_eq!(driver.records - before, 4);
    match driver.reply_to(1000) {
        Some(Ok(Decision::Outcome(Outcome::Applied(Response::Renewed(results), _)))) => {
            assert_eq!((results.len(), results.iter().filter(|result| result.is_ok()).count()), (700, 700));
        }
        other => panic!("{other:?}"),
    }
    let all = Action::RevokeAll(Party::Identity(default_namespace(), identity("ada")));
    driver.send(1002, Command::by(&identity("op"), all), None);
    for _ in 0..3 {
        driver.turn();
    }
    assert!(matches!(
        driver.reply_to(1002),
        Some(Ok(Decision::Outcome(Outcome::Applied(Response::RevokedAll { revoked: 700, more: false }, _))))
    ));
    let too_many = vec![Renewal { held: held(&driver.granted(0)), ttl: None }; engine::RENEWALS_MAX + 1];
    driver.send(1003, Command::by(&identity("ada"), Action::Renew(too_many)), None);
    assert!(matches!(
        driver.reply_to(1003),
        Some(Ok(Decision::Outcome(Outcome::Rejected(Rejection::InvalidBatch))))
    ));
}

#[test]
fn a_nearly_full_log_accepts_only_releases_and_a_full_log_nothing() {
    let mut driver = Driver::new();
    for n in 0..3 {
        driver.send(n, acquire("ada", grant(key(&format!("k{n}")), Span(1000))), None);
    }
    driver.shard.set_space(LogSpace::Reserve);
    driver.send(10, acquire("ada", grant(key("new"), Span(1000))), None);
    assert_eq!(driver.reply_to(10), Some(&Err(Unavailable::NoSpace)));
    driver.send(11, Command::by(&identity("ada"), release(&driver.granted(0))), None);
    assert!(matches!(driver.reply_to(11), Some(Ok(_))));
    driver.shard.set_space(LogSpace::Nothing);
    driver.send(12, Command::by(&identity("ada"), release(&driver.granted(1))), None);
    assert_eq!(driver.reply_to(12), Some(&Err(Unavailable::NoSpace)));
    let before = driver.records;
    driver.advance(5000);
    assert_eq!(driver.records, before, "not even due expiries are logged");
    assert_eq!(driver.shard.until_due(), None);
    driver.shard.set_space(LogSpace::Plenty);
    driver.advance(1);
    assert_eq!(driver.shard.kernel().counts().leases, 0, "the due expiries are logged");
}

#[test]
fn waiters_are_refused_when_the_shard_stops() {
    let mut driver = Driver::new();
    driver.send(1, acquire("ada", shared_x()), None);
    driver.send(2, acquire("bob", grant(key("x"), Span(60_000))), Some(60_000));
    driver.send(3, acquire("cid", shared_x()), Some(60_000));
    assert!(driver.waits(3));
    driver.shard.stop();
    driver.turn();
    for to in [2, 3] {
        let reply = driver.reply_to(to);
        assert!(matches!(reply, Some(Err(Unavailable::Dismissed(_)))), "{to} {reply:?}");
    }
    assert_eq!(driver.shard.kernel().counts().leases, 1, "no waiter is granted a lease while it stops");
}

fn shared_x() -> LeaseRequest {
    grant(one(Predicate::Consumes, "KEY:x"), Span(60_000))
}

/// A disconnected waiter stayed in the queue until it came to its front, and the queue positions behind it were one
/// too high.
#[test]
fn a_disconnected_waiter_leaves_the_queue_at_once() {
    let mut driver = Driver::new();
    driver.send(1, acquire("ada", grant(key("x"), Span(60_000))), None);
    let connection = WaiterConnection::default();
    let wait = Some(Wait { timeout: Span(60_000), connection: connection.clone() });
    let command = acquire("bob", grant(key("x"), Span(60_000)));
    driver.shard.submit(Submission { wait, ..Submission::new(command, 2) });
    driver.send(3, acquire("cid", grant(key("x"), Span(60_000))), Some(60_000));
    assert_eq!(driver.shard.waiters().len(), 2);
    driver.shard.disconnect(&connection);
    driver.turn();
    assert_eq!(driver.shard.waiters().len(), 1);
    assert!(driver.waits(2), "it gets no reply");
    driver.send(4, Command::by(&identity("ada"), release(&driver.granted(1))), None);
    driver.granted(3);
    driver.shard.disconnect(&connection);
}

#[test]
fn on_decided_sees_the_state_in_which_its_command_was_decided() {
    let mut driver = Driver::new();
    let (send, receive) = std::sync::mpsc::channel();
    for (to, name) in [(1, "x"), (2, "x"), (3, "y")] {
        let send = send.clone();
        let on_decided: engine::OnDecided = Box::new(move |kernel, _, decision| {
            let blocked = matches!(decision, Decision::Blocked(_));
            send.send((to, kernel.counts().leases, blocked)).expect("the test listens");
        });
        let command = acquire("ada", grant(key(name), Span(60_000)));
        driver.shard.submit(Submission { on_decided: Some(on_decided), ..Submission::new(command, to) });
    }
    driver.turn();
    assert_eq!(receive.try_iter().collect::<Vec<_>>(), [(1, 1, false), (2, 1, true), (3, 2, false)]);
}

/// An ended lease stayed readable for hours on an idle server, although its history window was a second: nothing but the
/// next command retired it.
#[test]
fn history_is_retired_on_time_without_any_command() {
    let mut driver = Driver::new();
    driver.send(1, acquire("ada", grant(key("k"), Span(60_000))), None);
    let granted = driver.granted(1);
    driver.send(2, Command::by(&identity("ada"), Action::Release(held(&granted))), None);
    let window = Limits::default().history_window;
    let is_readable =
        |driver: &Driver| driver.shard.kernel().lease(granted.lease, driver.shard.now()).is_ok();
    let due = driver.shard.until_due().expect("history is retired some time");
    assert_eq!(due, Span(window.0 + 1 + 1000), "a second after the window, if no command comes");
    driver.advance(due.0 - 1);
    assert!(is_readable(&driver), "within the window");
    driver.advance(1);
    assert!(!is_readable(&driver), "after the window");
    assert_eq!(driver.shard.until_due(), None, "nothing is left to do");
}

/// History beyond its limit is discarded by the next command. A tick did it after every batch: a tenth of the records of a
/// busy shard were ticks.
#[test]
fn a_busy_shard_logs_no_ticks_for_its_history() {
    let clock = TestClock::default();
    let tenure = TenureConfig { limits: Limits { history_max: 1, ..TENURE.limits }, ..TENURE };
    let decider = Decider::open(Kernel::new(), Seq(0), Box::new(clock), &tenure).expect("a valid clock");
    let mut shard: Shard<u32> = Shard::new(decider);
    let mut records = 0;
    let mut turn = |command: Command| {
        shard.housekeep();
        shard.submit(Submission::new(command, 0));
        let turn = shard.end_turn();
        records += turn.sealed.map_or(0, |sealed| sealed.lsns.last.0 - sealed.lsns.first.0 + 1);
        turn.replies.into_iter().next().expect("a reply").1
    };
    for _ in 0..100 {
        let reply = turn(acquire("ada", grant(key("k"), Span(60_000))));
        let Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) = reply else {
            panic!("{reply:?}")
        };
        assert!(turn(Command::by(&identity("ada"), Action::Release(held(&granted)))).is_ok());
    }
    assert_eq!(records, 201, "the opening, and each command once");
}

/// After a `close` deciding ends: every later command is refused with the server to ask, and time brings nothing.
#[test]
fn a_closed_log_decides_nothing_more() {
    let mut driver = Driver::new();
    driver.send(1, acquire("ada", grant(key("k"), Span(500))), None);
    driver.send(2, Command::internal(Action::Close(Close { to: Some(7) })), None);
    assert!(matches!(driver.reply_to(2), Some(Ok(Decision::Outcome(Outcome::Applied(Response::Closed, _))))));
    let records = driver.records;
    driver.send(3, acquire("ada", grant(key("other"), Span(500))), Some(1000));
    assert!(matches!(
        driver.reply_to(3),
        Some(Ok(Decision::Outcome(Outcome::Rejected(Rejection::Moved { to: Some(7) }))))
    ));
    driver.advance(10_000);
    assert_eq!((driver.records, driver.shard.until_due()), (records, None));
}
