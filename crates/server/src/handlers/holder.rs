//! What holders do with their leases: activate, keepalive, release, touch.

use std::sync::Arc;

use api::{requests, responses};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::{Extension, Json};
use engine::Decision;
use kernel::{Action, Command, Credential, Outcome, Rejection, Renewal};

use crate::backend::leases::{check_covered, check_covers};
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, SubmitOptions};
use crate::parse::idempotency;
use crate::parse::{self, Headers};
use crate::peer::Peer;
use crate::present::JsonResult;
use crate::present::leases::extended;
use crate::present::refusals::{RefusalResponse, refused, rejected};

pub(crate) async fn activate(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::Extended> {
    let fields: requests::Holder = parse::body(&body)?;
    let credential = parse::credential(&backend.key, &fields.lease_id)?;
    check_key(&backend, &peer, credential, fields.key.as_deref()).await?;
    let action = Action::Activate(credential);
    let (decision, moment) = submit(&backend, &peer, credential, action, &headers, &body).await?;
    deadline(&backend, &decision, &moment)
}

pub(crate) async fn touch(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::Extended> {
    let fields: requests::Holder = parse::body(&body)?;
    let credential = parse::credential_of_lease(&backend.key, &fields.lease_id, &id)?;
    check_key(&backend, &peer, credential, fields.key.as_deref()).await?;
    let action = Action::Touch(credential);
    let (decision, moment) = submit(&backend, &peer, credential, action, &headers, &body).await?;
    deadline(&backend, &decision, &moment)
}

pub(crate) async fn keepalive(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::Extended> {
    let fields: requests::Keepalive = parse::body(&body)?;
    let credential = parse::credential(&backend.key, &fields.lease_id)?;
    let ttl = parse::ttl(fields.ttl_seconds, fields.ttl_ms, backend.settings.max_ttl)?;
    check_key(&backend, &peer, credential, fields.key.as_deref()).await?;
    let action = Action::Renew(vec![Renewal { held: credential, ttl }]);
    let (decision, moment) = submit(&backend, &peer, credential, action, &headers, &body).await?;
    let Some(kernel::Response::Renewed(results)) = decision.response() else {
        return Err(refused(&decision, None).into());
    };
    match results.first() {
        Some(Ok(live)) => Ok(Json(extended(&backend, *live, &moment))),
        Some(Err(rejection)) => Err(rejected(rejection).into()),
        None => Err(rejected(&Rejection::InvalidBatch).into()),
    }
}

/// Idempotent, also after the lease's history was deleted: the credential has no authority in any case.
pub(crate) async fn release(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::Released> {
    let fields: requests::Holder = parse::body(&body)?;
    let credential = parse::credential(&backend.key, &fields.lease_id)?;
    if let Some(key) = &fields.key {
        check_covered(&backend, credential, parse::key(key)?).await?;
    }
    let action = Action::Release(credential);
    let (decision, _) = submit(&backend, &peer, credential, action, &headers, &body).await?;
    match (decision.response(), &decision) {
        (Some(kernel::Response::Released), _)
        | (_, Decision::Outcome(Outcome::Rejected(Rejection::Retired))) => {
            Ok(Json(responses::Released { released: true }))
        }
        _ => Err(refused(&decision, None).into()),
    }
}

/// The lease must cover the key, if the request names one.
async fn check_key(
    backend: &Backend,
    peer: &Peer,
    credential: Credential,
    key: Option<&str>,
) -> Result<(), RefusalResponse> {
    let Some(key) = key else { return Ok(()) };
    Ok(check_covers(backend, &peer.identity, credential, parse::key(key)?).await?)
}

/// The decision, and the moment at which it was made.
async fn submit(
    backend: &Backend,
    peer: &Peer,
    credential: Credential,
    action: Action,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(Decision, Moment), RefusalResponse> {
    let shard = backend.shard_of_lease(credential.lease)?;
    let request = idempotency::key(headers, action.name(), &[body])?;
    let command = Command { identity: Some(peer.identity.clone()), request, action };
    let options = SubmitOptions::new(&peer.connection, parse::origin(headers)?);
    Ok(backend.submit(shard, command, options, |_, moment, _| moment).await?)
}

fn deadline(backend: &Backend, decision: &Decision, moment: &Moment) -> JsonResult<responses::Extended> {
    match decision.response() {
        Some(kernel::Response::Live(live)) => Ok(Json(extended(backend, *live, moment))),
        _ => Err(refused(decision, None).into()),
    }
}
