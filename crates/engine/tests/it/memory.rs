//! Limits in bytes: a request that would exceed one is refused, for that identity or namespace alone where the limit is
//! its own, and nothing else is.

use engine::internals::decider::Decider;
use engine::internals::shard::Shard;
use engine::limits::{ExceededLimit, MemoryBudget, MemoryLimits};
use engine::waiters::{Wait, WaiterConnection};
use engine::{Decision, Reply, Submission, TenureConfig, Unavailable};
use kernel::{
    Action, Bundle, Command, Commit, Credential, Etag, IdempotencyKey, Kernel, LeaseRequest, Location,
    Namespace, Outcome, Predicate, RequestKey, Response, Span, Write,
};
use sim::fixture::{grant, held, identity, key, member};
use store::Seq;

use crate::fixture::{TENURE, TestClock};

/// A shard under a budget.
struct Limited(Shard<()>);

impl Limited {
    fn new(limits: MemoryLimits) -> Limited {
        Limited::sharing(&MemoryBudget::new(limits), &TENURE)
    }

    fn sharing(budget: &MemoryBudget, tenure: &TenureConfig) -> Limited {
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(TestClock::default()), tenure);
        let mut shard = Shard::new(decider.expect("a valid clock"));
        shard.set_memory(budget.clone());
        Limited(shard)
    }

    fn send(&mut self, command: Command) -> Reply {
        self.submit(Submission::new(command, ())).expect("a reply")
    }

    fn submit(&mut self, submission: Submission<()>) -> Option<Reply> {
        self.0.submit(submission);
        Some(self.0.end_turn().replies.pop()?.1)
    }

    fn acquire(&mut self, who: &str, request: LeaseRequest) -> Reply {
        self.send(Command::by(&identity(who), Action::Acquire(request)))
    }

    /// Queues a request behind a conflicting lease.
    fn wait(&mut self, who: &str, request: LeaseRequest) -> Option<Reply> {
        let wait = Wait { timeout: Span(60_000), connection: WaiterConnection::default() };
        let command = Command::by(&identity(who), Action::Acquire(request));
        self.submit(Submission { wait: Some(wait), ..Submission::new(command, ()) })
    }

    fn commit(&mut self, who: &str, credential: Credential, name: &str, bytes: u64) -> Reply {
        let key = member(Predicate::Mutates, &format!("KEY:{name}")).resource;
        let write =
            Write { held: credential, key, if_version: None, if_etag: None, token: None, release: false };
        let commit = Commit { write, etag: Etag([0; 32]), bytes, location: Location::default() };
        self.send(Command::by(&identity(who), Action::Commit(commit)))
    }
}

/// A bundle of `names` names of 400 bytes, of which the first begins with `prefix`.
fn large(prefix: &str, names: usize) -> LeaseRequest {
    let name = |n: usize| format!("KEY:{prefix}-{n}-{}", "x".repeat(400));
    let members = (0..names).map(|n| member(Predicate::Mutates, &name(n))).collect();
    LeaseRequest { bundle: Bundle::new(members).expect("a bundle"), ..small("unused") }
}

fn small(name: &str) -> LeaseRequest {
    grant(key(name), Span(60_000))
}

fn credential(reply: &Reply) -> Credential {
    match reply {
        Ok(Decision::Outcome(
            Outcome::Applied(Response::Granted(granted), _) | Outcome::Unchanged(Response::Granted(granted)),
        )) => held(granted),
        other => panic!("not granted: {other:?}"),
    }
}

fn exceeded(reply: &Reply) -> Option<ExceededLimit> {
    match reply {
        Err(Unavailable::OverLimit(limit)) => Some(*limit),
        _ => None,
    }
}

fn is_exceeded(reply: &Reply, name: &str, is_own: bool) -> bool {
    exceeded(reply).is_some_and(|limit| limit.name == name && limit.is_own == is_own)
}

/// Limits were numbers of leases. One worker acquired 4,000 bundles of 128 long names: 700 MB.
#[test]
fn an_identity_has_a_limit_of_bytes_and_others_are_not_affected() {
    let max = 3 * large("a", 50).footprint();
    let mut limited =
        Limited::new(MemoryLimits { lease_bytes_per_identity_max: max, ..MemoryLimits::default() });
    let first = limited.acquire("ada", large("a", 50));
    credential(&limited.acquire("ada", large("b", 50)));
    credential(&limited.acquire("ada", large("c", 50)));
    let refused = limited.acquire("ada", small("k"));
    assert!(is_exceeded(&refused, "lease_bytes_per_identity_max", true), "{refused:?}");
    assert_eq!(exceeded(&refused).map(|limit| limit.max), Some(max));
    credential(&limited.acquire("bob", large("d", 50)));
    // What ends is not counted any more.
    limited.send(Command::by(&identity("ada"), Action::Release(credential(&first)))).expect("released");
    credential(&limited.acquire("ada", large("e", 50)));
    kernel::invariants::check(limited.0.kernel()).expect("the counts are correct");
}

