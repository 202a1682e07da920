//! Request and response bodies of the agents' calls.

use serde::{Deserialize, Serialize};

use crate::Code;
use crate::integer;
use crate::requests::Resource;
use crate::responses::{Granted, Lease};
#[cfg(feature = "openapi")]
use crate::schema_types;

/// All resources that an agent intends to use: granted as one lease, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The namespace; `default` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// The agent. It belongs to the identity that first used it in the namespace.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::AgentId))]
    pub agent_id: String,
    /// Identifies one run of the agent; used for deadlock detection.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::SessionId))]
    pub session_id: String,
    /// For a retry: `attempt_id` of the last response. Missing on the first try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AttemptId>))]
    pub attempt_id: Option<String>,
    /// Resources to use, and how.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 128))]
    pub intents: Vec<Intent>,
    /// Base directory of relative paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Directory>))]
    pub root: Option<String>,
    /// Time to live in milliseconds without a heartbeat; the server's default if missing.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_ms: Option<i64>,
    /// Maximum time in the wait queue in milliseconds, capped by the server. Missing or 0: do not wait.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Why the agent needs it; shown to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Reason>))]
    pub reason: Option<String>,
}

/// A resource that an agent intends to use, and how.
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

/// The decision on a manifest, and what the agent should do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The lease is granted: go ahead.
    Granted,
    /// Blocked, and allowed to wait: retry with `wait_ms` and the same attempt.
    #[default]
    Wait,
    /// Blocked, and not allowed to wait: release the leases in `release`, back off, and retry with the same attempt.
    Die,
    /// Grants are paused, or the quota is exhausted.
    Paused,
}

/// The response to a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Judged))]
pub struct ManifestOutcome {
    /// The decision on the manifest.
    pub verdict: Verdict,
    /// Unless granted: send it with the next try of the same manifest, soon, to keep the place in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AttemptId>))]
    pub attempt_id: Option<String>,
    /// The lease, if granted: the fields of the acquire response, inlined.
    #[cfg_attr(feature = "openapi", schema(ignore))]
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Granted>,
    /// Some of the conflicting leases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<ConflictingLease>,
    /// Queue position: the number of earlier conflicting waiters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Public ids of the session's leases to release first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub release: Vec<String>,
    /// Delay before the next try, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_ms: Option<u64>,
    /// Explanation for people; its wording may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A lease that blocks a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = InTheWay))]
pub struct ConflictingLease {
    /// Public id of the lease.
    pub public_id: String,
    /// Identity of the holder.
    pub holder: String,
    /// Display name of the holder.
    pub owner: String,
    /// Agent that holds the lease, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Why the agent holds the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Lifecycle state of the lease.
    pub state: String,
    /// Milliseconds until expiry without a renewal; 0 if it has ended and still blocks its resources.
    pub remaining_ms: u64,
}

/// A request for several leases: heartbeat or release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    /// The agent's namespace; `default` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// The agent that sends this. An agent in state `DIE_RESTART` becomes `ALIVE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AgentId>))]
    pub agent_id: Option<String>,
    /// Credentials of the leases, at most 10,000.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 10_000))]
    pub lease_ids: Vec<String>,
}

impl Bulk {
    /// Maximum number of leases in one call.
    pub const MAX: usize = 10_000;
    /// Maximum length of the body in bytes: `MAX` credentials of maximum length, with some white space.
    pub const BODY_MAX: usize = 2 << 20;
}

/// A request for the server's state of several leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Reconcile {
    /// The agent's namespace; `default` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// The agent that sends this. An agent in state `DIE_RESTART` becomes `ALIVE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AgentId>))]
    pub agent_id: Option<String>,
    /// Credentials of the leases, at most 10,000.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 10_000))]
    pub lease_ids: Vec<String>,
    /// Also rebind expired leases whose resources are on hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebind: Option<bool>,
}

/// One result for each lease, in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results<T> {
    /// One result for each lease.
    pub results: Vec<T>,
}

/// The outcome of a heartbeat or a release for one lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BulkResult {
    /// Credential from the request.
    pub lease_id: String,
    /// True on success.
    pub ok: bool,
    /// Error code if `ok` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Code>,
    /// Explanation for people if `ok` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Deadline in Unix milliseconds of the server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix_ms: Option<u64>,
    /// Milliseconds until the deadline when the response was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
}

/// The server's state of one lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Reconciled))]
pub struct ReconciledLease {
    /// Credential from the request.
    pub lease_id: String,
    /// False if the state could not be read, or a requested rebind failed.
    pub ok: bool,
    /// Whether work may continue: under the credential of `lease` if present, otherwise under this one.
    pub valid: bool,
    /// Error code if `ok` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Code>,
    /// Explanation for people if `ok` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Current view of the lease, with its fields inlined.
    #[cfg_attr(feature = "openapi", schema(ignore))]
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub view: Option<Lease>,
    /// The rebound lease, with a new epoch, fencing token and credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Granted>,
}

