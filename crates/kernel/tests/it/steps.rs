//! The work one command does on overdue state, and correctness while the rest is still overdue.

use kernel::{
    Action, Age, AgentName, Bundle, Command, Limits, Outcome, Predicate, Rejection, Response, SessionName,
    Span, State, Time,
};
use sim::fixture::{TestKernel, default_namespace, grant, held, identity, key, one};

/// The number of single-key leases that one command ends, besides the leases it touches.
const STEP: usize = 256;
/// The number of expired claims that a refusal skips before the next claim counts as it is.
const SKIP: usize = 1024;

/// Grants leases over one resource that expire at 1000, oldest first.
fn expiring(world: &mut TestKernel, count: usize, bundle: &Bundle) {
    for _ in 0..count {
        world.acquire("reader", bundle.clone(), Span(1000)).expect("readers share");
    }
}

fn conflict(world: &TestKernel, resource: &str) -> kernel::Conflict {
    let wanted = one(Predicate::Mutates, resource);
    world.kernel.conflict(&default_namespace(), &wanted, world.now).expect("a conflicting lease exists")
}

#[test]
fn a_live_lease_is_found_behind_as_many_expired_ones_as_are_skipped() {
    let mut world = TestKernel::new(Limits::default());
    let shared = one(Predicate::Consumes, "FILE:/shared");
    expiring(&mut world, SKIP, &shared);
    let live = world.acquire("reader", shared, Span(60_000)).expect("readers share");
    world.now = Time(1001);
    let found = conflict(&world, "FILE:/shared");
    assert_eq!((found.holders, found.oldest.tie), (vec![live.lease], live.lease.lsn.0));
}

/// The limit applies to each claim set and class separately, not to their sum.
#[test]
fn expired_leases_of_another_class_or_claim_set_do_not_count() {
    let more = SKIP + 1;
    let mut world = TestKernel::new(Limits::default());
    expiring(&mut world, more, &one(Predicate::Consumes, "FILE:/shared"));
    expiring(&mut world, 1, &one(Predicate::Provides, "FILE:/shared"));
    expiring(&mut world, more, &one(Predicate::Consumes, "FILE:/dir/*"));
    expiring(&mut world, 1, &one(Predicate::Consumes, "FILE:/dir/file"));
    world.now = Time(1001);
    for resource in ["FILE:/shared", "FILE:/dir/*"] {
        let found = conflict(&world, resource);
        assert_eq!((found.holders, found.oldest), (vec![], Age::YOUNGEST), "{resource}");
    }
}

#[test]
fn the_oldest_is_found_behind_more_holders_than_are_shown() {
    let mut world = TestKernel::new(Limits::default());
    // These leases are on hold once they have expired, although no command has settled them yet.
    for _ in 0..kernel::Conflict::SHOWN_MAX {
        let mut manual = grant(one(Predicate::Consumes, "FILE:/shared"), Span(1000));
        manual.on_expiry = kernel::OnExpiry::Manual;
        assert!(matches!(world.by("reader", Action::Acquire(manual)), Outcome::Applied(..)));
    }
    let live = world
        .acquire("reader", one(Predicate::Consumes, "FILE:/shared"), Span(60_000))
        .expect("readers share");
    world.acquire("maker", one(Predicate::Provides, "FILE:/shared"), Span(60_000)).expect("beside readers");
    world.now = Time(1001);
    let found = conflict(&world, "FILE:/shared");
    assert_eq!(found.holders.len(), kernel::Conflict::SHOWN_MAX);
    assert_eq!(found.oldest.tie, live.lease.lsn.0);
}

#[test]
fn a_session_conflict_is_found_despite_many_earlier_leases() {
    let in_session = |bundle, ttl| {
        let mut wanted = grant(bundle, Span(ttl));
        wanted.session = Some(SessionName::new("s").expect("valid"));
        Action::Acquire(wanted)
    };
    let granted = |outcome: Outcome| match outcome {
        Outcome::Applied(Response::Granted(granted), _) => granted,
        other => panic!("not granted: {other:?}"),
    };
    let mut world = TestKernel::new(Limits::default());
    granted(world.by("ada", in_session(key("kept"), 60_000)));
    for _ in 0..2 * SKIP {
        let lease = granted(world.by("ada", in_session(key("again"), 60_000)));
        world.by("ada", Action::Release(held(&lease)));
    }
    let last = granted(world.by("ada", in_session(key("again"), 60_000)));
    let again = world.by("ada", in_session(key("again"), 60_000));
    assert_eq!(again, Outcome::Rejected(Rejection::AlreadyHeld(last.lease)));

    // The session's own expired leases are skipped, up to the limit.
    for (over, is_found) in [(SKIP - 1, true), (SKIP, false)] {
        let mut world = TestKernel::new(Limits::default());
        let shared = one(Predicate::Consumes, "FILE:/shared");
        for _ in 0..over {
            granted(world.by("ada", in_session(shared.clone(), 1000)));
        }
        granted(world.by("ada", in_session(shared, 60_000)));
        world.now = Time(1001);
        let refused = world.by("ada", in_session(one(Predicate::Mutates, "FILE:/shared"), 1000));
        let found = matches!(refused, Outcome::Rejected(Rejection::AlreadyHeld(_)));
        assert_eq!(found, is_found, "{over}: {refused:?}");
    }
}