/// A client that had lost the response to its last request within the limit could not retry it.
#[test]
fn a_retry_of_a_granted_request_is_not_refused() {
    let max = large("a", 50).footprint();
    let mut limited =
        Limited::new(MemoryLimits { lease_bytes_per_identity_max: max, ..MemoryLimits::default() });
    let request = IdempotencyKey { key: RequestKey([7; 16]), fingerprint: [1; 16] };
    let command = Command::by(&identity("ada"), Action::Acquire(large("a", 50))).with_request(request);
    for _ in 0..3 {
        credential(&limited.send(command.clone()));
    }
}

/// Each shard had the whole limit: sixteen shards together exceeded it sixteenfold.
#[test]
fn shards_share_the_limit_of_all() {
    let limits = MemoryLimits { lease_bytes_max: large("a", 50).footprint(), ..MemoryLimits::default() };
    let budget = MemoryBudget::new(limits);
    let mut first = Limited::sharing(&budget, &TENURE);
    let mut second = Limited::sharing(&budget, &TENURE);
    credential(&first.acquire("ada", large("a", 49)));
    let refused = second.acquire("bob", large("b", 49));
    assert!(is_exceeded(&refused, "lease_bytes_max", false), "{refused:?}");
    credential(&second.acquire("bob", small("k")));
    drop(first);
    credential(&second.acquire("bob", large("b", 49)));
}

/// The limits of an identity held for each shard: with rights on namespaces of several shards, one identity could occupy
/// all of the memory that the shards share.
#[test]
fn shards_share_the_limits_of_an_identity() {
    let max = 2 * large("a", 50).footprint();
    let limits = MemoryLimits { lease_bytes_per_identity_max: max, ..MemoryLimits::default() };
    let budget = MemoryBudget::new(limits);
    let [mut first, mut second, mut third] = [(); 3].map(|()| Limited::sharing(&budget, &TENURE));
    let lease = credential(&first.acquire("ada", large("a", 50)));
    credential(&second.acquire("ada", large("b", 49)));
    let refused = third.acquire("ada", large("c", 49));
    assert!(is_exceeded(&refused, "lease_bytes_per_identity_max", true), "{refused:?}");
    credential(&third.acquire("bob", large("c", 49)));
    credential(&third.acquire("ada", small("k")));
    first.send(Command::by(&identity("ada"), Action::Release(lease))).expect("released");
    credential(&third.acquire("ada", large("d", 49)));
    // A stopped shard occupies nothing.
    drop(second);
    credential(&first.acquire("ada", large("e", 50)));
}

/// Waiters were a number too: 760 waiting bundles of long names took 150 MB.
#[test]
fn waiters_have_limits_of_bytes_and_count_as_the_leases_that_they_wait_for() {
    let waiters_max = 20_000;
    let limits = MemoryLimits {
        waiter_bytes_per_identity_max: waiters_max,
        lease_bytes_per_identity_max: 3 * small("k").footprint(),
        ..MemoryLimits::default()
    };
    let mut limited = Limited::new(limits);
    credential(&limited.acquire("holder", small("k")));
    assert!(limited.wait("ada", small("k")).is_none(), "it waits");
    let refused = limited.wait("ada", large("k", 30)).expect("a refusal");
    assert!(is_exceeded(&refused, "lease_bytes_per_identity_max", true), "{refused:?}");
    assert!(limited.wait("ada", small("k")).is_none(), "it waits");
    assert!(limited.wait("ada", small("k")).is_none(), "it waits");
    let refused = limited.wait("ada", small("k")).expect("a refusal");
    assert!(is_exceeded(&refused, "lease_bytes_per_identity_max", true), "{refused:?}");

    let limits = MemoryLimits { waiter_bytes_per_identity_max: waiters_max, ..MemoryLimits::default() };
    let mut limited = Limited::new(limits);
    credential(&limited.acquire("holder", small("k")));
    let queued = (0..100).take_while(|_| limited.wait("ada", small("k")).is_none()).count();
    assert!((1..10).contains(&queued), "{queued} waiters");
    let refused = limited.wait("ada", small("k")).expect("a refusal");
    assert!(is_exceeded(&refused, "waiter_bytes_per_identity_max", true), "{refused:?}");
    assert!(limited.wait("bob", small("k")).is_none(), "another identity waits");
    assert!(
        matches!(limited.acquire("ada", small("k")), Ok(Decision::Blocked(_))),
        "without waiting: no limit"
    );
}

