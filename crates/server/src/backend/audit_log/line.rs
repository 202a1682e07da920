//! One line of the audit log: the format that docs/reference/formats.md describes.
//!
//! The format is stable: fields are added, never renamed. Absent values are left out.
//!
//! **Invariant.** A line ends with its only line break, whatever clients have called their leases.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use engine::observe::{AuditEntry, AuditedChange, AuditedFact};
use kernel::{Action, Event, LeaseView, Member, Party, Paused, Response, Scope, Shard};
use serde_json::{Map, Value, json};

use crate::act_target::ActTarget;

/// An item of the queue, which becomes a line.
pub(super) enum AuditItem {
    /// A durable entry of a shard.
    Entry(Shard, AuditEntry),
    /// An act that changed nothing in the store, at this time.
    Act(u64, Box<RefusedAct>),
    /// The server itself, at this time.
    Server(u64, ServerEvent),
}

/// An act of an operator without a record in the log: it was refused, or it concerns the server alone.
pub(crate) struct RefusedAct {
    pub(crate) identity: String,
    pub(crate) serial: Option<String>,
    pub(crate) correlation: Option<String>,
    /// The name of the call.
    pub(crate) call: &'static str,
    pub(crate) status: u16,
    pub(crate) code: Option<&'static str>,
    pub(crate) target: ActTarget,
}

/// A start or a stop of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerEvent {
    /// It has started, with this URL of its store. After an unclean stop the last entries of the previous run may be
    /// missing.
    Started {
        /// The store.
        store: String,
        /// Whether the run before wrote all its entries, and closed the store; `None` if nothing shows it.
        clean_stop: Option<bool>,
    },
    /// It is about to end.
    Stopped,
}

impl AuditItem {
    /// An estimate of the memory that it occupies, in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            AuditItem::Entry(_, entry) => entry.bytes(),
            AuditItem::Act(_, act) => size_of::<RefusedAct>() + act.bytes(),
            AuditItem::Server(_, _) => 256,
        }
    }

    /// Appends its line.
    pub(super) fn line(&self, out: &mut String) {
        let fields = match self {
            AuditItem::Entry(shard, entry) => entry_fields(*shard, entry),
            AuditItem::Act(unix_ms, act) => act.fields(*unix_ms),
            AuditItem::Server(unix_ms, event) => event.fields(*unix_ms),
        };
        push_line(out, fields);
    }
}

/// Whether this is the line of a server that has stopped.
pub(super) fn is_stop(line: &[u8]) -> bool {
    let fields: Result<Fields, _> = serde_json::from_slice(line);
    fields.is_ok_and(|fields| {
        let is = |name: &str, text: &str| fields.get(name).is_some_and(|value| value == text);
        is("kind", "server") && is("event", "stopped")
    })
}

/// Appends the line that stands for entries that were lost.
pub(super) fn lost_line(out: &mut String, unix_ms: u64, entries: u64) {
    let mut fields = head(unix_ms, "gap", "lost");
    set(&mut fields, "entries", json!(entries));
    set(&mut fields, "reason", json!("the queue was full, because the file was not written fast enough"));
    push_line(out, fields);
}

type Fields = Map<String, Value>;

fn head(unix_ms: u64, kind: &str, event: &str) -> Fields {
    let mut fields = Fields::new();
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms)).unwrap_or(UNIX_EPOCH);
    set(&mut fields, "time", json!(humantime::format_rfc3339_millis(time).to_string()));
    set(&mut fields, "unix_ms", json!(unix_ms));
    set(&mut fields, "kind", json!(kind));
    set(&mut fields, "event", json!(event));
    fields
}

/// Sets a field unless its value is null.
fn set(fields: &mut Fields, name: &str, value: Value) {
    if !value.is_null() {
        fields.insert(name.to_string(), value);
    }
}

/// Characters that some readers take for line breaks are escaped, as JSON allows.
fn push_line(out: &mut String, fields: Fields) {
    for c in Value::Object(fields).to_string().chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a string");
        } else {
            out.push(c);
        }
    }
    out.push('\n');
}

fn entry_fields(shard: Shard, entry: &AuditEntry) -> Fields {
    let (kind, event) = match &entry.fact {
        AuditedFact::Act(action, _) => ("act", action.name()),
        AuditedFact::Change(change) => names(&change.event),
    };
    let mut fields = head(entry.unix_ms, kind, event);
    set(&mut fields, "action", json!(entry.action));
    set(&mut fields, "identity", json!(entry.identity.as_ref().map(kernel::Identity::as_str)));
    set(&mut fields, "serial", json!(entry.origin.serial.as_deref()));
    set(&mut fields, "correlation", json!(entry.origin.correlation()));
    match &entry.fact {
        AuditedFact::Act(action, response) => set_act(&mut fields, action, response),
        AuditedFact::Change(change) => set_change(&mut fields, change),
    }
    set(&mut fields, "shard", json!(shard.0));
    set(&mut fields, "lsn", json!(entry.lsn.0));
    fields
}

/// The kind and the name of a change.
fn names(event: &Event) -> (&'static str, &'static str) {
    match event {
        Event::Granted(..) => ("grant", "granted"),
        Event::Activated(_) => ("grant", "activated"),
        Event::Rebound(..) => ("grant", "rebound"),
        Event::Released(_) => ("end", "released"),
        Event::Expired { .. } => ("end", "expired"),
        Event::Revoked(_) => ("end", "revoked"),
        Event::Reclaimed(_) => ("end", "reclaimed"),
        Event::Committed { .. } => ("commit", "committed"),
        Event::Removed { .. } => ("commit", "removed"),
        Event::Dropped { .. } => ("commit", "dropped"),
    }
}

