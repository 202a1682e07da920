//! What operators do: revoke and reclaim leases, pause grants, set quotas, delete namespaces.
//!
//! **Invariant.** An operator acts in the namespaces of its certificate and nowhere else; what concerns all namespaces
//! needs a certificate for `*`. A lease elsewhere is reported like one that was never issued.

use std::sync::Arc;

use api::{requests, responses};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::{Extension, Json};
use engine::Decision;
use kernel::{
    Action, Command, Identity, Kernel, LeaseId, Namespace, Outcome, Party, Pause, Paused, Policy, Rejection,
    Scope, Shard,
};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::act_target::{ActTarget, TargetSlot};
use crate::backend::error::BackendError;
use crate::backend::leases::visible_lease;
use crate::backend::lists;
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, OnlyShard, SubmitOptions};
use crate::parse::idempotency;
use crate::parse::paging::{self, PAGE_BYTES, PAGE_MAX};
use crate::parse::query::Query;
use crate::parse::{self, Headers};
use crate::peer::Peer;
use crate::present::JsonResult;
use crate::present::leases::public_lease;
use crate::present::refusals::{RefusalResponse, refused};

/// The longest entry in JSON, in bytes: each character of a name may need a backslash, and the rest is numbers.
const QUOTA_BYTES: usize = 2 * (Namespace::MAX_BYTES + Identity::MAX_BYTES) + 200;
// The number of rows bounds the bytes of a page.
const _: () = assert!(PAGE_MAX * QUOTA_BYTES <= PAGE_BYTES);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotasQuery {
    /// `cursor` of the previous page.
    #[param(max_length = 388, pattern = r"^[0-9]{1,3}:[^\u0000-\u001f\u007f-\u009f]*$")]
    cursor: Option<String>,
    /// Maximum number of quotas on a page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

pub(crate) async fn revoke_lease(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Extension(target): Extension<TargetSlot>,
    Path(id): Path<String>,
    Headers(headers): Headers,
) -> JsonResult<responses::Lease> {
    act_on_lease(&backend, &peer, (&id, &target), Action::Revoke, &headers).await
}

pub(crate) async fn reclaim_lease(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Extension(target): Extension<TargetSlot>,
    Path(id): Path<String>,
    Headers(headers): Headers,
) -> JsonResult<responses::Lease> {
    act_on_lease(&backend, &peer, (&id, &target), Action::Reclaim, &headers).await
}

/// Submits an action on a lease, and returns the lease as it is afterwards.
async fn act_on_lease(
    backend: &Backend,
    peer: &Peer,
    (id, target): (&str, &TargetSlot),
    action: fn(LeaseId) -> Action,
    headers: &HeaderMap,
) -> JsonResult<responses::Lease> {
    parse::require_operator(peer)?;
    let lease = parse::public_id(id)?;
    let shard = backend.shard_of_lease(lease)?;
    let sent = SentAction { headers, body: id.as_bytes(), part: "" };
    let command = command(peer, action(lease), sent)?;
    let options = SubmitOptions::new(&peer.connection, parse::origin(headers)?);
    let found = visible_lease(backend, lease, |namespace| peer.operates(Some(namespace))).await;
    let named = found.as_ref().map(|(view, _)| ActTarget::lease(view));
    target.name(named.unwrap_or_else(|_| ActTarget::unknown_lease(lease)));
    found?;
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
    Extension(target): Extension<TargetSlot>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::RevokedAll> {
    parse::require_operator(&peer)?;
    let fields: requests::Party = parse::body(&body)?;
    let party = parse::operator::party(&fields)?;
    target.name(ActTarget::party(&party));
    let (Party::Identity(namespace, _) | Party::Agent(namespace, _)) = &party;
    parse::require_operator_of(&peer, Some(namespace))?;
    let shard = backend.shard_of(namespace);
    let sent = SentAction { headers: &headers, body: &body, part: "" };
    let decision = submit(&backend, &peer, shard, Action::RevokeAll(party), sent).await?;
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
    Extension(target): Extension<TargetSlot>,
    only: Option<Extension<OnlyShard>>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::Done> {
    parse::require_operator(&peer)?;
    let fields: requests::Pause = parse::body(&body)?;
    let pause = parse::operator::pause(&fields)?;
    target.name(ActTarget::pause(&pause));
    let namespace = match &pause.whom {
        Paused::Agent(namespace, _) => Some(namespace.clone()),
        Paused::Scope(scope) => scope.namespace.clone(),
    };
    let sent = SentAction { headers: &headers, body: &body, part: "" };
    let only = only.map(|Extension(only)| only);
    submit_to_scope(&backend, &peer, (namespace.as_ref(), only), &Action::Pause(pause), sent).await
}

pub(crate) async fn set_quota(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Extension(target): Extension<TargetSlot>,
    only: Option<Extension<OnlyShard>>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<responses::Done> {
    parse::require_operator(&peer)?;
    let fields: requests::Quota = parse::body(&body)?;
    let quota = parse::operator::quota(&fields)?;
    let scope = quota.scope.clone();
    target.name(ActTarget::scope(&scope, fields.paused));
    let sent = SentAction { headers: &headers, body: &body, part: "" };
    let action = Action::SetQuota(quota);
    let only = only.map(|Extension(only)| only);
    let done = submit_to_scope(&backend, &peer, (scope.namespace.as_ref(), only), &action, sent).await?;
    let Some(paused) = fields.paused else { return Ok(done) };
    let namespace = scope.namespace.clone();
    let pause = Action::Pause(Pause { whom: Paused::Scope(scope), paused });
    let sent = SentAction { part: "pause", ..sent };
    submit_to_scope(&backend, &peer, (namespace.as_ref(), only), &pause, sent).await
}

pub(crate) async fn delete_namespace(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Extension(target): Extension<TargetSlot>,
    Path(name): Path<String>,
    Headers(headers): Headers,
) -> JsonResult<responses::Done> {
    parse::require_operator(&peer)?;
    let namespace = parse::namespace(Some(&name))?;
    target.name(ActTarget::namespace(&namespace));
    parse::require_operator_of(&peer, Some(&namespace))?;
    let shard = backend.shard_of(&namespace);
    let action = Action::DropNamespace(namespace);
    let sent = SentAction { headers: &headers, body: name.as_bytes(), part: "" };
    let decision = submit(&backend, &peer, shard, action, sent).await?;
    match decision.response() {
        Some(kernel::Response::Dropped { .. }) => Ok(Json(responses::Done { done: true })),
        _ => Err(refused(&decision, None).into()),
    }
}

/// The request that an action comes from.
#[derive(Clone, Copy)]
struct SentAction<'a> {
    headers: &'a HeaderMap,
    /// The body, or the path's parameter if there is none: the action's name and these bytes determine the action.
    body: &'a [u8],
    /// Distinguishes the actions of a request that is several.
    part: &'static str,
}

/// Submits an action to the namespace's shard; without a namespace, to all shards or the one that the request is confined
/// to. Refuses a peer that is not an operator
/// of the namespace, or of all.
async fn submit_to_scope(
    backend: &Backend,
    peer: &Peer,
    (namespace, only): (Option<&Namespace>, Option<OnlyShard>),
    action: &Action,
    sent: SentAction<'_>,
) -> JsonResult<responses::Done> {
    parse::require_operator_of(peer, namespace)?;
    let shards: Vec<Shard> = match namespace {
        Some(namespace) => vec![backend.shard_of(namespace)],
        None => backend.shards_in(only).collect(),
    };
    for shard in shards {
        let decision = submit(backend, peer, shard, action.clone(), sent).await?;
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
    sent: SentAction<'_>,
) -> Result<Decision, RefusalResponse> {
    let command = command(peer, action, sent)?;
    let options = SubmitOptions::new(&peer.connection, parse::origin(sent.headers)?);
    Ok(backend.submit(shard, command, options, |_, _, _| ()).await?.0)
}

fn command(peer: &Peer, action: Action, sent: SentAction<'_>) -> Result<Command, RefusalResponse> {
    let request = idempotency::key_of_part(sent.headers, action.name(), &[sent.body], sent.part)?;
    Ok(Command { identity: Some(peer.identity.clone()), request, action })
}

pub(crate) async fn quotas(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    only: Option<Extension<OnlyShard>>,
    Query(query): Query<QuotasQuery>,
) -> JsonResult<responses::Quotas> {
    let only = only.map(|Extension(only)| only);
    parse::require_operator(&peer)?;
    let after = query.cursor.as_deref().map(paging::scope).transpose()?;
    let limit = parse::page_limit(query.limit, PAGE_MAX)?;
    let is_visible = |scope: &Scope| peer.operates(scope.namespace.as_ref());
    let mut policies = lists::policies(&backend, only, after, limit + 1, is_visible).await?;
    // Of one shard only: the list goes on in the next.
    let is_part = only.is_some_and(|OnlyShard(shard)| shard.0 + 1 < backend.shard_count());
    let more = policies.len() > limit || is_part;
    policies.truncate(limit);
    let cursor = policies.last().filter(|_| more).map(|(scope, _)| paging::scope_cursor(scope));
    let quotas = policies.iter().map(|(scope, policy)| scope_quota(scope, policy)).collect();
    Ok(Json(responses::Quotas { quotas, cursor }))
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
