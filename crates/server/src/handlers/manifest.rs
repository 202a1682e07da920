//! `POST /v1/manifest`: everything that an agent will touch, as one lease or not at all.
//!
//! **Invariant.** An attempt is as old as its first try, across all retries: the response carries the age that was used
//! for the decision, and the next retry sends it back. So the oldest of all attempts that retry is not blocked for ever.
//!
//! **What would break it.** To decide a retry by a new age: it dies behind every attempt that started since, again and
//! again. To return an age that no longer counts: each retry would be a new attempt, for ever. So an attempt that is too
//! old gets a new age, and its response carries that one.

use std::sync::Arc;

use api::agents::{ManifestOutcome, Verdict};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use engine::{Decision, Delivery, Unavailable};
use kernel::{Action, Age, Command, Identity, Namespace, Outcome, Rejection, Time};

use crate::backend::agents::mark_alive;
use crate::backend::error::BackendError;
use crate::backend::shards::{Backend, SubmitOptions};
use crate::parse::manifest::ManifestRequest;
use crate::parse::{self, Headers, attempt, idempotency};
use crate::peer::Peer;
use crate::present::agents::{ManifestView, blocked_verdict, paused_verdict};
use crate::present::delivery;
use crate::present::leases;
use crate::present::refusals::{IntoRefusal as _, RefusalResponse, refused, rejected};

/// The shortest backoff of an attempt that must die.
const BACKOFF_MIN_MS: u64 = 100;
/// The longest backoff of an attempt that must die.
const BACKOFF_MAX_MS: u64 = 5000;

pub(crate) async fn manifest(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Result<Response, RefusalResponse> {
    backend.check_not_draining()?;
    let manifest = ManifestRequest::parse(&backend.settings, &backend.key, &peer, &parse::body(&body)?)?;
    let request = idempotency::key(&headers, api::path::MANIFEST, &[&body])?;
    let correlation = parse::correlation(&headers)?;
    let now = mark_alive(&backend, &peer, &manifest.namespace, &manifest.agent, correlation).await?;
    let age = manifest.attempt.filter(|age| age.counts_at(now));
    let age = age.unwrap_or_else(|| Age { at: now, tie: backend.random() });
    let attempt = ManifestAttempt {
        backend: &backend,
        identity: peer.identity.clone(),
        namespace: manifest.namespace.clone(),
    };
    let shard = backend.shard_of(&manifest.namespace);
    let options = SubmitOptions { wait: manifest.wait, ..SubmitOptions::new(&peer.connection, correlation) };
    let action = Action::Acquire(manifest.into_grant(age));
    let command = Command { identity: Some(peer.identity), request, action };
    match backend.submit_for_lease(shard, command, options, ManifestView::read).await {
        Ok((decision, view, delivery)) => {
            let judged = attempt.judge(&decision, &view, age)?;
            Ok(delivery::json(serialized(&judged), delivery))
        }
        Err(error @ BackendError::Unavailable(Unavailable::TooOften)) => {
            let judged = attempt.paused(age, now, error.into_refusal().detail);
            Ok(delivery::json(serialized(&judged), Delivery::default()))
        }
        Err(error) => Err(error.into()),
    }
}

/// The attempt that a manifest is a try of.
struct ManifestAttempt<'a> {
    backend: &'a Backend,
    identity: Identity,
    namespace: Namespace,
}

impl ManifestAttempt<'_> {
    /// The verdict on a decision. `age` is that of the request; a replayed grant or a blocked request has its own.
    fn judge(
        &self,
        decision: &Decision,
        view: &ManifestView,
        age: Age,
    ) -> Result<ManifestOutcome, RefusalResponse> {
        if let Some(granted) = leases::granted(decision) {
            let age = view.grant.lease.as_ref().map_or(age, |lease| lease.age);
            let lease = Some(leases::granted_response(self.backend, granted, &view.grant));
            return Ok(ManifestOutcome {
                verdict: Verdict::Granted,
                attempt_id: self.id(age),
                lease,
                ..ManifestOutcome::default()
            });
        }
        match decision {
            Decision::Blocked(blocked) => {
                let backoff_ms = self.backoff_ms(view.now(), blocked.age);
                Ok(blocked_verdict(self.backend, blocked, view, self.id(blocked.age), backoff_ms))
            }
            Decision::Outcome(Outcome::Rejected(
                why @ (Rejection::Paused | Rejection::QuotaExceeded { .. }),
            )) => Ok(self.paused(age, view.now(), rejected(why).detail)),
            Decision::Outcome(_) => Err(refused(decision, None).into()),
        }
    }

    fn paused(&self, age: Age, now: Time, detail: String) -> ManifestOutcome {
        paused_verdict(self.id(age), self.backoff_ms(now, age), detail)
    }

    fn id(&self, age: Age) -> String {
        attempt::issue(&self.backend.key, &self.identity, &self.namespace, age)
    }

    /// Half the attempt's age, within bounds; jitter separates attempts that died together.
    fn backoff_ms(&self, now: Time, age: Age) -> u64 {
        let backoff_ms = (age.at.until(now).0 / 2).clamp(BACKOFF_MIN_MS, BACKOFF_MAX_MS);
        backoff_ms / 2 + self.backend.random() % (backoff_ms / 2 + 1)
    }
}

fn serialized(judged: &ManifestOutcome) -> Vec<u8> {
    serde_json::to_vec(judged).expect("a verdict serializes")
}