#[test]
fn all_waiters_together_have_a_limit() {
    let limits = MemoryLimits { waiter_bytes_max: 20_000, ..MemoryLimits::default() };
    let mut limited = Limited::new(limits);
    credential(&limited.acquire("holder", small("k")));
    let queued = (0..100).take_while(|n| limited.wait(&format!("w{n}"), small("k")).is_none()).count();
    assert!((1..10).contains(&queued), "{queued} waiters");
    let refused = limited.wait("another", small("k")).expect("a refusal");
    assert!(is_exceeded(&refused, "waiter_bytes_max", false), "{refused:?}");
}

/// A worker with rights on all namespaces filled the table of namespaces in seconds, and no one could make another.
#[test]
fn an_identity_has_a_limit_of_namespaces() {
    let limits = MemoryLimits { namespaces_per_identity_max: 2, ..MemoryLimits::default() };
    let mut limited = Limited::new(limits);
    let within = |name: &str| {
        let namespace = Namespace::new(name).expect("a name");
        LeaseRequest { namespace, ..small("k") }
    };
    credential(&limited.acquire("ada", within("one")));
    credential(&limited.acquire("ada", within("two")));
    let refused = limited.acquire("ada", within("three"));
    assert!(is_exceeded(&refused, "namespaces_per_identity_max", true), "{refused:?}");
    credential(&limited.acquire("bob", within("three")));
    credential(
        &limited.acquire("ada", LeaseRequest { namespace: within("one").namespace, ..small("other") }),
    );
}

#[test]
fn the_documents_of_a_namespace_have_a_limit_of_bytes() {
    let limits = MemoryLimits { document_bytes_per_namespace_max: 1000, ..MemoryLimits::default() };
    let mut limited = Limited::new(limits);
    let lease = limited.acquire("ada", small("k"));
    let lease = credential(&lease);
    let other = credential(&limited.acquire("ada", small("other")));
    let applied = |reply: &Reply| matches!(reply, Ok(Decision::Outcome(Outcome::Applied(..))));
    assert!(applied(&limited.commit("ada", lease, "k", 900)));
    assert!(applied(&limited.commit("ada", lease, "k", 1000)), "it replaces the first version");
    let refused = limited.commit("ada", other, "other", 1);
    assert!(is_exceeded(&refused, "document_bytes_per_namespace_max", true), "{refused:?}");
    assert!(applied(&limited.commit("ada", lease, "k", 10)), "a shorter version");
    assert!(applied(&limited.commit("ada", other, "other", 990)));
    kernel::invariants::check(limited.0.kernel()).expect("the counts are correct");
}

/// Short documents of long names in one namespace used up the memory for names: no other namespace could have a new document
/// until an operator removed them.
#[test]
fn the_names_of_documents_of_a_namespace_have_a_limit_of_their_own() {
    let limits = MemoryLimits {
        document_name_bytes_max: 20_000,
        document_name_bytes_per_namespace_max: 10_000,
        ..MemoryLimits::default()
    };
    let mut limited = Limited::new(limits);
    let mut commit = |namespace: &str, name: &str| {
        let namespace = Namespace::new(namespace).expect("a name");
        let lease = credential(&limited.acquire("ada", LeaseRequest { namespace, ..small(name) }));
        limited.commit("ada", lease, name, 2)
    };
    let applied = |reply: &Reply| matches!(reply, Ok(Decision::Outcome(Outcome::Applied(..))));
    let name = |n: usize| format!("{}-{n}", "x".repeat(400));
    let written = (0..100).take_while(|n| applied(&commit("one", &name(*n)))).count();
    assert!((5..30).contains(&written), "{written} documents");
    let refused = commit("one", "short");
    assert!(is_exceeded(&refused, "document_name_bytes_per_namespace_max", true), "{refused:?}");
    assert!(applied(&commit("two", "k")), "another namespace");
    kernel::invariants::check(limited.0.kernel()).expect("the counts are correct");
}
