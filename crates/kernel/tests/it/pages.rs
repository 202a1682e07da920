//! Queries visit a bounded number of rows, however many are stored.

use std::collections::BTreeSet;

use kernel::{
    Action, AgentName, Bundle, Cursor, LeaseRequest, Limits, Namespace, OnExpiry, Outcome, PAGE_ROWS, Pause,
    Paused, Predicate, Response, Scope, SessionName, Span, Time, Token,
};
use sim::fixture::{TestKernel, default_namespace, grant, held, identity, key, one};

/// Rows of each kind.
const MANY: usize = 100_000;

/// Runs a query, and checks how many rows it visited.
fn query<T>(world: &TestKernel, what: &str, read: impl FnOnce(&kernel::Kernel) -> T) -> T {
    let before = world.kernel.rows_visited();
    let result = read(&world.kernel);
    let visited = world.kernel.rows_visited() - before;
    assert!(visited <= PAGE_ROWS as u64, "{what} visited {visited} rows");
    result
}

fn acquire(world: &mut TestKernel, request: LeaseRequest) -> kernel::Granted {
    match world.by("ada", Action::Acquire(request)) {
        Outcome::Applied(Response::Granted(granted), _) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

/// A list of agents held the lock for as long as it took to visit all agents of all namespaces; other lists were the
/// same. Unrelated requests waited.
#[test]
fn lists_of_very_many_rows_are_read_in_pages() {
    let mut world = TestKernel::new(Limits { agents_per_identity_max: 1_000_000, ..Limits::default() });
    for n in 0..MANY {
        let agent = AgentName::new(&format!("agent-{n:06}")).ok();
        // Half of the agents are in one namespace, and every second lease has one of its own.
        let namespace =
            if n % 2 == 0 { default_namespace() } else { Namespace::new(&format!("n{n}")).expect("valid") };
        let request = LeaseRequest { agent, namespace, ..grant(key(&format!("k{n}")), Span(300_000)) };
        acquire(&mut world, request);
        let scope = Scope { identity: Some(identity(&format!("i{n}"))), namespace: None };
        let paused = world.by("root", Action::Pause(Pause { whom: Paused::Scope(scope), paused: true }));
        assert!(matches!(paused, Outcome::Applied(..)), "{paused:?}");
    }

    let (mut leases, mut cursor) = (BTreeSet::new(), Some(Cursor::default()));
    while let Some(from) = cursor {
        let page = query(&world, "a page of leases", |kernel| kernel.leases_page(from, 1000, world.now));
        assert!(page.rows.iter().all(|lease| leases.insert(lease.id)), "a lease is listed twice");
        cursor = page.next;
    }
    assert_eq!(leases.len(), MANY);

    let (mut namespaces, mut cursor) = (BTreeSet::new(), Some(Cursor::default()));
    while let Some(from) = cursor {
        let page = query(&world, "a page of namespaces", |kernel| kernel.namespaces_page(from));
        namespaces.extend(page.rows);
        cursor = page.next;
    }
    assert_eq!(namespaces.len(), MANY / 2 + 1);

    let (mut agents, mut after) = (Vec::new(), None);
    loop {
        let read = |kernel: &kernel::Kernel| {
            kernel.agents_page(&default_namespace(), after.as_ref(), usize::MAX, world.now)
        };
        let page = query(&world, "a page of agents", read);
        agents.extend(page.rows.into_iter().map(|agent| agent.name));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(agents.len(), MANY / 2);
    assert!(agents.is_sorted(), "by name");

    let (mut scopes, mut after) = (0, None);
    loop {
        let page = query(&world, "a page of policies", |kernel| kernel.policies_page(after.as_ref()));
        scopes += page.rows.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(scopes, MANY);
}

/// A table that once was full and is nearly empty now: a page stepped over all its empty entries.
#[test]
fn empty_entries_count_as_visited() {
    let mut world = TestKernel::new(Limits::default());
    let leases: Vec<_> =
        (0..2000).map(|n| world.acquire("ada", key(&format!("k{n}")), Span(1000)).expect("free")).collect();
    leases[..1999].iter().for_each(|lease| drop(world.by("ada", Action::Release(held(lease)))));
    let (mut found, mut pages, mut cursor) = (0, 0, Some(Cursor::default()));
    while let Some(from) = cursor {
        let page = query(&world, "a page of leases", |kernel| kernel.leases_page(from, 1, world.now));
        (found, pages, cursor) = (found + page.rows.len(), pages + 1, page.next);
    }
    assert_eq!((found, pages), (1, 2000_usize.div_ceil(PAGE_ROWS)));
}

/// Every read of a name with very many shared holders, or of a session with very many leases, visited them all.
#[test]
fn a_name_or_a_session_with_very_many_leases_is_read_in_bounded_time() {
    let mut world = TestKernel::new(Limits::default());
    let session = SessionName::new("s").expect("valid");
    let shared = || one(Predicate::Consumes, "KEY:shared");
    let mut leases = Vec::new();
    for n in 0..MANY {
        // The oldest 1,000 expire first.
        let ttl = if n < 1000 { Span(1000) } else { Span(300_000) };
        let on_expiry = if n == 5000 { OnExpiry::Hold(Span(9000)) } else { OnExpiry::Free };
        let request = LeaseRequest { session: Some(session.clone()), on_expiry, ..grant(shared(), ttl) };
        leases.push(acquire(&mut world, request));
    }
    let (namespace, resource) = (default_namespace(), shared().members()[0].resource.clone());
    let current = |world: &TestKernel, token| {
        query(world, "a check of a token", |kernel| {
            kernel.is_current(&namespace, &resource, token, world.now)
        })
    };
    assert!(current(&world, leases[0].token) && current(&world, leases[MANY - 1].token));
    assert!(!current(&world, Token(1)));
    world.now = Time(1001);
    assert!(!current(&world, leases[0].token), "expired");
    let holders = query(&world, "holders", |kernel| kernel.holders(&namespace, &resource, world.now));
    assert!(holders.iter().all(|lease| lease.namespace == namespace));
    let bundle = Bundle::new(one(Predicate::Mutates, "KEY:shared").members().to_vec()).expect("valid");
    let read = |kernel: &kernel::Kernel| kernel.some_conflicts(&namespace, &bundle, 100, world.now);
    let (_, more) = query(&world, "conflicts", read);
    assert!(more, "the first {PAGE_ROWS} have expired");
    let read =
        |kernel: &kernel::Kernel| kernel.leases_of_session(&namespace, &identity("ada"), &session, world.now);
    assert!(!query(&world, "the leases of a session", read).is_empty(), "it holds something");
}

/// A token is found by the LSN of the grant, or of the rebind: also after several rebinds, and after a restart.
#[test]
fn the_token_of_a_rebound_lease_is_current_and_its_old_one_is_not() {
    let mut world = TestKernel::new(Limits::default());
    let hold = LeaseRequest { on_expiry: OnExpiry::Hold(Span(60_000)), ..grant(key("k"), Span(1000)) };
    let mut lease = acquire(&mut world, hold);
    let resource = key("k").members()[0].resource.clone();
    let current =
        |kernel: &kernel::Kernel, now, token| kernel.is_current(&default_namespace(), &resource, token, now);
    for _ in 0..3 {
        let old = lease;
        world.now = world.now.after(Span(1500));
        lease = match world.by("ada", Action::Rebind(held(&old))) {
            Outcome::Applied(Response::Granted(granted), _) => granted,
            other => panic!("not rebound: {other:?}"),
        };
        kernel::invariants::check(&world.kernel).expect("all invariants hold");
        assert!(
            current(&world.kernel, world.now, lease.token) && !current(&world.kernel, world.now, old.token)
        );
    }
    let restored = kernel::Kernel::restore(&world.kernel.snapshot()).expect("a kernel wrote it");
    assert!(current(&restored, world.now, lease.token));
    world.by("ada", Action::Release(held(&lease)));
    assert!(!current(&world.kernel, world.now, lease.token));
}
