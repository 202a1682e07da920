//! What clients send.

use serde::{Deserialize, Serialize};

/// A request for a lease, over one key or several resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acquire {
    /// Where; `default` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// One key, exclusively. Either this or `resources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Several resources, all or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<Resource>>,
    /// How long it lasts without a renewal. Either this or `ttl_ms`; the server's default where both are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    /// The same in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    /// For people to read; the identity where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// How long to wait for it. Missing, 0 or -1: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_seconds: Option<i64>,
    /// When the resources may be granted again after the lease has run out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<OnExpiry>,
    /// Only reserve it: it has to be activated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<bool>,
    /// The run of the program that asks: who waits for whom is told by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The holder's own, up to 1 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
}

/// One resource, and what is done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// `KEY`, `FILE`, or any other kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// `MUTATES` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<String>,
}

/// When the resources of a lease that ran out may be granted again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// The credential.
    pub lease_id: String,
    /// Refuse unless the lease covers this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keepalive {
    /// The credential.
    pub lease_id: String,
    /// For how long from now. Either this or `ttl_ms`; the lease's own where both are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    /// The same in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    /// Refuse unless the lease covers this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Somebody: an identity or an agent, in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Party {
    /// Where; `default` where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Either this or `agent_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Either this or `identity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
}

/// Whose grants are stopped, or go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// Where; everywhere where it is missing, for an identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Either this or `agent_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Either this or `identity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Stop, or let go on.
    pub paused: bool,
}

/// What a scope may use: what is missing is not limited there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Only in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only this identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Leases at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_leases: Option<u32>,
    /// How long one lease may last in all, renewed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_total_ms: Option<u64>,
    /// How long a lease may go unused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// How many leases may be asked for in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquires_per_second: Option<u32>,
}
