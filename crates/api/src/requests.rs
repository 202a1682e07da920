//! Request bodies of `/v1`, for everything but agents.

use serde::{Deserialize, Serialize};

use crate::integer;
#[cfg(feature = "openapi")]
use crate::schema_types;
use crate::strict::strict_objects;

strict_objects! { Acquire Resource Holder Keepalive Party Pause Quota }

/// A request for a lease, over one key or several resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Acquire {
    /// The namespace; `default` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// Acquire this key exclusively. Either this or `resources` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Key>))]
    pub key: Option<String>,
    /// Acquire several resources: all of them, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 128))]
    pub resources: Option<Vec<Resource>>,
    /// Time to live in seconds without a renewal. Either this or `ttl_ms`; the server's default if both are missing.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_seconds: Option<i64>,
    /// Time to live in milliseconds; excludes `ttl_seconds`.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_ms: Option<i64>,
    /// Display name of the holder; the identity if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Owner>))]
    pub owner: Option<String>,
    /// Maximum time in the wait queue, in seconds. Missing, 0 or -1: do not wait.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = -1, maximum = 9_223_372_036_854_775_807_isize))]
    pub block_seconds: Option<i64>,
    /// When the resources become free after the lease expires; `free` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<OnExpiry>,
    /// Reserve only: the lease must be activated before use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<bool>,
    /// Identifies one run of the client; used for deadlock detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::SessionId>))]
    pub session_id: Option<String>,
    /// For a retry: `attempt_id` of the last refusal, to keep the place in the queue. Missing on the first try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AttemptId>))]
    pub attempt_id: Option<String>,
    /// Opaque data of the holder, up to 1 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Metadata>))]
    pub metadata: Option<String>,
}

/// A resource, and what the holder does with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Resource {
    /// `KEY`, `FILE`, or any other kind.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Kind))]
    pub kind: String,
    /// Name of the resource.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::ResourceName))]
    pub name: String,
    /// What the holder does with it; `MUTATES` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Predicate>))]
    pub predicate: Option<String>,
}

/// When the resources of an expired lease become free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// Free immediately at expiry.
    #[default]
    Free,
    /// Blocked until an operator reclaims the lease.
    Manual,
    /// Blocked for this many milliseconds after expiry.
    #[serde(rename = "hold_ms")]
    HoldMs(u64),
}

/// A request under a lease's credential: activate, release, rebind, touch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Holder {
    /// Credential of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Credential))]
    pub lease_id: String,
    /// Reject the request unless the lease covers this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Key>))]
    pub key: Option<String>,
}

/// A request to extend a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Keepalive {
    /// Credential of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Credential))]
    pub lease_id: String,
    /// New time to live from now, in seconds. Either this or `ttl_ms`; the lease's own TTL if both are missing.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_seconds: Option<i64>,
    /// Time to live in milliseconds; excludes `ttl_seconds`.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_ms: Option<i64>,
    /// Reject the request unless the lease covers this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Key>))]
    pub key: Option<String>,
}

/// An identity or an agent, in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Party {
    /// The namespace; `default` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// The identity. Either this or `agent_id` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Identity>))]
    pub identity: Option<String>,
    /// The agent. Either this or `identity` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AgentId>))]
    pub agent_id: Option<String>,
}

/// A request to hand shards over to another server of the bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// The shard. If missing: all shards that the server owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
}

/// Pauses or resumes the grants of an identity or an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Pause {
    /// The namespace. If missing: all namespaces for an identity, `default` for an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// The identity. Either this or `agent_id` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Identity>))]
    pub identity: Option<String>,
    /// The agent. Either this or `identity` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AgentId>))]
    pub agent_id: Option<String>,
    /// True to pause grants, false to resume them.
    pub paused: bool,
}

/// Limits of a scope. A missing limit is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Quota {
    /// Scope: this namespace; all if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// Scope: this identity; all if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Identity>))]
    pub identity: Option<String>,
    /// Maximum number of concurrent leases.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 4_294_967_295_usize))]
    pub max_leases: Option<u32>,
    /// Maximum total lifetime of a lease in milliseconds, renewals included.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 18_446_744_073_709_551_615_usize))]
    pub max_total_ms: Option<u64>,
    /// Maximum time in milliseconds that a lease may go without use.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 18_446_744_073_709_551_615_usize))]
    pub idle_ms: Option<u64>,
    /// Maximum number of acquire requests per second.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 4_294_967_295_usize))]
    pub acquires_per_second: Option<u32>,
    /// True to pause grants in the scope, false to resume them; missing: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}
