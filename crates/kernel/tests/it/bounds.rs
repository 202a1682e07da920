//! Everything that can grow has a limit, and no operation costs more because tables are large.

use kernel::{
    Action, Age, AgentName, Bundle, Cursor, Limits, Outcome, PAGE_ROWS, Predicate, Rejection, Renewal,
    Response, SessionName, Span, State, Time,
};
use sim::fixture::{TestKernel, default_namespace, grant, held, key, one};

/// The number of single-key leases that one command ends, besides the leases it touches.
const STEP: usize = 256;

/// Ticks until no lease is overdue; each tick must stay within the limit of one command.
fn settle(world: &mut TestKernel) -> usize {
    let mut steps = 0;
    while world.kernel.next_due().is_some_and(|due| due <= world.now) {
        match world.tick() {
            Outcome::Applied(Response::Ticked, events) => assert!(events.len() <= STEP),
            other => panic!("a tick with overdue leases must apply: {other:?}"),
        }
        steps += 1;
    }
    steps
}

#[test]
fn a_storm_of_expiries_takes_bounded_steps_and_none_is_honoured_late() {
    let storm = 100_000;
    let mut world = TestKernel::new(Limits { history_max: 1000, ..Limits::default() });
    let leases: Vec<_> =
        (0..storm).map(|n| world.acquire("ada", key(&format!("k{n}")), Span(1000)).expect("free")).collect();
    world.now = Time(1001);

    // No lease has been settled, and none has authority.
    let (first, last) = (&leases[0], &leases[leases.len() - 1]);
    for lease in [first, last] {
        assert_eq!(world.kernel.lease(lease.lease, world.now).expect("known").state, State::Expired);
        let renewal = Action::Renew(vec![Renewal { held: held(lease), ttl: None }]);
        let refused = Response::Renewed(vec![Err(Rejection::LeaseExpired)]);
        assert_eq!(world.by("ada", renewal), Outcome::Unchanged(refused));
    }
    // A command settles the leases it touches, even if others have been overdue for longer.
    assert!(world.acquire("bob", key(&format!("k{}", storm - 1)), Span(60_000)).is_ok());
    let steps = settle(&mut world);
    assert_eq!(steps, (storm - 1 - STEP).div_ceil(STEP));
    assert_eq!(world.kernel.counts().leases, 1);
    kernel::invariants::check(&world.kernel).expect("all invariants hold");
}

/// A command settles the leases it touches, but the work of one command stays bounded.
#[test]
fn more_expired_leases_than_one_command_may_end_conflict_until_ticks_end_them() {
    let mut world = TestKernel::new(Limits::default());
    for _ in 0..STEP + 10 {
        world.acquire("reader", one(Predicate::Consumes, "KEY:shared"), Span(1000)).expect("readers share");
    }
    world.now = Time(1001);
    let before = world.kernel.snapshot();
    let refused = world.acquire("writer", one(Predicate::Mutates, "KEY:shared"), Span(1000));
    let Err(Rejection::Conflict(conflict)) = refused else {
        panic!("too many expired leases to end at once: {refused:?}")
    };
    assert!(conflict.holders.is_empty(), "expired leases are not listed as holders");
    assert_eq!(conflict.oldest, Age::YOUNGEST, "and every attempt may wait for them");
    assert_eq!(world.kernel.snapshot(), before);

    world.tick();
    assert!(world.acquire("writer", one(Predicate::Mutates, "KEY:shared"), Span(1000)).is_ok());
    settle(&mut world);
    assert_eq!(world.kernel.counts().leases, 1);
}

