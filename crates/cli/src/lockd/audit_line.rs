//! A record of the log as a line of JSON.
//!
//! The format is stable: fields are added, never renamed. Absent options are left out. Times and durations are in
//! milliseconds and end in `_ms`; digests and identifiers are hexadecimal.
//!
//! **What is absent.** The content of documents and of lease metadata: only lengths and hashes. The seed of the hash tables:
//! with it, a client could choose colliding names.

use cli::times::unix_ms_text_precise;
use engine::document::DocumentLocation;
use engine::internals::record::Record;
use kernel::{
    Action, Age, Credential, Etag, LeaseId, LeaseRequest, Limits, Location, Metadata, OnExpiry, Open,
    Outcome, Party, Pause, Paused, Quota, Renewal, Scope, Shard, Write,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use system::hex;

use crate::log_replay::TimedRecord;
use crate::outcome_fields::outcome_fields;

/// One line of the dump.
#[derive(Serialize)]
pub(crate) struct AuditLine<'a> {
    lsn: u64,
    shard: u32,
    /// The batch that contains the record.
    seq: u64,
    /// Kernel time, since the store was created.
    time_ms: u64,
    /// The server's wall clock when the record was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unix_ms: Option<u64>,
    correlation: Option<String>,
    identity: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    action: &'static str,
    /// The lease that the command grants or names, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    fields: Value,
    /// The response. Absent where the state before the record is not known.
    #[serde(skip_serializing_if = "Value::is_null")]
    outcome: Value,
    /// What the record changed. Absent where the state before it is not known.
    #[serde(skip_serializing_if = "Value::is_null")]
    events: Value,
    /// Length of a document stored inline in the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    document_bytes: Option<usize>,
}

