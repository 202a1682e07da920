//! Snapshots that an earlier build wrote must stay readable.
//!
//! `golden/snapshots-v1.txt` and `golden/snapshots-v2.txt` have one snapshot per line: its bytes, a tab, its name in
//! this test. Lines are added and never changed: if one fails, the format has changed, and needs a new version.

use engine::internals::snapshot::{read, write};
use kernel::{
    Age, AgentData, AgentName, ClockReading, Close, Document, EndReason, EndedLeaseData, Epoch, Etag,
    Granted, IdempotencyEntry, IdempotencyKey, Identity, Kernel, KeyData, LeaseAttributes, LeaseData,
    LeaseId, Limits, Live, Location, Lsn, Member, Metadata, Namespace, NamespaceData, OnExpiry, Open, Owner,
    Phase, Policy, Predicate, Quota, Reason, RequestKey, ResourceName, Response, Restart, Scope, SessionName,
    Shard, Slot, Slots, Snapshot, Span, Store, Tenure, Time, Token, Version,
};
use store::Seq;

const FORMAT_1: &str = include_str!("golden/snapshots-v1.txt");
const FORMAT_2: &str = include_str!("golden/snapshots-v2.txt");

const CLOCKS: ClockReading =
    ClockReading { boot: 1 << 90, boot_clock: Span(5000), unix_ms: 1_800_000_000_000 };

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).expect("valid")
}

fn identity(name: &str) -> Identity {
    Identity::new(name).expect("valid")
}

fn agent(name: &str) -> AgentName {
    AgentName::new(name).expect("valid")
}

fn member(predicate: Predicate, resource: &str) -> Member {
    Member { resource: ResourceName::parse(resource, None).expect("valid"), predicate }
}

fn tenure() -> Tenure {
    let open = Open {
        store: Store { shard: Shard(2), shards: 4, hash_seed: 0x0123_4567_89ab_cdef },
        writer: 1 << 100,
        term: 3,
        clocks: CLOCKS,
        slots: [0, 1, 2, 4095].into_iter().filter_map(Slot::new).collect(),
        kernel_version: 1,
        // Spelled out, because the defaults may change.
        limits: Limits {
            ttl_max: Span(300_000),
            hold_max: Span(86_400_000),
            leases_max: 20_000_000,
            leases_per_identity_max: 1_000_000,
            namespaces_max: 100_000,
            nodes_max: 40_000_000,
            documents_max: 20_000_001,
            agents_max: 1_000_001,
            agents_per_identity_max: 100_002,
            policies_max: 100_003,
            history_max: 100_004,
            history_members_max: 200_000,
            history_window: Span(600_000),
            requests_max: 1_000_002,
            requests_per_identity_max: 100_005,
            request_window: Span(60_000),
            step_max: 256,
        },
    };
    Tenure { open, opened_lsn: Lsn(1000), opened_at: Time(10), closed: Some(Close { to: Some(1 << 100) }) }
}

fn details() -> LeaseAttributes {
    LeaseAttributes {
        on_expiry: OnExpiry::Hold(Span(700)),
        age: Some(Age { at: Time(90), tie: 0xfeed }),
        agent: Some(agent("coder")),
        session: Some(SessionName::new("run-7").expect("valid")),
        owner: Some(Owner::new("somebody").expect("valid")),
        reason: Some(Reason::new("because").expect("valid")),
        metadata: Some(Metadata::new(&[0, 255]).expect("valid")),
    }
}

fn lease(lsn: u64, phase: Phase, members: Vec<Member>) -> LeaseData {
    let authority = matches!(phase, Phase::Reserved | Phase::Active);
    LeaseData {
        lsn: Lsn(lsn),
        namespace: namespace("default"),
        identity: identity("ada"),
        phase,
        epoch: Epoch(if authority { 3 } else { 4 }),
        token: Token(lsn + 1),
        granted_at: Time(100),
        ttl: Span(60_000),
        ttl_until: Time(60_100),
        active_at: Time(200),
        deadline: Time(60_050),
        capped: true,
        used: false,
        members,
        details: LeaseAttributes::default(),
    }
}