#[test]
fn state_left_behind_by_clients_is_bounded() {
    let mut world =
        TestKernel::new(Limits { history_max: 100, history_window: Span(5000), ..Limits::default() });
    for n in 0..5000_u64 {
        let mut wanted =
            grant(one(Predicate::Mutates, &format!("FILE:/d{}/e{}/f{n}", n % 7, n % 31)), Span(50));
        wanted.agent = Some(AgentName::new(&format!("agent-{n}")).expect("valid"));
        wanted.session = Some(SessionName::new(&format!("session-{n}")).expect("valid"));
        let outcome = world.by(&format!("identity-{n}"), Action::Acquire(wanted));
        assert!(matches!(outcome, Outcome::Applied(..)), "{outcome:?}");
        world.acquire("ada", key(&format!("key-{n}")), Span(50)).expect("free");
        world.now = world.now.after(Span(100));
    }
    settle(&mut world);
    let counts = world.kernel.counts();
    assert_eq!((counts.leases, counts.nodes, counts.sessions), (0, 0, 0), "{counts:?}");
    assert!(counts.history <= 100 + 2 * STEP, "{counts:?}");
    assert!(counts.agents <= 3001, "idle agents are removed after five minutes: {counts:?}");

    // Time alone clears the rest.
    world.now = world.now.after(Span(600_000));
    for _ in 0..100 {
        world.tick();
    }
    let counts = world.kernel.counts();
    assert_eq!(
        (counts.history, counts.agents, counts.accounts, counts.namespaces),
        (0, 0, 0, 0),
        "{counts:?}"
    );
}

/// With only the number of leases limited, one client with bundles of deep paths took gigabytes of memory,
/// and one tick over them took half a second: the claims of a lease must count, in memory and in work.
#[test]
fn large_leases_count_by_their_number_of_claims() {
    let deep = |n: usize| {
        let path = |m: usize| format!("FILE:/{n}/{m}{}", "/d".repeat(kernel::ResourceName::MAX_SEGMENTS - 2));
        let members = (0..Bundle::MAX_MEMBERS).map(|m| sim::fixture::member(Predicate::Mutates, &path(m)));
        Bundle::new(members.collect()).expect("the maximum number of members")
    };
    let mut world = TestKernel::new(Limits { nodes_max: 40_000, ..Limits::default() });
    let granted = (0..100).map_while(|n| world.acquire("ada", deep(n), Span(1000)).ok()).count();
    assert!((3..10).contains(&granted), "{granted}");
    assert_eq!(
        world.acquire("ada", deep(99), Span(1000)),
        Err(Rejection::Full { table: kernel::BoundedTable::Nodes, max: 40_000 })
    );

    world.now = Time(1001);
    let Outcome::Applied(_, events) = world.tick() else { panic!("all leases are overdue") };
    assert_eq!(events.len(), 1, "one large lease fills a step");
    assert_eq!(settle(&mut world), granted - 1);

    let mut world = TestKernel::new(Limits { history_members_max: 300, ..Limits::default() });
    for n in 0..10 {
        let granted = world.acquire("ada", deep(n), Span(1000)).expect("below the limit");
        world.by("ada", Action::Release(held(&granted)));
    }
    assert!(world.kernel.counts().history <= 3, "{:?}", world.kernel.counts());
}

/// A client with access to any namespace could exhaust all namespaces for good, with one short lease in
/// each.
#[test]
fn an_empty_namespace_is_removed_and_its_versions_are_not_reused() {
    let limits = Limits { namespaces_max: 2, history_window: Span(100), ..Limits::default() };
    let mut world = TestKernel::new(limits);
    let in_space = |name: &str| {
        let mut wanted = grant(key("k"), Span(1000));
        wanted.namespace = kernel::Namespace::new(name).expect("a valid name");
        wanted
    };
    let mut versions = Vec::new();
    for n in 0..10 {
        let outcome = world.by("ada", Action::Acquire(in_space(&format!("space-{n}"))));
        let Outcome::Applied(Response::Granted(granted), _) = outcome else {
            panic!("below the limit: {outcome:?}")
        };
        let write = write_of(&granted, "k");
        let commit = kernel::Commit {
            write: write.clone(),
            etag: kernel::Etag([1; 32]),
            bytes: 1,
            location: kernel::Location { number: 1, ..kernel::Location::default() },
        };
        let Outcome::Applied(Response::Committed(version), _) = world.by("ada", Action::Commit(commit))
        else {
            panic!("the holder commits")
        };
        versions.push(version);
        let removal = kernel::Removal { write: kernel::Write { release: true, ..write } };
        assert!(matches!(world.by("ada", Action::Remove(removal)), Outcome::Applied(..)));
        world.now = world.now.after(Span(101));
        world.tick();
        assert_eq!(
            world.kernel.namespaces_page(Cursor::default(), PAGE_ROWS).rows,
            [],
            "the namespace is empty"
        );
    }
    assert!(versions.windows(2).all(|pair| pair[0] < pair[1]), "{versions:?}");
}

