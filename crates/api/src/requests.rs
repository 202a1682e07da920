//! What clients send.

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
    /// Where; `default` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// One key, exclusively. Either this or `resources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Key>))]
    pub key: Option<String>,
    /// Several resources, all or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 128))]
    pub resources: Option<Vec<Resource>>,
    /// How long it lasts without a renewal. Either this or `ttl_ms`; the server's default where both are missing.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_seconds: Option<i64>,
    /// The same in milliseconds.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_ms: Option<i64>,
    /// For people to read; the identity where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Owner>))]
    pub owner: Option<String>,
    /// How long to wait for it. Missing, 0 or -1: not at all.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = -1, maximum = 9_223_372_036_854_775_807_isize))]
    pub block_seconds: Option<i64>,
    /// When the resources may be granted again after the lease has run out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<OnExpiry>,
    /// Only reserve it: it has to be activated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<bool>,
    /// The run of the program that asks: who waits for whom is told by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::SessionId>))]
    pub session_id: Option<String>,
    /// The holder's own, up to 1 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Metadata>))]
    pub metadata: Option<String>,
}

/// One resource, and what is done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Resource {
    /// `KEY`, `FILE`, or any other kind.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Kind))]
    pub kind: String,
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::ResourceName))]
    pub name: String,
    /// `MUTATES` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Predicate>))]
    pub predicate: Option<String>,
}

/// When the resources of a lease that ran out may be granted again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// At once.
    #[default]
    Free,
    /// When an operator reclaims it.
    Manual,
    /// So many milliseconds later.
    #[serde(rename = "hold_ms")]
    HoldMs(u64),
}

/// A credential, and nothing else: activate, release, rebind, touch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Holder {
    /// The credential.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Credential))]
    pub lease_id: String,
    /// Refuse unless the lease covers this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Key>))]
    pub key: Option<String>,
}

/// A renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Keepalive {
    /// The credential.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Credential))]
    pub lease_id: String,
    /// For how long from now. Either this or `ttl_ms`; the lease's own where both are missing.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_seconds: Option<i64>,
    /// The same in milliseconds.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl_ms: Option<i64>,
    /// Refuse unless the lease covers this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Key>))]
    pub key: Option<String>,
}

/// Somebody: an identity or an agent, in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Party {
    /// Where; `default` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// Either this or `agent_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Identity>))]
    pub identity: Option<String>,
    /// Either this or `identity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AgentId>))]
    pub agent_id: Option<String>,
}

/// Whose grants are stopped, or go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Pause {
    /// Where; everywhere where it is missing, for an identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// Either this or `agent_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Identity>))]
    pub identity: Option<String>,
    /// Either this or `identity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::AgentId>))]
    pub agent_id: Option<String>,
    /// Stop, or let go on.
    pub paused: bool,
}

/// What a scope may use: what is missing is not limited there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Quota {
    /// Only in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Namespace>))]
    pub namespace: Option<String>,
    /// Only this identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Identity>))]
    pub identity: Option<String>,
    /// Leases at a time.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 4_294_967_295_usize))]
    pub max_leases: Option<u32>,
    /// How long one lease may last in all, renewed or not.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 18_446_744_073_709_551_615_usize))]
    pub max_total_ms: Option<u64>,
    /// How long a lease may go unused.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 18_446_744_073_709_551_615_usize))]
    pub idle_ms: Option<u64>,
    /// How many leases may be asked for in a second.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 4_294_967_295_usize))]
    pub acquires_per_second: Option<u32>,
}