#[test]
fn one_command_discards_a_bounded_amount_of_old_state() {
    let mut world = TestKernel::new(Limits::default());
    for n in 0..8 * STEP as u64 {
        let mut wanted = grant(key("hot"), Span(1000));
        wanted.agent = Some(AgentName::new(&format!("agent-{n}")).expect("valid"));
        let request = kernel::IdempotencyKey {
            key: kernel::RequestKey(u128::from(n).to_le_bytes()),
            fingerprint: [0; 16],
        };
        let acquire = Command::by(&identity("ada"), Action::Acquire(wanted)).with_request(request);
        let Outcome::Applied(Response::Granted(lease), _) = world.apply(&acquire) else { panic!("free") };
        world.by("ada", Action::Release(held(&lease)));
    }
    let before = world.kernel.counts();
    world.now = Time(1_000_000);
    world.tick();
    let after = world.kernel.counts();
    assert_eq!(before.history - after.history, 4 * STEP);
    assert_eq!(before.requests - after.requests, STEP);
    assert_eq!(before.agents - after.agents, STEP);

    // A forgotten agent belongs to no identity, even while its row still exists.
    let mut wanted = grant(key("hot"), Span(1000));
    wanted.agent = Some(AgentName::new(&format!("agent-{}", before.agents - 1)).expect("valid"));
    assert!(matches!(world.by("eve", Action::Acquire(wanted)), Outcome::Applied(..)));
    assert_eq!(world.kernel.counts().agents, after.agents - STEP);
    kernel::invariants::check(&world.kernel).expect("all invariants hold");
}

fn coder() -> AgentName {
    AgentName::new("coder").expect("valid")
}

fn news(restarting: bool) -> Action {
    let (namespace, agent) = (default_namespace(), coder());
    Action::Agent(kernel::AgentAnnouncement { namespace, agent, restarting, operator: false })
}

/// Grants more leases of an agent, all expiring at 1000, than one command may end; returns the last.
fn crowd(world: &mut TestKernel) -> kernel::LeaseId {
    let mut last = None;
    for n in 0..=STEP {
        let mut wanted = grant(key(&format!("k{n}")), Span(1000));
        wanted.agent = Some(coder());
        match world.by("ada", Action::Acquire(wanted)) {
            Outcome::Applied(Response::Granted(granted), _) => last = Some(granted.lease),
            other => panic!("not granted: {other:?}"),
        }
    }
    last.expect("at least one lease")
}

#[test]
fn an_agent_cannot_announce_another_restart_while_leases_of_the_last_are_unsettled() {
    let mut world = TestKernel::new(Limits::default());
    let last = crowd(&mut world);
    world.acquire("ada", key("until the return"), Span(1500)).expect("free");
    world.now = Time(500);
    assert!(matches!(world.by("ada", news(true)), Outcome::Applied(Response::Done, _)));
    world.now = Time(1500);
    assert!(matches!(world.by("ada", news(false)), Outcome::Applied(Response::Done, _)));

    // The last lease expired during the restart and is settled only after the agent has returned.
    let held_until = |world: &TestKernel| world.kernel.lease(last, world.now).expect("known").held_until;
    assert_eq!(held_until(&world), Some(Time(16_000)));
    assert_eq!(world.by("ada", news(true)), Outcome::Rejected(Rejection::Behind));
    world.tick();
    assert_eq!(held_until(&world), Some(Time(16_000)));
    assert_eq!(
        world.kernel.next_due(),
        Some(Time(1501)),
        "leases that expired before the return are settled"
    );
    assert!(matches!(world.by("ada", news(true)), Outcome::Applied(Response::Done, _)));
}

#[test]
fn a_late_announcement_gives_no_grace_to_unsettled_leases() {
    let mut world = TestKernel::new(Limits::default());
    let last = crowd(&mut world);
    world.now = Time(1500);
    assert!(matches!(world.by("ada", news(true)), Outcome::Applied(Response::Done, _)));
    assert_eq!(world.kernel.counts().leases, 1, "one lease is unsettled");
    assert_eq!(world.kernel.lease(last, world.now).expect("known").state, State::Expired);
    world.tick();
    assert_eq!(world.kernel.counts().leases, 0);
}

#[test]
fn revoke_all_works_in_batches() {
    let mut world = TestKernel::new(Limits::default());
    for n in 0..=Action::MAX_BATCH {
        world.acquire("ada", key(&format!("k{n}")), Span(1000)).expect("free");
    }
    let all = Action::RevokeAll(kernel::Party::Identity(default_namespace(), identity("ada")));
    for (count, left) in [(256, true), (1, false)] {
        match world.by("root", all.clone()) {
            Outcome::Applied(Response::RevokedAll { revoked, more }, _) => {
                assert_eq!((revoked, more), (count, left));
            }
            other => panic!("leases remain to be revoked: {other:?}"),
        }
    }
}
