//! Attempts: a blocked request keeps its place over timeouts, broken connections and restarts.

use std::sync::atomic::Ordering;

use engine::internals::decider::Decider;
use engine::internals::record::Record;
use engine::internals::shard::{Shard, TurnOutput};
use engine::waiters::{Advice, Attempt, Blocked, Wait, WaiterConnection};
use engine::{Decision, Reply, Submission, Unavailable};
use kernel::{
    Action, Age, AgentName, Bundle, Command, Granted, Kernel, LeaseId, LeaseRequest, Outcome, Predicate,
    Response, SessionName, Span, Time,
};
use sim::fixture::{grant, held, identity, key, member};
use store::Seq;

use crate::fixture::{TENURE, TestClock};

/// A shard whose callers are numbers, with a log that outlives it and a clock that the test advances.
struct Driver {
    shard: Shard<u32>,
    clock: TestClock,
    log: Vec<Vec<u8>>,
    replies: Vec<(u32, Reply, Option<LeaseId>)>,
}

impl Driver {
    fn new() -> Driver {
        let clock = TestClock::default();
        let mut driver = Driver { shard: open(&clock, &[]), clock, log: Vec::new(), replies: Vec::new() };
        driver.turn();
        driver
    }

    /// Another process opens the log: waiters are lost.
    fn restart(&mut self) {
        self.turn();
        self.shard = open(&self.clock, &self.log);
        self.turn();
    }

    fn turn(&mut self) {
        self.shard.housekeep();
        let TurnOutput { sealed, replies, .. } = self.shard.end_turn();
        self.log.extend(sealed.map(|sealed| sealed.payload));
        self.replies.extend(replies);
    }

    fn advance(&mut self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
        self.turn();
    }

    fn submit(&mut self, to: u32, command: Command, wait: Option<u64>, attempt: Option<Attempt>) {
        let wait = wait.map(|most| Wait { timeout: Span(most), connection: WaiterConnection::default() });
        self.replies.retain(|(caller, ..)| *caller != to);
        self.shard.submit(Submission { wait, attempt, ..Submission::new(command, to) });
        self.turn();
    }

    /// A request that waits.
    fn wait(&mut self, to: u32, request: LeaseRequest, attempt: Option<Attempt>) {
        self.submit(to, by(to, Action::Acquire(request)), Some(30_000), attempt);
    }

    /// A request that is blocked, and does not wait. Returns its attempt.
    fn probe(&mut self, to: u32, request: LeaseRequest, attempt: Option<Attempt>) -> Attempt {
        self.submit(to, by(to, Action::Acquire(request)), None, attempt);
        self.blocked(to).attempt
    }

    fn hold(&mut self, to: u32, request: LeaseRequest) -> Granted {
        self.submit(to, by(to, Action::Acquire(request)), None, None);
        self.granted(to).expect("free")
    }

    fn release(&mut self, to: u32, lease: &Granted) {
        self.submit(1000 + to, by(to, Action::Release(held(lease))), None, None);
    }

    fn reply_to(&self, to: u32) -> Option<&Reply> {
        self.replies.iter().rev().find(|(caller, ..)| *caller == to).map(|(_, reply, _)| reply)
    }

    fn granted(&self, to: u32) -> Option<Granted> {
        match self.reply_to(to) {
            Some(Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)))) => Some(*granted),
            _ => None,
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

    /// Releases the lease of `holder` and of each that is granted after it. Returns the order of the grants.
    fn serve_all(&mut self, holder: u32, lease: Granted, waiters: &[u32]) -> Vec<u32> {
        let (mut order, mut holds) = (Vec::new(), (holder, lease));
        loop {
            self.release(holds.0, &holds.1);
            let next = waiters
                .iter()
                .filter(|to| !order.contains(*to))
                .find_map(|to| Some((*to, self.granted(*to)?)));
            let Some(next) = next else { return order };
            order.push(next.0);
            holds = next;
        }
    }
}

fn open(clock: &TestClock, log: &[Vec<u8>]) -> Shard<u32> {
    let mut kernel = Kernel::new();
    for record in log.iter().flat_map(|payload| Record::decode_all(payload).expect("records")) {
        kernel.apply(record.lsn, record.now, &record.command);
    }
    let next = Seq(log.len() as u64);
    Shard::new(Decider::open(kernel, next, Box::new(clock.clone()), &TENURE).expect("a valid clock"))
}

fn by(caller: u32, action: Action) -> Command {
    Command::by(&identity(&format!("client-{caller}")), action)
}

fn plain(name: &str) -> LeaseRequest {
    grant(key(name), Span(300_000))
}

fn both(one: &str, other: &str) -> LeaseRequest {
    let members = [one, other].map(|name| member(Predicate::Mutates, &format!("KEY:{name}")));
    grant(Bundle::new(members.to_vec()).expect("two"), Span(300_000))
}

fn in_session(name: &str, request: LeaseRequest) -> LeaseRequest {
    LeaseRequest { session: Some(SessionName::new(name).expect("valid")), ..request }
}