fn write_of(granted: &kernel::Granted, name: &str) -> kernel::Write {
    kernel::Write {
        held: held(granted),
        key: kernel::ResourceName::key(name).expect("a valid key"),
        token: None,
        if_version: None,
        if_etag: None,
        release: false,
    }
}

#[test]
fn versions_keep_increasing_although_deleted_keys_leave_no_row() {
    let mut world = TestKernel::new(Limits::default());
    let mut last = 0;
    for _ in 0..50 {
        let lease = world.acquire("ada", key("reborn"), Span(1000)).expect("free");
        let write = write_of(&lease, "reborn");
        let (etag, location) =
            (kernel::Etag([1; 32]), kernel::Location { number: 1, ..kernel::Location::default() });
        let commit = kernel::Commit { write: write.clone(), etag, bytes: 2, location };
        let Outcome::Applied(Response::Committed(version), _) = world.by("ada", Action::Commit(commit))
        else {
            panic!("the holder commits")
        };
        assert!(version.0 > last, "{version:?} after {last}");
        last = version.0;
        let gone = kernel::Removal { write: kernel::Write { release: true, ..write } };
        assert!(matches!(world.by("ada", Action::Remove(gone)), Outcome::Applied(..)));
        assert_eq!(world.kernel.counts().nodes, 0);
    }
}

#[test]
fn the_oldest_of_many_readers_is_reported() {
    let mut world = TestKernel::new(Limits::default());
    world.now = Time(1_000_000);
    for n in 0..5000_u64 {
        let mut reader = grant(one(Predicate::Consumes, "FILE:/a/b/shared"), Span(60_000));
        reader.attempt = Some(Age { at: Time(500_000 + n * 7919 % 5000), tie: n });
        assert!(matches!(world.by("reader", Action::Acquire(reader)), Outcome::Applied(..)));
    }
    let oldest = |world: &TestKernel, resource: &str| {
        let wanted = one(Predicate::Mutates, resource);
        let conflict =
            world.kernel.conflict(&default_namespace(), &wanted, world.now).expect("readers are there");
        assert_eq!(conflict.holders.len(), kernel::Conflict::SHOWN_MAX);
        conflict.oldest.at
    };
    for resource in ["FILE:/a/b/shared", "FILE:/a/b/*", "FILE:/a/*", "FILE:/*"] {
        assert_eq!(oldest(&world, resource), Time(500_000));
    }
    assert!(world.acquire("provider", one(Predicate::Provides, "FILE:/a/b/shared"), Span(1000)).is_ok());
}

#[test]
fn a_full_table_rejects_new_entries_and_loses_none() {
    let mut world =
        TestKernel::new(Limits { leases_max: 2, leases_per_identity_max: 1, ..Limits::default() });
    let a = world.acquire("ada", key("a"), Span(1000)).expect("below the limit");
    assert_eq!(world.acquire("ada", key("b"), Span(1000)), Err(Rejection::QuotaExceeded { max: 1 }));
    world.acquire("bob", key("b"), Span(1000)).expect("below the limit");
    assert_eq!(
        world.acquire("eve", key("c"), Span(1000)),
        Err(Rejection::Full { table: kernel::BoundedTable::Leases, max: 2 })
    );
    // Conflicting leases that have expired do not count: they end in the same step.
    world.now = Time(1001);
    assert!(world.acquire("eve", key("a"), Span(1000)).is_ok());
    assert_eq!(world.kernel.lease(a.lease, world.now).expect("history").state, State::Expired);
}

#[test]
fn a_bundle_of_deep_paths_is_granted_and_leaves_nothing_behind() {
    let mut world = TestKernel::new(Limits::default());
    let deep = |n: usize| format!("FILE:/{n}{}", "/d".repeat(kernel::ResourceName::MAX_SEGMENTS - 1));
    let members = (0..Bundle::MAX_MEMBERS).map(|n| sim::fixture::member(Predicate::Mutates, &deep(n)));
    let bundle = Bundle::new(members.collect()).expect("the maximum number of members");
    let granted = world.acquire("ada", bundle.clone(), Span(1000)).expect("free");
    assert!(matches!(world.acquire("bob", bundle, Span(1000)), Err(Rejection::Conflict(_))));
    kernel::invariants::check(&world.kernel).expect("all invariants hold");
    world.by("ada", Action::Release(held(&granted)));
    assert_eq!(world.kernel.counts().nodes, 0);
}
