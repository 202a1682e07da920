//! Who is in whose way: a resource and those who hold it, those who wait and whom for, what is fought over.
//!
//! What is looked at in one go is bounded: nobody who asks this holds up those who ask for leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::agents::{Contention, Hotspot, ResourceState, Timeouts, Waiting};
use api::words;
use api::{Code, Refusal};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use engine::decider::CameTo;
use engine::waiters::{Ticket, Waiter};
use identity::Right;
use kernel::{
    AgentName, Bundle, Identity, LeaseId, LeaseView, Member, Namespace, Predicate, ResourceName, SessionName,
    State as LeaseState,
};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::event_log::Lately;
use crate::backend::shards::{App, View};
use crate::handlers::acquire::resource as spelled;
use crate::handlers::manifest::in_the_way;
use crate::handlers::views;
use crate::parse;
use crate::parse::query::Query;
use crate::peer::Peer;
use crate::present::refusals::Refused;

type Told<T> = Result<Json<T>, Refused>;

/// How many leases are shown of one resource.
const LEASES_MAX: usize = 100;
/// How many who wait are shown.
const WAITING_MAX: usize = 100;
/// How many hotspots, and how many who time out, are shown.
const TOP: usize = 20;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Where {
    /// The namespace. If missing: `default` for a resource, otherwise all that the caller may see.
    #[param(value_type = Option<words::Namespace>)]
    namespace: Option<String>,
}

/// A resource, named in one segment of the path: `FILE:%2Fsrc%2Fmain.rs`.
pub(crate) async fn resource(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    Query(query): Query<Where>,
) -> Told<ResourceState> {
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::may(&peer, &namespace, Right::Read)?;
    let resource = ResourceName::parse(&name, None)
        .map_err(|error| Refusal::new(Code::InvalidKey, format!("{error}: resource={name}")))?;
    let member = Member { resource: resource.clone(), predicate: Predicate::Mutates };
    let bundle = Bundle::new(vec![member]).expect("one member is a bundle");
    let place = namespace.clone();
    let look = move |view: &View<'_>| {
        let found = view.kernel.conflicts(&place, &bundle, view.now).take(LEASES_MAX + 1);
        let mut leases: Vec<LeaseView> = found.collect();
        let more = leases.len() > LEASES_MAX;
        leases.truncate(LEASES_MAX);
        leases.sort_by_key(|lease| (lease.age, lease.id));
        (leases, more, view.waiters.count_ahead(&place, &bundle, None), view.now)
    };
    let (leases, more, waiters, now) = app.look(app.shard_of(&namespace), look).await?;
    Ok(Json(ResourceState {
        namespace: namespace.as_str().to_string(),
        kind: resource.kind().to_string(),
        name: resource.name().to_string(),
        state: state_of(&leases).to_string(),
        leases: leases.iter().map(|lease| views::shown(&app, lease, now)).collect(),
        more,
        waiters: waiters as u64,
    }))
}

fn state_of(leases: &[LeaseView]) -> &'static str {
    let has_authority = |lease: &LeaseView| matches!(lease.state, LeaseState::Active | LeaseState::Reserved);
    match leases {
        [] => "free",
        leases if leases.iter().any(has_authority) => "held",
        _ => "revoking",
    }
}

pub(crate) async fn contention(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<Where>,
) -> Told<Contention> {
    let wanted = query.namespace.as_deref().map(|name| parse::namespace(Some(name))).transpose()?;
    if let Some(namespace) = &wanted {
        parse::may(&peer, namespace, Right::Read)?;
    }
    let readable = Readable { peer, wanted };
    let mut waiting = Vec::new();
    for shard in 0..app.shards() {
        let (readable, left) = (readable.clone(), (WAITING_MAX + 1).saturating_sub(waiting.len()));
        waiting.extend(app.look(shard, move |view| readable.waiting(view, left)).await?);
    }
    // Now, after the looks: what they found over has been told.
    let lately = app.news.lately();
    let expired = expired(&app, &readable, &lately).await?;
    let more = waiting.len() > WAITING_MAX;
    waiting.truncate(WAITING_MAX);
    let (hotspots, timeouts) = (hotspots(&readable, &lately), timeouts(&readable, &lately, expired));
    Ok(Json(Contention { waiting, more, hotspots, timeouts }))
}

/// Whose leases ran out lately.
async fn expired(app: &App, readable: &Readable, lately: &Lately) -> Result<Vec<Party>, Refusal> {
    let mut parties = Vec::new();
    for shard in 0..app.shards() {
        let of_shard = |lease: &LeaseId| app.shard_of_lease(*lease) == Some(shard);
        let ids: Vec<LeaseId> = lately.expired.iter().copied().filter(of_shard).collect();
        if !ids.is_empty() {
            let readable = readable.clone();
            parties.extend(app.look(shard, move |view| readable.of(view, &ids)).await?);
        }
    }
    Ok(parties)
}

