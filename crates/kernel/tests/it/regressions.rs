//! Known faults of lease services, each with its story. None may return.

use kernel::{
    Action, Age, Bundle, Command, Credential, InvalidRecord, Kernel, LeaseRequest, Limits, OnExpiry, Outcome,
    Pause, Paused, Predicate, Rejection, Renewal, Response, Scope, Span, State, Time, Verdict, judge,
};
use sim::fixture::{TestKernel, default_namespace, grant, held, identity, key, member, one};

fn world() -> TestKernel {
    let mut world = TestKernel::new(Limits::default());
    world.now = Time(10_000);
    world
}

fn renewal(held: Credential) -> Action {
    Action::Renew(vec![Renewal { held, ttl: None }])
}

fn only_result(outcome: &Outcome) -> Result<Time, Rejection> {
    match outcome {
        Outcome::Applied(Response::Renewed(results), _) | Outcome::Unchanged(Response::Renewed(results)) => {
            results[0].as_ref().map(|live| live.deadline).map_err(Clone::clone)
        }
        other => panic!("unexpected outcome of a renewal: {other:?}"),
    }
}

/// Lease ids were derived from the holder and the millisecond. A holder that acquired two resources within
/// one millisecond got the same id twice, and releasing one released the other.
#[test]
fn two_acquires_by_one_holder_in_the_same_millisecond_are_two_leases() {
    let mut world = world();
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    let b = world.acquire("ada", key("b"), Span(1000)).expect("free");
    assert_ne!(a.lease, b.lease);
    assert!(a.token < b.token);
    world.by("ada", Action::Release(held(&a)));
    assert_eq!(world.kernel.lease(b.lease, world.now).expect("known").state, State::Active);
    assert!(matches!(world.acquire("bob", key("b"), Span(1000)), Err(Rejection::Conflict(_))));
}

/// A service trusted the holder name in the request and let other clients renew and release by guessing
/// ids.
#[test]
fn an_identity_without_the_lease_has_no_authority() {
    let mut world = world();
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    let before = world.kernel.snapshot();
    for action in [Action::Release(held(&a)), Action::Touch(held(&a)), Action::Rebind(held(&a))] {
        assert_eq!(world.by("stranger", action), Outcome::Rejected(Rejection::NotHeld));
    }
    assert_eq!(only_result(&world.by("stranger", renewal(held(&a)))), Err(Rejection::NotHeld));
    let anonymous = Command { identity: None, request: None, action: Action::Release(held(&a)) };
    assert_eq!(
        world.apply(&anonymous),
        Outcome::Rejected(Rejection::InvalidRecord(InvalidRecord::NoIdentity))
    );
    assert_eq!(world.kernel.snapshot(), before);
}

/// The writer was compared with the first reader in a list. Whether it waited or died depended on the
/// order of the readers; if it waited for the older one, a deadlock cycle could form.
#[test]
fn a_mid_age_writer_against_an_older_and_a_younger_reader_dies_in_either_order() {
    for ages in [[1000, 3000], [3000, 1000]] {
        let mut world = world();
        for at in ages {
            let mut reader = grant(one(Predicate::Consumes, "FILE:/x"), Span(60_000));
            reader.attempt = Some(Age { at: Time(at), tie: 0 });
            assert!(matches!(world.by("reader", Action::Acquire(reader)), Outcome::Applied(..)));
        }
        let wanted = one(Predicate::Mutates, "FILE:/x");
        let conflict =
            world.kernel.conflict(&default_namespace(), &wanted, world.now).expect("readers are there");
        let judged = |at| judge(Age { at: Time(at), tie: 0 }, [conflict.oldest], []);
        assert_eq!((judged(500), judged(2000), judged(4000)), (Verdict::Wait, Verdict::Die, Verdict::Die));
    }
}

/// Expiry was checked by a sweeper once a second. A heartbeat that arrived after the deadline but before
/// the sweep revived a lease whose holder had already stopped by its own clock.
#[test]
fn a_heartbeat_one_millisecond_after_expiry_is_rejected_before_any_sweep() {
    let mut world = world();
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    world.now = a.deadline;
    assert_eq!(only_result(&world.by("ada", renewal(held(&a)))), Ok(a.deadline.after(Span(1000))));
    world.now = a.deadline.after(Span(1001));
    assert_eq!(only_result(&world.by("ada", renewal(held(&a)))), Err(Rejection::LeaseExpired));
    assert!(world.acquire("bob", key("a"), Span(1000)).is_ok());
}

