//! Response bodies of `/v1`, for everything but agents.

use serde::{Deserialize, Serialize};

use crate::requests::{OnExpiry, Resource};
#[cfg(feature = "openapi")]
use crate::schema_types;

/// A lease that was granted or rebound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Granted {
    /// The credential, required by every call under the lease. Keep it secret.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Credential))]
    pub lease_id: String,
    /// Public id of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::PublicId))]
    pub public_id: String,
    /// Epoch of the lease; each gain or loss of authority raises it.
    pub lease_epoch: u64,
    /// Fencing token; only grows for each resource.
    pub fencing_token: u64,
    /// Namespace of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Namespace))]
    pub namespace: String,
    /// The key, if the lease covers a single key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::Key>))]
    pub key: Option<String>,
    /// The resources, if the lease does not cover a single key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<Resource>>,
    /// Display name of the holder.
    pub owner: String,
    /// Time of the grant, in Unix seconds of the server's clock.
    pub acquired_at_unix: u64,
    /// Deadline in Unix seconds of the server's clock, rounded down.
    pub expires_at_unix: u64,
    /// Deadline in Unix milliseconds of the server's clock.
    pub expires_at_unix_ms: u64,
    /// Milliseconds until the deadline when the response was written. Count them from before the request was sent.
    pub remaining_ms: u64,
    /// Time to live of the lease, in milliseconds.
    pub ttl_ms: u64,
    /// Version of the key's document.
    pub version: u64,
    /// Hash of the document; `""` if there is none.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::EtagOrNone))]
    pub state_etag: String,
}

/// The deadline of a lease after the call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Extended {
    /// Deadline in Unix seconds of the server's clock, rounded down.
    pub expires_at_unix: u64,
    /// Deadline in Unix milliseconds of the server's clock.
    pub expires_at_unix_ms: u64,
    /// Milliseconds until the deadline when the response was written.
    pub remaining_ms: u64,
}

/// The lease is released, by this call or earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Released {
    /// Always true on success.
    pub released: bool,
}

/// A document was committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Committed {
    /// Version of the key after the commit.
    pub new_version: u64,
    /// Hash of the committed document.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Etag))]
    pub new_state_etag: String,
    /// Length of the compacted document, in bytes.
    pub bytes: u64,
}

/// The outcome of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Removed {
    /// True if there was a document.
    pub removed: bool,
    /// Version of the key after the call.
    pub new_version: u64,
}

/// State of a key, without its document and without credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Described {
    /// Name of the key.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Key))]
    pub key: String,
    /// Namespace of the key.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Namespace))]
    pub namespace: String,
    /// The current lease on the key, if any.
    pub lease: Option<DescribedLease>,
    /// Version of the key's document.
    pub version: u64,
    /// Hash of the document; `""` if there is none.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::EtagOrNone))]
    pub state_etag: String,
    /// Length of the document, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
    /// Time of the last commit, in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at_unix: Option<u64>,
    /// Number of waiters for the key.
    pub waiters: u64,
    /// Identity of the lease's holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Public id of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::PublicId>))]
    pub public_id: Option<String>,
    /// Same as `lease.owner`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Same as `public_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::PublicId>))]
    pub lease_id: Option<String>,
    /// Same as `lease.expires_at_unix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix: Option<u64>,
    /// Lifecycle state of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::LeaseState>))]
    pub state: Option<String>,
    /// Epoch of the lease; each gain or loss of authority raises it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_epoch: Option<u64>,
    /// Fencing token of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
}

/// A page of the keys of a namespace that have a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Keys {
    /// Keys, sorted by name.
    pub keys: Vec<StoredKey>,
    /// Pass as `cursor=` to get the next page; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A key that has a document, without the document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredKey {
    /// Name of the key.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Key))]
    pub key: String,
    /// Version of the key's document.
    pub version: u64,
    /// Hash of the document.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Etag))]
    pub state_etag: String,
    /// Length of the document, in bytes.
    pub state_bytes: u64,
    /// Time of the last commit, in Unix seconds.
    pub updated_at_unix: u64,
}

/// Public view of the lease on a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DescribedLease {
    /// Public id of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::PublicId))]
    pub lease_id: String,
    /// Display name of the holder.
    pub owner: String,
    /// Deadline in Unix seconds of the server's clock.
    pub expires_at_unix: u64,
}

