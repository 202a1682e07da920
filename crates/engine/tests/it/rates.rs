//! Rate quotas: a bounded number of requests for leases in each second of kernel time, for each identity.

use std::sync::atomic::Ordering;

use engine::internals::decider::Decider;
use engine::internals::shard::Shard;
use engine::{Decision, Reply, Submission, Unavailable};
use kernel::{
    Action, Command, IdempotencyKey, Kernel, Outcome, Quota, RequestKey, Response, Scope, SetQuota, Span,
};
use sim::fixture::{grant, identity, key};
use store::Seq;

use crate::fixture::{TENURE, TestClock};

/// A shard with a quota of two requests per second, and a clock that the test advances.
struct RateLimited {
    shard: Shard<()>,
    clock: TestClock,
}

impl RateLimited {
    fn new() -> RateLimited {
        let clock = TestClock::default();
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(clock.clone()), &TENURE);
        let mut limited = RateLimited { shard: Shard::new(decider.expect("a valid clock")), clock };
        let quota = Quota { acquires_per_second: Some(2), ..Quota::default() };
        let set = SetQuota { scope: Scope::default(), quota };
        let reply = limited.send(Command::by(&identity("operator"), Action::SetQuota(set)));
        assert!(matches!(reply, Ok(Decision::Outcome(Outcome::Applied(Response::Done, _)))), "{reply:?}");
        limited
    }

    fn send(&mut self, command: Command) -> Reply {
        self.shard.submit(Submission::new(command, ()));
        self.shard.end_turn().replies.pop().expect("a reply").1
    }

    fn acquire(&mut self, who: &str, name: &str) -> Reply {
        self.send(acquire(who, name))
    }
}

fn acquire(who: &str, name: &str) -> Command {
    Command::by(&identity(who), Action::Acquire(grant(key(name), Span(60_000))))
}

fn is_granted(reply: &Reply) -> bool {
    matches!(
        reply,
        Ok(Decision::Outcome(
            Outcome::Applied(Response::Granted(_), _) | Outcome::Unchanged(Response::Granted(_))
        ))
    )
}

#[test]
fn requests_beyond_the_rate_are_refused_until_the_next_second() {
    let mut limited = RateLimited::new();
    assert!(is_granted(&limited.acquire("ada", "a")) && is_granted(&limited.acquire("ada", "b")));
    assert_eq!(limited.acquire("ada", "c"), Err(Unavailable::TooOften));
    limited.clock.0.fetch_add(1000, Ordering::Relaxed);
    assert!(is_granted(&limited.acquire("ada", "c")), "a new second");
}

#[test]
fn each_identity_has_a_rate_of_its_own() {
    let mut limited = RateLimited::new();
    assert!(["a", "b"].iter().all(|name| is_granted(&limited.acquire("ada", name))));
    assert_eq!(limited.acquire("ada", "c"), Err(Unavailable::TooOften));
    assert!(is_granted(&limited.acquire("bob", "c")));
}

/// A client that had lost the response to its second request could not retry it within the same second.
#[test]
fn a_retry_of_an_accepted_request_is_not_counted() {
    let mut limited = RateLimited::new();
    let request = IdempotencyKey { key: RequestKey([7; 16]), fingerprint: [1; 16] };
    assert!(is_granted(&limited.acquire("ada", "a")));
    for _ in 0..3 {
        assert!(is_granted(&limited.send(acquire("ada", "b").with_request(request))));
    }
    assert_eq!(limited.acquire("ada", "c"), Err(Unavailable::TooOften));
}

/// Refused requests cost as much as granted ones, so they count too.
#[test]
fn a_conflict_counts_towards_the_rate() {
    let mut limited = RateLimited::new();
    assert!(is_granted(&limited.acquire("bob", "a")));
    for _ in 0..2 {
        let reply = limited.acquire("ada", "a");
        assert!(matches!(reply, Ok(Decision::Blocked(_))), "{reply:?}");
    }
    assert_eq!(limited.acquire("ada", "b"), Err(Unavailable::TooOften));
}