/// What somebody may see, and wants to.
#[derive(Clone)]
struct Readable {
    peer: Peer,
    wanted: Option<Namespace>,
}

/// Who timed out: where, whose, and the agent if it was one.
type Party = (Namespace, Identity, Option<AgentName>);

impl Readable {
    fn has(&self, namespace: &Namespace) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.peer.rights.allows(namespace.as_str(), Right::Read)
    }

    fn waiting(&self, view: &View<'_>, most: usize) -> Vec<Waiting> {
        let seen = view.waiters.iter().filter(|(_, waiter)| self.has(&waiter.grant().namespace));
        seen.take(most).map(|(ticket, waiter)| waits(view, ticket, waiter)).collect()
    }

    /// Whose leases these were; those whose history is gone are left out.
    fn of(&self, view: &View<'_>, leases: &[LeaseId]) -> Vec<Party> {
        let known = leases.iter().filter_map(|lease| view.kernel.lease(*lease, view.now).ok());
        let mine = known.filter(|lease| self.has(&lease.namespace));
        mine.map(|lease| (lease.namespace, lease.identity, lease.details.agent)).collect()
    }
}

fn waits(view: &View<'_>, ticket: Ticket, waiter: &Waiter) -> Waiting {
    let grant = waiter.grant();
    let conflict = view.kernel.conflict(&grant.namespace, &grant.bundle, view.now);
    let holders = conflict.into_iter().flat_map(|conflict| conflict.holders);
    let holders = holders.filter_map(|lease| view.kernel.lease(lease, view.now).ok());
    Waiting {
        namespace: grant.namespace.as_str().to_string(),
        identity: waiter.command.identity.as_ref().map(|name| name.as_str().to_string()).unwrap_or_default(),
        agent_id: grant.agent.as_ref().map(|name| name.as_str().to_string()),
        session_id: grant.session.as_ref().map(SessionName::as_str).map(ToString::to_string),
        reason: grant.reason.as_ref().map(|reason| reason.as_str().to_string()),
        resources: grant.bundle.members().iter().map(spelled).collect(),
        blocked_by: holders.map(|lease| in_the_way(&lease, view.now)).collect(),
        position: view.waiters.position(ticket).unwrap_or_default() as u64,
        age_ms: waiter.age.at.until(view.now).0,
    }
}

fn hotspots(readable: &Readable, lately: &Lately) -> Vec<Hotspot> {
    let mut counts: BTreeMap<(&Namespace, &ResourceName), (u64, u64)> = BTreeMap::new();
    for one in lately.contended.iter().filter(|one| readable.has(&one.namespace)) {
        for member in &one.members {
            let (blocked, timed_out) = counts.entry((&one.namespace, &member.resource)).or_default();
            match one.came_to {
                CameTo::Queued | CameTo::Refused | CameTo::Died => *blocked += 1,
                CameTo::TimedOut => *timed_out += 1,
            }
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, counts)| std::cmp::Reverse(*counts));
    let spot =
        |((namespace, name), (blocked, timed_out)): ((&Namespace, &ResourceName), (u64, u64))| Hotspot {
            namespace: namespace.as_str().to_string(),
            kind: name.kind().to_string(),
            name: name.name().to_string(),
            blocked,
            timed_out,
        };
    counts.into_iter().take(TOP).map(spot).collect()
}

fn timeouts(readable: &Readable, lately: &Lately, expired: Vec<Party>) -> Vec<Timeouts> {
    let mut counts: BTreeMap<Party, (u64, u64)> = BTreeMap::new();
    let in_vain = lately.contended.iter().filter(|one| one.came_to == CameTo::TimedOut);
    for one in in_vain.filter(|one| readable.has(&one.namespace)) {
        let party = (one.namespace.clone(), one.identity.clone(), one.agent.clone());
        counts.entry(party).or_default().0 += 1;
    }
    for party in expired {
        counts.entry(party).or_default().1 += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, (waits, leases))| std::cmp::Reverse(waits + leases));
    let shown =
        counts.into_iter().take(TOP).map(|((namespace, identity, agent), (waits, leases))| Timeouts {
            namespace: namespace.as_str().to_string(),
            identity: identity.as_str().to_string(),
            agent_id: agent.map(|name| name.as_str().to_string()),
            waits,
            leases,
        });
    shown.collect()
}
