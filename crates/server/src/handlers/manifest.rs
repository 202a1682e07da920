//! `POST /v1/manifest`: everything that an agent will touch, as one lease or not at all.
//!
//! **Invariant.** An attempt is as old as its first try, across all retries of the same manifest: the response carries
//! its `attempt_id`, and the next retry sends it back. So the oldest of all attempts that retry is not blocked for ever.
//!
//! **What would break it.** To decide a retry by a new age: it dies behind every attempt that started since, again and
//! again.

use std::sync::Arc;

use api::agents::{self, ManifestOutcome, Verdict};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use engine::{Decision, Delivery, Unavailable};
use kernel::{Action, Age, Command, Outcome, Rejection, Span};

use crate::backend::agents::mark_alive;
use crate::backend::error::BackendError;
use crate::backend::shards::{Backend, SubmitOptions};
use crate::parse::attempt::RequestBinding;
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
    let fields: agents::Manifest = parse::body(&body)?;
    let presented = fields.attempt_id.clone();
    let keep = |error: BackendError| attempt::kept(error.into_refusal(), presented.as_deref());
    backend.check_not_draining().map_err(keep)?;
    let manifest = ManifestRequest::parse(&backend.settings, &peer, &fields)?;
    let request = idempotency::key(&headers, api::path::MANIFEST, &[&body])?;
    let origin = parse::origin(&headers)?;
    let now = mark_alive(&backend, &peer, &manifest.namespace, &manifest.agent, &origin).await?;
    let shard = backend.shard_of(&manifest.namespace);
    let wait = manifest.wait;
    // The age of a new attempt; the engine gives a retry its own.
    let age = Age { at: now, tie: backend.random() };
    let grant = manifest.into_grant(age);
    let binding = RequestBinding::new(&backend.key, &peer.identity, &grant);
    let attempt = attempt::presented(&binding, presented.as_deref())?;
    let options = SubmitOptions { wait, attempt, ..SubmitOptions::new(&peer.connection, origin) };
    let judge = ManifestJudge { backend: &backend, binding: &binding, presented: presented.as_deref() };
    let command = Command { identity: Some(peer.identity.clone()), request, action: Action::Acquire(grant) };
    match backend.submit_for_lease(shard, command, options, ManifestView::read).await {
        Ok((decision, view, delivery)) => {
            let judged = judge.verdict(&decision, &view)?;
            Ok(delivery::json(serialized(&judged), delivery))
        }
        Err(error @ BackendError::Unavailable(Unavailable::TooOften)) => {
            let judged = judge.paused(error.into_refusal().detail);
            Ok(delivery::json(serialized(&judged), Delivery::default()))
        }
        Err(BackendError::Dismissed(attempt)) => {
            Err(binding.with_attempt(BackendError::Dismissed(attempt).into_refusal(), &attempt).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes the verdict on a manifest.
struct ManifestJudge<'a> {
    backend: &'a Backend,
    binding: &'a RequestBinding<'a>,
    /// The `attempt_id` of the request.
    presented: Option<&'a str>,
}

impl ManifestJudge<'_> {
    fn verdict(&self, decision: &Decision, view: &ManifestView) -> Result<ManifestOutcome, RefusalResponse> {
        if let Some(granted) = leases::granted(decision) {
            let lease = Some(leases::granted_response(self.backend, granted, &view.grant));
            return Ok(ManifestOutcome { verdict: Verdict::Granted, lease, ..ManifestOutcome::default() });
        }
        match decision {
            Decision::Blocked(blocked) => {
                let backoff_ms = self.backoff_ms(blocked.attempt.age.at.until(view.now()));
                let attempt_id = self.binding.issue(&blocked.attempt);
                Ok(blocked_verdict(self.backend, blocked, view, attempt_id, backoff_ms))
            }
            Decision::Outcome(Outcome::Rejected(
                why @ (Rejection::Paused | Rejection::QuotaExceeded { .. }),
            )) => Ok(self.paused(rejected(why).detail)),
            Decision::Outcome(_) => Err(refused(decision, None).into()),
        }
    }

    /// Its attempt, if it presented one, is as it was.
    fn paused(&self, detail: String) -> ManifestOutcome {
        paused_verdict(self.presented.map(str::to_string), self.backoff_ms(Span(BACKOFF_MAX_MS)), detail)
    }

    /// Half the attempt's age, within bounds; jitter separates attempts that died together.
    fn backoff_ms(&self, age: Span) -> u64 {
        let backoff_ms = (age.0 / 2).clamp(BACKOFF_MIN_MS, BACKOFF_MAX_MS);
        backoff_ms / 2 + self.backend.random() % (backoff_ms / 2 + 1)
    }
}

fn serialized(judged: &ManifestOutcome) -> Vec<u8> {
    serde_json::to_vec(judged).expect("a verdict serializes")
}