/// A rejected heartbeat still updated the lease's `last seen`, which kept its agent alive, and counted
/// against a rate limit. Refusals must leave no trace, not even in time or the log.
#[test]
fn a_refused_heartbeat_leaves_no_trace() {
    let mut world = world();
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    let before = world.kernel.snapshot();
    world.now = a.deadline.after(Span(1));
    let refused = [
        world.by("ada", renewal(held(&a))),
        world.by("bob", renewal(held(&a))),
        world.by("ada", Action::Renew(vec![])),
        world.by("ada", renewal(Credential { epoch: kernel::Epoch(9), ..held(&a) })),
    ];
    assert!(refused.iter().all(|outcome| !matches!(outcome, Outcome::Applied(..))), "{refused:?}");
    assert_eq!(world.kernel.snapshot(), before);
}

/// `now + ttl` wrapped around for a TTL of `u64::MAX`, and the lease had expired before it began; in
/// another service it panicked and took the process down.
#[test]
fn a_ttl_of_u64_max_is_refused_everywhere_and_overflows_nowhere() {
    let mut world = world();
    let refused = world.acquire("ada", key("a"), Span(u64::MAX));
    assert_eq!(refused, Err(Rejection::InvalidTtl { max: Limits::default().ttl_max }));
    assert_eq!(world.acquire("ada", key("a"), Span(0)), Err(Rejection::InvalidTtl { max: Span(300_000) }));
    let mut endless = grant(key("a"), Span(1000));
    endless.on_expiry = OnExpiry::Hold(Span(u64::MAX));
    assert!(matches!(
        world.by("ada", Action::Acquire(endless)),
        Outcome::Rejected(Rejection::InvalidHold { .. })
    ));

    let a = world.acquire("ada", key("a"), Span(300_000)).expect("the longest TTL is valid");
    let longest = Action::Renew(vec![Renewal { held: held(&a), ttl: Some(Span(u64::MAX)) }]);
    assert!(matches!(only_result(&world.by("ada", longest)), Err(Rejection::InvalidTtl { .. })));

    // Nothing overflows at the latest valid time either.
    world.now = Time::MAX;
    let last = world.acquire("ada", key("b"), Span(300_000)).expect("free");
    assert_eq!(last.deadline, Time::MAX.after(Span(300_000)));
}

/// A clock was set back by an hour. Expired leases were live again, and two holders used one resource
/// until the clock had caught up.
#[test]
fn decreasing_times_and_non_increasing_lsns_are_rejected() {
    let mut world = world();
    world.acquire("ada", key("a"), Span(1000)).expect("free");
    let before = world.kernel.snapshot();
    let tick = Command::by(&identity("ada"), Action::Acquire(grant(key("b"), Span(1000))));
    let misplaced = |why| Outcome::Rejected(Rejection::InvalidRecord(why));
    let last = world.kernel.last_lsn();

    let back = world.kernel.apply(kernel::Lsn(last.0 + 1), Time(9_999), &tick);
    assert_eq!(back, misplaced(InvalidRecord::Time { last: Time(10_000) }));
    for lsn in [last.0, last.0 - 1, 0, u64::MAX] {
        let again = world.kernel.apply(kernel::Lsn(lsn), world.now, &tick);
        assert_eq!(again, misplaced(InvalidRecord::Lsn { last }));
    }
    let beyond = world.kernel.apply(kernel::Lsn(last.0 + 1), Time(u64::MAX), &tick);
    assert_eq!(beyond, misplaced(InvalidRecord::Time { last: Time(10_000) }));
    assert_eq!(world.kernel.snapshot(), before);
}

