//! A withdrawn authorization: nothing is decided for its client, wherever its command was when it was withdrawn.

use engine::internals::decider::Decider;
use engine::internals::shard::Shard;
use engine::waiters::{Wait, WaiterConnection};
use engine::{Authorization, Decision, Reply, Submission, TenureConfig, Unavailable};
use kernel::{
    Action, Command, Granted, IdempotencyKey, Kernel, Limits, Outcome, Renewal, RequestKey, Response, Span,
    Store,
};
use sim::fixture::{grant, held, identity, key};
use store::Seq;

use crate::fixture::TestClock;

/// A shard whose callers are numbers.
struct Driver {
    shard: Shard<u32>,
    replies: Vec<(u32, Reply)>,
}

impl Driver {
    fn new() -> Driver {
        let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
        let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(TestClock::default()), &tenure);
        let mut driver = Driver { shard: Shard::new(decider.expect("a valid clock")), replies: Vec::new() };
        driver.turn();
        driver
    }

    fn turn(&mut self) {
        self.shard.housekeep();
        self.replies.extend(self.shard.end_turn().replies.into_iter().map(|(to, reply, _)| (to, reply)));
    }

    /// Submits a command with an authorization; requests for leases wait for up to a minute.
    fn send(&mut self, to: u32, command: Command, authorization: &Authorization) {
        let is_request = matches!(command.action, Action::Acquire(_));
        let connection = WaiterConnection::new(authorization.clone());
        let wait = is_request.then_some(Wait { timeout: Span(60_000), connection });
        let authorization = authorization.clone();
        self.shard.submit(Submission { wait, authorization, ..Submission::new(command, to) });
        self.turn();
    }

    fn reply_to(&self, to: u32) -> Option<&Reply> {
        self.replies.iter().rev().find(|(caller, _)| *caller == to).map(|(_, reply)| reply)
    }

    fn granted(&self, to: u32) -> Option<Granted> {
        match self.reply_to(to) {
            Some(Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)))) => Some(*granted),
            _ => None,
        }
    }
}

fn acquire(name: &str, of: &str) -> Command {
    Command::by(&identity(name), Action::Acquire(grant(key(of), Span(60_000))))
}

/// A client whose certificate was revoked while it waited was granted the lease when the holder released it: the server
/// had checked the certificate when the request began.
#[test]
fn a_waiter_is_not_granted_anything_once_its_authorization_is_withdrawn() {
    let mut driver = Driver::new();
    let (revoked, good) = (Authorization::new(), Authorization::new());
    driver.send(1, acquire("ada", "k"), &good);
    let holder = driver.granted(1).expect("it is free");
    driver.send(2, acquire("bob", "k"), &revoked);
    driver.send(3, acquire("cid", "k"), &good);
    revoked.withdraw();
    driver.send(4, Command::by(&identity("ada"), Action::Release(held(&holder))), &good);
    assert_eq!(driver.granted(2), None);
    assert!(driver.granted(3).is_some(), "the next waiter moves up");
    assert_eq!(driver.shard.waiters().len(), 0);
}

#[test]
fn a_command_that_is_decided_after_the_withdrawal_is_refused() {
    let mut driver = Driver::new();
    let revoked = Authorization::new();
    driver.send(1, acquire("ada", "k"), &revoked);
    let lease = driver.granted(1).expect("it is free");
    revoked.withdraw();
    let renewal = Action::Renew(vec![Renewal { held: held(&lease), ttl: None }]);
    for (to, command) in
        [(2, acquire("ada", "l")), (3, Command::by(&identity("ada"), renewal)), (4, acquire("ada", "k"))]
    {
        driver.send(to, command, &revoked);
        assert_eq!(driver.reply_to(to), Some(&Err(Unavailable::Withdrawn)), "{to}");
    }
}

/// Two certificates of one identity: the retry that takes a waiter's place brings its own authorization.
#[test]
fn a_retry_that_takes_the_place_of_a_waiter_brings_its_own_authorization() {
    let request = |name: &str| {
        let key = IdempotencyKey { key: RequestKey([7; 16]), fingerprint: [1; 16] };
        acquire(name, "k").with_request(key)
    };
    for revoke_first in [true, false] {
        let mut driver = Driver::new();
        let (good, one, other) = (Authorization::new(), Authorization::new(), Authorization::new());
        driver.send(1, acquire("ada", "k"), &good);
        let holder = driver.granted(1).expect("it is free");
        driver.send(2, request("bob"), &one);
        driver.send(3, request("bob"), &other);
        let revoked = if revoke_first { one } else { other };
        revoked.withdraw();
        driver.send(4, Command::by(&identity("ada"), Action::Release(held(&holder))), &good);
        assert_eq!(driver.granted(3).is_some(), revoke_first);
    }
}

/// A retry that does not wait takes the place of a waiter for one more turn, and was not tied to any authorization.
#[test]
fn a_retry_that_does_not_wait_is_tied_to_its_authorization_as_well() {
    let mut driver = Driver::new();
    let (good, revoked) = (Authorization::new(), Authorization::new());
    driver.send(1, acquire("ada", "k"), &good);
    let holder = driver.granted(1).expect("it is free");
    let request = || {
        let key = IdempotencyKey { key: RequestKey([7; 16]), fingerprint: [1; 16] };
        acquire("bob", "k").with_request(key)
    };
    driver.send(2, request(), &revoked);
    let authorization = revoked.clone();
    driver.shard.submit(Submission { authorization, ..Submission::new(request(), 3) });
    revoked.withdraw();
    let release = Command::by(&identity("ada"), Action::Release(held(&holder)));
    driver.shard.submit(Submission::new(release, 4));
    driver.turn();
    assert_eq!((driver.granted(2), driver.granted(3)), (None, None));
}

/// A command of many parts goes on for several turns.
#[test]
fn a_long_command_ends_when_its_authorization_is_withdrawn() {
    let mut driver = Driver::new();
    let (good, revoked) = (Authorization::new(), Authorization::new());
    driver.send(1, acquire("ada", "k"), &good);
    let lease = held(&driver.granted(1).expect("it is free"));
    let renewals = vec![Renewal { held: lease, ttl: None }; 3 * Action::MAX_BATCH];
    let command = Command::by(&identity("ada"), Action::Renew(renewals));
    let authorization = revoked.clone();
    driver.shard.submit(Submission { authorization, ..Submission::new(command, 2) });
    revoked.withdraw();
    driver.turn();
    assert_eq!(driver.reply_to(2), Some(&Err(Unavailable::Withdrawn)));
    assert_eq!(driver.shard.until_due().filter(|span| span.0 == 0), None, "nothing is left to do");
}
