//! `/v1` as types: what is asked, what is answered, what is refused.
//!
//! **What is absent.** No HTTP, no rules, nothing of ours: servers and clients share these words and nothing else.
//! Unknown fields are refused in requests, and ignored in answers, so that a newer server can say more.
//!
//! The modules in reading order: [`requests`] are the bodies that clients send; `strict` and `integer` are how strictly
//! they are read; [`responses`] are the bodies that clients get; [`agents`] has both, for agents; [`code`] has the error
//! codes. With the feature `openapi` all types have schemas, and `schema_types` names those of the strings in them.

pub mod requests;
mod strict;
mod integer;
pub mod responses;
pub mod agents;
pub mod code;
#[cfg(feature = "openapi")]
pub mod schema_types;

#[cfg(feature = "openapi")]
#[doc(hidden)]
pub use schema_types as words;
/// The former names of modules, until their users are renamed.
#[doc(hidden)]
pub use {requests as ask, responses as tell};

pub use code::{Code, Hints, Refusal};

/// The path of each call.
pub mod path {
    /// Take a lease.
    pub const ACQUIRE: &str = "/v1/acquire";
    /// Reserved → active.
    pub const ACTIVATE: &str = "/v1/activate";
    /// Extend a lease.
    pub const KEEPALIVE: &str = "/v1/keepalive";
    /// Give a lease back.
    pub const RELEASE: &str = "/v1/release";
    /// Read a key's document.
    pub const GET_STATE: &str = "/v1/get_state";
    /// Commit a key's document.
    pub const UPDATE_STATE: &str = "/v1/update_state";
    /// Remove a key's document.
    pub const REMOVE_STATE: &str = "/v1/remove_state";
    /// What is known of a key.
    pub const DESCRIBE: &str = "/v1/describe";
    /// Declare all that an agent will touch.
    pub const MANIFEST: &str = "/v1/manifest";
    /// Extend several leases.
    pub const HEARTBEAT: &str = "/v1/leases/heartbeat";
    /// Give several leases back.
    pub const RELEASE_ALL: &str = "/v1/leases/release";
    /// What is true of several leases.
    pub const RECONCILE: &str = "/v1/leases/reconcile";
    /// A namespace's agents.
    pub const AGENTS: &str = "/v1/agents";
    /// Who is in whose way.
    pub const CONTENTION: &str = "/v1/contention";
    /// What happens, as it happens.
    pub const EVENTS: &str = "/v1/events";
    /// Every lease.
    pub const LEASES: &str = "/v1/leases";
    /// Is a token current?
    pub const FENCE: &str = "/v1/fence";
    /// Withdraw all leases of somebody.
    pub const REVOKE: &str = "/v1/revoke";
    /// Stop somebody's grants, or let them go on.
    pub const PAUSE: &str = "/v1/pause";
    /// What somebody may use.
    pub const QUOTAS: &str = "/v1/quotas";
    /// All namespaces.
    pub const NAMESPACES: &str = "/v1/namespaces";
}

/// The headers of calls.
pub mod header {
    /// The credential under which a document is read or written.
    pub const LEASE_ID: &str = "x-lease-id";
    /// Refuse unless this is the lease's fencing token.
    pub const FENCING_TOKEN: &str = "x-fencing-token";
    /// Refuse unless the key has this version.
    pub const IF_VERSION: &str = "x-if-version";
    /// Refuse unless the document has this hash; empty: unless there is none.
    pub const IF_STATE_ETAG: &str = "x-if-state-etag";
    /// The same key, the same answer.
    pub const IDEMPOTENCY_KEY: &str = "x-idempotency-key";
    /// What the client calls a request; echoed, and in the log.
    pub const CORRELATION_ID: &str = "x-correlation-id";
    /// The version of the document that was read.
    pub const KEY_VERSION: &str = "x-key-version";
}

/// The port that lockd listens on.
pub const PORT: u16 = 9341;
/// The namespace that is meant where none is named.
pub const DEFAULT_NAMESPACE: &str = "default";