impl<'a> AuditLine<'a> {
    pub(crate) fn new(shard: u32, timed: &'a TimedRecord, outcome: Option<&Outcome>) -> AuditLine<'a> {
        let TimedRecord { seq, unix_ms, record } = timed;
        let command = &record.command;
        let (outcome, events) = outcome.map(outcome_fields).unwrap_or_default();
        let (action, fields) = (command.action.name(), fields(&command.action));
        AuditLine {
            lsn: record.lsn.0,
            shard,
            seq: seq.0,
            time_ms: record.now.0,
            time: unix_ms.map(unix_ms_text_precise),
            unix_ms: *unix_ms,
            correlation: (record.correlation != engine::NO_CORRELATION)
                .then(|| number_hex(record.correlation)),
            identity: command.identity.as_ref().map(kernel::Identity::as_str),
            idempotency_key: command.request.map(|request| hex::encode(&request.key.0)),
            action,
            lease: lease_of(Shard(shard), record).map(|lease| lease.to_string()),
            fields,
            outcome,
            events,
            document_bytes: record.document.as_ref().map(Vec::len),
        }
    }
}

/// The lease of a record: of a grant its own, otherwise the one that the command names.
fn lease_of(shard: Shard, record: &Record) -> Option<LeaseId> {
    match &record.command.action {
        Action::Acquire(_) | Action::Reserve(_) => Some(LeaseId { shard, lsn: record.lsn }),
        Action::Activate(held) | Action::Release(held) | Action::Rebind(held) | Action::Touch(held) => {
            Some(held.lease)
        }
        Action::Commit(commit) => Some(commit.write.held.lease),
        Action::Remove(removal) => Some(removal.write.held.lease),
        Action::Revoke(lease) | Action::Reclaim(lease) => Some(*lease),
        Action::Retract(retraction) => Some(retraction.lease),
        Action::Renew(renewals) if renewals.len() == 1 => Some(renewals[0].held.lease),
        _ => None,
    }
}

/// The fields of an action.
fn fields(action: &Action) -> Value {
    match action {
        Action::Open(open) => open_fields(open),
        Action::Close(close) => present([("to", json!(close.to.map(number_hex)))]),
        Action::Tick => json!({}),
        Action::Acquire(grant) | Action::Reserve(grant) => grant_fields(grant),
        Action::Activate(held) | Action::Release(held) | Action::Rebind(held) | Action::Touch(held) => {
            held_fields(*held)
        }
        Action::Renew(renewals) => json!({"renewals": listed(renewals, renewal_fields)}),
        Action::Commit(commit) => {
            let location = location_fields(commit.location);
            let own =
                json!({"etag": hex::encode(&commit.etag.0), "bytes": commit.bytes, "location": location});
            joined(write_fields(&commit.write), own)
        }
        Action::Remove(removal) => write_fields(&removal.write),
        Action::Relocate(relocation) => json!({
            "namespace": relocation.namespace.as_str(),
            "key": relocation.key.as_str(),
            "version": relocation.version.0,
            "location": location_fields(relocation.location),
        }),
        Action::Revoke(lease) | Action::Reclaim(lease) => json!({"lease": lease.to_string()}),
        Action::RevokeAll(party) => party_fields(party),
        Action::Pause(pause) => pause_fields(pause),
        Action::SetQuota(set) => joined(scope_fields(&set.scope), quota_fields(&set.quota)),
        Action::DropNamespace(namespace) => json!({"namespace": namespace.as_str()}),
        Action::Agent(news) => json!({
            "namespace": news.namespace.as_str(),
            "agent": news.agent.as_str(),
            "restarting": news.restarting,
            "operator": news.operator,
        }),
        Action::Retract(retraction) => {
            let key = retraction.request.map(|key| hex::encode(&key.0));
            let lease = retraction.lease.to_string();
            present([("lease", json!(lease)), ("idempotency_key", json!(key))])
        }
    }
}

/// The shard and LSN of the record with the bytes, or the name of the blob.
fn location_fields(location: Location) -> Value {
    match DocumentLocation::of(location) {
        DocumentLocation::Inline { shard, lsn } => json!({"shard": shard.0, "lsn": lsn.0}),
        DocumentLocation::Blob(blob) => json!({"blob": blob.name().as_str()}),
    }
}

fn open_fields(open: &Open) -> Value {
    json!({
        "shards": open.store.shards,
        "writer": number_hex(open.writer),
        "term": open.term,
        "boot_identity": number_hex(open.clocks.boot),
        "boot_clock_ms": open.clocks.boot_clock.0,
        "unix_ms": open.clocks.unix_ms,
        "kernel_version": open.kernel_version,
        "limits": limit_fields(&open.limits),
        "slots": open.slots.ranges().map(|(first, last)| [first.number(), last.number()]).collect::<Vec<_>>(),
    })
}

fn limit_fields(limits: &Limits) -> Value {
    let spans = ["ttl_max", "hold_max", "history_window", "request_window"];
    let named = limits.named().into_iter().map(|(name, limit)| {
        let unit = if spans.contains(&name) { "_ms" } else { "" };
        (format!("{name}{unit}"), limit.into())
    });
    Value::Object(named.collect())
}

fn grant_fields(grant: &LeaseRequest) -> Value {
    let member = |member: &kernel::Member| json!({"resource": member.resource.as_str(), "predicate": member.predicate.as_str()});
    let (on_expiry, hold_ms) = match grant.on_expiry {
        OnExpiry::Free => ("free", None),
        OnExpiry::Hold(span) => ("hold", Some(span.0)),
        OnExpiry::Manual => ("manual", None),
    };
    let attempt = |age: Age| json!({"at_ms": age.at.0, "tie": format!("{:016x}", age.tie)});
    present([
        ("namespace", json!(grant.namespace.as_str())),
        ("members", listed(grant.bundle.members(), member)),
        ("ttl_ms", json!(grant.ttl.0)),
        ("on_expiry", json!(on_expiry)),
        ("hold_ms", json!(hold_ms)),
        ("owner", json!(grant.owner.as_ref().map(kernel::Owner::as_str))),
        ("agent", json!(grant.agent.as_ref().map(kernel::AgentName::as_str))),
        ("session", json!(grant.session.as_ref().map(kernel::SessionName::as_str))),
        ("attempt", json!(grant.attempt.map(attempt))),
        ("reason", json!(grant.reason.as_ref().map(kernel::Reason::as_str))),
        ("metadata_bytes", json!(grant.metadata.as_ref().map(Metadata::as_bytes).map(<[u8]>::len))),
    ])
}

fn held_fields(held: Credential) -> Value {
    json!({"lease": held.lease.to_string(), "epoch": held.epoch.0})
}

fn renewal_fields(renewal: &Renewal) -> Value {
    joined(held_fields(renewal.held), present([("ttl_ms", json!(renewal.ttl.map(|ttl| ttl.0)))]))
}

fn write_fields(write: &Write) -> Value {
    let mut fields = present([
        ("key", json!(write.key.as_str())),
        ("token", json!(write.token.map(|token| token.0))),
        ("if_version", json!(write.if_version.map(|version| version.0))),
        ("release", json!(write.release)),
    ]);
    if let Some(etag) = write.if_etag {
        // Null is the condition that there is no document.
        fields["if_etag"] = json!(etag.map(|Etag(etag)| hex::encode(&etag)));
    }
    joined(held_fields(write.held), fields)
}

fn party_fields(party: &Party) -> Value {
    match party {
        Party::Identity(namespace, identity) => {
            json!({"namespace": namespace.as_str(), "identity": identity.as_str()})
        }
        Party::Agent(namespace, agent) => json!({"namespace": namespace.as_str(), "agent": agent.as_str()}),
    }
}

fn pause_fields(pause: &Pause) -> Value {
    let whom = match &pause.whom {
        Paused::Scope(scope) => scope_fields(scope),
        Paused::Agent(namespace, agent) => json!({"namespace": namespace.as_str(), "agent": agent.as_str()}),
    };
    joined(whom, json!({"paused": pause.paused}))
}

/// Null means all namespaces or identities.
fn scope_fields(scope: &Scope) -> Value {
    json!({
        "scope": {
            "namespace": scope.namespace.as_ref().map(kernel::Namespace::as_str),
            "identity": scope.identity.as_ref().map(kernel::Identity::as_str),
        }
    })
}

fn quota_fields(quota: &Quota) -> Value {
    present([
        ("leases_max", json!(quota.leases_max)),
        ("total_max_ms", json!(quota.total_max.map(|span| span.0))),
        ("idle_max_ms", json!(quota.idle_max.map(|span| span.0))),
        ("acquires_per_second", json!(quota.acquires_per_second)),
    ])
}

fn listed<T>(items: &[T], shape: impl Fn(&T) -> Value) -> Value {
    items.iter().map(shape).collect()
}

/// An object of the fields that are not null.
fn present<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let set = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(set.map(|(name, value)| (name.to_string(), value)).collect())
}

/// Merges the fields of two objects.
fn joined(one: Value, other: Value) -> Value {
    let fields = [one, other].into_iter().filter_map(|value| match value {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    Value::Object(fields.flatten().collect::<Map<_, _>>())
}

fn number_hex(number: u128) -> String {
    format!("{number:032x}")
}
