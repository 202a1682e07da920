//! What operators do: revoke and reclaim leases, pause grants, set quotas, delete namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{requests, responses};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::{Extension, Json};
use engine::Decision;
use kernel::{
    Action, Command, Kernel, LeaseId, Namespace, Outcome, Party, Paused, Policy, Rejection, Scope, Shard,
};

use crate::backend::error::BackendError;
use crate::backend::lists;
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, SubmitOptions};
use crate::parse::idempotency;
use crate::parse::{self, Headers};
use crate::peer::Peer;
use crate::present::JsonResult;
use crate::present::leases::public_lease;
use crate::present::refusals::{RefusalResponse, refused};

pub(crate) async fn revoke_lease(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    Headers(headers): Headers,
) -> JsonResult<responses::Lease> {
    act_on_lease(&backend, &peer, &id, Action::Revoke, &headers).await
}

pub(crate) async fn reclaim_lease(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    Headers(headers): Headers,
) -> JsonResult<responses::Lease> {
    act_on_lease(&backend, &peer, &id, Action::Reclaim, &headers).await
}

/// Submits an action on a lease, and returns the lease as it is afterwards.
async fn act_on_lease(
    backend: &Backend,
    peer: &Peer,
    id: &str,
    action: fn(LeaseId) -> Action,
    headers: &HeaderMap,
) -> JsonResult<responses::Lease> {
    parse::require_operator(peer)?;
    let lease = parse::public_id(id)?;
    let shard = backend.shard_of_lease(lease)?;
    let command = command(peer, action(lease), headers, id.as_bytes())?;
    let options = SubmitOptions::new(parse::correlation(headers)?);
    let read = move |kernel: &Kernel, at: Moment, _: &Decision| (kernel.lease(lease, at.now).ok(), at);
    let (decision, (view, moment)) = backend.submit(shard, command, options, read).await?;
    match view.filter(|_| decision.response().is_some()) {
        Some(view) => Ok(Json(public_lease(backend, &view, &moment))),
        None => Err(refused(&decision, None).into()),
    }
}

pub(crate) async fn revoke(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::RevokedAll> {
    parse::require_operator(&peer)?;
    let fields: requests::Party = parse::body(&body)?;
    let party = parse::operator::party(&fields)?;
    let (Party::Identity(namespace, _) | Party::Agent(namespace, _)) = &party;
    let shard = backend.shard_of(namespace);
    let decision = submit(&backend, &peer, shard, Action::RevokeAll(party), &headers, &body).await?;
    match decision.response() {
        Some(kernel::Response::RevokedAll { revoked, .. }) => {
            Ok(Json(responses::RevokedAll { revoked: u64::from(*revoked) }))
        }
        _ => Err(refused(&decision, None).into()),
    }
}

pub(crate) async fn pause(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::Done> {
    parse::require_operator(&peer)?;
    let fields: requests::Pause = parse::body(&body)?;
    let pause = parse::operator::pause(&fields)?;
    let namespace = match &pause.whom {
        Paused::Agent(namespace, _) => Some(namespace.clone()),
        Paused::Scope(scope) => scope.namespace.clone(),
    };
    submit_to_scope(&backend, &peer, namespace.as_ref(), &Action::Pause(pause), &headers, &body).await
}

pub(crate) async fn set_quota(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::Done> {
    parse::require_operator(&peer)?;
    let fields: requests::Quota = parse::body(&body)?;
    let quota = parse::operator::quota(&fields)?;
    let namespace = quota.scope.namespace.clone();
    submit_to_scope(&backend, &peer, namespace.as_ref(), &Action::SetQuota(quota), &headers, &body).await
}

pub(crate) async fn delete_namespace(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    Headers(headers): Headers,
) -> JsonResult<responses::Done> {
    parse::require_operator(&peer)?;
    let namespace = parse::namespace(Some(&name))?;
    let shard = backend.shard_of(&namespace);
    let action = Action::DropNamespace(namespace);
    let decision = submit(&backend, &peer, shard, action, &headers, name.as_bytes()).await?;
    match decision.response() {
        Some(kernel::Response::Dropped { .. }) => Ok(Json(responses::Done { done: true })),
        _ => Err(refused(&decision, None).into()),
    }
}

/// Submits an action to the namespace's shard; without a namespace, to all shards.
async fn submit_to_scope(
    backend: &Backend,
    peer: &Peer,
    namespace: Option<&Namespace>,
    action: &Action,
    headers: &HeaderMap,
    sent: &[u8],
) -> JsonResult<responses::Done> {
    let shards: Vec<Shard> = match namespace {
        Some(namespace) => vec![backend.shard_of(namespace)],
        None => backend.shards().collect(),
    };
    for shard in shards {
        let decision = submit(backend, peer, shard, action.clone(), headers, sent).await?;
        match (decision.response(), &decision) {
            (Some(kernel::Response::Done), _) => {}
            // Only the pause of an agent looks anything up.
            (_, Decision::Outcome(Outcome::Rejected(Rejection::NotFound))) => {
                return Err(BackendError::NoSuchAgent.into());
            }
            _ => return Err(refused(&decision, None).into()),
        }
    }
    Ok(Json(responses::Done { done: true }))
}

async fn submit(
    backend: &Backend,
    peer: &Peer,
    shard: Shard,
    action: Action,
    headers: &HeaderMap,
    sent: &[u8],
) -> Result<Decision, RefusalResponse> {
    let command = command(peer, action, headers, sent)?;
    let options = SubmitOptions::new(parse::correlation(headers)?);
    Ok(backend.submit(shard, command, options, |_, _, _| ()).await?.0)
}

/// `sent` is the body, or the path's parameter if there is none: the action's name and these bytes determine the action.
fn command(
    peer: &Peer,
    action: Action,
    headers: &HeaderMap,
    sent: &[u8],
) -> Result<Command, RefusalResponse> {
    let request = idempotency::key(headers, action.name(), &[sent])?;
    Ok(Command { identity: Some(peer.identity.clone()), request, action })
}

pub(crate) async fn quotas(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
) -> JsonResult<responses::Quotas> {
    parse::require_operator(&peer)?;
    // A scope without a namespace is in every shard.
    let mut policies: BTreeMap<Scope, Policy> = BTreeMap::new();
    for shard in backend.shards() {
        policies.extend(lists::policies(&backend, shard).await?);
    }
    let quotas = policies.iter().map(|(scope, policy)| scope_quota(scope, policy)).collect();
    Ok(Json(responses::Quotas { quotas }))
}

fn scope_quota(scope: &Scope, policy: &Policy) -> responses::ScopeQuota {
    responses::ScopeQuota {
        namespace: scope.namespace.as_ref().map(|name| name.as_str().to_string()),
        identity: scope.identity.as_ref().map(|name| name.as_str().to_string()),
        paused: policy.paused,
        max_leases: policy.quota.leases_max,
        max_total_ms: policy.quota.total_max.map(|span| span.0),
        idle_ms: policy.quota.idle_max.map(|span| span.0),
        acquires_per_second: policy.quota.acquires_per_second,
    }
}
