//! Errors as responses of the API: a code, a text, and hints on what to do next.

use api::agents::ConflictingLease;
use api::{Code, Refusal};
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::limits::ExceededLimit;
use engine::waiters::{Advice, Blocked};
use engine::{Decision, Unavailable};
use kernel::{BoundedTable, DocumentTag, InvalidRecord, Namespace, Outcome, Rejection, Shard};
use store::{ErrorKind, StoreError};

use crate::backend::download::ReadError;
use crate::backend::error::BackendError;
use crate::backend::upload::UploadError;
use crate::present::etag::etag_text;

/// A refusal as a response.
#[derive(Debug)]
pub(crate) struct RefusalResponse(pub(crate) Refusal);

impl<E: IntoRefusal> From<E> for RefusalResponse {
    fn from(error: E) -> RefusalResponse {
        RefusalResponse(error.into_refusal())
    }
}

impl IntoResponse for RefusalResponse {
    fn into_response(self) -> Response {
        let RefusalResponse(refusal) = self;
        let status = StatusCode::from_u16(refusal.error.status()).expect("codes have statuses");
        let body = serde_json::to_vec(&refusal).expect("a refusal serializes");
        let mut response =
            Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
        if let Some(seconds) = refusal.hints.retry_after_seconds {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        if let Some(shard) = refusal.hints.shard {
            response = response.extension(MovedShard(Shard(shard)));
        }
        if refusal.hints.is_indeterminate {
            response = response.extension(Indeterminate);
        }
        // The metrics count refusals by this extension.
        response.extension(refusal.error).body(Body::from(body)).expect("its parts are valid")
    }
}

/// The shard of a request that another server has to carry out: an extension of responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MovedShard(pub(crate) Shard);

/// The request may have been applied, and its outcome cannot be known here: an extension of responses that no client gets.
/// A refusal says that nothing was applied, so the connection is closed instead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indeterminate;

impl Indeterminate {
    /// Whether the response must not be sent.
    pub(crate) fn is_in(response: &Response) -> bool {
        response.extensions().get::<Indeterminate>().is_some()
    }
}

impl std::fmt::Display for Indeterminate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the outcome of a request cannot be known, so that it gets no response")
    }
}

impl std::error::Error for Indeterminate {}

/// Errors that a handler returns with `?`.
pub(crate) trait IntoRefusal {
    fn into_refusal(self) -> Refusal;
}

impl IntoRefusal for Refusal {
    fn into_refusal(self) -> Refusal {
        self
    }
}

impl IntoRefusal for BackendError {
    fn into_refusal(self) -> Refusal {
        match self {
            BackendError::Unavailable(why) => unavailable(why),
            BackendError::Draining => {
                Refusal::new(Code::Draining, "the server is shutting down; retry with another server")
            }
            BackendError::Dismissed(_) => {
                Refusal::new(Code::Draining, "the server is shutting down; retry with the same attempt_id")
            }
            BackendError::Indeterminate => Refusal::new(
                Code::Unavailable,
                "the server failed before it decided the request, which may have been applied; \
                 retry with the same idempotency key",
            )
            .with(|hints| hints.is_indeterminate = true),
            BackendError::QueryFailed => Refusal::new(Code::Unavailable, "the server failed; retry"),
            BackendError::Moved(shard) => moved(shard),
            BackendError::NoSuchLease => no_such_lease(),
            BackendError::NoSuchAgent => no_such_agent(),
            BackendError::OtherNamespace(namespace) => other_namespace(&namespace),
            BackendError::Rejected(rejection) => rejected(&rejection),
            BackendError::Refused(decision) => refused(&decision, None),
        }
    }
}

impl IntoRefusal for UploadError {
    fn into_refusal(self) -> Refusal {
        match self {
            UploadError::Truncated(error) => truncated(&error),
            UploadError::TooLarge { max_bytes } => Refusal::new(
                Code::DocumentTooLarge,
                format!("the document is longer than the limit: max_bytes={max_bytes}"),
            ),
            UploadError::Refused(error) => error.into_refusal(),
            UploadError::OverLimit(limit) => over_limit(&limit),
            UploadError::InvalidJson(error) => Refusal::new(Code::InvalidJson, error.to_string()),
            UploadError::Store(error) if error.kind == ErrorKind::NoSpace => {
                Refusal::new(Code::NoSpace, format!("the store has no free disk space: {error}"))
            }
            UploadError::Store(error) => {
                Refusal::new(Code::Unavailable, format!("the document cannot be stored: {error}"))
            }
        }
    }
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Refusal {
        error.into_refusal()
    }
}

