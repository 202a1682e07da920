//! `POST /v1/acquire`, and rebind, which answers alike.

use std::sync::Arc;

use api::ask::{self, OnExpiry as Wire};
use api::tell;
use api::{Code, Refusal};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::Response;
use engine::decider::Said;
use kernel::{
    Action, Answer, Bundle, Command, Grant, Granted, Held, Kernel, KeyView, LeaseView, Member, Metadata,
    Namespace, OnExpiry, Outcome, Owner, Predicate, ResourceName, SessionName, Span, Time,
};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::shards::{App, Ask};
use identity::Right;

use crate::handlers::holder;
use crate::handlers::read;
use crate::parse;
use crate::parse::Headers;
use crate::parse::query::{Flag, Query};
use crate::peer::Peer;
use crate::present::delivery;
use crate::present::refusals::{self, Refused, hex};

/// A hold that is longer needs a right of its own.
const HOLD_FREE_MAX: Span = Span(300_000);

/// Room for an answer over one key.
const GRANT_USUAL: usize = 512;

#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// 1: include the key's document in the response, as `state`.
    include_state: Option<Flag>,
}

pub(crate) async fn acquire(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(options): Query<Options>,
    Headers(headers): Headers,
    body: Bytes,
) -> Result<Response, Refused> {
    if app.is_draining() {
        return Err(Refusal::new(Code::Draining, "the server is about to stop; ask another").into());
    }
    let asked: ask::Acquire = parse::body(&body)?;
    let grant = grant(&app, &peer, &asked)?;
    let wait = wait(&app, asked.block_seconds)?;
    let namespace = grant.namespace.clone();
    let reserve = asked.reserve.unwrap_or(false);
    let action = if reserve { Action::Reserve(grant) } else { Action::Acquire(grant) };
    let request = parse::request(&headers, api::path::ACQUIRE, &[&body])?;
    let command = Command { identity: Some(peer.identity.clone()), request, action };
    let shard = app.shard_of(&namespace);
    let ask = Ask { correlation: parse::correlation(&headers)?, wait, document: None };
    answer(&app, shard, command, ask, Flag::is_set(options.include_state)).await
}

pub(crate) async fn rebind(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    Headers(headers): Headers,
    body: Bytes,
) -> Result<Response, Refused> {
    let asked: ask::Holder = parse::body(&body)?;
    let held = parse::credential(&app.key, &asked.lease_id)?;
    if id != held.lease.to_string() {
        return Err(Refusal::new(Code::NotHeld, "the credential is another lease's").into());
    }
    if let Some(key) = &asked.key {
        holder::over(&app, held, key).await?;
    }
    let shard = app.shard_of_lease(held.lease).ok_or_else(not_found)?;
    let request = parse::request(&headers, "rebind", &[&body])?;
    let command = Command { identity: Some(peer.identity), request, action: Action::Rebind(held) };
    let ask = Ask { correlation: parse::correlation(&headers)?, ..Ask::default() };
    answer(&app, shard, command, ask, false).await
}

pub(crate) fn not_found() -> Refusal {
    Refusal::new(Code::NotFound, "no such thing was ever here")
}

fn grant(app: &App, peer: &Peer, asked: &ask::Acquire) -> Result<Grant, Refusal> {
    let namespace = parse::namespace(asked.namespace.as_deref())?;
    parse::may(peer, &namespace, Right::Write)?;
    let on_expiry = on_expiry(peer, &namespace, asked.on_expiry.unwrap_or_default())?;
    let ttl = ttl(app, asked.ttl_seconds, asked.ttl_ms)?;
    let invalid = |what: &str, error: &dyn std::fmt::Display| {
        Refusal::new(Code::InvalidBody, format!("{what}: {error}"))
    };
    let owner = asked.owner.as_deref().filter(|owner| !owner.is_empty());
    Ok(Grant {
        namespace,
        bundle: bundle(asked)?,
        ttl,
        on_expiry,
        owner: owner.map(Owner::new).transpose().map_err(|error| invalid("owner", &error))?,
        agent: None,
        session: asked
            .session_id
            .as_deref()
            .map(SessionName::new)
            .transpose()
            .map_err(|error| invalid("session_id", &error))?,
        attempt: None,
        reason: None,
        metadata: asked
            .metadata
            .as_deref()
            .map(|text| Metadata::new(text.as_bytes()))
            .transpose()
            .map_err(|error| invalid("metadata", &error))?,
    })
}

