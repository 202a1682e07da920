//! Queries: reads that change nothing.

use std::collections::BTreeSet;

use kernel::{
    Action, Age, AgentAnnouncement, AgentName, AgentState, Bundle, Cursor, Granted, LeaseEnd, LeaseRequest,
    Limits, Namespace, OnExpiry, Outcome, Pause, Paused, Predicate, Rejection, ResourceName, Response, Span,
    State, Time,
};
use sim::fixture::{TestKernel, default_namespace, grant, held, identity, key, member, one};

fn resource(text: &str) -> ResourceName {
    ResourceName::parse(text, None).expect("a valid name")
}

fn granted(world: &mut TestKernel, who: &str, action: Action) -> Granted {
    match world.by(who, action) {
        Outcome::Applied(Response::Granted(granted), _) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn only_a_lease_on_exactly_this_resource_may_read_its_document() {
    let mut world = TestKernel::new(Limits::default());
    let (ada, eve) = (identity("ada"), identity("eve"));
    let dir = world.acquire("ada", one(Predicate::Consumes, "FILE:/dir/*"), Span(1000)).expect("free");
    let file = world.acquire("ada", one(Predicate::Consumes, "FILE:/dir"), Span(1000)).expect("free");
    let reserved = granted(&mut world, "ada", Action::Reserve(grant(key("k"), Span(1000))));
    let may =
        |who, lease: &Granted, text| world.kernel.may_read(world.now, who, held(lease), &resource(text));
    assert_eq!(may(&ada, &file, "FILE:/dir"), Ok(()));
    assert_eq!(may(&eve, &file, "FILE:/dir"), Err(Rejection::NotHeld));
    assert_eq!(may(&ada, &file, "FILE:/other"), Err(Rejection::NotHeld));
    assert_eq!(
        may(&ada, &dir, "FILE:/dir"),
        Err(Rejection::NotHeld),
        "a subtree lease does not read its directory"
    );
    assert_eq!(may(&ada, &reserved, "KEY:k"), Ok(()), "a reserved lease reads: no other lease can write");
}

#[test]
fn a_list_read_in_pages_shows_every_lease_once() {
    let mut world = TestKernel::new(Limits::default());
    let leases: Vec<_> =
        (0..50).map(|n| world.acquire("ada", key(&format!("k{n}")), Span(1000)).expect("free")).collect();
    for gone in leases.iter().step_by(3) {
        world.by("ada", Action::Release(held(gone)));
    }
    let (mut cursor, mut seen) = (Cursor::default(), Vec::new());
    while let Some((next, view)) = world.kernel.leases_from(cursor, world.now).next() {
        assert!(next > cursor, "every page advances");
        cursor = next;
        seen.push(view.id);
    }
    assert_eq!(seen.len(), world.kernel.counts().leases);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
}

#[test]
fn holders_of_a_resource_include_leases_on_enclosing_subtrees() {
    let mut world = TestKernel::new(Limits::default());
    let reader = |text, ttl, on_expiry| {
        Action::Acquire(LeaseRequest { on_expiry, ..grant(one(Predicate::Consumes, text), Span(ttl)) })
    };
    let manual = granted(&mut world, "ada", reader("FILE:/a/b", 1000, OnExpiry::Manual));
    let over = granted(&mut world, "ada", reader("FILE:/a/b", 1000, OnExpiry::Free));
    let live = granted(&mut world, "ada", reader("FILE:/a/b", 9000, OnExpiry::Free));
    let above = granted(&mut world, "ada", reader("FILE:/a/*", 9000, OnExpiry::Free));
    granted(&mut world, "ada", reader("FILE:/a/b/c", 9000, OnExpiry::Free));
    let revoked = granted(&mut world, "ada", reader("FILE:/a/b", 9000, OnExpiry::Free));
    world.by("root", Action::Revoke(revoked.lease));

    let ids_on = |world: &TestKernel, text| {
        let (namespace, resource) = (default_namespace(), resource(text));
        world.kernel.holders(&namespace, &resource, world.now).iter().map(|view| view.id).collect::<Vec<_>>()
    };
    let ids = |world: &TestKernel| ids_on(world, "FILE:/a/b");
    let is_current = |world: &TestKernel, lease: &Granted| {
        world.kernel.is_current(&default_namespace(), &resource("FILE:/a/b"), lease.token, world.now)
    };
    world.now = Time(1000);
    assert_eq!(ids(&world), [&manual, &over, &live, &above, &revoked].map(|lease| lease.lease));
    assert_eq!(ids_on(&world, "FILE:/a/*"), [above.lease], "leases beneath the subtree do not cover it");
    assert!(is_current(&world, &manual) && is_current(&world, &above) && !is_current(&world, &revoked));

    // Unsettled: one lease has expired although its row exists; the other is on hold until an operator
    // reclaims it.
    world.now = Time(1001);
    assert_eq!(world.kernel.counts().leases, 6);
    assert!(!ids(&world).contains(&over.lease));
    assert!(!is_current(&world, &manual));
    let view = world.kernel.lease(manual.lease, world.now).expect("known");
    assert_eq!((view.held_until, view.age), (Some(Time::NEVER), Age::YOUNGEST));

    // Settled, the lease on hold is the youngest and comes last.
    world.tick();
    assert_eq!(ids(&world), [&live, &above, &manual, &revoked].map(|lease| lease.lease));
}

#[test]
fn an_agent_is_alive_restarting_or_paused() {
    let mut world = TestKernel::new(Limits::default());
    let (namespace, name) = (default_namespace(), AgentName::new("coder").expect("valid"));
    let wanted = LeaseRequest { agent: Some(name.clone()), ..grant(key("a"), Span(1000)) };
    granted(&mut world, "ada", Action::Acquire(wanted));
    let state = |world: &TestKernel| world.kernel.agent(&namespace, &name, world.now).expect("known").state;
    assert_eq!(state(&world), AgentState::Alive);
    let (namespace, agent) = (namespace.clone(), name.clone());
    world.by("ada", Action::Agent(AgentAnnouncement { namespace, agent, restarting: true, operator: false }));
    assert_eq!(state(&world), AgentState::Restarting);
    let whom = Paused::Agent(default_namespace(), name.clone());
    world.by("root", Action::Pause(Pause { whom, paused: true }));
    assert_eq!(state(&world), AgentState::Paused);
}

#[test]
fn agents_are_listed_per_namespace_and_by_name() {
    let mut world = TestKernel::new(Limits::default());
    for (namespace, agent) in [("two", "b"), ("two", "a"), ("one", "c"), ("two", "d"), ("one", "a")] {
        let namespace = Namespace::new(namespace).expect("valid");
        let agent = Some(AgentName::new(agent).expect("valid"));
        let bundle = key(agent.as_ref().expect("set").as_str());
        granted(
            &mut world,
            "ada",
            Action::Acquire(LeaseRequest { namespace, agent, ..grant(bundle, Span(1000)) }),
        );
    }
    let mut namespaces = world.kernel.namespaces_page(Cursor::default()).rows;
    namespaces.sort_unstable();
    assert_eq!(namespaces.iter().map(Namespace::as_str).collect::<Vec<_>>(), ["one", "two"]);
    let agents = |namespace| {
        let views = world.kernel.agents_page(namespace, None, 100, world.now).rows;
        views.iter().map(|view| view.name.as_str().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        (agents(&namespaces[0]), agents(&namespaces[1])),
        (vec!["a".to_string(), "c".to_string()], vec!["a".to_string(), "b".to_string(), "d".to_string()],)
    );
}

#[test]
fn a_lease_is_listed_once_and_stays_readable_after_its_end() {
    let mut world = TestKernel::new(Limits::default());
    world.now = Time(500);
    let members = vec![member(Predicate::Mutates, "FILE:/a/*"), member(Predicate::Mutates, "FILE:/a/b")];
    let bundle = Bundle::new(members).expect("two resources");
    let attempt = Age { at: Time(400), tie: 7 };
    let wanted = LeaseRequest { attempt: Some(attempt), ..grant(bundle, Span(1000)) };
    let lease = granted(&mut world, "ada", Action::Acquire(wanted));
    let (namespace, file) = (default_namespace(), resource("FILE:/a/b"));
    assert_eq!(world.kernel.holders(&namespace, &file, world.now).len(), 1);

    world.by("ada", Action::Release(held(&lease)));
    assert_eq!(world.kernel.holders(&namespace, &file, world.now).len(), 0);
    let view = world.kernel.lease(lease.lease, world.now).expect("history");
    assert_eq!((view.state, view.age, view.members.len()), (State::Released, attempt, 2));
    let retire_after = Time(500 + Limits::default().history_window.0);
    assert_eq!(view.ended, Some(LeaseEnd { at: Time(500), lsn: world.lsn, retire_after }));
    assert_eq!(world.kernel.history().collect::<Vec<_>>(), [view]);
}
