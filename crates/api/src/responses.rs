//! What clients get.

use serde::{Deserialize, Serialize};

use crate::requests::{OnExpiry, Resource};
#[cfg(feature = "openapi")]
use crate::schema_types;

/// A lease was granted, or taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Granted {
    /// The credential: to be shown with everything that is done under the lease, and to nobody else.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Credential))]
    pub lease_id: String,
    /// The lease's public name.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::PublicId))]
    pub public_id: String,
    /// The epoch of its authority.
    pub lease_epoch: u64,
    /// Only grows for each resource.
    pub fencing_token: u64,
    /// Where.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Namespace))]
    pub namespace: String,
    /// The key, if it is over one key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Key>))]
    pub key: Option<String>,
    /// The resources, if it is over others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<Resource>>,
    /// For people to read.
    pub owner: String,
    /// When it was granted, by the server's wall clock.
    pub acquired_at_unix: u64,
    /// When it ends, by the server's wall clock, rounded down.
    pub expires_at_unix: u64,
    /// When it ends, by the server's wall clock.
    pub expires_at_unix_ms: u64,
    /// How long it lasts, from when this was decided. Count from before the request was sent.
    pub remaining_ms: u64,
    /// Its TTL.
    pub ttl_ms: u64,
    /// The version of the key's document.
    pub version: u64,
    /// Its hash, `""` if there is none.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::EtagOrNone))]
    pub state_etag: String,
}

/// A lease has authority, and until when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Extended {
    /// When it ends, by the server's wall clock, rounded down.
    pub expires_at_unix: u64,
    /// When it ends, by the server's wall clock.
    pub expires_at_unix_ms: u64,
    /// How long it lasts, from when this was decided.
    pub remaining_ms: u64,
}

/// A lease was given back, now or before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Released {
    /// Always true.
    pub released: bool,
}

/// A document was committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Committed {
    /// Its version.
    pub new_version: u64,
    /// Its hash.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Etag))]
    pub new_state_etag: String,
    /// How long it is, compact.
    pub bytes: u64,
}

/// A document was removed, or there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Removed {
    /// Was there one?
    pub removed: bool,
    /// The key's version.
    pub new_version: u64,
}

/// What is known of a key; never its document, never a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Described {
    /// The key.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Key))]
    pub key: String,
    /// Where.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Namespace))]
    pub namespace: String,
    /// The lease on it, if there is one.
    pub lease: Option<DescribedLease>,
    /// The version of its document.
    pub version: u64,
    /// Its hash, `""` if there is none.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::EtagOrNone))]
    pub state_etag: String,
    /// How long it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
    /// When it was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at_unix: Option<u64>,
    /// How many wait for it.
    pub waiters: u64,
    /// As in `lease`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The public name of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::PublicId>))]
    pub lease_id: Option<String>,
    /// As in `lease`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix: Option<u64>,
    /// Where the lease is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::State>))]
    pub state: Option<String>,
    /// The epoch of its authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_epoch: Option<u64>,
    /// Its fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
}

/// The lease on a key, for everybody to see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DescribedLease {
    /// Its public name.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::PublicId))]
    pub lease_id: String,
    /// For people to read.
    pub owner: String,
    /// When it ends.
    pub expires_at_unix: u64,
}

/// A lease, for everybody to see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    /// Its public name.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::PublicId))]
    pub public_id: String,
    /// Where.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Namespace))]
    pub namespace: String,
    /// Whose.
    pub holder: String,
    /// For people to read.
    pub owner: String,
    /// The agent on whose behalf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Where it is in its life.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::State))]
    pub state: String,
    /// The epoch of its authority.
    pub lease_epoch: u64,
    /// Its fencing token.
    pub fencing_token: u64,
    /// What it covers.
    pub resources: Vec<Member>,
    /// How many that are.
    pub member_count: u64,
    /// Its TTL.
    pub ttl_ms: u64,
    /// When it was granted.
    pub acquired_at_unix_ms: u64,
    /// When authority ends, or ended.
    pub expires_at_unix_ms: u64,
    /// How long that is from now; 0 if it is over.
    pub remaining_ms: u64,
    /// When the resources may be granted again after it has run out.
    pub on_expiry: OnExpiry,
    /// The position of its grant in the log.
    pub created_lsn: u64,
    /// The position of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_lsn: Option<u64>,
    /// When it is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retire_after_ms: Option<u64>,
    /// The holder's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
}

/// One resource of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    /// `KEY`, `FILE`, or any other kind.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Kind))]
    pub kind: String,
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::ResourceName))]
    pub name: String,
    /// What is done with it.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Predicate))]
    pub predicate: String,
    /// Its place in the bundle.
    pub member_index: u64,
}

/// A page of leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leases {
    /// In no particular order.
    pub leases: Vec<Lease>,
    /// To go on with; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// So many leases were withdrawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokedAll {
    /// How many.
    pub revoked: u64,
}

/// It is so now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Done {
    /// Always true.
    pub done: bool,
}

/// Namespaces that may be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Namespaces {
    /// By name.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<schema_types::Namespace>))]
    pub namespaces: Vec<String>,
}

/// What scopes may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quotas {
    /// By scope.
    pub quotas: Vec<ScopeQuota>,
}

/// What a scope may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScopeQuota {
    /// Only in this namespace.
    pub namespace: Option<String>,
    /// Only this identity.
    pub identity: Option<String>,
    /// Its grants are stopped.
    pub paused: bool,
    /// Leases at a time.
    pub max_leases: Option<u32>,
    /// How long one lease may last in all.
    pub max_total_ms: Option<u64>,
    /// How long a lease may go unused.
    pub idle_ms: Option<u64>,
    /// How many leases may be asked for in a second.
    pub acquires_per_second: Option<u32>,
}

/// Does a live lease with this token cover the key? Information, never a guard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fence {
    /// As of this moment.
    pub current: bool,
}

/// Can it grant, durably?
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ready {
    /// Yes or no.
    pub ready: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