pub(crate) fn no_such_lease() -> Refusal {
    Refusal::new(Code::NotFound, "no such lease")
}

pub(crate) fn no_such_agent() -> Refusal {
    Refusal::new(Code::NotFound, "no such agent")
}

pub(crate) fn no_such_key() -> Refusal {
    Refusal::new(Code::NotFound, "no such key")
}

pub(crate) fn other_namespace(namespace: &Namespace) -> Refusal {
    let detail =
        "the lease is in another namespace than the request, whose `namespace` is `default` if missing";
    Refusal::new(Code::NotHeld, format!("{detail}: namespace={}", namespace.as_str()))
}

pub(crate) fn wrong_lease() -> Refusal {
    Refusal::new(Code::NotHeld, "the credential is of another lease than the path")
}

pub(crate) fn missing_key() -> Refusal {
    Refusal::new(Code::MissingKey, "the query parameter `key` is missing")
}

pub(crate) fn bad_cursor() -> Refusal {
    Refusal::new(Code::InvalidBody, "cursor is not from an earlier page; omit it to start at the first page")
}

pub(crate) fn truncated(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(Code::InvalidBody, format!("the body was not received completely: {error}"))
}

pub(crate) fn too_many_subscriptions(limit: &ExceededLimit) -> Refusal {
    let ExceededLimit { name, max, is_own } = limit;
    let whose = if *is_own { "of this identity" } else { "in total" };
    let detail = format!("too many event subscriptions {whose}; retry later: limit={name} max={max}");
    Refusal::new(Code::Throttled, detail)
}

/// A document that is not sent.
pub(crate) fn unread(error: &ReadError) -> Refusal {
    match error {
        ReadError::Store(error) => unreadable(error),
        ReadError::OverLimit(limit) => over_limit(limit),
        ReadError::Backend(error) => error.clone().into_refusal(),
    }
}

fn unreadable(error: &StoreError) -> Refusal {
    Refusal::new(Code::Unavailable, format!("the document cannot be read: {error}"))
}

pub(crate) fn certificate_withdrawn() -> Refusal {
    Refusal::new(Code::Unauthenticated, "the client's certificate was revoked or has expired")
}

pub(crate) fn too_many_connections(max: usize) -> Refusal {
    let detail = "the server has too many connections; only /healthz and /readyz are answered; retry later";
    Refusal::new(Code::Unavailable, format!("{detail}: limit=max-connections max={max}"))
        .with(|hints| hints.retry_after_seconds = Some(1))
}

fn unavailable(why: Unavailable) -> Refusal {
    match why {
        Unavailable::Busy => Refusal::new(Code::Throttled, "too many requests are queued; retry later"),
        Unavailable::NoSpace => Refusal::new(
            Code::NoSpace,
            "the log has no free disk space; releases and revokes are still accepted",
        ),
        Unavailable::TooOften => {
            let detail = "the quota's rate of acquires is exceeded; retry in a second";
            Refusal::new(Code::QuotaExceeded, detail).with(|hints| hints.retry_after_seconds = Some(1))
        }
        Unavailable::OverLimit(limit) => over_limit(&limit),
        Unavailable::Replaced => {
            Refusal::new(Code::Unavailable, "a retry with the same idempotency key took this request's place")
        }
        Unavailable::Withdrawn => certificate_withdrawn(),
        Unavailable::Dismissed(_) | Unavailable::Stopped => {
            Refusal::new(Code::Unavailable, "the server has stopped; retry with another server")
        }
        Unavailable::Moved(_) | Unavailable::Deposed => Refusal::new(
            Code::Unavailable,
            "another server owns this shard now; the request was not carried out",
        ),
    }
}

/// Another server owns the shard, or will soon.
pub(crate) fn moved(shard: Shard) -> Refusal {
    let detail = format!(
        "another server owns the shard of this request, which was not carried out: shard={}",
        shard.0
    );
    Refusal::new(Code::Moved, detail).with(|hints| hints.shard = Some(shard.0))
}

