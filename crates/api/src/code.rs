//! Refusals: an error code for programs, a detail for people.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($(#[doc = $means:literal] $name:ident $text:literal $status:literal,)*) => {
        /// Why a request is refused. On the wire as in the lockd service specification: `not_held`, `waiting`, and so on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $(#[doc = $means] #[serde(rename = $text)] $name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The code on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// The meaning, for people.
            pub fn means(self) -> &'static str {
                match self { $(Code::$name => $means.trim_ascii(),)* }
            }

            /// The HTTP status of a response with this code.
            pub fn status(self) -> u16 {
                match self { $(Code::$name => $status,)* }
            }
        }
    };
}

codes! {
    /// The request is malformed: unknown, missing or invalid fields, or a malformed credential.
    InvalidBody "invalid_body" 400,
    /// The name of a key, resource, namespace, identity or agent is invalid.
    InvalidKey "invalid_key" 400,
    /// The TTL is zero, negative, or above the server's limit.
    InvalidTtl "invalid_ttl" 400,
    /// The document is not JSON.
    InvalidJson "invalid_json" 400,
    /// The request names no key.
    MissingKey "missing_key" 400,
    /// The request has no `X-Lease-ID` header.
    MissingLeaseId "missing_lease_id" 400,
    /// The client is not authenticated.
    Unauthenticated "unauthenticated" 401,
    /// The client's certificate does not grant the required right or role.
    Forbidden "forbidden" 403,
    /// The lease belongs to another holder, was released, or does not cover the resource.
    NotHeld "not_held" 403,
    /// The lease has expired.
    LeaseExpired "lease_expired" 403,
    /// An operator revoked the lease.
    LeaseRevoked "lease_revoked" 403,
    /// The credential belongs to an earlier epoch of the lease.
    StaleEpoch "stale_epoch" 403,
    /// The fencing token is not the lease's current one.
    FencingMismatch "fencing_mismatch" 403,
    /// The lease, key, agent or path does not exist.
    NotFound "not_found" 404,
    /// The path does not support this method.
    MethodNotAllowed "method_not_allowed" 405,
    /// A conflicting lease or an earlier waiter blocks the request.
    Waiting "waiting" 409,
    /// Waiting would complete a deadlock cycle of sessions.
    Deadlock "deadlock" 409,
    /// The key's version does not match the condition.
    VersionConflict "version_conflict" 409,
    /// The document's hash does not match the condition.
    EtagMismatch "etag_mismatch" 409,
    /// The lease's state does not allow this operation.
    InvalidState "invalid_state" 409,
    /// The same session already holds the resource.
    AlreadyHeld "already_held" 409,
    /// The lease ended and its history has been removed.
    Retired "retired" 410,
    /// The document or the request body exceeds its size limit.
    DocumentTooLarge "document_too_large" 413,
    /// The range starts beyond the end of the document.
    InvalidRange "invalid_range" 416,
    /// Another server has the namespace.
    Moved "moved" 421,
    /// The idempotency key was used for a different request.
    IdempotencyMismatch "idempotency_mismatch" 422,
    /// A quota or limit is exhausted.
    QuotaExceeded "quota_exceeded" 429,
    /// The server is at a limit: back off and retry.
    Throttled "throttled" 429,
    /// The server cannot serve the request now: retry.
    Unavailable "unavailable" 503,
    /// The server is shutting down.
    Draining "draining" 503,
    /// The log has no free disk space.
    NoSpace "no_space" 503,
}

/// By hand: the derive does not see renames that a macro inserts.
#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Code {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        let codes = Code::ALL.iter().map(|code| code.as_str());
        let schema = utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .description(Some("Why a request is refused."));
        schema.enum_values(Some(codes)).into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Code {}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The body of every error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refusal {
    /// Error code, for programs.
    pub error: Code,
    /// Explanation for people; its wording may change.
    pub detail: String,
    /// Hints on how to proceed.
    #[serde(flatten)]
    pub hints: Box<Hints>,
}

/// Hints on how to proceed after a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hints {
    /// Current version of the key, after a version conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_version: Option<u64>,
    /// Current hash of the document, after an etag mismatch; `""` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::schema_types::EtagOrNone>))]
    pub current_etag: Option<String>,
    /// When to retry, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
    /// Identity of the holder of the conflicting lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Display name that the holder gave itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Milliseconds until the conflicting lease expires without a renewal; 0 if it has ended and still blocks its resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    /// Queue position: the number of earlier conflicting waiters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Send it with the next try, to keep the place in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::schema_types::AttemptId>))]
    pub attempt_id: Option<String>,
    /// URL of the server that can carry out the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Number of the shard that another server owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// Public id of the session's own conflicting lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Public id of the conflicting lease; or of the leases to release first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<crate::schema_types::PublicId>))]
    pub leases: Vec<String>,
    /// The request may have been applied: the server closes the connection instead of sending this refusal.
    #[serde(skip)]
    pub is_indeterminate: bool,
}

impl Refusal {
    /// A refusal with the default hints of its code.
    pub fn new(error: Code, detail: impl Into<String>) -> Refusal {
        let hints = Hints { retry_after_seconds: (error.status() == 503).then_some(1), ..Hints::default() };
        Refusal { error, detail: detail.into(), hints: Box::new(hints) }
    }

    /// Sets hints.
    #[must_use]
    pub fn with(mut self, hint: impl FnOnce(&mut Hints)) -> Refusal {
        hint(&mut self.hints);
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error, self.detail)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_reads_as_it_is_written_and_has_a_status_of_an_error() {
        for code in Code::ALL {
            let text = serde_json::to_string(code).expect("a string");
            assert_eq!(text, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<Code>(&text).expect("known"), *code);
            assert!((400..600).contains(&code.status()));
        }
    }
}