/// A client retried a release that had timed out. The second one released the lease that another request
/// had been granted in between.
#[test]
fn a_repeated_release_succeeds_and_affects_no_other_lease() {
    let mut world = world();
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    assert!(matches!(world.by("ada", Action::Release(held(&a))), Outcome::Applied(Response::Released, _)));
    let b = world.acquire("ada", key("a"), Span(1000)).expect("free again");
    for _ in 0..3 {
        assert_eq!(world.by("ada", Action::Release(held(&a))), Outcome::Unchanged(Response::Released));
    }
    assert_eq!(world.kernel.lease(b.lease, world.now).expect("known").state, State::Active);

    // Also after its history has been discarded.
    world.by("ada", Action::Release(held(&b)));
    world.now = world.now.after(Span(600_001));
    world.tick();
    assert_eq!(world.kernel.lease(a.lease, world.now), Err(Rejection::Retired));
    assert_eq!(world.by("ada", Action::Release(held(&a))), Outcome::Unchanged(Response::Released));
}

/// One waiter in the wait queue of the test below.
struct Waiter {
    age: Age,
    bundle: Bundle,
}

/// Three agents and two resources. `B` holds `y` and the youngest, `C`, holds `x`; `A` is the oldest. `A`
/// queues for `x`, and `B` behind it: older than the holder `C`, and waiters were not considered. `C`
/// releases, `A` is granted `x` and requests `y`; older than `B`, it waits. `A` waits for `B` and `B` for
/// `A`: a deadlock.
#[test]
fn wait_die_considers_waiters_so_three_agents_cannot_deadlock() {
    let (a, b, c) = (Age { at: Time(1), tie: 0 }, Age { at: Time(2), tie: 0 }, Age { at: Time(3), tie: 0 });
    let mut world = world();
    let hold = |world: &mut TestKernel, who: &str, resource: &str, age| {
        let mut wanted = grant(one(Predicate::Mutates, resource), Span(60_000));
        wanted.attempt = Some(age);
        match world.by(who, Action::Acquire(wanted)) {
            Outcome::Applied(Response::Granted(granted), _) => granted,
            other => panic!("not granted: {other:?}"),
        }
    };
    hold(&mut world, "B", "FILE:/y", b);
    let x = hold(&mut world, "C", "FILE:/x", c);

    let mut queue: Vec<Waiter> = Vec::new();
    let verdict = |kernel: &Kernel, queue: &[Waiter], now, age, resource: &str| {
        let bundle = one(Predicate::Mutates, resource);
        let holders = kernel.conflict(&default_namespace(), &bundle, now).map(|conflict| conflict.oldest);
        let waiters =
            queue.iter().filter(|waiter| waiter.bundle.conflicts_with(&bundle)).map(|waiter| waiter.age);
        judge(age, holders, waiters)
    };
    assert_eq!(verdict(&world.kernel, &queue, world.now, a, "FILE:/x"), Verdict::Wait);
    queue.push(Waiter { age: a, bundle: one(Predicate::Mutates, "FILE:/x") });
    // Older than the holder, but not than the waiter: this breaks the cycle.
    assert_eq!(verdict(&world.kernel, &queue, world.now, b, "FILE:/x"), Verdict::Die);
    assert_eq!(judge(b, [c], []), Verdict::Wait, "compared with the holders only, it would wait");

    world.by("C", Action::Release(held(&x)));
    queue.clear();
    hold(&mut world, "A", "FILE:/x", a);
    assert_eq!(verdict(&world.kernel, &queue, world.now, a, "FILE:/y"), Verdict::Wait);
}

/// A bundle over a directory and a file in it conflicted with itself and could never be granted.
#[test]
fn a_bundle_never_conflicts_with_itself() {
    let mut world = world();
    let members = vec![member(Predicate::Mutates, "FILE:/dir/*"), member(Predicate::Consumes, "FILE:/dir/a")];
    let bundle = Bundle::new(members).expect("two different resources");
    let granted = world.acquire("ada", bundle, Span(1000)).expect("free");
    assert!(world.acquire("bob", one(Predicate::Consumes, "FILE:/dir/a"), Span(1)).is_err());
    world.by("ada", Action::Release(held(&granted)));
    assert!(world.acquire("bob", one(Predicate::Mutates, "FILE:/*"), Span(1000)).is_ok());
}

