//! `lockd store dump`: the line of every action.

use engine::internals::record::Record;
use kernel::{
    Action, Age, AgentAnnouncement, AgentName, Bundle, Close, Commit, Credential, Epoch, Etag,
    IdempotencyKey, Identity, LeaseId, LeaseRequest, Limits, Location, Lsn, Metadata, Namespace, OnExpiry,
    Open, Owner, Party, Pause, Paused, Predicate, Quota, Reason, Relocation, Removal, Renewal, RequestKey,
    ResourceName, Retraction, Scope, SessionName, SetQuota, Shard, Span, Store, Time, Token, Version, Write,
};
use serde_json::{Value, json};
use sim::fixture::{grant, key, member};

use crate::lockd::support::{TestStore, record};

const LEASE: LeaseId = LeaseId { shard: Shard(1), lsn: Lsn(0xabc) };
const HELD: Credential = Credential { lease: LEASE, epoch: Epoch(3) };
const LEASE_TEXT: &str = "L-00000000000000010000000000000abc";

fn namespace() -> Namespace {
    Namespace::new("prod").expect("valid")
}

fn agent() -> AgentName {
    AgentName::new("coder").expect("valid")
}

fn ada() -> Identity {
    Identity::new("ada").expect("valid")
}

fn write() -> Write {
    let key = ResourceName::key("ledger").expect("valid");
    Write { held: HELD, key, token: None, if_version: None, if_etag: None, release: false }
}

/// A request with every optional field set.
fn full_grant() -> LeaseRequest {
    let members = vec![member(Predicate::Provides, "FILE:/out/*"), member(Predicate::Consumes, "KEY:in")];
    LeaseRequest {
        namespace: namespace(),
        bundle: Bundle::new(members).expect("a bundle"),
        ttl: Span(1500),
        on_expiry: OnExpiry::Hold(Span(700)),
        owner: Some(Owner::new("somebody \"else\"").expect("valid")),
        agent: Some(agent()),
        session: Some(SessionName::new("run-7").expect("valid")),
        attempt: Some(Age { at: Time(90), tie: 0xfeed }),
        reason: Some(Reason::new("because").expect("valid")),
        metadata: Some(Metadata::new(b"SECRET").expect("valid")),
    }
}

fn open() -> Open {
    Open {
        store: Store { shard: Shard(0), shards: 2, hash_seed: 0x5ec2_e75e_ed00_0001 },
        writer: 0xaa,
        term: 4,
        clocks: kernel::ClockReading { boot: 0xbb, boot_clock: Span(99), unix_ms: 1_800_000_000_000 },
        kernel_version: 1,
        limits: Limits::default(),
        slots: kernel::Slots::ALL,
    }
}

/// Each action, its name and its fields.
fn engine_actions() -> Vec<(Action, &'static str, Value)> {
    let relocation = Relocation {
        namespace: namespace(),
        key: write().key,
        version: Version(7),
        location: Location { number: 0x1f, ..Location::default() },
    };
    let relocated = json!({
        "namespace": "prod", "key": "KEY:ledger", "version": 7, "location": {"shard": 0, "lsn": 31},
    });
    let retracted = json!({"lease": LEASE_TEXT, "idempotency_key": "04".repeat(16)});
    vec![
        (Action::Tick, "tick", json!({})),
        (Action::Close(Close { to: Some(0xcc) }), "close", json!({"to": "000000000000000000000000000000cc"})),
        (Action::Close(Close { to: None }), "close", json!({})),
        (Action::Relocate(relocation), "relocate", relocated),
        (
            Action::Retract(Retraction { lease: LEASE, request: Some(RequestKey([4; 16])) }),
            "retract",
            retracted,
        ),
        (
            Action::Retract(Retraction { lease: LEASE, request: None }),
            "retract",
            json!({"lease": LEASE_TEXT}),
        ),
    ]
}