/// Public view of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    /// Public id of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::PublicId))]
    pub public_id: String,
    /// Namespace of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Namespace))]
    pub namespace: String,
    /// Identity of the holder.
    pub holder: String,
    /// Display name of the holder.
    pub owner: String,
    /// Agent that holds the lease, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Lifecycle state of the lease.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::LeaseState))]
    pub state: String,
    /// Epoch of the lease; each gain or loss of authority raises it.
    pub lease_epoch: u64,
    /// Fencing token of the lease.
    pub fencing_token: u64,
    /// Resources that the lease covers.
    pub resources: Vec<Member>,
    /// Number of resources.
    pub member_count: u64,
    /// Time to live of the lease, in milliseconds.
    pub ttl_ms: u64,
    /// Time of the grant, in Unix milliseconds.
    pub acquired_at_unix_ms: u64,
    /// End of its authority, past or future, in Unix milliseconds: the deadline, or the release or revocation before it.
    pub expires_at_unix_ms: u64,
    /// Milliseconds until the end of its authority; 0 once it has passed.
    pub remaining_ms: u64,
    /// When the resources become free after the lease expires.
    pub on_expiry: OnExpiry,
    /// Log sequence number of the grant.
    pub created_lsn: u64,
    /// Log sequence number of the lease's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_lsn: Option<u64>,
    /// Milliseconds until the lease's history is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retire_after_ms: Option<u64>,
    /// Opaque data of the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
}

/// One resource of a lease's bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    /// `KEY`, `FILE`, or any other kind.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Kind))]
    pub kind: String,
    /// Name of the resource.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::ResourceName))]
    pub name: String,
    /// What the holder does with the resource.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::Predicate))]
    pub predicate: String,
    /// Index of the member in the bundle.
    pub member_index: u64,
}

/// A page of leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leases {
    /// Leases, in no particular order.
    pub leases: Vec<Lease>,
    /// Pass as `cursor=` to get the next page; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The number of revoked leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokedAll {
    /// Number of leases revoked.
    pub revoked: u64,
}

/// The change was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Done {
    /// Always true on success.
    pub done: bool,
}

/// The identity file and the denylist are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reloaded {
    /// Certificates that were not revoked before.
    pub revoked: u64,
    /// Certificates that are no longer revoked.
    pub unrevoked: u64,
    /// Open connections that were closed.
    pub connections_closed: u64,
}

/// Shards that were handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HandedOver {
    /// Numbers of the shards that the server no longer owns.
    pub shards: Vec<u32>,
}

/// A page of the namespaces visible to the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Namespaces {
    /// Names of the namespaces, in no particular order.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<schema_types::Namespace>))]
    pub namespaces: Vec<String>,
    /// Pass as `cursor=` to get the next page; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of the quotas of all scopes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quotas {
    /// One entry for each scope with a quota or a pause.
    pub quotas: Vec<ScopeQuota>,
    /// Pass as `cursor=` to get the next page; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Limits and state of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScopeQuota {
    /// Scope: this namespace; all if null.
    pub namespace: Option<String>,
    /// Scope: this identity; all if null.
    pub identity: Option<String>,
    /// True while grants are paused.
    pub paused: bool,
    /// Maximum number of concurrent leases.
    pub max_leases: Option<u32>,
    /// Maximum total lifetime of a lease in milliseconds, renewals included.
    pub max_total_ms: Option<u64>,
    /// Maximum time in milliseconds that a lease may go without use.
    pub idle_ms: Option<u64>,
    /// Maximum number of acquire requests per second.
    pub acquires_per_second: Option<u32>,
}

/// Whether a fencing token is current. Informational: it cannot replace a check at the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fence {
    /// True if a live lease with this token covers the key now.
    pub current: bool,
}

/// Whether the server can grant leases durably.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ready {
    /// True if the server is ready.
    pub ready: bool,
    /// Why the server is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Torn tails that this start of the server cut off its logs; absent if there was none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub torn_tails: Vec<TornTail>,
}

/// A batch that a crash interrupted while it was written: it was never acknowledged, and was cut off the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TornTail {
    /// Shard of the log.
    pub shard: u32,
    /// File that was cut.
    pub file: String,
    /// Offset of the cut in bytes.
    pub offset: u64,
    /// Sequence number of the batch.
    pub batch: u64,
    /// First LSN of the batch; absent if its header was unreadable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_lsn: Option<u64>,
    /// Last LSN of the batch; absent if its header was unreadable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_lsn: Option<u64>,
}