fn past(lsn: u64, end: EndReason) -> EndedLeaseData {
    EndedLeaseData {
        lsn: Lsn(lsn),
        namespace: namespace("default"),
        identity: identity("bob"),
        end,
        ended_at: Time(300),
        ended_lsn: Lsn(1050),
        epoch: Epoch(2),
        token: Token(lsn),
        granted_at: Time(100),
        deadline: Time(400),
        ttl: Span(300),
        members: vec![member(Predicate::Renames, "FILE:/old/*")],
        details: LeaseAttributes { on_expiry: OnExpiry::Manual, ..LeaseAttributes::default() },
    }
}

fn requests() -> Vec<IdempotencyEntry> {
    let id = LeaseId { shard: Shard(2), lsn: Lsn(1001) };
    let granted = Granted {
        lease: id,
        epoch: Epoch(1),
        token: Token(1001),
        granted_at: Time(100),
        deadline: Time(400),
        ttl: Span(300),
    };
    let answers = [
        Response::Opened,
        Response::Ticked,
        Response::Granted(granted),
        Response::Live(Live { lease: id, epoch: Epoch(1), deadline: Time(400) }),
        Response::Revoking(id),
        Response::RevokedAll { revoked: 256, more: true },
        Response::Reclaimed(id),
        Response::Committed(Version(9)),
        Response::Removed { removed: true, version: Version(10) },
        Response::Relocated { moved: false },
        Response::Done,
        Response::Retracted { undone: true },
    ];
    let entry = |(n, answer): (u8, Response)| IdempotencyEntry {
        namespace: (n % 2 == 0).then(|| namespace("prod ü")),
        identity: identity("ada"),
        request: IdempotencyKey { key: RequestKey([n; 16]), fingerprint: [0xf0 | n; 16] },
        lapses_at: Time(60_000),
        answer,
    };
    (0..).zip(answers).map(entry).collect()
}

fn agents() -> Vec<AgentData> {
    let coder = AgentData {
        namespace: namespace("default"),
        name: agent("coder"),
        identity: identity("ada"),
        since: Lsn(1001),
        paused: true,
        restart: Some(Restart { since: Time(50), until: Some(Time(60)) }),
        forget_at: None,
    };
    let quiet = AgentData {
        name: agent("quiet"),
        paused: false,
        restart: Some(Restart { since: Time(70), until: None }),
        forget_at: Some(Time(9000)),
        ..coder.clone()
    };
    vec![coder, quiet]
}

/// Every kind of entry, with every field and every variant.
fn everything() -> Snapshot {
    let etag = Etag([0xe7; 32]);
    let document = Document {
        etag,
        bytes: 70_000,
        location: Location { shard: kernel::Shard(3), term: 9, number: 300, random: 1 << 63 },
        committed_at: Time(250),
    };
    let key = |name, version, document| KeyData {
        namespace: namespace("default"),
        key: ResourceName::key(name).expect("valid"),
        version: Version(version),
        document,
    };
    let quota = Quota {
        leases_max: Some(5),
        total_max: Some(Span(1000)),
        idle_max: Some(Span(2000)),
        acquires_per_second: Some(6),
    };
    let scope = |name: Option<&str>, holder: Option<&str>| Scope {
        namespace: name.map(namespace),
        identity: holder.map(identity),
    };
    let hold = |until, rebindable| Phase::OnHold { until, rebindable };
    let bundle = vec![
        member(Predicate::Provides, "FILE:/a/b"),
        member(Predicate::Consumes, "FILE:/c/*"),
        member(Predicate::DependsOn, "TABLE:orders"),
    ];
    Snapshot {
        tenure: Some(tenure()),
        last: Lsn(1100),
        now: Time(333),
        clocks: Some(CLOCKS),
        state_hash: 0xdead_beef_0bad_cafe,
        floor: Version(8),
        namespaces: vec![
            NamespaceData { name: namespace("default"), floor: Version(4) },
            NamespaceData { name: namespace("prod ü"), floor: Version(300) },
        ],
        policies: vec![
            (scope(None, None), Policy { paused: true, quota: Quota::default() }),
            (scope(Some("default"), Some("ada")), Policy { paused: false, quota }),
        ],
        agents: agents(),
        keys: vec![
            key("doc", 7, Some(document)),
            key("ledger", 1 << 40, None),
            KeyData { namespace: namespace("prod ü"), ..key("doc", 1, Some(document)) },
        ],
        leases: vec![
            LeaseData { details: details(), used: true, ..lease(1001, Phase::Active, bundle) },
            lease(1002, Phase::Reserved, vec![member(Predicate::Mutates, "KEY:ledger")]),
            lease(1003, hold(Time::NEVER, false), vec![member(Predicate::Deletes, "FILE:/x")]),
            lease(1004, hold(Time(70_000), true), vec![member(Predicate::Renames, "FILE:/y")]),
            lease(1005, Phase::Revoking, vec![member(Predicate::Mutates, "FILE:/z/*")]),
        ],
        history: vec![
            past(1010, EndReason::Released),
            past(1009, EndReason::Expired),
            past(1011, EndReason::Revoked),
        ],
        requests: requests(),
    }
}

