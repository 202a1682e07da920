//! The outcome of a record as JSON: the response, and the events that tell what changed.
//!
//! The format is stable: fields are added, never renamed.

use kernel::{Event, Granted, Live, Outcome, Rejection, Response};
use serde_json::{Value, json};

/// The response and the events of a record that was applied at replay; null for any other outcome, and for responses
/// without content.
pub(crate) fn outcome_fields(outcome: &Outcome) -> (Value, Value) {
    match outcome {
        Outcome::Applied(response, events) => {
            (response_fields(response), events.iter().map(event_fields).collect())
        }
        Outcome::Unchanged(_) | Outcome::Rejected(_) => (Value::Null, Value::Null),
    }
}

fn response_fields(response: &Response) -> Value {
    match response {
        Response::Granted(granted) => granted_fields(granted),
        Response::Live(live) => live_fields(live),
        Response::Renewed(results) => results.iter().map(renewal_fields).collect(),
        Response::RevokedAll { revoked, more } => json!({"revoked": revoked, "more": more}),
        Response::Dropped { more } => json!({"more": more}),
        Response::Committed(version) => json!({"version": version.0}),
        Response::Removed { removed, version } => json!({"removed": removed, "version": version.0}),
        Response::Relocated { moved } => json!({"moved": moved}),
        Response::Retracted { undone } => json!({"undone": undone}),
        Response::Revoking(lease) | Response::Reclaimed(lease) => json!({"lease": lease.to_string()}),
        Response::Opened | Response::Closed | Response::Ticked | Response::Released | Response::Done => {
            Value::Null
        }
    }
}

fn granted_fields(granted: &Granted) -> Value {
    json!({
        "lease": granted.lease.to_string(),
        "epoch": granted.epoch.0,
        "token": granted.token.0,
        "deadline_ms": granted.deadline.0,
    })
}

fn live_fields(live: &Live) -> Value {
    json!({"lease": live.lease.to_string(), "epoch": live.epoch.0, "deadline_ms": live.deadline.0})
}

fn renewal_fields(result: &Result<Live, Rejection>) -> Value {
    match result {
        Ok(live) => live_fields(live),
        Err(rejection) => json!({"refused": rejection_name(rejection)}),
    }
}

/// Why a renewal was refused.
fn rejection_name(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::NotFound => "not_found",
        Rejection::Retired => "retired",
        Rejection::NotHeld => "not_held",
        Rejection::LeaseRevoked => "lease_revoked",
        Rejection::LeaseExpired => "lease_expired",
        Rejection::StaleEpoch { .. } => "stale_epoch",
        Rejection::FencingMismatch { .. } => "fencing_mismatch",
        Rejection::InvalidState(_) => "invalid_state",
        Rejection::InvalidTtl { .. } => "invalid_ttl",
        _ => "refused",
    }
}

fn event_fields(event: &Event) -> Value {
    let lease = event.lease().map(|lease| lease.to_string());
    match event {
        Event::Granted(_, token) => json!({"event": "granted", "lease": lease, "token": token.0}),
        Event::Activated(_) => json!({"event": "activated", "lease": lease}),
        Event::Rebound(_, token) => json!({"event": "rebound", "lease": lease, "token": token.0}),
        Event::Released(_) => json!({"event": "released", "lease": lease}),
        Event::Expired { held_until: None, .. } => json!({"event": "expired", "lease": lease}),
        Event::Expired { held_until: Some(until), .. } => {
            json!({"event": "expired", "lease": lease, "held_until_ms": until.0})
        }
        Event::Revoked(_) => json!({"event": "revoked", "lease": lease}),
        Event::Reclaimed(_) => json!({"event": "reclaimed", "lease": lease}),
        Event::Committed { key, version, .. } => {
            json!({"event": "committed", "lease": lease, "key": key.as_str(), "version": version.0})
        }
        Event::Removed { key, version, .. } => {
            json!({"event": "removed", "lease": lease, "key": key.as_str(), "version": version.0})
        }
        Event::Dropped { namespace, key, .. } => {
            json!({"event": "dropped", "namespace": namespace.as_str(), "key": key.as_str()})
        }
    }
}
