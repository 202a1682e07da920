//! The recent history of a resource, and the caller as the server knows it.

use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use crate::schema_types;

/// The recent history of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct History {
    /// Namespace of the resource.
    pub namespace: String,
    /// `KEY`, `FILE`, or any other kind.
    pub kind: String,
    /// Name of the resource, normalized.
    pub name: String,
    /// The history is complete from this time on, in Unix milliseconds of the server's clock.
    pub since_unix_ms: u64,
    /// Why it does not go back further.
    pub limited_by: HistoryLimit,
    /// Time of the response, in Unix milliseconds of the server's clock.
    pub now_unix_ms: u64,
    /// Changes and conflicts, oldest first.
    pub entries: Vec<HistoryEntry>,
}

/// Why a history does not go back further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HistoryLimit {
    /// It goes back one hour, and is kept no longer.
    #[default]
    Age,
    /// The server started then; the log on disk has what was before.
    Start,
    /// Older entries were dropped: the history of this resource, or of all, has a maximum size in bytes.
    Size,
}

/// A change of a lease on the resource or of its document, or a request that met a conflict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HistoryEntry {
    /// Id of the event, as in the stream of events.
    #[cfg_attr(feature = "openapi", schema(value_type = schema_types::EventId))]
    pub id: String,
    /// `granted`, `released`, `expired`, `revoked`, `reclaimed`, `committed` or `contention`.
    pub event: String,
    /// When it became durable or the conflict was met, in Unix milliseconds of the server's clock.
    pub at_unix_ms: u64,
    /// Public id of the lease; missing in `contention`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema_types::PublicId>))]
    pub public_id: Option<String>,
    /// Identity of the holder, or of the requester.
    pub holder: String,
    /// Agent that acted, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Epoch of the lease after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_epoch: Option<u64>,
    /// Fencing token of the lease.
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
    /// Number of resources of the lease or of the request; more than one for a bundle.
    pub member_count: u64,
}

/// The caller as the server knows it, and the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Caller {
    /// Identity of the caller: the name in its certificate.
    pub identity: String,
    /// `worker` or `operator`.
    pub role: String,
    /// Rights of the caller, by namespace.
    pub rights: Vec<CallerRights>,
    /// Version of the server.
    pub version: String,
    /// Time of the response, in Unix milliseconds of the server's clock.
    pub now_unix_ms: u64,
}

/// Rights in one namespace, or in several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallerRights {
    /// A namespace, or `*` for all.
    pub namespace: String,
    /// Some of `r`, `w`, `p` and `m`.
    pub rights: String,
}
