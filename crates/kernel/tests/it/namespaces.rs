//! A namespace is deleted with all that is in it: in bounded parts, never under a lease, and for good.

use kernel::{
    Action, AgentName, Answer, Commit, Etag, Event, Grant, Granted, Kernel, Limits, Location, Misplaced,
    Namespace, OnExpiry, Outcome, Pause, Paused, Quota, Rejection, Request, RequestKey, ResourceName, Scope,
    SetQuota, Span, Time, Version, Write,
};
use sim::world::{World, default_namespace, grant, held, identity, key};

fn doomed() -> Namespace {
    Namespace::new("doomed").expect("valid")
}

fn wanted(name: &str) -> Grant {
    Grant { namespace: doomed(), ..grant(key(name), Span(1000)) }
}

fn acquire(world: &mut World, wanted: Grant) -> Granted {
    match world.by("ada", Action::Acquire(wanted)) {
        Outcome::Applied(Answer::Granted(granted), _) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

fn commit(granted: &Granted, name: &str, if_version: Option<Version>, release: bool) -> Action {
    let key = ResourceName::key(name).expect("valid");
    let write = Write { held: held(granted), key, token: None, if_version, if_etag: None, release };
    Action::Commit(Commit { write, etag: Etag([1; 32]), bytes: 3, location: Location(7 << 64) })
}

/// A key with a document, and the ended lease under which it was written.
fn fill(world: &mut World, wanted: Grant, name: &str) -> Granted {
    let granted = acquire(world, wanted);
    let outcome = world.by("ada", commit(&granted, name, None, true));
    assert!(matches!(outcome, Outcome::Applied(Answer::Committed(_), _)), "{outcome:?}");
    granted
}

fn drop_it(world: &mut World) -> Outcome {
    world.by("root", Action::DropNamespace(doomed()))
}

fn quota_of(identity: Option<&str>) -> Action {
    let identity = identity.map(sim::world::identity);
    let scope = Scope { namespace: Some(doomed()), identity };
    Action::SetQuota(SetQuota { scope, quota: Quota { leases_max: Some(5000), ..Quota::default() } })
}

/// Documents, ended leases, an agent that is paused and one that is not, a quota of the whole and of somebody.
fn lived_in(world: &mut World, documents: u32) -> Vec<Granted> {
    let mut ended = Vec::new();
    for n in 0..documents {
        let name = format!("k{n}");
        let agent = ["a", "b"].get(n as usize).map(|name| AgentName::new(name).expect("valid"));
        ended.push(fill(world, Grant { agent, ..wanted(&name) }, &name));
    }
    let paused = Paused::Agent(doomed(), AgentName::new("a").expect("valid"));
    let pause = Action::Pause(Pause { whom: paused, paused: true });
    for action in [pause, quota_of(None), quota_of(Some("ada"))] {
        let outcome = world.by("root", action);
        assert!(matches!(outcome, Outcome::Applied(Answer::Done, _)), "{outcome:?}");
    }
    ended
}

fn small_steps() -> Limits {
    Limits { step_max: 100, ..Limits::default() }
}

#[test]
fn everything_goes_part_by_part_and_nobody_gets_in_between() {
    let mut world = World::new(small_steps());
    let kept = fill(&mut world, grant(key("kept"), Span(1000)), "kept");
    let ended = lived_in(&mut world, 950);
    let mut parts = 0;
    loop {
        let (more, events) = match drop_it(&mut world) {
            Outcome::Applied(Answer::Dropped { more }, events) => (more, events),
            other => panic!("{other:?}"),
        };
        kernel::invariants::check(&world.kernel).expect("what holds always");
        assert!(events.len() <= 100, "a part is bounded: {}", events.len());
        let blobs = events.iter().filter(|event| matches!(event, Event::Dropped { .. })).count();
        assert_eq!(blobs, events.len(), "whoever collects blobs is told of each document");
        parts += 1;
        if !more {
            break;
        }
        let refused = world.by("ada", Action::Acquire(wanted("k0")));
        assert_eq!(refused, Outcome::Rejected(Rejection::Paused));
    }
    assert_eq!(parts, 20, "950 documents, 950 ended leases, 2 agents, 2 policies");
    assert_eq!(world.kernel.namespaces(), [default_namespace()]);
    let counts = world.kernel.counts();
    assert_eq!((counts.documents, counts.nodes, counts.history, counts.accounts), (1, 1, 1, 1));
    assert_eq!((counts.agents, counts.policies), (0, 0));
    for granted in &ended {
        assert_eq!(world.kernel.lease(granted.lease, world.now), Err(Rejection::Retired));
    }
    assert!(world.kernel.lease(kept.lease, world.now).is_ok());
    assert_eq!(drop_it(&mut world), Outcome::Unchanged(Answer::Dropped { more: false }));
    assert!(matches!(
        world.by("ada", Action::Release(held(&ended[0]))),
        Outcome::Unchanged(Answer::Released)
    ));
}

/// A deletion that forgot its versions would let a commit through that was meant for another document.
#[test]
fn no_version_from_before_the_deletion_holds_after_it() {
    let mut world = World::new(Limits::default());
    fill(&mut world, wanted("k"), "k");
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Answer::Dropped { more: false }, _)));
    let again = acquire(&mut world, wanted("k"));
    let stale = world.by("ada", commit(&again, "k", Some(Version(1)), false));
    assert!(matches!(stale, Outcome::Rejected(Rejection::VersionConflict(_))), "{stale:?}");
    let fresh = world.by("ada", commit(&again, "k", Some(Version(2)), false));
    assert!(matches!(fresh, Outcome::Applied(Answer::Committed(Version(3)), _)), "{fresh:?}");
}

