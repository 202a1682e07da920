//! What operators do: take leases back, stop grants, set quotas, delete namespaces.

use std::sync::Arc;

use api::{Code, Refusal, ask, tell};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::{Extension, Json};
use engine::decider::Said;
use kernel::{
    Action, Answer, Command, Identity, LeaseView, Namespace, Outcome, Party, Pause, Paused, Quota, Scope,
    SetQuota, Span, Time,
};

use crate::backend::shards::{App, Ask};
use crate::handlers::acquire::refusal;
use crate::handlers::views::{public_id, shown};
use crate::parse::{self, Headers};
use crate::peer::Peer;
use crate::present::refusals::Refused;

type Told<T> = Result<Json<T>, Refused>;

async fn ask_shard(
    app: &App,
    peer: &Peer,
    shard: usize,
    action: Action,
    headers: &HeaderMap,
) -> Result<Said, Refusal> {
    let command = command(peer, action, headers)?;
    let ask = Ask { correlation: parse::correlation(headers)?, ..Ask::default() };
    Ok(app.ask(shard, command, ask, |_, _, _| ()).await?.0)
}

fn command(peer: &Peer, action: Action, headers: &HeaderMap) -> Result<Command, Refusal> {
    let request = parse::request(headers, "operator", &[format!("{action:?}").as_bytes()])?;
    Ok(Command { identity: Some(peer.identity.clone()), request, action })
}

/// Does it to a lease, and shows what became of it.
async fn act_on_lease(
    app: &App,
    peer: &Peer,
    id: &str,
    act: fn(kernel::LeaseId) -> Action,
    headers: &HeaderMap,
) -> Told<tell::Lease> {
    parse::operator(peer)?;
    let (lease, shard) = public_id(app, id)?;
    let command = command(peer, act(lease), headers)?;
    let ask = Ask { correlation: parse::correlation(headers)?, ..Ask::default() };
    let look = move |kernel: &kernel::Kernel, now: Time, _: &Said| (kernel.lease(lease, now).ok(), now);
    let (said, seen): (Said, (Option<LeaseView>, Time)) = app.ask(shard, command, ask, look).await?;
    match (&said, seen) {
        (Said::Outcome(Outcome::Applied(..) | Outcome::Unchanged(_)), (Some(view), now)) => {
            Ok(Json(shown(app, &view, now)))
        }
        _ => Err(refusal(&said, None).into()),
    }
}

pub(crate) async fn revoke_lease(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    Headers(headers): Headers,
) -> Told<tell::Lease> {
    act_on_lease(&app, &peer, &id, Action::Revoke, &headers).await
}

pub(crate) async fn reclaim_lease(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    Headers(headers): Headers,
) -> Told<tell::Lease> {
    act_on_lease(&app, &peer, &id, Action::Reclaim, &headers).await
}

fn identity(name: &str) -> Result<Identity, Refusal> {
    Identity::new(name).map_err(|error| Refusal::new(Code::InvalidBody, format!("identity: {error}")))
}

fn one_of(identity: bool, agent: bool) -> Result<(), Refusal> {
    if identity == agent {
        return Err(Refusal::new(Code::InvalidBody, "identity or agent_id: one of them"));
    }
    Ok(())
}