/// State of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AgentState {
    /// The agent is running normally.
    #[default]
    Alive,
    /// The agent announced a restart: its leases that expire until it is back are held for it.
    DieRestart,
    /// An operator paused the agent's grants.
    Paused,
}

/// A request to set the state of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SetAgent {
    /// The namespace; `default` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// New state. Set by the agent's identity or an operator; `PAUSED` by an operator only.
    pub state: AgentState,
}

/// An agent and its state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agent {
    /// Id of the agent.
    pub agent_id: String,
    /// Namespace of the agent.
    pub namespace: String,
    /// Identity that the agent belongs to.
    pub identity: String,
    /// State of the agent.
    pub state: AgentState,
    /// Number of its leases that cover resources.
    pub leases: u64,
    /// Last change or conflict of its leases and requests within the hour, in Unix milliseconds of the server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity_unix_ms: Option<u64>,
}

/// A page of a namespace's agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agents {
    /// Agents, sorted by id.
    pub agents: Vec<Agent>,
    /// Pass as `cursor=` to get the next page; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// State of a resource: its leases and waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceState {
    /// Namespace of the resource.
    pub namespace: String,
    /// `KEY`, `FILE`, or any other kind.
    pub kind: String,
    /// Name of the resource, normalized.
    pub name: String,
    /// Whether a lease holds the resource, and how.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::ResourceCondition))]
    pub state: String,
    /// Leases that overlap with the resource, oldest first; truncated if there are very many.
    pub leases: Vec<Lease>,
    /// True if the list is truncated.
    pub more: bool,
    /// Number of waiters for the resource or an overlapping one; 100 means 100 or more.
    pub waiters: u64,
}

/// Current waiters and recent contention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Contention {
    /// Current waiters with the leases that block them, oldest first; truncated if there are very many.
    pub waiting: Vec<Waiting>,
    /// True if the list is truncated.
    pub more: bool,
    /// Recently contended resources, most contended first.
    pub hotspots: Vec<Hotspot>,
    /// Agents with recent wait timeouts or expired leases, most frequent first.
    pub timeouts: Vec<Timeouts>,
    /// Agents whose requests were recently refused by wait-die or because of a deadlock cycle, most frequent first.
    #[serde(default)]
    pub victims: Vec<Victim>,
}

/// Recent refusals of an agent, or of an identity without an agent, by wait-die or because of a deadlock cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Victim {
    /// Namespace of the requests.
    pub namespace: String,
    /// Identity that was refused.
    pub identity: String,
    /// Agent that was refused, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Number of refused requests.
    pub died: u64,
    /// A resource that the last of them asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Resource>,
}

/// A request in the wait queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waiting {
    /// Namespace of the request.
    pub namespace: String,
    /// Identity of the waiter.
    pub identity: String,
    /// Display name of the waiter.
    pub owner: String,
    /// Agent that waits, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Session of the waiter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Why the agent needs the resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Resources that it waits for.
    pub resources: Vec<Resource>,
    /// Some of the conflicting leases.
    pub blocked_by: Vec<ConflictingLease>,
    /// Queue position: the number of earlier conflicting waiters.
    pub position: u64,
    /// Age of the attempt in milliseconds, for wait-die: the older of two may wait for the younger.
    pub age_ms: u64,
}

/// A recently contended resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hotspot {
    /// Namespace of the resource.
    pub namespace: String,
    /// `KEY`, `FILE`, or any other kind.
    pub kind: String,
    /// Name of the resource.
    pub name: String,
    /// Number of blocked requests.
    pub blocked: u64,
    /// Number of waits that timed out.
    pub timed_out: u64,
}

/// Recent timeouts of an agent, or of an identity without an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeouts {
    /// Namespace of the timeouts.
    pub namespace: String,
    /// Identity that timed out.
    pub identity: String,
    /// Agent that timed out, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Number of waits that ended without a lease.
    pub waits: u64,
    /// Number of leases that expired.
    pub leases: u64,
}

/// An event: the `data` field in the stream of `/v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// `granted`, `released`, `expired`, `revoked`, `reclaimed`, `committed` or `contention`.
    pub event: String,
    /// When the event became durable or the conflict was met, in Unix milliseconds of the server's clock.
    #[serde(default)]
    pub at_unix_ms: u64,
    /// Namespace of the event.
    pub namespace: String,
    /// Public id of the lease; missing in `contention`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_id: Option<String>,
    /// Identity of the holder, or of the requester.
    pub holder: String,
    /// Agent that acted, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Resources of the lease or of the request; in `committed`, the key that was written.
    pub resources: Vec<Resource>,
    /// Fencing token of a grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// Version of the key after a commit or removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Qualifies the event: `rebound`, `held` or `removed`; in `contention` `waits`, `refused`, `died` or `timed_out`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// Public ids of the conflicting leases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<String>,
}