/// The server's default where none is named.
pub(crate) fn ttl(app: &App, seconds: Option<i64>, ms: Option<i64>) -> Result<Span, Refusal> {
    let ttl = parse::ttl(seconds, ms)?.unwrap_or(app.settings.default_ttl);
    if ttl > app.settings.max_ttl {
        let detail = format!("a ttl is at most the limit: max_ms={}", app.settings.max_ttl.0);
        return Err(Refusal::new(Code::InvalidTtl, detail));
    }
    Ok(ttl)
}

fn on_expiry(peer: &Peer, namespace: &Namespace, wire: Wire) -> Result<OnExpiry, Refusal> {
    match wire {
        Wire::Free => Ok(OnExpiry::Free),
        Wire::HoldMs(ms) if Span(ms) <= HOLD_FREE_MAX => Ok(OnExpiry::Hold(Span(ms))),
        Wire::HoldMs(ms) => {
            parse::may(peer, namespace, Right::ManualHold)?;
            Ok(OnExpiry::Hold(Span(ms)))
        }
        Wire::Manual => {
            parse::may(peer, namespace, Right::ManualHold)?;
            Ok(OnExpiry::Manual)
        }
    }
}

fn bundle(asked: &ask::Acquire) -> Result<Bundle, Refusal> {
    let members = match (&asked.key, &asked.resources) {
        (Some(_), Some(_)) => {
            return Err(Refusal::new(Code::InvalidBody, "key or resources, not both"));
        }
        (None, None) => return Err(Refusal::new(Code::MissingKey, "key or resources is missing")),
        (Some(key), None) => return Ok(Bundle::of_key(parse::key(key)?)),
        (None, Some(resources)) => resources.iter().map(member).collect::<Result<Vec<Member>, Refusal>>()?,
    };
    Bundle::merged(members).map_err(|error| Refusal::new(Code::InvalidBody, format!("resources: {error}")))
}

fn member(resource: &ask::Resource) -> Result<Member, Refusal> {
    let name = ResourceName::new(&resource.kind, &resource.name).map_err(|error| {
        Refusal::new(Code::InvalidKey, format!("{}:{}: {error}", resource.kind, resource.name))
    })?;
    let text = resource.predicate.as_deref().unwrap_or("MUTATES");
    Ok(Member { resource: name, predicate: predicate(text)? })
}

pub(crate) fn predicate(text: &str) -> Result<Predicate, Refusal> {
    Predicate::parse(text)
        .ok_or_else(|| Refusal::new(Code::InvalidBody, format!("no such predicate: predicate={text}")))
}

/// Absent, 0 and -1 do not wait; nobody waits for longer than the server lets it.
fn wait(app: &App, block_seconds: Option<i64>) -> Result<Option<Span>, Refusal> {
    match block_seconds.unwrap_or(0) {
        -1 | 0 => Ok(None),
        seconds => {
            let bad = |_| Refusal::new(Code::InvalidBody, "block_seconds is at least -1");
            let seconds = u64::try_from(seconds).map_err(bad)?;
            Ok(Some(Span(seconds.saturating_mul(1000)).min(app.settings.acquire_block)))
        }
    }
}

/// What is shown with a grant, or with who is in the way.
pub(crate) struct Seen {
    pub(crate) now: Time,
    pub(crate) lease: Option<LeaseView>,
    key: Option<KeyView>,
    holder: Option<String>,
}

