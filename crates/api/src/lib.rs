//! The types of the HTTP API `/v1`: requests, responses, refusals.
//!
//! **What is absent.** No HTTP, no rules, no other crate of the workspace: servers and clients share these types only.
//! Unknown fields are refused in requests and ignored in responses, so that a newer server can add fields.
//!
//! The modules in reading order: [`requests`] are the bodies that clients send; `strict` and `integer` are how strictly
//! they are read; [`responses`] are the bodies that clients get; [`agents`] has both, for agents; [`history`] has what a
//! console shows besides; [`code`] has the error codes. With the feature `openapi` all types have schemas, and `schema_types` names those of the strings in them.

pub mod requests;
mod strict;
mod integer;
pub mod responses;
pub mod agents;
pub mod history;
pub mod code;
#[cfg(feature = "openapi")]
pub mod schema_types;

pub use code::{Code, Hints, Refusal};

/// The path of each call.
pub mod path {
    /// Acquire a lease.
    pub const ACQUIRE: &str = "/v1/acquire";
    /// Activate a reserved lease.
    pub const ACTIVATE: &str = "/v1/activate";
    /// Extend a lease.
    pub const KEEPALIVE: &str = "/v1/keepalive";
    /// Release a lease.
    pub const RELEASE: &str = "/v1/release";
    /// Read a key's document.
    pub const GET_STATE: &str = "/v1/get_state";
    /// Commit a key's document.
    pub const UPDATE_STATE: &str = "/v1/update_state";
    /// Remove a key's document.
    pub const REMOVE_STATE: &str = "/v1/remove_state";
    /// Describe a key.
    pub const DESCRIBE: &str = "/v1/describe";
    /// List a namespace's keys that have a document.
    pub const KEYS: &str = "/v1/keys";
    /// Declare the resources that an agent intends to use.
    pub const MANIFEST: &str = "/v1/manifest";
    /// Extend several leases.
    pub const HEARTBEAT: &str = "/v1/leases/heartbeat";
    /// Release several leases.
    pub const RELEASE_ALL: &str = "/v1/leases/release";
    /// Read the state of several leases.
    pub const RECONCILE: &str = "/v1/leases/reconcile";
    /// List a namespace's agents.
    pub const AGENTS: &str = "/v1/agents";
    /// List waiters and recent contention.
    pub const CONTENTION: &str = "/v1/contention";
    /// Stream events.
    pub const EVENTS: &str = "/v1/events";
    /// List leases.
    pub const LEASES: &str = "/v1/leases";
    /// Check whether a fencing token is current.
    pub const FENCE: &str = "/v1/fence";
    /// Revoke all leases of an identity or an agent.
    pub const REVOKE: &str = "/v1/revoke";
    /// Pause or resume the grants of an identity or an agent.
    pub const PAUSE: &str = "/v1/pause";
    /// Reload the server's identity file and denylist.
    pub const RELOAD: &str = "/v1/reload";
    /// Hand shards over to another server.
    pub const HAND_OVER: &str = "/v1/hand_over";
    /// Read or set quotas.
    pub const QUOTAS: &str = "/v1/quotas";
    /// List namespaces.
    pub const NAMESPACES: &str = "/v1/namespaces";
    /// Read the caller's own identity, role and rights.
    pub const WHOAMI: &str = "/v1/whoami";
}

/// The headers of requests and responses.
pub mod header {
    /// Credential of the lease under which a document is read or written.
    pub const LEASE_ID: &str = "x-lease-id";
    /// Reject the request unless this is the lease's fencing token.
    pub const FENCING_TOKEN: &str = "x-fencing-token";
    /// Reject the request unless the key has this version.
    pub const IF_VERSION: &str = "x-if-version";
    /// Reject the request unless the document has this hash; empty requires that there is none.
    pub const IF_STATE_ETAG: &str = "x-if-state-etag";
    /// A retry with the same key gets the same response.
    pub const IDEMPOTENCY_KEY: &str = "x-idempotency-key";
    /// The client's id of a request; echoed in the response, and logged.
    pub const CORRELATION_ID: &str = "x-correlation-id";
    /// URL of the server that has carried out a forwarded request.
    pub const SERVER: &str = "x-lockd-server";
    /// Version of the key that was read.
    pub const KEY_VERSION: &str = "x-key-version";
}

/// The default port of lockd.
pub const PORT: u16 = 9341;
/// The namespace of requests that name none.
pub const DEFAULT_NAMESPACE: &str = "default";