/// A limit of the requester is 429, a limit that all share is 503.
pub(crate) fn over_limit(limit: &ExceededLimit) -> Refusal {
    let ExceededLimit { name, max, is_own } = limit;
    if *is_own {
        let what = "a limit of this identity or namespace is reached; release leases or remove documents";
        return Refusal::new(Code::QuotaExceeded, format!("{what}: limit={name} max={max}"));
    }
    let what = "the server's memory for this is in use; retry later";
    Refusal::new(Code::Unavailable, format!("{what}: limit={name} max={max}"))
        .with(|hints| hints.retry_after_seconds = Some(5))
}

/// A decision that is not the response that the handler expects. `by` is a conflicting lease.
pub(crate) fn refused(decision: &Decision, by: Option<ConflictingLease>) -> Refusal {
    match decision {
        Decision::Blocked(conflict) => blocked(conflict, by),
        Decision::Outcome(Outcome::Rejected(rejection)) => rejected(rejection),
        Decision::Outcome(Outcome::Applied(..) | Outcome::Unchanged(_)) => Refusal::new(
            Code::Unavailable,
            "internal error: the decision does not match the request; report this bug",
        ),
    }
}

fn blocked(blocked: &Blocked, by: Option<ConflictingLease>) -> Refusal {
    let (code, detail) = match blocked.advice {
        Advice::Wait => (Code::Waiting, "blocked by conflicting leases or earlier waiters"),
        Advice::Die | Advice::Deadlock => (
            Code::Deadlock,
            "waiting would close a deadlock cycle of sessions; release the listed leases first",
        ),
    };
    let leases = if blocked.release.is_empty() { &blocked.holders } else { &blocked.release };
    Refusal::new(code, detail).with(|hints| {
        hints.retry_after_seconds = Some(1);
        if let Some(lease) = by {
            hints.holder = Some(lease.holder);
            hints.owner = Some(lease.owner);
            hints.remaining_ms = Some(lease.remaining_ms);
        }
        hints.position = Some(blocked.position as u64);
        hints.leases = leases.iter().map(ToString::to_string).collect();
    })
}

pub(crate) fn rejected(rejection: &Rejection) -> Refusal {
    let refusal = Refusal::new(code(rejection), detail(rejection));
    match rejection {
        Rejection::VersionConflict(tag) | Rejection::EtagMismatch(tag) => with_tag(refusal, tag),
        Rejection::AlreadyHeld(lease) => refusal.with(|hints| {
            hints.lease = Some(lease.to_string());
            hints.leases = vec![lease.to_string()];
        }),
        Rejection::Behind | Rejection::Full { .. } | Rejection::QuotaExceeded { .. } => {
            refusal.with(|hints| hints.retry_after_seconds = Some(1))
        }
        _ => refusal,
    }
}

fn with_tag(refusal: Refusal, tag: &DocumentTag) -> Refusal {
    refusal.with(|hints| {
        hints.current_version = Some(tag.version.0);
        hints.current_etag = Some(tag.etag.map(etag_text).unwrap_or_default());
    })
}

fn code(rejection: &Rejection) -> Code {
    match rejection {
        Rejection::InvalidTtl { .. } => Code::InvalidTtl,
        Rejection::InvalidHold { .. } | Rejection::InvalidBatch => Code::InvalidBody,
        Rejection::QuotaExceeded { .. } | Rejection::Paused => Code::QuotaExceeded,
        Rejection::Full { .. } => Code::Throttled,
        Rejection::InvalidState(_) | Rejection::InUse { .. } => Code::InvalidState,
        Rejection::StaleEpoch { .. } => Code::StaleEpoch,
        Rejection::FencingMismatch { .. } => Code::FencingMismatch,
        Rejection::InvalidRecord(_) | Rejection::Behind => Code::Unavailable,
        Rejection::RequestMismatch => Code::IdempotencyMismatch,
        Rejection::NotFound => Code::NotFound,
        Rejection::Retired => Code::Retired,
        Rejection::Moved { .. } => Code::Moved,
        Rejection::NotHeld => Code::NotHeld,
        Rejection::LeaseRevoked => Code::LeaseRevoked,
        Rejection::LeaseExpired => Code::LeaseExpired,
        Rejection::AgentTaken => Code::Forbidden,
        Rejection::Conflict(_) => Code::Waiting,
        Rejection::AlreadyHeld(_) => Code::AlreadyHeld,
        Rejection::VersionConflict(_) => Code::VersionConflict,
        Rejection::EtagMismatch(_) => Code::EtagMismatch,
    }
}

