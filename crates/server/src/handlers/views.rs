//! What anybody with the right may look at: keys, leases, tokens, namespaces.

use std::sync::Arc;

use api::ask::OnExpiry as Wire;
use api::{Code, Refusal, tell, words};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use kernel::{Cursor, KeyView, LeaseId, LeaseView, Namespace, OnExpiry, Predicate, Time, Token};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::shards::App;
use crate::handlers::acquire::{not_found, owner_of};
use identity::Right;

use crate::parse;
use crate::parse::query::Query;
use crate::peer::Peer;
use crate::present::refusals::{Refused, hex, rejected};

type Told<T> = Result<Json<T>, Refused>;

/// How many leases are on a page.
const PAGE_MAX: usize = 1000;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Naming {
    /// Name of the key.
    #[param(value_type = words::Key)]
    key: Option<String>,
    /// The namespace; `default` if missing.
    #[param(value_type = Option<words::Namespace>)]
    namespace: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fencing {
    /// Name of the key.
    #[param(value_type = words::Key)]
    key: Option<String>,
    /// The namespace; `default` if missing.
    #[param(value_type = Option<words::Namespace>)]
    namespace: Option<String>,
    /// The fencing token to check.
    #[param(value_type = u64, maximum = 18_446_744_073_709_551_615_usize)]
    token: Option<u64>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paging {
    /// Only leases of this namespace.
    #[param(value_type = Option<words::Namespace>)]
    namespace: Option<String>,
    /// `cursor` of the previous page.
    #[param(pattern = r"^[0-9]{1,9}\.[0-9]{1,19}$")]
    cursor: Option<String>,
    /// Maximum number of leases on a page; leases that the caller may not see are left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

pub(crate) async fn describe(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<Naming>,
) -> Told<tell::Described> {
    let key = parse::key(&query.key.ok_or_else(|| Refusal::new(Code::MissingKey, "key= is missing"))?)?;
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::may(&peer, &namespace, Right::Read)?;
    let (resource, place) = (key.clone(), namespace.clone());
    let seen = app.look(app.shard_of(&namespace), move |view| {
        let known = view.kernel.key(&place, &resource);
        let holders: Vec<LeaseView> = view.kernel.holders(&place, &resource, view.now).take(100).collect();
        let exclusive = holders.iter().find(|lease| writes(lease)).or(holders.first()).cloned();
        let everything = kernel::Bundle::of_key(resource);
        let waiters = view.waiters.count_ahead(&place, &everything, None);
        (known, exclusive, waiters, view.now)
    });
    let (known, lease, waiters, now) = seen.await?;
    let Some(known) = known else { return Err(not_found().into()) };
    Ok(Json(described(&app, key.name(), &namespace, known, lease.as_ref(), waiters, now)))
}

fn writes(lease: &LeaseView) -> bool {
    lease.members.iter().any(|member| member.predicate == Predicate::Mutates)
}

fn described(
    app: &App,
    key: &str,
    namespace: &Namespace,
    known: KeyView,
    lease: Option<&LeaseView>,
    waiters: usize,
    now: Time,
) -> tell::Described {
    let updated =
        |document: kernel::Document| app.unix_ms().saturating_sub(document.committed_at.until(now).0) / 1000;
    let expires = |lease: &LeaseView| (app.unix_ms() + now.until(lease.deadline).0) / 1000;
    tell::Described {
        key: key.to_string(),
        namespace: namespace.as_str().to_string(),
        lease: lease.map(|lease| tell::DescribedLease {
            lease_id: lease.id.to_string(),
            owner: owner_of(lease),
            expires_at_unix: expires(lease),
        }),
        version: known.version.0,
        state_etag: known.document.map(|document| hex(&document.etag.0)).unwrap_or_default(),
        state_bytes: known.document.map(|document| document.bytes),
        updated_at_unix: known.document.map(updated),
        waiters: waiters as u64,
        owner: lease.map(owner_of),
        lease_id: lease.map(|lease| lease.id.to_string()),
        expires_at_unix: lease.map(expires),
        state: lease.map(|lease| lease.state.as_str().to_string()),
        lease_epoch: lease.map(|lease| lease.epoch.0),
        fencing_token: lease.map(|lease| lease.token.0),
    }
}

pub(crate) async fn lease(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
) -> Told<tell::Lease> {
    let (id, shard) = public_id(&app, &id)?;
    let seen = app.look(shard, move |view| (view.kernel.lease(id, view.now), view.now)).await?;
    let view = seen.0.map_err(|rejection| rejected(&rejection))?;
    // Not that it may not be seen: the name says nothing of where it is, and that is not told either.
    if !peer.rights.allows(view.namespace.as_str(), Right::Read) {
        return Err(not_found().into());
    }
    Ok(Json(shown(&app, &view, seen.1)))
}

/// The lease of a public name, and its shard.
pub(crate) fn public_id(app: &App, text: &str) -> Result<(LeaseId, usize), Refusal> {
    let id = LeaseId::parse(text)
        .ok_or_else(|| Refusal::new(Code::InvalidBody, "not the public name of a lease: L- and 32 digits"))?;
    Ok((id, app.shard_of_lease(id).ok_or_else(not_found)?))
}

pub(crate) async fn leases(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<Paging>,
) -> Told<tell::Leases> {
    let namespace = query.namespace.as_deref().map(|name| parse::namespace(Some(name))).transpose()?;
    if let Some(namespace) = &namespace {
        parse::may(&peer, namespace, Right::Read)?;
    }
    let (mut shard, mut cursor) = match &query.cursor {
        Some(text) => parse_cursor(text).filter(|(shard, _)| *shard < app.shards()).ok_or_else(bad_cursor)?,
        None => (namespace.as_ref().map_or(0, |namespace| app.shard_of(namespace)), Cursor::default()),
    };
    let limit = query.limit.unwrap_or(PAGE_MAX);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Refusal::new(Code::InvalidBody, format!("limit is 1 to {PAGE_MAX}")).into());
    }
    let mut page = tell::Leases::default();
    while page.leases.len() < limit && shard < app.shards() {
        let (rights, wanted) = (peer.rights.clone(), namespace.clone());
        let left = limit - page.leases.len();
        let (views, last, now) = app
            .look(shard, move |view| {
                let all: Vec<_> = view.kernel.leases_from(cursor, view.now).take(left).collect();
                let last = all.last().map(|(cursor, _)| *cursor).filter(|_| all.len() == left);
                let mine = all.into_iter().map(|(_, lease)| lease).filter(|lease| {
                    rights.allows(lease.namespace.as_str(), Right::Read)
                        && wanted.as_ref().is_none_or(|wanted| *wanted == lease.namespace)
                });
                (mine.collect::<Vec<_>>(), last, view.now)
            })
            .await?;
        page.leases.extend(views.iter().map(|lease| shown(&app, lease, now)));
        match last {
            Some(last) => cursor = last,
            // A namespace is in one shard.
            None if namespace.is_some() => return Ok(Json(page)),
            None => (shard, cursor) = (shard + 1, Cursor::default()),
        }
    }
    page.cursor = (shard < app.shards()).then(|| format!("{shard}.{}", cursor.0));
    Ok(Json(page))
}

pub(crate) fn bad_cursor() -> Refusal {
    Refusal::new(Code::InvalidBody, "cursor is not one that was given out")
}

fn parse_cursor(text: &str) -> Option<(usize, Cursor)> {
    let (shard, number) = text.split_once('.')?;
    Some((shard.parse().ok()?, Cursor(number.parse().ok()?)))
}

pub(crate) fn shown(app: &App, lease: &LeaseView, now: Time) -> tell::Lease {
    let unix_ms = app.unix_ms();
    let ago = |then: Time| unix_ms.saturating_sub(then.until(now).0);
    let remaining_ms = if lease.ended.is_some() { 0 } else { now.until(lease.deadline).0 };
    let members = lease.members.iter().enumerate().map(|(index, member)| tell::Member {
        kind: member.resource.kind().to_string(),
        name: member.resource.name().to_string(),
        predicate: member.predicate.as_str().to_string(),
        member_index: index as u64,
    });
    tell::Lease {
        public_id: lease.id.to_string(),
        namespace: lease.namespace.as_str().to_string(),
        holder: lease.identity.as_str().to_string(),
        owner: owner_of(lease),
        agent_id: lease.details.agent.as_ref().map(|agent| agent.as_str().to_string()),
        state: lease.state.as_str().to_string(),
        lease_epoch: lease.epoch.0,
        fencing_token: lease.token.0,
        resources: members.collect(),
        member_count: lease.members.len() as u64,
        ttl_ms: lease.ttl.0,
        acquired_at_unix_ms: ago(lease.granted_at),
        expires_at_unix_ms: if remaining_ms > 0 { unix_ms + remaining_ms } else { ago(lease.deadline) },
        remaining_ms,
        on_expiry: match lease.details.on_expiry {
            OnExpiry::Free => Wire::Free,
            OnExpiry::Manual => Wire::Manual,
            OnExpiry::Hold(span) => Wire::HoldMs(span.0),
        },
        created_lsn: lease.id.lsn.0,
        ended_lsn: lease.ended.map(|ended| ended.lsn.0),
        retire_after_ms: lease.ended.map(|ended| now.until(ended.retire_after).0),
        metadata: lease
            .details
            .metadata
            .as_ref()
            .map(|metadata| String::from_utf8_lossy(metadata.as_bytes()).into_owned()),
    }
}

pub(crate) async fn fence(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<Fencing>,
) -> Told<tell::Fence> {
    let key = parse::key(&query.key.ok_or_else(|| Refusal::new(Code::MissingKey, "key= is missing"))?)?;
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::may(&peer, &namespace, Right::Read)?;
    let token = query.token.ok_or_else(|| Refusal::new(Code::InvalidBody, "token= is missing"))?;
    let shard = app.shard_of(&namespace);
    let seen = app.look(shard, move |view| view.kernel.is_current(&namespace, &key, Token(token), view.now));
    Ok(Json(tell::Fence { current: seen.await? }))
}

pub(crate) async fn namespaces(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
) -> Told<tell::Namespaces> {
    let mut all = Vec::new();
    for shard in 0..app.shards() {
        all.extend(app.look(shard, |view| view.kernel.namespaces()).await?);
    }
    all.retain(|namespace| peer.rights.allows(namespace.as_str(), Right::Read));
    all.sort_unstable();
    Ok(Json(tell::Namespaces { namespaces: all.iter().map(|name| name.as_str().to_string()).collect() }))
}
