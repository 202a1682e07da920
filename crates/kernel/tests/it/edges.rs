//! Exact boundaries between valid and invalid, which random commands rarely hit.

use kernel::{
    Action, AgentName, Command, Commit, Etag, InvalidRecord, KERNEL_VERSION, Kernel, Limits, Location, Lsn,
    OnExpiry, Open, Outcome, Rejection, Renewal, ResourceName, Response, Shard, Span, Store, Time, Token,
    Write,
};
use sim::fixture::{TestKernel, default_namespace, grant, held, key};

fn open(term: u64) -> Open {
    Open {
        store: Store { shard: Shard(1), shards: 2, hash_seed: 5 },
        writer: 1,
        term,
        clocks: kernel::ClockReading::default(),
        slots: kernel::Slots::ALL,
        kernel_version: KERNEL_VERSION,
        limits: Limits::default(),
    }
}

fn try_open(kernel: &mut Kernel, lsn: Lsn, open: Open) -> Result<(), InvalidRecord> {
    match kernel.apply(lsn, Time(0), &Command::internal(Action::Open(open))) {
        Outcome::Applied(Response::Opened, _) => Ok(()),
        Outcome::Rejected(Rejection::InvalidRecord(why)) => Err(why),
        other => panic!("unexpected outcome of an open: {other:?}"),
    }
}

#[test]
fn open_validates_shard_version_and_limits() {
    let refused = |open| try_open(&mut Kernel::new(), Lsn(1), open);
    let with_store =
        |shard, shards| Open { store: Store { shard: Shard(shard), shards, hash_seed: 5 }, ..open(1) };
    assert_eq!(refused(with_store(1, 2)), Ok(()));
    assert_eq!(refused(with_store(2, 2)), Err(InvalidRecord::Store));
    for kernel_version in [0, KERNEL_VERSION + 1] {
        let why = InvalidRecord::KernelVersion { newest: KERNEL_VERSION };
        assert_eq!(refused(Open { kernel_version, ..open(1) }), Err(why));
    }
    for span_of in [
        (|limits| &mut limits.ttl_max) as fn(&mut Limits) -> &mut Span,
        |limits| &mut limits.hold_max,
        |limits| &mut limits.history_window,
        |limits| &mut limits.request_window,
    ] {
        let with_span = |span| {
            let mut open = open(1);
            *span_of(&mut open.limits) = span;
            open
        };
        assert_eq!(refused(with_span(Limits::SPAN_MAX)), Ok(()));
        assert_eq!(refused(with_span(Span(Limits::SPAN_MAX.0 + 1))), Err(InvalidRecord::Limits));
    }
}

#[test]
fn reopening_a_log_requires_the_same_store() {
    let mut kernel = Kernel::new();
    try_open(&mut kernel, Lsn(1), open(1)).expect("the first");
    let same = open(2).store;
    for store in
        [Store { shards: 3, ..same }, Store { hash_seed: 6, ..same }, Store { shard: Shard(0), ..same }]
    {
        assert_eq!(try_open(&mut kernel, Lsn(2), Open { store, ..open(2) }), Err(InvalidRecord::Store));
    }
    assert_eq!(try_open(&mut kernel, Lsn(2), open(2)), Ok(()));
}

#[test]
fn a_log_is_opened_in_the_first_half_of_its_lsns_and_written_to_the_last() {
    let mut kernel = Kernel::new();
    let beyond = Lsn(Lsn::MAX_OPEN.0 + 1);
    assert_eq!(try_open(&mut kernel, beyond, open(1)), Err(InvalidRecord::Lsn { last: Lsn(0) }));
    assert_eq!(try_open(&mut kernel, Lsn::MAX_OPEN, open(1)), Ok(()));
    let acquire = Command::by(&sim::fixture::identity("ada"), Action::Acquire(grant(key("a"), Span(1000))));
    assert!(matches!(kernel.apply(Lsn::MAX, Time(0), &acquire), Outcome::Applied(..)));
}

#[test]
fn a_renewal_batch_may_have_max_batch_entries() {
    let mut world = TestKernel::new(Limits::default());
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    let renew = |count| Action::Renew(vec![Renewal { held: held(&a), ttl: None }; count]);
    assert!(matches!(world.by("ada", renew(Action::MAX_BATCH)), Outcome::Applied(..)));
    let refused = world.by("ada", renew(Action::MAX_BATCH + 1));
    assert_eq!(refused, Outcome::Rejected(Rejection::InvalidBatch));
}