pub(crate) async fn revoke(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<tell::RevokedAll> {
    parse::operator(&peer)?;
    let asked: ask::Party = parse::body(&body)?;
    one_of(asked.identity.is_some(), asked.agent_id.is_some())?;
    let namespace = parse::namespace(asked.namespace.as_deref())?;
    let shard = app.shard_of(&namespace);
    let party = match (&asked.identity, &asked.agent_id) {
        (Some(name), _) => Party::Identity(namespace, identity(name)?),
        (None, name) => Party::Agent(namespace, parse::agent(name.as_deref().unwrap_or_default())?),
    };
    match ask_shard(&app, &peer, shard, Action::RevokeAll(party), &headers).await? {
        Said::Outcome(
            Outcome::Applied(Answer::RevokedAll { revoked, .. }, _)
            | Outcome::Unchanged(Answer::RevokedAll { revoked, .. }),
        ) => Ok(Json(tell::RevokedAll { revoked: u64::from(revoked) })),
        said => Err(refusal(&said, None).into()),
    }
}

pub(crate) async fn pause(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<tell::Done> {
    parse::operator(&peer)?;
    let asked: ask::Pause = parse::body(&body)?;
    one_of(asked.identity.is_some(), asked.agent_id.is_some())?;
    let namespace = asked.namespace.as_deref().map(|name| parse::namespace(Some(name))).transpose()?;
    if let Some(name) = &asked.agent_id {
        let namespace = namespace.map_or_else(|| parse::namespace(None), Ok)?;
        let shard = app.shard_of(&namespace);
        let pause = Pause { whom: Paused::Agent(namespace, parse::agent(name)?), paused: asked.paused };
        return done(&ask_shard(&app, &peer, shard, Action::Pause(pause), &headers).await?);
    }
    let identity = asked.identity.as_deref().map(identity).transpose()?;
    let whom = Paused::Scope(Scope { namespace: namespace.clone(), identity });
    everywhere(
        &app,
        &peer,
        namespace.as_ref(),
        &Action::Pause(Pause { whom, paused: asked.paused }),
        &headers,
    )
    .await
}

pub(crate) async fn set_quota(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<tell::Done> {
    parse::operator(&peer)?;
    let asked: ask::Quota = parse::body(&body)?;
    let namespace = asked.namespace.as_deref().map(|name| parse::namespace(Some(name))).transpose()?;
    let identity = asked.identity.as_deref().map(identity).transpose()?;
    let quota = Quota {
        leases_max: asked.max_leases,
        total_max: asked.max_total_ms.map(Span),
        idle_max: asked.idle_ms.map(Span),
        acquires_per_second: asked.acquires_per_second,
    };
    let scope = Scope { namespace: namespace.clone(), identity };
    everywhere(&app, &peer, namespace.as_ref(), &Action::SetQuota(SetQuota { scope, quota }), &headers).await
}

/// In the namespace's shard; without one, in all of them.
async fn everywhere(
    app: &App,
    peer: &Peer,
    namespace: Option<&Namespace>,
    action: &Action,
    headers: &HeaderMap,
) -> Told<tell::Done> {
    let shards = match namespace {
        Some(namespace) => {
            let shard = app.shard_of(namespace);
            shard..shard + 1
        }
        None => 0..app.shards(),
    };
    for shard in shards {
        let Json(_) = done(&ask_shard(app, peer, shard, action.clone(), headers).await?)?;
    }
    Ok(Json(tell::Done { done: true }))
}

fn done(said: &Said) -> Told<tell::Done> {
    match said {
        Said::Outcome(Outcome::Applied(Answer::Done, _) | Outcome::Unchanged(Answer::Done)) => {
            Ok(Json(tell::Done { done: true }))
        }
        said => Err(refusal(said, None).into()),
    }
}

pub(crate) async fn delete_namespace(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    Headers(headers): Headers,
) -> Told<tell::Done> {
    parse::operator(&peer)?;
    let namespace = parse::namespace(Some(&name))?;
    let shard = app.shard_of(&namespace);
    match ask_shard(&app, &peer, shard, Action::DropNamespace(namespace), &headers).await? {
        Said::Outcome(
            Outcome::Applied(Answer::Dropped { .. }, _) | Outcome::Unchanged(Answer::Dropped { .. }),
        ) => Ok(Json(tell::Done { done: true })),
        said => Err(refusal(&said, None).into()),
    }
}

pub(crate) async fn quotas(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
) -> Told<tell::Quotas> {
    parse::operator(&peer)?;
    let mut quotas: Vec<tell::ScopeQuota> = Vec::new();
    for shard in 0..app.shards() {
        let look = |view: &crate::backend::shards::View<'_>| -> Vec<(Scope, kernel::Policy)> {
            view.kernel.policies().map(|(scope, policy)| (scope.clone(), *policy)).collect()
        };
        for (scope, policy) in app.look(shard, look).await? {
            let quota = scope_quota(&scope, &policy);
            if !quotas.contains(&quota) {
                quotas.push(quota);
            }
        }
    }
    Ok(Json(tell::Quotas { quotas }))
}

fn scope_quota(scope: &Scope, policy: &kernel::Policy) -> tell::ScopeQuota {
    tell::ScopeQuota {
        namespace: scope.namespace.as_ref().map(|name| name.as_str().to_string()),
        identity: scope.identity.as_ref().map(|name| name.as_str().to_string()),
        paused: policy.paused,
        max_leases: policy.quota.leases_max,
        max_total_ms: policy.quota.total_max.map(|span| span.0),
        idle_ms: policy.quota.idle_max.map(|span| span.0),
        acquires_per_second: policy.quota.acquires_per_second,
    }
}