fn set_change(fields: &mut Fields, change: &AuditedChange) {
    set(fields, "lease", json!(change.event.lease().map(|lease| lease.to_string())));
    if let Some(lease) = &change.lease {
        set(fields, "holder", json!(lease.identity.as_str()));
        set(fields, "namespace", json!(lease.namespace.as_str()));
    }
    match &change.event {
        Event::Committed { key, version, .. } | Event::Removed { key, version, .. } => {
            set(fields, "key", json!(key.as_str()));
            set(fields, "version", json!(version.0));
            set(fields, "bytes", json!(change.document_bytes));
        }
        Event::Dropped { namespace, key, .. } => {
            set(fields, "namespace", json!(namespace.as_str()));
            set(fields, "key", json!(key.as_str()));
        }
        _ => {
            if let Some(lease) = &change.lease {
                set_lease(fields, lease, change.deadline_unix_ms);
            }
        }
    }
    set(fields, "outcome", json!(change.lease.as_ref().map(|lease| lease.state.as_str())));
}

fn set_lease(fields: &mut Fields, lease: &LeaseView, deadline_unix_ms: Option<u64>) {
    let member = |member: &Member| json!({"resource": member.resource.as_str(), "predicate": member.predicate.as_str()});
    set(fields, "members", lease.members.iter().map(member).collect());
    set(fields, "token", json!(lease.token.0));
    set(fields, "deadline_unix_ms", json!(deadline_unix_ms));
    set(fields, "owner", json!(lease.details.owner.as_ref().map(kernel::Owner::as_str)));
    set(fields, "agent", json!(lease.details.agent.as_ref().map(kernel::AgentName::as_str)));
    set(fields, "session", json!(lease.details.session.as_ref().map(kernel::SessionName::as_str)));
    set(fields, "reason", json!(lease.details.reason.as_ref().map(kernel::Reason::as_str)));
}

fn set_act(fields: &mut Fields, action: &Action, response: &Response) {
    match action {
        Action::Revoke(lease) | Action::Reclaim(lease) => set(fields, "lease", json!(lease.to_string())),
        Action::RevokeAll(party) => set_party(fields, party),
        Action::Pause(pause) => {
            match &pause.whom {
                Paused::Scope(scope) => set_scope(fields, scope),
                Paused::Agent(namespace, agent) => {
                    set_party(fields, &Party::Agent(namespace.clone(), agent.clone()));
                }
            }
            set(fields, "paused", json!(pause.paused));
        }
        Action::SetQuota(set_quota) => {
            set_scope(fields, &set_quota.scope);
            let quota = &set_quota.quota;
            let named = json!({
                "leases_max": quota.leases_max,
                "total_max_ms": quota.total_max.map(|span| span.0),
                "idle_max_ms": quota.idle_max.map(|span| span.0),
                "acquires_per_second": quota.acquires_per_second,
            });
            set(fields, "quota", named);
        }
        Action::DropNamespace(namespace) => set(fields, "namespace", json!(namespace.as_str())),
        Action::Agent(news) => {
            set_party(fields, &Party::Agent(news.namespace.clone(), news.agent.clone()));
            set(fields, "restarting", json!(news.restarting));
        }
        _ => {}
    }
    if let Response::RevokedAll { revoked, .. } = response {
        set(fields, "revoked", json!(revoked));
    }
    set(fields, "outcome", json!("applied"));
}

fn set_party(fields: &mut Fields, party: &Party) {
    match party {
        Party::Identity(namespace, identity) => {
            set(fields, "namespace", json!(namespace.as_str()));
            set(fields, "holder", json!(identity.as_str()));
        }
        Party::Agent(namespace, agent) => {
            set(fields, "namespace", json!(namespace.as_str()));
            set(fields, "agent", json!(agent.as_str()));
        }
    }
}

/// `*` stands for all namespaces or identities.
fn set_scope(fields: &mut Fields, scope: &Scope) {
    set(fields, "namespace", json!(scope.namespace.as_ref().map_or("*", kernel::Namespace::as_str)));
    set(fields, "holder", json!(scope.identity.as_ref().map_or("*", kernel::Identity::as_str)));
}

impl RefusedAct {
    fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let target = &self.target;
        let names = [&target.namespace, &target.identity, &target.agent, &target.resource];
        self.identity.len()
            + text(&self.serial)
            + text(&self.correlation)
            + names.map(text).iter().sum::<usize>()
    }

    fn fields(&self, unix_ms: u64) -> Fields {
        let mut fields = head(unix_ms, "act", self.call);
        set(&mut fields, "identity", json!(self.identity));
        set(&mut fields, "serial", json!(self.serial));
        set(&mut fields, "correlation", json!(self.correlation));
        let target = &self.target;
        set(&mut fields, "lease", json!(target.lease.map(|lease| lease.to_string())));
        set(&mut fields, "holder", json!(target.identity));
        set(&mut fields, "namespace", json!(target.namespace));
        set(&mut fields, "agent", json!(target.agent));
        set(&mut fields, "paused", json!(target.paused));
        set(&mut fields, "outcome", json!(if self.code.is_some() { "refused" } else { "applied" }));
        set(&mut fields, "code", json!(self.code));
        set(&mut fields, "status", json!(self.status));
        fields
    }
}

impl ServerEvent {
    fn fields(&self, unix_ms: u64) -> Fields {
        match self {
            ServerEvent::Started { store, clean_stop } => {
                let mut fields = head(unix_ms, "server", "started");
                set(&mut fields, "version", json!(env!("CARGO_PKG_VERSION")));
                set(&mut fields, "store", json!(store));
                set(&mut fields, "clean_stop", json!(clean_stop));
                fields
            }
            ServerEvent::Stopped => head(unix_ms, "server", "stopped"),
        }
    }
}