fn holder_actions() -> Vec<(Action, &'static str, Value)> {
    let held = json!({"lease": LEASE_TEXT, "epoch": 3});
    let all = json!({
        "namespace": "prod",
        "members": [
            {"resource": "FILE:/out/*", "predicate": "PROVIDES"},
            {"resource": "KEY:in", "predicate": "CONSUMES"},
        ],
        "ttl_ms": 1500,
        "on_expiry": "hold",
        "hold_ms": 700,
        "owner": "somebody \"else\"",
        "agent": "coder",
        "session": "run-7",
        "attempt": {"at_ms": 90, "tie": "000000000000feed"},
        "reason": "because",
        "metadata_bytes": 6,
    });
    let plain = json!({
        "namespace": "default",
        "members": [{"resource": "KEY:k", "predicate": "MUTATES"}],
        "ttl_ms": 10,
        "on_expiry": "manual",
    });
    let manual = LeaseRequest { on_expiry: OnExpiry::Manual, ..grant(key("k"), Span(10)) };
    let renewals = vec![Renewal { held: HELD, ttl: Some(Span(20)) }, Renewal { held: HELD, ttl: None }];
    let renewed = json!({"renewals": [
        {"lease": LEASE_TEXT, "epoch": 3, "ttl_ms": 20},
        {"lease": LEASE_TEXT, "epoch": 3},
    ]});
    vec![
        (Action::Acquire(full_grant()), "acquire", all),
        (Action::Reserve(manual), "reserve", plain),
        (Action::Activate(HELD), "activate", held.clone()),
        (Action::Renew(renewals), "renew", renewed),
        (Action::Release(HELD), "release", held.clone()),
        (Action::Rebind(HELD), "rebind", held.clone()),
        (Action::Touch(HELD), "touch", held),
        (
            Action::Agent(AgentAnnouncement {
                namespace: namespace(),
                agent: agent(),
                restarting: true,
                operator: false,
            }),
            "agent",
            json!({"namespace": "prod", "agent": "coder", "restarting": true, "operator": false}),
        ),
    ]
}

fn document_actions() -> Vec<(Action, &'static str, Value)> {
    let (etag, location) =
        (Etag([0xe7; 32]), Location { shard: Shard(1), term: 2, number: 0x2a, random: 0xff });
    let conditional = Write {
        token: Some(Token(77)),
        if_version: Some(Version(6)),
        if_etag: Some(Some(Etag([1; 32]))),
        release: true,
        ..write()
    };
    let committed = json!({
        "lease": LEASE_TEXT, "epoch": 3, "key": "KEY:ledger", "token": 77, "if_version": 6,
        "if_etag": "01".repeat(32), "release": true, "etag": "e7".repeat(32), "bytes": 8,
        "location": {"blob": "document/1/0000000000000002-000000000000002a-00000000000000ff"},
    });
    let if_none = Write { if_etag: Some(None), ..write() };
    let removed =
        json!({"lease": LEASE_TEXT, "epoch": 3, "key": "KEY:ledger", "release": false, "if_etag": null});
    vec![
        (Action::Commit(Commit { write: conditional, etag, bytes: 8, location }), "commit", committed),
        (Action::Remove(Removal { write: if_none }), "remove", removed),
    ]
}

fn operator_actions() -> Vec<(Action, &'static str, Value)> {
    let scope = Scope { namespace: Some(namespace()), identity: None };
    let shown = json!({"namespace": "prod", "identity": null});
    let quota = Quota {
        leases_max: Some(5),
        total_max: Some(Span(1000)),
        idle_max: None,
        acquires_per_second: Some(6),
    };
    let set = json!({"scope": shown, "leases_max": 5, "total_max_ms": 1000, "acquires_per_second": 6});
    vec![
        (Action::Revoke(LEASE), "revoke", json!({"lease": LEASE_TEXT})),
        (Action::Reclaim(LEASE), "reclaim", json!({"lease": LEASE_TEXT})),
        (
            Action::RevokeAll(Party::Identity(namespace(), ada())),
            "revoke_all",
            json!({"namespace": "prod", "identity": "ada"}),
        ),
        (
            Action::RevokeAll(Party::Agent(namespace(), agent())),
            "revoke_all",
            json!({"namespace": "prod", "agent": "coder"}),
        ),
        (
            Action::Pause(Pause { whom: Paused::Scope(scope.clone()), paused: true }),
            "pause",
            json!({"scope": shown, "paused": true}),
        ),
        (
            Action::Pause(Pause { whom: Paused::Agent(namespace(), agent()), paused: false }),
            "pause",
            json!({"namespace": "prod", "agent": "coder", "paused": false}),
        ),
        (Action::SetQuota(SetQuota { scope, quota }), "set_quota", set),
        (Action::DropNamespace(namespace()), "drop_namespace", json!({"namespace": "prod"})),
    ]
}