fn of_agent(name: &str, at: u64, request: LeaseRequest) -> LeaseRequest {
    let agent = Some(AgentName::new(name).expect("valid"));
    LeaseRequest { agent, attempt: Some(Age { at: Time(at), tie: 0 }), ..in_session(name, request) }
}

/// A wait was longer than one request may take. The waiter asked again, and stood behind those that had come after it.
#[test]
fn a_waiter_that_times_out_and_returns_is_not_overtaken() {
    let mut driver = Driver::new();
    let lease = driver.hold(1, plain("k"));
    driver.submit(2, by(2, Action::Acquire(plain("k"))), Some(1_000), None);
    driver.wait(3, plain("k"), None);
    driver.advance(1_001);
    let attempt = driver.blocked(2).attempt;
    driver.wait(4, plain("k"), None);
    driver.wait(2, plain("k"), Some(attempt));
    assert_eq!(driver.serve_all(1, lease, &[2, 3, 4]), [2, 3, 4]);
}

/// Every restart put its waiters into an order of chance.
#[test]
fn waiters_that_a_stop_dismisses_are_granted_in_their_first_order_after_the_restart() {
    let mut driver = Driver::new();
    let lease = driver.hold(100, plain("k"));
    let waiters: Vec<u32> = (0..20).collect();
    for to in &waiters {
        driver.wait(*to, plain("k"), None);
    }
    driver.shard.stop();
    driver.turn();
    let attempts: Vec<Attempt> = waiters
        .iter()
        .map(|to| match driver.reply_to(*to) {
            Some(Err(Unavailable::Dismissed(attempt))) => *attempt,
            other => panic!("{other:?}"),
        })
        .collect();
    driver.restart();
    driver.wait(50, plain("k"), None);
    for to in waiters.iter().rev() {
        driver.wait(*to, plain("k"), Some(attempts[*to as usize]));
    }
    let mut expected = waiters.clone();
    expected.push(50);
    assert_eq!(driver.serve_all(100, lease, &expected), expected);
}

/// A killed server replies to no waiter: each has the attempt of its first try, which did not wait. Kernel time after the
/// restart is behind that of the tokens.
#[test]
fn waiters_of_a_killed_server_are_granted_in_their_first_order_after_the_restart() {
    let mut driver = Driver::new();
    let lease = driver.hold(100, plain("k"));
    driver.advance(10);
    let opened = driver.clock.0.load(Ordering::Relaxed);
    let waiters: Vec<u32> = (0..20).collect();
    let mut attempts = Vec::new();
    for to in &waiters {
        driver.advance(1);
        attempts.push(driver.probe(*to, plain("k"), None));
        driver.wait(*to, plain("k"), Some(attempts[*to as usize]));
    }
    // The time since the last record is unknown.
    driver.clock.0.store(opened, Ordering::Relaxed);
    driver.restart();
    assert!(attempts.iter().all(|attempt| attempt.age.at > driver.shard.now()));
    driver.wait(50, plain("k"), None);
    for to in [7, 3, 19, 0, 12, 1, 2, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18] {
        driver.wait(to, plain("k"), Some(attempts[to as usize]));
    }
    let mut expected = waiters.clone();
    expected.push(50);
    assert_eq!(driver.serve_all(100, lease, &expected), expected);
}

/// A client kept the token of an attempt that was granted, and stood before everybody at each later request.
#[test]
fn an_attempt_that_was_granted_does_not_count_again() {
    for restarts in [false, true] {
        let mut driver = Driver::new();
        let lease = driver.hold(1, plain("k"));
        let attempt = driver.probe(2, plain("k"), None);
        driver.wait(2, plain("k"), Some(attempt));
        driver.release(1, &lease);
        let lease = driver.granted(2).expect("its turn");
        if restarts {
            driver.restart();
        }
        driver.wait(3, plain("k"), None);
        driver.wait(2, plain("k"), Some(attempt));
        assert_eq!(driver.serve_all(2, lease, &[3, 2]), [3, 2], "restarts: {restarts}");
    }
}

/// The response with the grant did not reach the client, and the grant was undone: the client returns to its place.
#[test]
fn an_attempt_counts_again_when_its_grant_was_undone() {
    let mut driver = Driver::new();
    let lease = driver.hold(1, plain("k"));
    let attempt = driver.probe(2, plain("k"), None);
    driver.wait(2, plain("k"), Some(attempt));
    driver.wait(3, plain("k"), None);
    driver.release(1, &lease);
    let undelivered = driver.granted(2).expect("its turn").lease;
    driver.shard.delivered(undelivered, false);
    driver.turn();
    let lease = driver.granted(3).expect("it was handed on");
    driver.wait(4, plain("k"), None);
    driver.wait(2, plain("k"), Some(attempt));
    assert_eq!(driver.serve_all(3, lease, &[2, 4]), [2, 4]);
}

