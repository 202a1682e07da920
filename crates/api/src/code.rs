//! Why not: a code for programs, words for people.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($(#[doc = $means:literal] $name:ident $text:literal $status:literal,)*) => {
        /// Why a request is refused. On the wire as in the specification: `not_held`, `waiting`, and so on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $(#[doc = $means] #[serde(rename = $text)] $name,)*
        }

        impl Code {
            /// All there are.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// On the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// In words.
            pub fn means(self) -> &'static str {
                match self { $(Code::$name => $means.trim_ascii(),)* }
            }

            /// The status of an answer with this code.
            pub fn status(self) -> u16 {
                match self { $(Code::$name => $status,)* }
            }
        }
    };
}

codes! {
    /// Not what this call takes: unknown, missing or malformed fields, or a malformed credential.
    InvalidBody "invalid_body" 400,
    /// No such name can be.
    InvalidKey "invalid_key" 400,
    /// Zero, negative, or over the limit.
    InvalidTtl "invalid_ttl" 400,
    /// The document is not JSON.
    InvalidJson "invalid_json" 400,
    /// No key was named.
    MissingKey "missing_key" 400,
    /// No credential was shown.
    MissingLeaseId "missing_lease_id" 400,
    /// Nobody knows who is asking.
    Unauthenticated "unauthenticated" 401,
    /// The certificate does not allow it.
    Forbidden "forbidden" 403,
    /// The lease is another's, was released, or does not cover this.
    NotHeld "not_held" 403,
    /// The lease ran out.
    LeaseExpired "lease_expired" 403,
    /// An operator withdrew the lease.
    LeaseRevoked "lease_revoked" 403,
    /// The credential is of an earlier epoch.
    StaleEpoch "stale_epoch" 403,
    /// The lease's fencing token is another one.
    FencingMismatch "fencing_mismatch" 403,
    /// No such thing was ever here.
    NotFound "not_found" 404,
    /// The path is right and the method is not.
    MethodNotAllowed "method_not_allowed" 405,
    /// Others hold it, or came first.
    Waiting "waiting" 409,
    /// Waiting would close a ring of sessions that wait for each other.
    Deadlock "deadlock" 409,
    /// The key has another version.
    VersionConflict "version_conflict" 409,
    /// The document has another hash.
    EtagMismatch "etag_mismatch" 409,
    /// The lease is in a state from which this does not lead on.
    InvalidState "invalid_state" 409,
    /// The same session holds it already.
    AlreadyHeld "already_held" 409,
    /// The lease ended, and its history is gone.
    Retired "retired" 410,
    /// The document is longer than is kept.
    DocumentTooLarge "document_too_large" 413,
    /// The document ends before the range begins.
    InvalidRange "invalid_range" 416,
    /// The idempotency key was used for another request.
    IdempotencyMismatch "idempotency_mismatch" 422,
    /// As much is held as may be.
    QuotaExceeded "quota_exceeded" 429,
    /// Too much at a time.
    Throttled "throttled" 429,
    /// Not now: come again.
    Unavailable "unavailable" 503,
    /// The server is about to stop.
    Draining "draining" 503,
    /// The log has no room.
    NoSpace "no_space" 503,
}

/// By hand: a derive does not see names that a macro puts in.
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

/// The body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refusal {
    /// For programs.
    pub error: Code,
    /// For people.
    pub detail: String,
    /// What helps.
    #[serde(flatten)]
    pub hints: Box<Hints>,
}

/// What helps whoever was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hints {
    /// The key's version, where that is the trouble.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_version: Option<u64>,
    /// The document's hash, where that is the trouble; `""` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::schema_types::EtagOrNone>))]
    pub current_etag: Option<String>,
    /// When to come again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
    /// Who is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// How many who came earlier are in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The session's own lease that is in the way, by its public name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// The lease that is in the way, by its public name; or those to give back first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<crate::schema_types::PublicId>))]
    pub leases: Vec<String>,
}

impl Refusal {
    /// A code, and why in words.
    pub fn new(error: Code, detail: impl Into<String>) -> Refusal {
        let hints = Hints { retry_after_seconds: (error.status() == 503).then_some(1), ..Hints::default() };
        Refusal { error, detail: detail.into(), hints: Box::new(hints) }
    }

    /// The same, with what helps.
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
