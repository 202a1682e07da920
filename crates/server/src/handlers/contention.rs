//! Contention: the leases and waiters of a resource, all waiters and what blocks them, and the hotspots.
//!
//! Each query visits a bounded number of rows, so that it does not delay requests for leases.

use std::sync::Arc;

use api::agents::{Contention, ResourceState};
use api::schema_types;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use engine::observe::ContentionEvent;
use engine::waiters::{Ticket, Waiter};
use identity::Right;
use kernel::{Bundle, LeaseId, Member, Namespace, PAGE_ROWS, Predicate, ResourceName, Shard};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::error::BackendError;
use crate::backend::event_log::RecentActivity;
use crate::backend::lists;
use crate::backend::shards::{Backend, OnlyShard, ShardView};
use crate::parse;
use crate::parse::query::Query;
use crate::peer::Peer;
use crate::present::JsonResult;
use crate::present::contention::{self as present, Contender};
use crate::present::leases::public_lease;

/// The most leases of a resource in a response.
const LEASES_MAX: usize = 100;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContentionQuery {
    /// The namespace. If missing: `default` for a resource, otherwise all that the caller may see.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitersQuery {
    /// The namespace. If missing: all that the caller may see; with `resource`, `default`.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
    /// Only waiters for this resource or an overlapping one, as in `KEY:orders`.
    #[param(value_type = Option<schema_types::ResourceText>)]
    resource: Option<String>,
}

impl WaitersQuery {
    /// Whether the request names neither a namespace nor a resource.
    pub(crate) fn is_of_all_namespaces(&self) -> bool {
        self.namespace.is_none() && self.resource.is_none()
    }
}

/// A resource, named in one segment of the path: `FILE:%2Fsrc%2Fmain.rs`.
pub(crate) async fn resource(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    Query(query): Query<ContentionQuery>,
) -> JsonResult<ResourceState> {
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::require_right(&peer, &namespace, Right::Read)?;
    let resource = parse::resource(&name)?;
    let member = Member { resource: resource.clone(), predicate: Predicate::Mutates };
    let bundle = Bundle::new(vec![member]).expect("one member is a bundle");
    let of = namespace.clone();
    let read = move |view: &ShardView<'_>| {
        let (mut leases, more) = view.kernel.some_conflicts(&of, &bundle, LEASES_MAX, view.now);
        leases.sort_by_key(|lease| (lease.age, lease.id));
        (leases, more, view.waiters.count_ahead(&of, &bundle, Ticket::LAST), view.moment)
    };
    let (leases, more, waiters, moment) = backend.query(backend.shard_of(&namespace), read).await?;
    Ok(Json(ResourceState {
        namespace: namespace.as_str().to_string(),
        kind: resource.kind().to_string(),
        name: resource.name().to_string(),
        state: present::resource_state(&leases).to_string(),
        leases: leases.iter().map(|lease| public_lease(&backend, lease, &moment)).collect(),
        more,
        waiters: waiters as u64,
    }))
}

pub(crate) async fn contention(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    only_shard: Option<Extension<OnlyShard>>,
    Query(query): Query<WaitersQuery>,
) -> JsonResult<Contention> {
    let of = query.resource.as_deref().map(parse::resource).transpose()?;
    let only = match &of {
        Some(_) => Some(parse::namespace(query.namespace.as_deref())?),
        None => parse::optional_namespace(query.namespace.as_deref())?,
    };
    if let Some(namespace) = &only {
        parse::require_right(&peer, namespace, Right::Read)?;
    }
    let shards: Vec<Shard> = match &only {
        Some(namespace) => vec![backend.shard_of(namespace)],
        None => backend.shards_in(only_shard.map(|Extension(only)| only)).collect(),
    };
    let readable = ReadableNamespaces { peer, only };
    let (mut waiting, mut bytes) = (Vec::new(), 0);
    for shard in shards.iter().copied() {
        let (readable, of) = (readable.clone(), of.clone());
        let left = (present::WAITERS_MAX + 1).saturating_sub(waiting.len());
        let is_wanted = move |waiter: &Waiter| {
            let request = waiter.request();
            let waits_for = |of: &ResourceName| {
                request.bundle.members().iter().any(|member| member.resource.overlaps(of))
            };
            readable.contains(&request.namespace) && of.as_ref().is_none_or(waits_for)
        };
        for ticket in lists::waiters(&backend, shard, left, is_wanted).await? {
            if bytes >= present::WAITERS_BYTES {
                break;
            }
            // One per query: the position of each is counted. It may have left the queue by then.
            let read = move |view: &ShardView<'_>| {
                let waiter = view.waiters.get(ticket).map(|waiter| present::waiter(view, ticket, waiter));
                waiter.map(|waiter| (waiter, view.moment))
            };
            let Some((mut waiter, moment)) = backend.query(shard, read).await? else { continue };
            let elapsed_ms = moment.elapsed(&backend.clocks).0;
            for lease in &mut waiter.blocked_by {
                lease.remaining_ms = lease.remaining_ms.saturating_sub(elapsed_ms);
            }
            bytes += present::json_bytes(&waiter);
            waiting.push(waiter);
        }
    }
    // After the queries: waits that they no longer found are in the recent activity by now.
    let mut recent = backend.event_log.recent();
    recent.contended.retain(|contended| shards.contains(&backend.shard_of(&contended.namespace)));
    let expired = recently_expired(&backend, &readable, &recent, &shards).await?;
    let more = waiting.len() > present::WAITERS_MAX || bytes >= present::WAITERS_BYTES;
    waiting.truncate(present::WAITERS_MAX);
    let hotspots = present::hotspots(readable.contentions(&recent));
    let timeouts = present::timeouts(readable.contentions(&recent), expired);
    let victims = present::victims(readable.contentions(&recent));
    Ok(Json(Contention { waiting, more, hotspots, timeouts, victims }))
}

/// The parties whose leases expired recently.
async fn recently_expired(
    backend: &Backend,
    readable: &ReadableNamespaces,
    recent: &RecentActivity,
    shards: &[Shard],
) -> Result<Vec<Contender>, BackendError> {
    let mut parties = Vec::new();
    for shard in shards.iter().copied() {
        let leases: Vec<LeaseId> = recent.expired.iter().copied().filter(|id| id.shard == shard).collect();
        for part in leases.chunks(PAGE_ROWS) {
            let (readable, part) = (readable.clone(), part.to_vec());
            parties.extend(backend.query(shard, move |view| readable.parties(view, &part)).await?);
        }
    }
    Ok(parties)
}

/// The namespaces that a response may show.
#[derive(Clone)]
struct ReadableNamespaces {
    peer: Peer,
    /// The namespace that the request names.
    only: Option<Namespace>,
}

impl ReadableNamespaces {
    fn contains(&self, namespace: &Namespace) -> bool {
        self.only.as_ref().is_none_or(|only| only == namespace)
            && self.peer.rights.allows(namespace.as_str(), Right::Read)
    }

    /// The parties of leases, without those whose history was deleted.
    fn parties(&self, view: &ShardView<'_>, leases: &[LeaseId]) -> Vec<Contender> {
        let known = leases.iter().filter_map(|lease| view.kernel.lease(*lease, view.now).ok());
        let readable = known.filter(|lease| self.contains(&lease.namespace));
        readable.map(|lease| (lease.namespace, lease.identity, lease.details.agent)).collect()
    }

    fn contentions<'a>(&'a self, recent: &'a RecentActivity) -> impl Iterator<Item = &'a ContentionEvent> {
        recent.contended.iter().map(AsRef::as_ref).filter(|contended| self.contains(&contended.namespace))
    }
}
