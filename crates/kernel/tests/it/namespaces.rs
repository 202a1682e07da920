//! Deleting a namespace: everything in it, in bounded parts, never while it has leases, and for good.

use kernel::{
    Action, AgentName, Commit, Cursor, Etag, Event, Granted, IdempotencyKey, InvalidRecord, Kernel,
    LeaseRequest, Limits, Location, Namespace, OnExpiry, Outcome, PAGE_ROWS, Pause, Paused, Quota, Rejection,
    RequestKey, ResourceName, Response, Scope, SetQuota, Span, Time, Version, Write,
};
use sim::fixture::{TestKernel, default_namespace, grant, held, identity, key};

fn doomed() -> Namespace {
    Namespace::new("doomed").expect("valid")
}

fn wanted(name: &str) -> LeaseRequest {
    LeaseRequest { namespace: doomed(), ..grant(key(name), Span(1000)) }
}

fn acquire(world: &mut TestKernel, wanted: LeaseRequest) -> Granted {
    match world.by("ada", Action::Acquire(wanted)) {
        Outcome::Applied(Response::Granted(granted), _) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

fn commit(granted: &Granted, name: &str, if_version: Option<Version>, release: bool) -> Action {
    let key = ResourceName::key(name).expect("valid");
    let write = Write { held: held(granted), key, token: None, if_version, if_etag: None, release };
    Action::Commit(Commit {
        write,
        etag: Etag([1; 32]),
        bytes: 3,
        location: Location { term: 7, ..Location::default() },
    })
}

/// A key with a document, and the ended lease under which it was written.
fn fill(world: &mut TestKernel, wanted: LeaseRequest, name: &str) -> Granted {
    let granted = acquire(world, wanted);
    let outcome = world.by("ada", commit(&granted, name, None, true));
    assert!(matches!(outcome, Outcome::Applied(Response::Committed(_), _)), "{outcome:?}");
    granted
}

fn drop_it(world: &mut TestKernel) -> Outcome {
    world.by("root", Action::DropNamespace(doomed()))
}

fn quota_of(identity: Option<&str>) -> Action {
    let identity = identity.map(sim::fixture::identity);
    let scope = Scope { namespace: Some(doomed()), identity };
    Action::SetQuota(SetQuota { scope, quota: Quota { leases_max: Some(5000), ..Quota::default() } })
}

/// Fills the namespace with documents, ended leases, a paused and an unpaused agent, and quotas for the
/// namespace and for one identity.
fn populate(world: &mut TestKernel, documents: u32) -> Vec<Granted> {
    let mut ended = Vec::new();
    for n in 0..documents {
        let name = format!("k{n}");
        let agent = ["a", "b"].get(n as usize).map(|name| AgentName::new(name).expect("valid"));
        ended.push(fill(world, LeaseRequest { agent, ..wanted(&name) }, &name));
    }
    let paused = Paused::Agent(doomed(), AgentName::new("a").expect("valid"));
    let pause = Action::Pause(Pause { whom: paused, paused: true });
    for action in [pause, quota_of(None), quota_of(Some("ada"))] {
        let outcome = world.by("root", action);
        assert!(matches!(outcome, Outcome::Applied(Response::Done, _)), "{outcome:?}");
    }
    ended
}

fn small_steps() -> Limits {
    Limits { step_max: 100, ..Limits::default() }
}

#[test]
fn deletion_runs_in_bounded_parts_and_blocks_new_grants() {
    let mut world = TestKernel::new(small_steps());
    let kept = fill(&mut world, grant(key("kept"), Span(1000)), "kept");
    let ended = populate(&mut world, 950);
    let mut parts = 0;
    loop {
        let (more, events) = match drop_it(&mut world) {
            Outcome::Applied(Response::Dropped { more }, events) => (more, events),
            other => panic!("{other:?}"),
        };
        kernel::invariants::check(&world.kernel).expect("all invariants hold");
        assert!(events.len() <= 100, "a part is bounded: {}", events.len());
        let blobs = events.iter().filter(|event| matches!(event, Event::Dropped { .. })).count();
        assert_eq!(blobs, events.len(), "each document has an event, so that its blob can be deleted");
        parts += 1;
        if !more {
            break;
        }
        let refused = world.by("ada", Action::Acquire(wanted("k0")));
        assert_eq!(refused, Outcome::Rejected(Rejection::Paused));
    }
    assert_eq!(parts, 20, "950 documents, 950 ended leases, 2 agents, 2 policies");
    assert_eq!(world.kernel.namespaces_page(Cursor::default(), PAGE_ROWS).rows, [default_namespace()]);
    let counts = world.kernel.counts();
    assert_eq!((counts.documents, counts.nodes, counts.history, counts.accounts), (1, 1, 1, 1));
    assert_eq!((counts.agents, counts.policies), (0, 0));
    for granted in &ended {
        assert_eq!(world.kernel.lease(granted.lease, world.now), Err(Rejection::Retired));
    }
    assert!(world.kernel.lease(kept.lease, world.now).is_ok());
    assert_eq!(drop_it(&mut world), Outcome::Unchanged(Response::Dropped { more: false }));
    assert!(matches!(
        world.by("ada", Action::Release(held(&ended[0]))),
        Outcome::Unchanged(Response::Released)
    ));
}

/// A deletion that reset versions would accept a commit that was conditional on another document.
#[test]
fn versions_from_before_the_deletion_do_not_match_after_it() {
    let mut world = TestKernel::new(Limits::default());
    fill(&mut world, wanted("k"), "k");
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Response::Dropped { more: false }, _)));
    let again = acquire(&mut world, wanted("k"));
    let stale = world.by("ada", commit(&again, "k", Some(Version(1)), false));
    assert!(matches!(stale, Outcome::Rejected(Rejection::VersionConflict(_))), "{stale:?}");
    let fresh = world.by("ada", commit(&again, "k", Some(Version(2)), false));
    assert!(matches!(fresh, Outcome::Applied(Response::Committed(Version(3)), _)), "{fresh:?}");
}