fn detail(rejection: &Rejection) -> String {
    let text = match rejection {
        Rejection::InvalidTtl { max } => return format!("the TTL is 0 or above the limit: max_ms={}", max.0),
        Rejection::InvalidHold { max } => {
            return format!("the hold after expiry is above the limit: max_ms={}", max.0);
        }
        Rejection::QuotaExceeded { max } => return format!("lease quota reached: max={max}"),
        Rejection::Full { table, max } => {
            return format!("limit reached: limit={} max={max}", limit(*table));
        }
        Rejection::InvalidState(state) => {
            return format!("the lease's state does not allow this: state={}", state.as_str());
        }
        Rejection::InUse { leases } => {
            return format!(
                "the namespace has leases; release or revoke and reclaim them first: leases={leases}"
            );
        }
        Rejection::StaleEpoch { current } => {
            return format!("the credential is of an earlier epoch: current={}", current.0);
        }
        Rejection::FencingMismatch { current } => {
            return format!("the lease has another fencing token: current={}", current.0);
        }
        Rejection::InvalidRecord(why) => {
            return format!(
                "internal error; restart the server and report this bug: reason={}",
                reason(*why)
            );
        }
        Rejection::InvalidBatch => "the request has no entries, or too many",
        Rejection::RequestMismatch => "the idempotency key was used for another request; use a new key",
        Rejection::NotFound => "no such lease",
        Rejection::Moved { to: Some(server) } => {
            return format!("another server has the namespace: server={server:032x}");
        }
        Rejection::Moved { to: None } => "another server has the namespace",
        Rejection::Retired => "the lease ended, and its history was deleted",
        Rejection::NotHeld => {
            "the lease is of another identity, was released, or does not cover this resource"
        }
        Rejection::LeaseRevoked => "the lease was revoked by an operator",
        Rejection::LeaseExpired => "the lease expired",
        Rejection::AgentTaken => "the agent belongs to another identity",
        Rejection::Behind => "too many leases expired at once; retry when their expiry is logged",
        Rejection::Conflict(_) => "blocked by conflicting leases",
        Rejection::AlreadyHeld(_) => "the same session already holds a conflicting lease",
        Rejection::VersionConflict(_) => "the key has another version",
        Rejection::EtagMismatch(_) => "the document has another etag",
        Rejection::Paused => "grants are paused by an operator",
    };
    text.to_string()
}

/// The name of the limit.
fn limit(table: BoundedTable) -> &'static str {
    match table {
        BoundedTable::Leases => "leases_max",
        BoundedTable::Namespaces => "namespaces_max",
        BoundedTable::Nodes => "nodes_max",
        BoundedTable::Documents => "documents_max",
        BoundedTable::Agents => "agents_max",
        BoundedTable::AgentsPerIdentity => "agents_per_identity_max",
        BoundedTable::Policies => "policies_max",
        BoundedTable::Requests => "requests_max",
        BoundedTable::RequestsPerIdentity => "requests_per_identity_max",
    }
}

fn reason(why: InvalidRecord) -> String {
    match why {
        InvalidRecord::Lsn { last } => format!("LSN out of order: last={}", last.0),
        InvalidRecord::Time { last } => format!("time stamp out of order: last_ms={}", last.0),
        InvalidRecord::NotOpen => "the log is not open".to_string(),
        InvalidRecord::Term { last } => format!("stale term: last={last}"),
        InvalidRecord::Store => "the record belongs to another store".to_string(),
        InvalidRecord::KernelVersion { newest } => format!("unsupported kernel version: newest={newest}"),
        InvalidRecord::Limits => "invalid limits".to_string(),
        InvalidRecord::NoIdentity => "the command has no identity".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_of_another_server_is_moved_with_that_server() {
        let refusal = rejected(&Rejection::Moved { to: Some(0xab) });
        assert_eq!((refusal.error.status(), refusal.error.to_string().as_str()), (421, "moved"));
        assert!(refusal.detail.ends_with("server=000000000000000000000000000000ab"), "{}", refusal.detail);
        assert_eq!(rejected(&Rejection::Moved { to: None }).error, Code::Moved);
    }
}