/// The response that kernel version 2 added.
fn namespace_deleted() -> Snapshot {
    let answer = Response::Dropped { more: false };
    let open = Open { kernel_version: 2, ..tenure().open };
    let mut snapshot = Kernel::new().snapshot();
    (snapshot.tenure, snapshot.last, snapshot.now) =
        (Some(Tenure { open, ..tenure() }), Lsn(1100), Time(333));
    snapshot.requests = requests()
        .into_iter()
        .take(1)
        .map(|entry| IdempotencyEntry { answer: answer.clone(), ..entry })
        .collect();
    snapshot
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn written(snapshot: &Snapshot, next: Seq) -> Vec<u8> {
    let mut written = Vec::new();
    write(snapshot, next, &mut |piece| {
        written.extend_from_slice(piece);
        Ok(())
    })
    .expect("nothing fails");
    written
}

fn read_golden(line: &str) -> (Snapshot, Seq) {
    let golden = bytes(line.split('\t').next().expect("bytes"));
    read(&mut |offset, length| {
        let from = usize::try_from(offset).expect("small").min(golden.len());
        Ok(golden[from..golden.len().min(from + length)].to_vec())
    })
    .expect("golden bytes stay readable")
}

fn expected() -> [(&'static str, Snapshot, Seq); 3] {
    [
        ("never opened", Kernel::new().snapshot(), Seq(0)),
        ("everything", everything(), Seq(4711)),
        ("a namespace deleted", namespace_deleted(), Seq(4712)),
    ]
}

#[test]
fn golden_snapshots_decode_and_are_encoded_as_the_same_bytes() {
    assert_eq!(FORMAT_2.lines().count(), expected().len());
    for (line, (name, snapshot, next)) in FORMAT_2.lines().zip(expected()) {
        assert_eq!(format!("{}\t{name}", hex(&written(&snapshot, next))), line);
        assert_eq!(read_golden(line), (snapshot.clone(), next));
        let restored = Kernel::restore(&snapshot).expect("a valid kernel state");
        assert_eq!(restored.snapshot(), snapshot);
    }
}

/// As format 1 had it: without clocks but the boot clock of the tenure, slots and namespaces of idempotency entries, and
/// with locations in the shard itself.
fn in_format_1(mut snapshot: Snapshot) -> Snapshot {
    snapshot.clocks = None;
    if let Some(tenure) = &mut snapshot.tenure {
        tenure.closed = None;
        tenure.open.clocks.unix_ms = 0;
        tenure.open.slots = Slots::ALL;
    }
    for key in &mut snapshot.keys {
        if let Some(document) = &mut key.document {
            document.location = Location { shard: Shard(2), term: 1 << 56, number: 0, random: 0 };
        }
    }
    snapshot.requests.iter_mut().for_each(|entry| entry.namespace = None);
    snapshot
}

#[test]
fn golden_snapshots_of_format_1_decode() {
    assert_eq!(FORMAT_1.lines().count(), expected().len());
    for (line, (name, snapshot, next)) in FORMAT_1.lines().zip(expected()) {
        assert_eq!(read_golden(line), (in_format_1(snapshot), next), "{name}");
    }
}