#[test]
fn deletion_is_rejected_while_a_lease_exists_in_any_state() {
    let mut world = TestKernel::new(Limits::default());
    fill(&mut world, wanted("document"), "document");
    let in_use = Outcome::Rejected(Rejection::InUse { leases: 1 });
    world.by("ada", Action::Reserve(wanted("reserved")));
    assert_eq!(drop_it(&mut world), in_use);
    world.now = Time(1000);
    assert_eq!(drop_it(&mut world), in_use, "a lease is live at its deadline");
    world.now = Time(1001);
    assert_eq!(drop_it(&mut world), Outcome::Rejected(Rejection::Behind), "expired, not yet ended");
    world.tick();
    let held = acquire(&mut world, LeaseRequest { on_expiry: OnExpiry::Manual, ..wanted("held") });
    world.now = Time(9000);
    world.tick();
    assert_eq!(drop_it(&mut world), in_use, "on hold");
    world.by("root", Action::Revoke(held.lease));
    assert_eq!(drop_it(&mut world), in_use, "revoking");
    world.by("root", Action::Reclaim(held.lease));
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Response::Dropped { more: false }, _)));
}

#[test]
fn an_operator_may_resume_a_partly_deleted_namespace() {
    let mut world = TestKernel::new(small_steps());
    populate(&mut world, 150);
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Response::Dropped { more: true }, _)));
    let whom = Paused::Scope(Scope { namespace: Some(doomed()), identity: None });
    world.by("root", Action::Pause(Pause { whom, paused: false }));
    acquire(&mut world, wanted("k0"));
    assert_eq!(drop_it(&mut world), Outcome::Rejected(Rejection::InUse { leases: 1 }));
    assert_eq!(world.kernel.counts().documents, 50, "the remaining documents stay");
}

/// A retry after the deletion must not delete documents that were written since.
#[test]
fn a_retry_continues_a_deletion_and_does_not_start_another() {
    let mut world = TestKernel::new(small_steps());
    let request = IdempotencyKey { key: RequestKey([1; 16]), fingerprint: [2; 16] };
    let command =
        kernel::Command::by(&identity("root"), Action::DropNamespace(doomed())).with_request(request);
    populate(&mut world, 120);
    while let Outcome::Applied(Response::Dropped { more: true }, _) = world.apply(&command) {}
    assert_eq!(world.kernel.counts().documents, 0);
    fill(&mut world, wanted("new"), "new");
    assert_eq!(world.apply(&command), Outcome::Unchanged(Response::Dropped { more: false }));
    assert_eq!(world.kernel.counts().documents, 1);
}

#[test]
fn a_full_policy_table_does_not_prevent_the_pause() {
    let mut world = TestKernel::new(Limits { policies_max: 1, ..small_steps() });
    for n in 0..150 {
        fill(&mut world, wanted(&format!("k{n}")), &format!("k{n}"));
    }
    let other = Scope { namespace: None, identity: Some(identity("bob")) };
    let quota = Quota { leases_max: Some(1), ..Quota::default() };
    world.by("root", Action::SetQuota(SetQuota { scope: other, quota }));
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Response::Dropped { more: true }, _)));
    assert_eq!(world.by("ada", Action::Acquire(wanted("k0"))), Outcome::Rejected(Rejection::Paused));
    while let Outcome::Applied(Response::Dropped { more: true }, _) = drop_it(&mut world) {}
    assert_eq!(world.kernel.counts().policies, 1);
}

#[test]
fn the_quota_of_an_unused_namespace_is_deleted_too() {
    let mut world = TestKernel::new(Limits::default());
    world.by("root", quota_of(Some("ada")));
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Response::Dropped { more: false }, _)));
    assert_eq!(world.kernel.counts().policies, 0);
}

#[test]
fn kernel_version_1_rejects_deletion() {
    let mut world = TestKernel::by_rules(1, Limits::default());
    let misplaced = InvalidRecord::KernelVersion { newest: kernel::KERNEL_VERSION };
    assert_eq!(drop_it(&mut world), Outcome::Rejected(Rejection::InvalidRecord(misplaced)));
    assert_eq!(Kernel::new().counts(), world.kernel.counts());
}