#[test]
fn nothing_goes_while_a_lease_stands_whatever_its_state() {
    let mut world = World::new(Limits::default());
    fill(&mut world, wanted("document"), "document");
    let in_use = Outcome::Rejected(Rejection::InUse { leases: 1 });
    world.by("ada", Action::Reserve(wanted("reserved")));
    assert_eq!(drop_it(&mut world), in_use);
    world.now = Time(1000);
    assert_eq!(drop_it(&mut world), in_use, "at its deadline it still stands");
    world.now = Time(1001);
    assert_eq!(drop_it(&mut world), Outcome::Rejected(Rejection::Behind), "over, and not yet ended");
    world.tick();
    let held = acquire(&mut world, Grant { on_expiry: OnExpiry::Manual, ..wanted("held") });
    world.now = Time(9000);
    world.tick();
    assert_eq!(drop_it(&mut world), in_use, "in a hold");
    world.by("root", Action::Revoke(held.lease));
    assert_eq!(drop_it(&mut world), in_use, "under revoke");
    world.by("root", Action::Reclaim(held.lease));
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Answer::Dropped { more: false }, _)));
}

#[test]
fn an_operator_may_let_a_half_deleted_namespace_go_on() {
    let mut world = World::new(small_steps());
    lived_in(&mut world, 150);
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Answer::Dropped { more: true }, _)));
    let whom = Paused::Scope(Scope { namespace: Some(doomed()), identity: None });
    world.by("root", Action::Pause(Pause { whom, paused: false }));
    acquire(&mut world, wanted("k0"));
    assert_eq!(drop_it(&mut world), Outcome::Rejected(Rejection::InUse { leases: 1 }));
    assert_eq!(world.kernel.counts().documents, 50, "what is left, stays");
}

/// A retry after the deletion must not take what the namespace has got since.
#[test]
fn a_retry_goes_on_with_a_deletion_and_does_not_begin_another() {
    let mut world = World::new(small_steps());
    let request = Request { key: RequestKey([1; 16]), fingerprint: [2; 16] };
    let command =
        kernel::Command::by(&identity("root"), Action::DropNamespace(doomed())).with_request(request);
    lived_in(&mut world, 120);
    while let Outcome::Applied(Answer::Dropped { more: true }, _) = world.apply(&command) {}
    assert_eq!(world.kernel.counts().documents, 0);
    fill(&mut world, wanted("new"), "new");
    assert_eq!(world.apply(&command), Outcome::Unchanged(Answer::Dropped { more: false }));
    assert_eq!(world.kernel.counts().documents, 1);
}

#[test]
fn a_full_table_of_policies_does_not_keep_others_from_being_shut_out() {
    let mut world = World::new(Limits { policies_max: 1, ..small_steps() });
    for n in 0..150 {
        fill(&mut world, wanted(&format!("k{n}")), &format!("k{n}"));
    }
    let other = Scope { namespace: None, identity: Some(identity("bob")) };
    let quota = Quota { leases_max: Some(1), ..Quota::default() };
    world.by("root", Action::SetQuota(SetQuota { scope: other, quota }));
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Answer::Dropped { more: true }, _)));
    assert_eq!(world.by("ada", Action::Acquire(wanted("k0"))), Outcome::Rejected(Rejection::Paused));
    while let Outcome::Applied(Answer::Dropped { more: true }, _) = drop_it(&mut world) {}
    assert_eq!(world.kernel.counts().policies, 1);
}

#[test]
fn a_quota_for_a_namespace_that_nobody_used_goes_too() {
    let mut world = World::new(Limits::default());
    world.by("root", quota_of(Some("ada")));
    assert!(matches!(drop_it(&mut world), Outcome::Applied(Answer::Dropped { more: false }, _)));
    assert_eq!(world.kernel.counts().policies, 0);
}

#[test]
fn rules_that_did_not_know_deletion_refuse_it() {
    let mut world = World::by_rules(1, Limits::default());
    let misplaced = Misplaced::KernelVersion { newest: kernel::KERNEL_VERSION };
    assert_eq!(drop_it(&mut world), Outcome::Rejected(Rejection::Misplaced(misplaced)));
    assert_eq!(Kernel::new().counts(), world.kernel.counts());
}