#[test]
fn a_renewal_is_limited_to_the_longest_ttl() {
    let mut world = TestKernel::new(Limits::default());
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    let max = Limits::default().ttl_max;
    for (ttl, is_fine) in [(Span(0), false), (Span(1), true), (max, true), (Span(max.0 + 1), false)] {
        let renewed = world.by("ada", Action::Renew(vec![Renewal { held: held(&a), ttl: Some(ttl) }]));
        let refused = Response::Renewed(vec![Err(Rejection::InvalidTtl { max })]);
        assert_eq!(renewed == Outcome::Unchanged(refused), !is_fine, "{ttl:?}: {renewed:?}");
    }
}

/// Lowering a limit rejects new requests and leaves existing leases unchanged: a lease keeps its TTL.
#[test]
fn a_lease_keeps_its_own_ttl_after_the_limit_is_lowered() {
    let mut world = TestKernel::new(Limits::default());
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    let mut tenure = world.kernel.tenure().expect("opened").open.clone();
    tenure.term += 1;
    tenure.limits.ttl_max = Span(999);
    assert!(matches!(world.apply(&Command::internal(Action::Open(tenure))), Outcome::Applied(..)));
    world.now = Time(500);
    let renew = |ttl| Action::Renew(vec![Renewal { held: held(&a), ttl }]);
    let refused = Response::Renewed(vec![Err(Rejection::InvalidTtl { max: Span(999) })]);
    assert_eq!(world.by("ada", renew(Some(Span(1000)))), Outcome::Unchanged(refused));
    let Outcome::Applied(Response::Renewed(renewed), _) = world.by("ada", renew(None)) else {
        panic!("a lease may be renewed")
    };
    assert_eq!(renewed[0].as_ref().map(|live| live.deadline), Ok(Time(1500)));
}

#[test]
fn a_hold_may_be_as_long_as_the_limit() {
    let mut world = TestKernel::new(Limits { hold_max: Span(2000), ..Limits::default() });
    let mut hold = |span| {
        let mut wanted = grant(key(&format!("k{span}")), Span(1000));
        wanted.on_expiry = OnExpiry::Hold(Span(span));
        world.by("ada", Action::Acquire(wanted))
    };
    assert!(matches!(hold(2000), Outcome::Applied(..)));
    assert_eq!(hold(2001), Outcome::Rejected(Rejection::InvalidHold { max: Span(2000) }));
}

/// A future token is as wrong as an old one.
#[test]
fn a_write_with_any_other_token_is_rejected() {
    let mut world = TestKernel::new(Limits::default());
    let a = world.acquire("ada", key("a"), Span(1000)).expect("free");
    let mut commit = |token| {
        let write = Write {
            held: held(&a),
            key: ResourceName::key("a").expect("valid"),
            token: Some(token),
            if_version: None,
            if_etag: None,
            release: false,
        };
        world.by(
            "ada",
            Action::Commit(Commit {
                write,
                etag: Etag([1; 32]),
                bytes: 2,
                location: Location { number: 3, ..Location::default() },
            }),
        )
    };
    for other in [a.token.0 - 1, a.token.0 + 1] {
        let mismatch = Rejection::FencingMismatch { current: a.token };
        assert_eq!(commit(Token(other)), Outcome::Rejected(mismatch));
    }
    assert!(matches!(commit(a.token), Outcome::Applied(..)));
}

#[test]
fn an_agent_is_remembered_to_the_last_millisecond() {
    let mut world = TestKernel::new(Limits::default());
    let name = AgentName::new("coder").expect("valid");
    let mut wanted = grant(key("a"), Span(1000));
    wanted.agent = Some(name.clone());
    let Outcome::Applied(Response::Granted(a), _) = world.by("ada", Action::Acquire(wanted)) else {
        panic!("free")
    };
    world.by("ada", Action::Release(held(&a)));
    let is_known = |world: &TestKernel| {
        let listed = world.kernel.agents_page(&default_namespace(), None, 9, world.now).rows.len() == 1;
        assert_eq!(world.kernel.agent(&default_namespace(), &name, world.now).is_some(), listed);
        listed
    };
    world.now = Time(Kernel::AGENT_WINDOW.0);
    world.acquire("eve", key("b"), Span(1000)).expect("free");
    assert_eq!((is_known(&world), world.kernel.counts().agents), (true, 1));
    world.now = Time(Kernel::AGENT_WINDOW.0 + 1);
    assert!(!is_known(&world), "forgotten, although its row still exists");
    world.acquire("eve", key("c"), Span(1000)).expect("free");
    assert_eq!(world.kernel.counts().agents, 0);
}
