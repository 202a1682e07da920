//! What holders do with their leases: activate, keepalive, release, touch.

use std::sync::Arc;

use api::{Code, Refusal, ask, tell};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::{Extension, Json};
use engine::decider::Said;
use kernel::{Action, Answer, Command, Held, Live, Outcome, Rejection, Renewal, Time};

use crate::backend::shards::{App, Ask};
use crate::handlers::acquire::{not_found, refusal};
use crate::parse::{self, Headers};
use crate::peer::Peer;
use crate::present::refusals::{Refused, rejected};

type Told<T> = Result<Json<T>, Refused>;

/// A holder's command, and the kernel's time when it was decided.
async fn ask_shard(
    app: &App,
    peer: &Peer,
    held: Held,
    action: Action,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(Said, Time), Refusal> {
    let shard = app.shard_of_lease(held.lease).ok_or_else(not_found)?;
    let request = parse::request(headers, action_name(&action), &[body])?;
    let command = Command { identity: Some(peer.identity.clone()), request, action };
    let ask = Ask { correlation: parse::correlation(headers)?, ..Ask::default() };
    app.ask(shard, command, ask, |_, now, _| now).await
}

fn action_name(action: &Action) -> &'static str {
    match action {
        Action::Activate(_) => "activate",
        Action::Renew(_) => "keepalive",
        Action::Touch(_) => "touch",
        _ => "release",
    }
}

/// Where a key is named, the lease must cover it.
async fn covers(app: &App, peer: &Peer, held: Held, key: Option<&str>) -> Result<(), Refusal> {
    let Some(key) = key else { return Ok(()) };
    let key = parse::key(key)?;
    let shard = app.shard_of_lease(held.lease).ok_or_else(not_found)?;
    let identity = peer.identity.clone();
    let may = app.look(shard, move |view| view.kernel.may_read(view.now, &identity, held, &key)).await?;
    may.map_err(|rejection| rejected(&rejection))
}

/// Is, or was, the lease over this key? One whose history is gone may have been.
pub(crate) async fn over(app: &App, held: Held, key: &str) -> Result<(), Refusal> {
    let key = parse::key(key)?;
    let shard = app.shard_of_lease(held.lease).ok_or_else(not_found)?;
    let look = move |view: &crate::backend::shards::View<'_>| {
        let lease = view.kernel.lease(held.lease, view.now).ok();
        lease.is_none_or(|lease| lease.members.iter().any(|member| member.resource == key))
    };
    if app.look(shard, look).await? { Ok(()) } else { Err(rejected(&Rejection::NotHeld)) }
}

pub(crate) async fn activate(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<tell::Extended> {
    let asked: ask::Holder = parse::body(&body)?;
    let held = parse::credential(&app.key, &asked.lease_id)?;
    covers(&app, &peer, held, asked.key.as_deref()).await?;
    let (said, now) = ask_shard(&app, &peer, held, Action::Activate(held), &headers, &body).await?;
    live(&app, &said, now)
}

pub(crate) async fn touch(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<tell::Extended> {
    let asked: ask::Holder = parse::body(&body)?;
    let held = parse::credential(&app.key, &asked.lease_id)?;
    if id != held.lease.to_string() {
        return Err(Refusal::new(Code::NotHeld, "the credential is another lease's").into());
    }
    covers(&app, &peer, held, asked.key.as_deref()).await?;
    let (said, now) = ask_shard(&app, &peer, held, Action::Touch(held), &headers, &body).await?;
    live(&app, &said, now)
}

pub(crate) async fn keepalive(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<tell::Extended> {
    let asked: ask::Keepalive = parse::body(&body)?;
    let held = parse::credential(&app.key, &asked.lease_id)?;
    let ttl = parse::ttl(asked.ttl_seconds, asked.ttl_ms)?;
    if ttl.is_some_and(|ttl| ttl > app.settings.max_ttl) {
        let detail = format!("a ttl is at most the limit: max_ms={}", app.settings.max_ttl.0);
        return Err(Refusal::new(Code::InvalidTtl, detail).into());
    }
    covers(&app, &peer, held, asked.key.as_deref()).await?;
    let action = Action::Renew(vec![Renewal { held, ttl }]);
    let (said, now) = ask_shard(&app, &peer, held, action, &headers, &body).await?;
    let results = match said {
        Said::Outcome(
            Outcome::Applied(Answer::Renewed(results), _) | Outcome::Unchanged(Answer::Renewed(results)),
        ) => results,
        said => return Err(refusal(&said, None).into()),
    };
    match results.into_iter().next() {
        Some(Ok(live)) => Ok(Json(extended(&app, live, now))),
        Some(Err(rejection)) => Err(rejected(&rejection).into()),
        None => Err(rejected(&Rejection::InvalidBatch).into()),
    }
}

/// Again and again, and also when its history is gone: whoever has the credential has nothing any more.
pub(crate) async fn release(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<tell::Released> {
    let asked: ask::Holder = parse::body(&body)?;
    let held = parse::credential(&app.key, &asked.lease_id)?;
    if let Some(key) = &asked.key {
        over(&app, held, key).await?;
    }
    let (said, _) = ask_shard(&app, &peer, held, Action::Release(held), &headers, &body).await?;
    match said {
        Said::Outcome(
            Outcome::Applied(Answer::Released, _)
            | Outcome::Unchanged(Answer::Released)
            | Outcome::Rejected(Rejection::Retired),
        ) => Ok(Json(tell::Released { released: true })),
        said => Err(refusal(&said, None).into()),
    }
}

fn live(app: &App, said: &Said, now: Time) -> Told<tell::Extended> {
    match said {
        Said::Outcome(Outcome::Applied(Answer::Live(live), _) | Outcome::Unchanged(Answer::Live(live))) => {
            Ok(Json(extended(app, *live, now)))
        }
        said => Err(refusal(said, None).into()),
    }
}

fn extended(app: &App, live: Live, now: Time) -> tell::Extended {
    let remaining_ms = now.until(live.deadline).0;
    let expires_at_unix_ms = app.unix_ms() + remaining_ms;
    tell::Extended { expires_at_unix: expires_at_unix_ms / 1000, expires_at_unix_ms, remaining_ms }
}