/// A grant looked up its account, then removed an agent that was overdue for removal, and with the agent's
/// reference the account. The next line used the account. It took more overdue agents than one command
/// removes, so no smaller test had reached it.
#[test]
fn an_agent_that_returns_after_its_removal_was_due_is_new() {
    let limits = Limits { step_max: 1, history_max: 0, ..Limits::default() };
    let mut world = TestKernel::new(limits);
    let with_agent = |who: &str, n: u64| {
        let mut wanted = grant(key(&format!("{who}-{n}")), Span(10));
        wanted.agent = Some(kernel::AgentName::new(who).expect("a valid name"));
        wanted
    };
    for who in ["ada", "bob", "eve", "zoe"] {
        assert!(matches!(world.by(who, Action::Acquire(with_agent(who, 1))), Outcome::Applied(..)));
    }
    world.now = Time(11);
    while matches!(world.tick(), Outcome::Applied(..)) {}
    world.now = Time(11 + 300_001);
    let outcome = world.by("zoe", Action::Acquire(with_agent("zoe", 2)));
    assert!(matches!(outcome, Outcome::Applied(..)), "{outcome:?}");
    kernel::invariants::check(&world.kernel).expect("all invariants hold");
}

/// The idle quota ends a lease for good. But a lease that expired by its TTL could be rebound, and a
/// rebind counted as use: a client with a short TTL and a long hold stayed idle for ever.
#[test]
fn a_rebind_is_no_activity_so_the_idle_quota_ends_a_lease_that_is_only_rebound() {
    let mut world = world();
    let quota = kernel::Quota { idle_max: Some(Span(1000)), ..kernel::Quota::default() };
    let scope = kernel::Scope::default();
    assert!(matches!(
        world.by("root", Action::SetQuota(kernel::SetQuota { scope, quota })),
        Outcome::Applied(..)
    ));
    let mut wanted = grant(key("desk"), Span(300));
    wanted.on_expiry = OnExpiry::Hold(Span(60_000));
    let Outcome::Applied(Response::Granted(mut granted), _) = world.by("idler", Action::Acquire(wanted))
    else {
        panic!("the resource is free")
    };
    let mut rebinds = 0;
    loop {
        world.now = granted.deadline.after(Span(1));
        match world.by("idler", Action::Rebind(held(&granted))) {
            Outcome::Applied(Response::Granted(again), _) => granted = again,
            Outcome::Rejected(Rejection::LeaseExpired) => break,
            other => panic!("unexpected outcome of a rebind: {other:?}"),
        }
        rebinds += 1;
        assert!(rebinds < 10, "idle for ever");
    }
    assert!(world.now <= Time(10_000 + 1001));
}

/// An operator paused an identity to drain it. Its expired leases were on hold, and it took them back.
#[test]
fn a_paused_identity_cannot_rebind() {
    let mut world = world();
    let request = LeaseRequest { on_expiry: OnExpiry::Manual, ..grant(key("a"), Span(1000)) };
    let granted = match world.by("ada", Action::Acquire(request)) {
        Outcome::Applied(Response::Granted(granted), _) => granted,
        other => panic!("not granted: {other:?}"),
    };
    world.now = Time(11_001);
    let scope = Scope { namespace: None, identity: Some(identity("ada")) };
    let pause = |paused| Action::Pause(Pause { whom: Paused::Scope(scope.clone()), paused });
    world.by("operator", pause(true));
    let rebind = Action::Rebind(held(&granted));
    assert_eq!(world.by("ada", rebind.clone()), Outcome::Rejected(Rejection::Paused));
    world.by("operator", pause(false));
    assert!(matches!(world.by("ada", rebind), Outcome::Applied(Response::Granted(_), _)));
}

/// Each retracted grant left a gap in the queue of stored responses, behind the first valid one: clients
/// that only connected and disconnected exhausted the memory.
#[test]
fn retracted_grants_leave_no_idempotency_entries() {
    let mut world = TestKernel::new(Limits { requests_max: 3, ..Limits::default() });
    let request = |n: u8| kernel::IdempotencyKey { key: kernel::RequestKey([n; 16]), fingerprint: [0; 16] };
    let acquire = |name: &str, n: u8| {
        let action = Action::Acquire(grant(key(name), Span(60_000)));
        Command::by(&identity("ada"), action).with_request(request(n))
    };
    assert!(matches!(world.apply(&acquire("kept", 1)), Outcome::Applied(..)));
    for _ in 0..1000 {
        let Outcome::Applied(Response::Granted(granted), _) = world.apply(&acquire("gone", 2)) else {
            panic!("below the limit")
        };
        let retraction = kernel::Retraction { lease: granted.lease, request: Some(request(2).key) };
        assert!(matches!(world.apply(&Command::internal(Action::Retract(retraction))), Outcome::Applied(..)));
        assert_eq!(world.kernel.counts().requests, 1);
    }
    assert_eq!(world.kernel.snapshot().requests.len(), 1);
}