#[test]
fn an_attempt_lapses_when_it_is_not_retried_in_time_and_after_an_hour() {
    let mut driver = Driver::new();
    driver.hold(1, LeaseRequest { ttl: Span(300_000), ..plain("k") });
    let first = driver.probe(2, plain("k"), None);
    driver.advance(Attempt::IDLE_MAX.0);
    let second = driver.probe(2, plain("k"), Some(first));
    assert_eq!(second.arrival, first.arrival);
    driver.advance(Attempt::IDLE_MAX.0 + 1);
    assert_ne!(driver.probe(2, plain("k"), Some(second)).arrival, first.arrival, "it was idle for too long");

    let mut driver = Driver::new();
    let lease = driver.hold(1, plain("k"));
    let first = driver.probe(2, plain("k"), None);
    let mut last = first;
    for _ in 0..60 {
        driver.advance(60_000);
        let renewal = kernel::Renewal { held: held(&lease), ttl: None };
        driver.submit(99, by(1, Action::Renew(vec![renewal])), None, None);
        last = driver.probe(2, plain("k"), Some(last));
        assert_eq!(last.arrival, first.arrival);
    }
    driver.advance(1);
    assert_ne!(driver.probe(2, plain("k"), Some(last)).arrival, first.arrival, "an hour is over");
}

/// Two connections presented one token: it has one place, and the later request has it.
#[test]
fn an_attempt_has_one_place() {
    let mut driver = Driver::new();
    let lease = driver.hold(1, plain("k"));
    let attempt = driver.probe(2, plain("k"), None);
    driver.wait(2, plain("k"), Some(attempt));
    let command = by(2, Action::Acquire(plain("k")));
    driver.submit(20, command, Some(30_000), Some(attempt));
    assert_eq!(driver.reply_to(2), Some(&Err(Unavailable::Replaced)));
    assert_eq!(driver.shard.waiters().len(), 1);
    driver.release(1, &lease);
    assert!(driver.granted(20).is_some());
}

/// The token of another request names the place of a waiter: that waiter keeps it.
#[test]
fn a_place_is_not_taken_from_the_waiter_of_another_request() {
    let mut driver = Driver::new();
    driver.hold(1, plain("k"));
    driver.hold(1, plain("j"));
    let attempt = driver.probe(2, plain("k"), None);
    driver.wait(2, plain("k"), Some(attempt));
    driver.wait(3, plain("j"), Some(attempt));
    assert!(driver.waits(2) && driver.waits(3));
    assert_eq!(driver.shard.waiters().len(), 2);
}

/// `T` waited for `q` and `r`, and its wait ended. `B` holds `r` and queues for `q`. `T` returned to its place before `B`:
/// each waited for the other until their timeouts.
#[test]
fn a_waiter_returns_behind_one_that_it_would_wait_for() {
    let mut driver = Driver::new();
    let q = driver.hold(1, plain("q"));
    let t = driver.probe(2, both("q", "r"), None);
    let r = driver.hold(3, in_session("b", plain("r")));
    driver.wait(3, in_session("b", plain("q")), None);
    driver.wait(4, plain("q"), None);
    driver.wait(2, both("q", "r"), Some(t));
    driver.release(1, &q);
    let q = driver.granted(3).expect("before the one that waits for it");
    // Behind that one alone: it stays before later ones.
    driver.release(3, &r);
    driver.release(3, &q);
    let both = driver.granted(2).expect("the next");
    driver.release(2, &both);
    assert!(driver.granted(4).is_some());
}

/// A session waits for `x` behind a waiter that wants `y` as well. It returns with an older attempt for `y`: granted at
/// once, it would be waited for by the one that it waits for.
#[test]
fn a_session_that_waits_does_not_overtake_those_that_it_waits_for() {
    let mut driver = Driver::new();
    driver.hold(9, plain("x"));
    let y = driver.hold(1, plain("y"));
    let older = driver.probe(2, in_session("s", plain("y")), None);
    driver.wait(3, in_session("b", both("x", "y")), None);
    driver.submit(20, by(2, Action::Acquire(in_session("s", plain("x")))), Some(30_000), None);
    assert!(driver.waits(20));
    driver.release(1, &y);
    driver.submit(2, by(2, Action::Acquire(in_session("s", plain("y")))), Some(30_000), Some(older));
    assert_eq!(driver.granted(2), None, "it would hold what the one before it waits for");
}

/// An attempt of an agent may wait only for younger ones. An older waiter returned to its place before it.
#[test]
fn attempts_under_wait_die_that_are_overtaken_die() {
    let mut driver = Driver::new();
    driver.advance(100);
    let before = driver.hold(1, of_agent("one", 10, plain("k")));
    let older = driver.probe(2, of_agent("two", 20, plain("k")), None);
    driver.release(1, &before);
    driver.advance(100);
    let lease = driver.hold(3, plain("k"));
    driver.wait(4, of_agent("four", 30, plain("k")), None);
    driver.wait(5, plain("k"), None);
    assert!(driver.waits(4));
    driver.wait(2, of_agent("two", 250, plain("k")), Some(older));
    assert_eq!(driver.blocked(4).advice, Advice::Die);
    assert!(driver.waits(5), "a plain waiter stays");
    assert_eq!(driver.serve_all(3, lease, &[2, 5]), [2, 5]);
}
