//! Queries visit a bounded number of rows, however many are stored.

use std::collections::BTreeSet;

use kernel::{
    Action, AgentName, Bundle, Commit, Cursor, Etag, LeaseRequest, Limits, Location, Namespace, OnExpiry,
    Outcome, PAGE_ROWS, Pause, Paused, Predicate, Removal, ResourceName, Response, Scope, SessionName, Span,
    Time, Token, Version, Write,
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
        let page = query(&world, "a page of namespaces", |kernel| kernel.namespaces_page(from, PAGE_ROWS));
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

fn write(lease: &kernel::Granted, name: &str) -> Write {
    let key = ResourceName::key(name).expect("valid");
    Write { held: held(lease), key, token: None, if_version: None, if_etag: None, release: true }
}

/// Commits a document of `bytes` bytes under a lease that ends with it.
fn store(world: &mut TestKernel, namespace: &Namespace, name: &str, bytes: u64) {
    let request = LeaseRequest { namespace: namespace.clone(), ..grant(key(name), Span(1000)) };
    let lease = acquire(world, request);
    let commit =
        Commit { write: write(&lease, name), etag: Etag([1; 32]), bytes, location: Location::default() };
    assert!(matches!(world.by("ada", Action::Commit(commit)), Outcome::Applied(..)));
}

/// The names of all keys with a prefix, in pages of at most `most`.
fn names(world: &TestKernel, prefix: &str, most: usize) -> Vec<String> {
    let (mut names, mut after): (Vec<String>, Option<ResourceName>) = (Vec::new(), None);
    loop {
        let read =
            |kernel: &kernel::Kernel| kernel.keys_page(&default_namespace(), prefix, after.as_ref(), most);
        let page = query(world, "a page of keys", read);
        assert!(page.rows.len() <= most && page.next.as_ref().is_none_or(|next| after.as_ref() < Some(next)));
        names.extend(page.rows.iter().map(|(key, _)| key.name().to_string()));
        after = page.next;
        if after.is_none() {
            return names;
        }
    }
}

#[test]
fn keys_with_a_document_are_listed_by_name_and_prefix() {
    let mut world = TestKernel::new(Limits::default());
    let other = Namespace::new("other").expect("valid");
    let mut orders: Vec<String> = (0..1000).map(|n| format!("orders/{n}")).collect();
    let beside = ["a", "order", "orders.", "orders0", "z", "ä"];
    for name in orders.iter().map(String::as_str).chain(beside) {
        store(&mut world, &default_namespace(), name, 7);
    }
    store(&mut world, &other, "orders/other", 7);
    // Neither a key that is only held nor one whose document was removed has a document.
    acquire(&mut world, grant(key("orders/held"), Span(1000)));
    store(&mut world, &default_namespace(), "orders/removed", 7);
    let lease = acquire(&mut world, grant(key("orders/removed"), Span(1000)));
    let removal = Removal { write: write(&lease, "orders/removed") };
    assert!(matches!(world.by("ada", Action::Remove(removal)), Outcome::Applied(..)));

    orders.sort_unstable();
    for most in [1, 3, PAGE_ROWS, usize::MAX] {
        assert_eq!(names(&world, "orders/", most), orders, "{most}");
    }
    assert_eq!(names(&world, "", usize::MAX).len(), orders.len() + beside.len());
    assert!(names(&world, "", 100).is_sorted());
    assert_eq!(names(&world, "ord", usize::MAX).len(), orders.len() + 3);
    assert_eq!(names(&world, "orders/999", 10), ["orders/999"]);
    assert_eq!(names(&world, "ä", 10), ["ä"]);
    assert_eq!(names(&world, "none", 10), [""; 0]);
    let unused = Namespace::new("unused").expect("valid");
    assert_eq!(world.kernel.keys_page(&unused, "", None, 10).rows, []);

    // A start before the prefix skips nothing, and one behind it leaves nothing.
    let from = |name: &str| {
        let after = ResourceName::key(name).expect("valid");
        world.kernel.keys_page(&default_namespace(), "orders/", Some(&after), 1).rows
    };
    let (first, view) = from("a").remove(0);
    assert_eq!((first.name(), view.version), ("orders/0", Version(1)));
    assert_eq!(view.document.map(|document| document.bytes), Some(7));
    assert_eq!(from("orders/0")[0].0.name(), "orders/1");
    assert_eq!(from("z"), []);
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