/// The identity of an operator was optional, so the audit trail could not say which operator had revoked a
/// lease.
#[test]
fn operator_commands_require_an_identity() {
    let mut world = world();
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    for action in [Action::Revoke(a.lease), Action::Reclaim(a.lease)] {
        let anonymous = Command { identity: None, request: None, action };
        assert_eq!(
            world.apply(&anonymous),
            Outcome::Rejected(Rejection::InvalidRecord(InvalidRecord::NoIdentity))
        );
    }
}

/// A corrupt snapshot was restored as a kernel with two holders of one key.
#[test]
fn a_snapshot_with_conflicting_leases_is_rejected() {
    let mut world = world();
    world.acquire("ada", key("a"), Span(1000)).expect("free");
    world.acquire("bob", key("b"), Span(1000)).expect("free");
    let good = world.kernel.snapshot();
    assert!(Kernel::restore(&good).is_ok());

    let mut two_holders = good.clone();
    two_holders.leases[1].members = two_holders.leases[0].members.clone();
    assert!(Kernel::restore(&two_holders).is_err());
    let mut twice = good.clone();
    twice.leases[1].lsn = twice.leases[0].lsn;
    assert!(Kernel::restore(&twice).is_err());
    let mut no_authority = good.clone();
    no_authority.leases[0].epoch = kernel::Epoch(2);
    assert!(Kernel::restore(&no_authority).is_err());
    let mut homeless = good;
    homeless.namespaces.clear();
    assert!(Kernel::restore(&homeless).is_err());
}

/// A client removed a document under an idempotency key, and there was none. Its response was lost, it retried, was told
/// so, and wrote a document. Then the first copy of the request arrived, and removed it.
#[test]
fn a_late_copy_of_a_removal_that_found_nothing_removes_nothing() {
    let mut world = world();
    let lease = world.acquire("ada", key("a"), Span(60_000)).expect("free");
    let write = kernel::Write {
        held: held(&lease),
        key: kernel::ResourceName::key("a").expect("valid"),
        token: None,
        if_version: None,
        if_etag: None,
        release: false,
    };
    let removal = Action::Remove(kernel::Removal { write: write.clone() });
    let request = kernel::IdempotencyKey { key: kernel::RequestKey([7; 16]), fingerprint: [0; 16] };
    let keyed = Command::by(&identity("ada"), removal.clone()).with_request(request);
    let nothing = |outcome: &Outcome| {
        matches!(
            outcome,
            Outcome::Applied(Response::Removed { removed: false, .. }, _)
                | Outcome::Unchanged(Response::Removed { removed: false, .. })
        )
    };
    assert!(nothing(&world.apply(&keyed)));
    let commit = kernel::Commit {
        write,
        etag: kernel::Etag([1; 32]),
        bytes: 2,
        location: kernel::Location::default(),
    };
    assert!(matches!(world.by("ada", Action::Commit(commit)), Outcome::Applied(..)));
    assert!(nothing(&world.apply(&keyed)), "a replay");
    let name = kernel::ResourceName::key("a").expect("valid");
    assert!(world.kernel.key(&default_namespace(), &name).expect("a key").document.is_some());
    assert!(!nothing(&world.by("ada", removal)), "without a key it is a new request");
}

/// A revoked lease kept the deadline that it would have had: views told its holder an end of authority that moved with
/// every look, up to that deadline.
#[test]
fn the_deadline_of_a_revoked_lease_is_the_moment_of_the_revoke() {
    let mut world = world();
    let lease = world.acquire("ada", key("a"), Span(60_000)).expect("free");
    world.now = Time(12_000);
    assert!(matches!(world.by("root", Action::Revoke(lease.lease)), Outcome::Applied(..)));
    world.now = Time(20_000);
    let view = world.kernel.lease(lease.lease, world.now).expect("known");
    assert_eq!((view.state, view.deadline), (State::Revoking, Time(12_000)));
}