impl Seen {
    pub(crate) fn look(kernel: &Kernel, now: Time, said: &Said) -> Seen {
        let lease = granted(said).and_then(|granted| kernel.lease(granted.lease, now).ok());
        let key = lease.as_ref().and_then(|lease| match lease.members.as_slice() {
            [member] if member.resource.is_key() => kernel.key(&lease.namespace, &member.resource),
            _ => None,
        });
        let first = match said {
            Said::Blocked(blocked) => blocked.holders.first(),
            Said::Outcome(_) => None,
        };
        let holder = first.and_then(|lease| kernel.lease(*lease, now).ok()).map(|lease| owner_of(&lease));
        Seen { now, lease, key, holder }
    }
}

pub(crate) fn owner_of(lease: &LeaseView) -> String {
    let owner = lease.details.owner.as_ref().map(Owner::as_str);
    owner.unwrap_or(lease.identity.as_str()).to_string()
}

/// The lease that a grant, a replay of one, or a rebind gave.
pub(crate) fn granted(said: &Said) -> Option<&Granted> {
    match said {
        Said::Outcome(
            Outcome::Applied(Answer::Granted(granted), _) | Outcome::Unchanged(Answer::Granted(granted)),
        ) => Some(granted),
        _ => None,
    }
}

async fn answer(
    app: &Arc<App>,
    shard: usize,
    command: Command,
    ask: Ask,
    include_state: bool,
) -> Result<Response, Refused> {
    let (said, seen, delivery) = app.ask_for_lease(shard, command, ask, Seen::look).await?;
    let Some(granted) = granted(&said) else { return Err(refusal(&said, seen.holder).into()) };
    let told = tell(app, granted, &seen);
    let mut body = Vec::with_capacity(GRANT_USUAL);
    serde_json::to_writer(&mut body, &told).expect("it can always be written");
    if include_state && let Some(document) = seen.key.and_then(|key| key.document) {
        let bytes = read::read_whole(app, shard, &document).await?;
        body.pop();
        body.extend_from_slice(b",\"state\":");
        body.extend_from_slice(&bytes);
        body.push(b'}');
    }
    Ok(delivery::json(body, delivery))
}

pub(crate) fn refusal(said: &Said, holder: Option<String>) -> Refusal {
    match said {
        Said::Blocked(blocked) => refusals::blocked(blocked, holder),
        Said::Outcome(Outcome::Rejected(rejection)) => refusals::rejected(rejection),
        Said::Outcome(other) => Refusal::new(
            Code::Unavailable,
            format!("the server is at fault: an answer to another question: {other:?}"),
        ),
    }
}

pub(crate) fn tell(app: &App, granted: &Granted, seen: &Seen) -> tell::Granted {
    let (unix_ms, now) = (app.unix_ms(), seen.now);
    let remaining = now.until(granted.deadline).0;
    let lease = seen.lease.as_ref();
    let members = lease.map(|lease| lease.members.as_slice()).unwrap_or_default();
    let key = match members {
        [member] if member.resource.is_key() => Some(member.resource.name().to_string()),
        _ => None,
    };
    let expires = unix_ms + remaining;
    let lease_id = app.key.issue(Held { lease: granted.lease, epoch: granted.epoch });
    tell::Granted {
        public_id: lease_id.split('.').next().unwrap_or_default().to_string(),
        lease_id,
        lease_epoch: granted.epoch.0,
        fencing_token: granted.token.0,
        namespace: lease.map(|lease| lease.namespace.as_str().to_string()).unwrap_or_default(),
        resources: key.is_none().then(|| members.iter().map(resource).collect()),
        key,
        owner: lease.map(owner_of).unwrap_or_default(),
        acquired_at_unix: unix_ms.saturating_sub(granted.granted_at.until(now).0) / 1000,
        expires_at_unix: expires / 1000,
        expires_at_unix_ms: expires,
        remaining_ms: remaining,
        ttl_ms: granted.ttl.0,
        version: seen.key.map_or(0, |key| key.version.0),
        state_etag: seen
            .key
            .and_then(|key| key.document)
            .map(|document| hex(&document.etag.0))
            .unwrap_or_default(),
    }
}

pub(crate) fn resource(member: &Member) -> ask::Resource {
    ask::Resource {
        kind: member.resource.kind().to_string(),
        name: member.resource.name().to_string(),
        predicate: Some(member.predicate.as_str().to_string()),
    }
}
