//! No, in the words of the API.

use api::{Code, Refusal};
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::decider::{Advice, Blocked};
use engine::shard::Unavailable;
use kernel::{DocumentTag, Rejection};

/// A refusal as a response.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Refusal);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused(refusal)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused(refusal) = self;
        let status = StatusCode::from_u16(refusal.error.status()).expect("codes have statuses");
        let body = serde_json::to_vec(&refusal).expect("it can always be written");
        let mut response =
            Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
        if let Some(seconds) = refusal.hints.retry_after_seconds {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        // Whoever counts refusals looks for it here.
        response.extension(refusal.error).body(Body::from(body)).expect("its parts are valid")
    }
}

pub(crate) fn unavailable(why: Unavailable) -> Refusal {
    match why {
        Unavailable::Busy => Refusal::new(Code::Throttled, "too many requests are waiting; come again"),
        Unavailable::NoSpace => {
            Refusal::new(Code::NoSpace, "the log has no room; releases and revokes are still taken")
        }
        Unavailable::TooOften => {
            let detail = "leases are asked for more often than the quota allows; come again in a second";
            Refusal::new(Code::QuotaExceeded, detail).with(|hints| hints.retry_after_seconds = Some(1))
        }
        Unavailable::Replaced => {
            Refusal::new(Code::Unavailable, "a retry of the same request waits in its place")
        }
        Unavailable::Stopped => Refusal::new(Code::Unavailable, "the server has stopped; ask another"),
    }
}

pub(crate) fn blocked(blocked: &Blocked, holder: Option<String>) -> Refusal {
    let (code, detail) = match blocked.advice {
        Advice::Wait => (Code::Waiting, "others hold it, or came first"),
        Advice::Die | Advice::Deadlock => (
            Code::Deadlock,
            "waiting would close a ring of sessions that wait for each other; give back first",
        ),
    };
    let leases = if blocked.release.is_empty() { &blocked.holders } else { &blocked.release };
    Refusal::new(code, detail).with(|hints| {
        hints.retry_after_seconds = Some(1);
        hints.holder = holder;
        hints.position = Some(blocked.position as u64);
        hints.leases = leases.iter().map(ToString::to_string).collect();
    })
}

pub(crate) fn rejected(rejection: &Rejection) -> Refusal {
    let (code, detail) = words(rejection);
    let refusal = Refusal::new(code, detail);
    match rejection {
        Rejection::VersionConflict(tag) | Rejection::EtagMismatch(tag) => tagged(refusal, tag),
        Rejection::AlreadyHeld(lease) => refusal.with(|hints| {
            hints.lease = Some(lease.to_string());
            hints.leases = vec![lease.to_string()];
        }),
        Rejection::Behind | Rejection::Full(_) | Rejection::QuotaExceeded { .. } => {
            refusal.with(|hints| hints.retry_after_seconds = Some(1))
        }
        _ => refusal,
    }
}

fn tagged(refusal: Refusal, tag: &DocumentTag) -> Refusal {
    let etag = tag.etag.map(|etag| hex(&etag.0)).unwrap_or_default();
    refusal.with(|hints| {
        hints.current_version = Some(tag.version.0);
        hints.current_etag = Some(etag);
    })
}

fn words(rejection: &Rejection) -> (Code, String) {
    let (code, text) = match rejection {
        Rejection::InvalidTtl { max } => {
            return (
                Code::InvalidTtl,
                format!("a ttl is more than 0 and at most the limit: max_ms={}", max.0),
            );
        }
        Rejection::InvalidHold { max } => {
            return (Code::InvalidBody, format!("the hold after expiry is too long: max_ms={}", max.0));
        }
        Rejection::QuotaExceeded { max } => {
            return (Code::QuotaExceeded, format!("as many leases are held as may be: max={max}"));
        }
        Rejection::Full(table) => return (Code::Throttled, format!("a table is full: {table:?}")),
        Rejection::InvalidState(state) => {
            return (Code::InvalidState, format!("not from this state: state={}", state.as_str()));
        }
        Rejection::InUse { leases } => {
            let detail = format!("leases stand in the namespace; take them back first: leases={leases}");
            return (Code::InvalidState, detail);
        }
        Rejection::StaleEpoch { current } => {
            return (
                Code::StaleEpoch,
                format!("the credential is of an earlier epoch: current={}", current.0),
            );
        }
        Rejection::FencingMismatch { current } => {
            return (
                Code::FencingMismatch,
                format!("the lease's token is another one: current={}", current.0),
            );
        }
        Rejection::Misplaced(why) => return (Code::Unavailable, format!("the server is at fault: {why:?}")),
        Rejection::InvalidBatch => (Code::InvalidBody, "none, or too many entries"),
        Rejection::RequestMismatch => {
            (Code::IdempotencyMismatch, "this idempotency key was used for another request")
        }
        Rejection::NotFound => (Code::NotFound, "no such thing was ever here"),
        Rejection::Retired => (Code::Retired, "the lease ended, and its history is gone"),
        Rejection::NotHeld => (Code::NotHeld, "the lease is another's, was released, or does not cover this"),
        Rejection::LeaseRevoked => (Code::LeaseRevoked, "an operator withdrew the lease"),
        Rejection::LeaseExpired => (Code::LeaseExpired, "the lease ran out"),
        Rejection::AgentTaken => (Code::Forbidden, "the agent belongs to another identity"),
        Rejection::Behind => (Code::Unavailable, "so much has run out at once that this must wait"),
        Rejection::Conflict(_) => (Code::Waiting, "others hold it"),
        Rejection::AlreadyHeld(_) => (Code::AlreadyHeld, "the same session holds it already"),
        Rejection::VersionConflict(_) => (Code::VersionConflict, "the key has another version"),
        Rejection::EtagMismatch(_) => (Code::EtagMismatch, "the document has another hash"),
        Rejection::Paused => (Code::QuotaExceeded, "new grants are stopped for this identity"),
    };
    (code, text.to_string())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |text, byte| text + &format!("{byte:02x}"))
}