#[test]
fn every_action_has_a_line_with_its_fields() {
    let store = TestStore::new();
    let mut expected = vec![(record(100, None, Action::Open(open())), "open", None)];
    let actions = [engine_actions(), holder_actions(), document_actions(), operator_actions()].concat();
    for (lsn, (action, name, fields)) in (101..).zip(actions) {
        let who = (!action.is_internal()).then_some("ada");
        expected.push((record(lsn, who, action), name, Some(fields)));
    }
    let records: Vec<Record> = expected.iter().map(|(record, ..)| record.clone()).collect();
    store.append(0, &records[..1]);
    store.append(0, &records[1..]);

    let ran = store.dump(&[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let lines = ran.lines();
    assert_eq!(lines.len(), expected.len());
    for (line, (record, name, fields)) in lines.iter().zip(&expected) {
        let identity = record.command.identity.as_ref().map(Identity::as_str);
        assert_eq!(line["lsn"], record.lsn.0);
        assert_eq!(line["seq"], u64::from(record.lsn.0 > 100));
        assert_eq!((&line["shard"], &line["time_ms"]), (&json!(0), &json!(record.now.0)));
        assert_eq!((&line["identity"], &line["action"]), (&json!(identity), &json!(name)), "{line}");
        assert!(fields.is_none() || line["fields"] == *fields.as_ref().expect("some"), "{line}");
    }
    let names: std::collections::BTreeSet<&str> = expected.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(names.len(), 21, "every action is tried: {names:?}");
}

#[test]
fn an_open_shows_its_limits_and_hides_the_seed_of_the_hashes() {
    let store = TestStore::new();
    store.append(0, &[record(100, None, Action::Open(open()))]);
    let ran = store.dump(&[]);
    let fields = &ran.lines()[0]["fields"];
    assert_eq!(fields["term"], 4);
    assert_eq!((&fields["boot_clock_ms"], &fields["shards"]), (&json!(99), &json!(2)));
    assert_eq!(fields["writer"], "000000000000000000000000000000aa");
    assert_eq!(fields["limits"]["ttl_max_ms"], 300_000);
    assert_eq!(fields["limits"]["leases_max"], 20_000_000);
    let seed = open().store.hash_seed;
    assert!(!ran.stdout.contains(&seed.to_string()) && !ran.stdout.contains(&format!("{seed:x}")));
}

#[test]
fn request_ids_are_printed_but_documents_and_metadata_are_not() {
    let store = TestStore::new();
    let mut acquire = record(7, Some("ada"), Action::Acquire(full_grant()));
    acquire.command.request = Some(IdempotencyKey { key: RequestKey([0xab; 16]), fingerprint: [0xcd; 16] });
    acquire.correlation = 0x00c0_ffee;
    let (etag, location) = (Etag([2; 32]), Location { number: 1, ..Location::default() });
    let commit = Action::Commit(Commit { write: write(), etag, bytes: 6, location });
    let commit = Record { document: Some(b"SECRET".to_vec()), ..record(8, Some("ada"), commit) };
    store.append(0, &[acquire, commit]);
    let ran = store.dump(&[]);
    let lines = ran.lines();
    assert_eq!(lines[0]["idempotency_key"], "ab".repeat(16));
    assert_eq!(lines[0]["correlation"], "00000000000000000000000000c0ffee");
    assert_eq!((&lines[1]["correlation"], lines[1].get("idempotency_key")), (&Value::Null, None));
    assert_eq!((&lines[1]["document_bytes"], &lines[1]["fields"]["bytes"]), (&json!(6), &json!(6)));
    assert!(!ran.stdout.contains("SECRET") && !ran.stdout.contains(&"cd".repeat(16)), "{}", ran.stdout);
}
