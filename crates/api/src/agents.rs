//! The agents' calls: what they send, and what they get.

use serde::{Deserialize, Serialize};

use crate::Code;
use crate::integer;
use crate::requests::Resource;
use crate::responses::{Granted, Lease};
#[cfg(feature = "openapi")]
use crate::schema_types;

/// All that an agent means to touch: granted as one lease, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Where; `default` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// The agent: it belongs to the identity that first used it in the namespace.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::AgentId))]
    pub agent_id: String,
    /// The run of the agent: who waits for whom is told by it.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::SessionId))]
    pub session_id: String,
    /// As the last answer gave it, if this is a further try; missing with the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AttemptId>))]
    pub attempt_id: Option<String>,
    /// What is touched, and how.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 128))]
    pub intents: Vec<Intent>,
    /// The directory that relative paths belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Directory>))]
    pub root: Option<String>,
    /// How long the lease lasts without a heartbeat; the server's default where it is missing.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_ms: Option<i64>,
    /// How long to wait, if it may; missing or 0: not at all. Nobody waits for longer than the server lets it.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Why, for others to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Reason>))]
    pub reason: Option<String>,
}

/// What an agent does with an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// `PROVIDES`, `CONSUMES`, `MUTATES`, `DELETES`, `DEPENDS_ON` or `RENAMES`.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Predicate))]
    pub predicate: String,
    /// `KIND:name`, as in `FILE:/src/main.rs`.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::ResourceText))]
    pub object: String,
}

/// What an agent has to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Go on: it has the lease.
    Granted,
    /// It may wait, with `wait_ms`, and come again with the same attempt.
    #[default]
    Wait,
    /// Give back what `release` names, back off, and come again with the same attempt.
    Die,
    /// Its grants are stopped, or its quota is used up.
    Paused,
}

/// The answer to a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Judged {
    /// What to do next.
    pub verdict: Verdict,
    /// To be sent with the next try: it keeps the attempt as old as it is.
    pub attempt_id: String,
    /// The lease, if it is granted: acquire's answer, beside the rest.
    #[cfg_attr(feature = "openapi", schema(ignore))]
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Granted>,
    /// Some of those in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<InTheWay>,
    /// How many who came earlier are in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The session's leases, by their public names: to be given back first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub release: Vec<String>,
    /// How long to stay away before the next try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_ms: Option<u64>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A lease that is in somebody's way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InTheWay {
    /// Its public name.
    pub public_id: String,
    /// Whose.
    pub holder: String,
    /// For people to read.
    pub owner: String,
    /// The agent on whose behalf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Why it holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where it is in its life.
    pub state: String,
    /// How long it lasts, if it is not renewed; 0 if it is over and its resources are held.
    pub remaining_ms: u64,
}

/// Several leases at once: heartbeat and release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    /// Where the agent is; `default` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// Who is heard of by this: an agent that said that it restarts is back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AgentId>))]
    pub agent_id: Option<String>,
    /// Credentials, at most [`Bulk::MAX`].
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 10_000))]
    pub lease_ids: Vec<String>,
}

impl Bulk {
    /// The most leases in one call.
    pub const MAX: usize = 10_000;
    /// The longest body of such a call, in bytes: so many of the longest credentials, with room for white space.
    pub const BODY_MAX: usize = 2 << 20;
}

/// What is true of several leases, whatever their holder believes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Reconcile {
    /// Where the agent is; `default` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// Who is heard of by this: an agent that said that it restarts is back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AgentId>))]
    pub agent_id: Option<String>,
    /// Credentials, at most [`Bulk::MAX`].
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 10_000))]
    pub lease_ids: Vec<String>,
    /// Take back what ran out and is still held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebind: Option<bool>,
}

/// What came of each lease, in the order in which they were asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results<T> {
    /// One for each.
    pub results: Vec<T>,
}

/// What came of a heartbeat or a release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BulkResult {
    /// As it was asked for.
    pub lease_id: String,
    /// Did it work?
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Code>,
    /// Why not, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// When the lease ends, by the server's wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix_ms: Option<u64>,
    /// How long it lasts, from when this was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
}

/// What is true of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reconciled {
    /// As it was asked for.
    pub lease_id: String,
    /// Could it be told, and was it taken back if that was asked and could be?
    pub ok: bool,
    /// May work go on: under this credential, or under that of `lease` if there is one?
    pub valid: bool,
    /// Why it is not `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Code>,
    /// Why not, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The lease as it is now, its fields beside the rest.
    #[cfg_attr(feature = "openapi", schema(ignore))]
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub view: Option<Lease>,
    /// What was taken back: a new epoch, a new token, a new credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Granted>,
}

/// What an agent is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AgentState {
    /// It asks and is answered.
    #[default]
    Alive,
    /// It said that it restarts, and has not been back: what runs out is held for it.
    DieRestart,
    /// An operator stopped its grants.
    Paused,
}

/// What is said of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SetAgent {
    /// Where; `default` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// By the agent itself or an operator; `PAUSED` by an operator.
    pub state: AgentState,
}

/// An agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agent {
    /// Its name.
    pub agent_id: String,
    /// Where.
    pub namespace: String,
    /// Whose it is.
    pub identity: String,
    /// What it is doing.
    pub state: AgentState,
    /// How many leases it has that cover resources.
    pub leases: u64,
}

/// A namespace's agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agents {
    /// By name.
    pub agents: Vec<Agent>,
    /// To go on with, as `cursor=`; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// What is true of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceState {
    /// Where.
    pub namespace: String,
    /// `KEY`, `FILE`, or any other kind.
    pub kind: String,
    /// Its name, as it is spelled here.
    pub name: String,
    /// `free`, `held`, or `revoking`: nobody has authority over it, and it is not free.
    pub state: String,
    /// The leases that overlap with it, the oldest first; not all if there are very many.
    pub leases: Vec<Lease>,
    /// There are others.
    pub more: bool,
    /// How many wait for it, or for something that overlaps with it; 100 stands for that many or more.
    pub waiters: u64,
}

/// Who is in whose way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Contention {
    /// Who is blocked by whom, now, those who came first; not all if they are very many.
    pub waiting: Vec<Waiting>,
    /// There are others.
    pub more: bool,
    /// Resources that others were in the way of lately, the most often first.
    pub hotspots: Vec<Hotspot>,
    /// Agents that waited in vain, or let leases run out, lately, the most often first.
    pub timeouts: Vec<Timeouts>,
}

/// Somebody who waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waiting {
    /// Where.
    pub namespace: String,
    /// Who.
    pub identity: String,
    /// The agent on whose behalf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What for.
    pub resources: Vec<Resource>,
    /// Some of the leases in its way.
    pub blocked_by: Vec<InTheWay>,
    /// How many who came earlier are in its way.
    pub position: u64,
    /// How old it is taken to be: of two, the older may wait for the younger.
    pub age_ms: u64,
}

/// A resource that others were in the way of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hotspot {
    /// Where.
    pub namespace: String,
    /// `KEY`, `FILE`, or any other kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// How often.
    pub blocked: u64,
    /// How often in vain.
    pub timed_out: u64,
}

/// An agent, or an identity without one, that times out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeouts {
    /// Where.
    pub namespace: String,
    /// Who.
    pub identity: String,
    /// The agent, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// How many of its waits ended without a lease.
    pub waits: u64,
    /// How many of its leases ran out.
    pub leases: u64,
}

/// Something that happened, as `data` of an event of `/v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// `granted`, `released`, `expired`, `revoked`, `reclaimed`, `committed` or `contention`.
    pub event: String,
    /// Where.
    pub namespace: String,
    /// Which lease, by its public name; none in `contention`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_id: Option<String>,
    /// Whose, or who asked.
    pub holder: String,
    /// The agent on whose behalf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// What the lease covers, or what was asked for; what was written, in `committed`.
    pub resources: Vec<Resource>,
    /// Of a grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// Of a key's document, once it is committed or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The document was removed, or the lease taken back by its holder, or not yet activated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// Those in the way, by their public names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<String>,
}
