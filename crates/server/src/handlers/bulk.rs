//! Several leases at once: heartbeat, release, reconcile. Each is answered on its own, in the order in which it was asked.
//!
//! **Invariant.** Whatever one call asks for, others get their turn after at most [`PART`] leases of it, and its leases
//! take at most so many of the places in a shard's queue.
//!
//! **What would break it.** Ten thousand releases handed in at once: the queue has room for fewer than half, the rest of
//! them are refused as if the shard were overrun, and so is everybody else. Ten thousand leases read in one look: the
//! shard decides nothing meanwhile. Heartbeats are one command, which the shard itself takes apart.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::agents::{Bulk, BulkResult, Reconcile, Reconciled, Results};
use api::{Code, Refusal, tell};
use axum::extract::{FromRequest, FromRequestParts, Request as HttpRequest};
use axum::http::HeaderMap;
use axum::{Extension, Json};
use engine::decider::Said;
use engine::shard::RENEWALS_MAX;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use identity::Right;
use kernel::{
    Action, Answer, Command, Held, LeaseView, Live, Outcome, Rejection, Renewal, Request,
    State as LeaseState, Time,
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::backend::shards::{App, Ask};
use crate::handlers::acquire::{self, Seen, not_found};
use crate::handlers::agents::heard_from;
use crate::handlers::views;
use crate::parse;
use crate::peer::Peer;
use crate::present::refusals::{Refused, rejected};

/// How many leases are asked for or looked at in one go: as many as the kernel renews with one record.
const PART: usize = Action::MAX_BATCH;
const _: () = assert!(Bulk::MAX <= RENEWALS_MAX, "heartbeats of one shard are one command");

/// How many members one answer shows: a thousand of the largest leases. The same lease may be named ten thousand times.
const SHOWN_MAX: usize = 1000 * kernel::Bundle::MAX_MEMBERS;

type Told<T> = Result<Json<Results<T>>, Refused>;
type Each<T> = Vec<Result<T, Refusal>>;

/// A call with a long body, as it comes: who asks, and for what.
pub(crate) struct Incoming<T> {
    app: Arc<App>,
    peer: Peer,
    headers: HeaderMap,
    body: T,
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Incoming<T> {
    type Rejection = Refused;

    async fn from_request(request: HttpRequest, app: &Arc<App>) -> Result<Incoming<T>, Refused> {
        let (mut parts, body) = request.into_parts();
        let peer = Extension::<Peer>::from_request_parts(&mut parts, app).await;
        let Extension(peer) = peer.map_err(|error| Refusal::new(Code::Unauthenticated, error.body_text()))?;
        let body = Limited::new(body, Bulk::BODY_MAX).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let detail = format!("the body is longer than may be, in bytes: max={}", Bulk::BODY_MAX);
                return Refusal::new(Code::DocumentTooLarge, detail);
            }
            Refusal::new(Code::InvalidBody, format!("the body did not come whole: {error}"))
        })?;
        let body = parse::body(&body.to_bytes())?;
        Ok(Incoming { app: Arc::clone(app), peer, headers: parts.headers, body })
    }
}

/// Who asks for what, read: a credential or what is wrong with it, for each lease.
pub(crate) struct Asked {
    app: Arc<App>,
    peer: Peer,
    correlation: u128,
    ids: Vec<String>,
    held: Each<(Held, usize)>,
}

impl FromRequest<Arc<App>> for Asked {
    type Rejection = Refused;

    async fn from_request(request: HttpRequest, app: &Arc<App>) -> Result<Asked, Refused> {
        Ok(Asked::read(Incoming::from_request(request, app).await?).await?)
    }
}

impl Asked {
    async fn read(Incoming { app, peer, headers, body }: Incoming<Bulk>) -> Result<Asked, Refusal> {
        let Bulk { namespace, agent_id, lease_ids: ids } = body;
        if ids.is_empty() || ids.len() > Bulk::MAX {
            let detail = format!("lease_ids: one or more, and not too many: max={}", Bulk::MAX);
            return Err(Refusal::new(Code::InvalidBody, detail));
        }
        let namespace = parse::namespace(namespace.as_deref())?;
        let agent = agent_id.as_deref().map(parse::agent).transpose()?;
        let correlation = parse::correlation(&headers)?;
        // What is malformed is refused where it means nothing too.
        parse::request(&headers, "bulk", &[])?;
        if agent.is_some() {
            // Or whoever has no rights there finds out which agents there are.
            parse::may(&peer, &namespace, Right::Write)?;
            heard_from(&app, &peer, &namespace, agent.as_ref(), correlation).await?;
        }
        let placed = |id: &String| {
            let held = parse::credential(&app.key, id)?;
            Ok((held, app.shard_of_lease(held.lease).ok_or_else(not_found)?))
        };
        let held = ids.iter().map(placed).collect();
        Ok(Asked { app, peer, correlation, ids, held })
    }

    /// Where each lease is in the order of asking, by shard.
    fn by_shard(&self) -> BTreeMap<usize, Vec<(usize, Held)>> {
        let mut shards: BTreeMap<usize, Vec<(usize, Held)>> = BTreeMap::new();
        for (place, held) in self.held.iter().enumerate() {
            if let Ok((held, shard)) = held {
                shards.entry(*shard).or_default().push((place, *held));
            }
        }
        shards
    }

    /// What is wrong with each, to begin with; the others are to be filled in.
    fn blank<T>(&self) -> Each<T> {
        let unasked = || Refusal::new(Code::Unavailable, "the server failed before it knew; ask again");
        let each = self.held.iter().map(|held| match held {
            Ok(_) => Err(unasked()),
            Err(refusal) => Err(refusal.clone()),
        });
        each.collect()
    }

    fn command(&self, action: Action, request: Option<Request>) -> Command {
        Command { identity: Some(self.peer.identity.clone()), request, action }
    }

    /// Sends a command for each lease that is asked for, a part of them at a time, and waits for all answers.
    async fn all<T: Send + 'static>(
        &self,
        mut commands: impl Iterator<Item = (usize, usize, Command)>,
        look: fn(&kernel::Kernel, Time, &Said) -> T,
    ) -> Vec<(usize, Result<(Said, T), Refusal>)> {
        let mut answered = Vec::new();
        loop {
            let mut asking = JoinSet::new();
            for (place, shard, command) in commands.by_ref().take(PART) {
                let (app, correlation) = (Arc::clone(&self.app), self.correlation);
                asking.spawn(async move {
                    let ask = Ask { correlation, ..Ask::default() };
                    (place, app.ask(shard, command, ask, look).await)
                });
            }
            if asking.is_empty() {
                return answered;
            }
            answered.extend(asking.join_all().await);
        }
    }
}

pub(crate) async fn heartbeat(asked: Asked) -> Told<BulkResult> {
    let mut each = asked.blank::<(Live, Time)>();
    for (shard, leases) in asked.by_shard() {
        let renewals = leases.iter().map(|(_, held)| Renewal { held: *held, ttl: None }).collect();
        let command = asked.command(Action::Renew(renewals), None);
        let ask = Ask { correlation: asked.correlation, ..Ask::default() };
        let answered = asked.app.ask(shard, command, ask, |_, now, _| now).await;
        let lives = answered.and_then(|(said, now)| Ok((renewed(said)?, now)));
        for (index, (place, _)) in leases.iter().enumerate() {
            each[*place] = match &lives {
                Ok((lives, now)) => {
                    lives[index].clone().map(|live| (live, *now)).map_err(|why| rejected(&why))
                }
                Err(refusal) => Err(refusal.clone()),
            };
        }
    }
    let unix_ms = asked.app.unix_ms();
    let told = |(live, now): (Live, Time)| {
        let remaining_ms = now.until(live.deadline).0;
        (Some(unix_ms + remaining_ms), Some(remaining_ms))
    };
    Ok(results(asked.ids, each, told))
}

fn renewed(said: Said) -> Result<Vec<Result<Live, Rejection>>, Refusal> {
    match said {
        Said::Outcome(
            Outcome::Applied(Answer::Renewed(lives), _) | Outcome::Unchanged(Answer::Renewed(lives)),
        ) => Ok(lives),
        said => Err(acquire::refusal(&said, None)),
    }
}

/// Each again and again, and also when its history is gone.
pub(crate) async fn release(asked: Asked) -> Told<BulkResult> {
    let mut each = asked.blank::<()>();
    let commands = asked.by_shard().into_iter().flat_map(|(shard, leases)| {
        let release = |(place, held)| (place, shard, asked.command(Action::Release(held), None));
        leases.into_iter().map(release).collect::<Vec<_>>()
    });
    for (place, answered) in asked.all(commands, |_, _, _| ()).await {
        each[place] = answered.and_then(|(said, ())| match said {
            Said::Outcome(
                Outcome::Applied(Answer::Released, _)
                | Outcome::Unchanged(Answer::Released)
                | Outcome::Rejected(Rejection::Retired),
            ) => Ok(()),
            said => Err(acquire::refusal(&said, None)),
        });
    }
    Ok(results(asked.ids, each, |()| (None, None)))
}

fn results<T>(
    ids: Vec<String>,
    each: Each<T>,
    told: impl Fn(T) -> (Option<u64>, Option<u64>),
) -> Json<Results<BulkResult>> {
    let results = ids.into_iter().zip(each).map(|(lease_id, result)| match result {
        Ok(done) => {
            let (expires_at_unix_ms, remaining_ms) = told(done);
            BulkResult { lease_id, ok: true, expires_at_unix_ms, remaining_ms, ..BulkResult::default() }
        }
        Err(Refusal { error, detail, .. }) => {
            BulkResult { lease_id, error: Some(error), detail: Some(detail), ..BulkResult::default() }
        }
    });
    Json(Results { results: results.collect() })
}

/// What is true of one lease.
struct Truth {
    view: LeaseView,
    now: Time,
    /// What was taken back, or why it was not.
    back: Option<Result<tell::Granted, Refusal>>,
}

pub(crate) async fn reconcile(incoming: Incoming<Reconcile>) -> Told<Reconciled> {
    let Incoming { app, peer, headers, body } = incoming;
    let Reconcile { namespace, agent_id, lease_ids, rebind } = body;
    let bulk =
        Incoming { app, peer, headers: headers.clone(), body: Bulk { namespace, agent_id, lease_ids } };
    let asked = Asked::read(bulk).await?;
    let mut each = asked.truths().await;
    if rebind == Some(true) {
        asked.take_back(&headers, &mut each).await?;
    }
    let unix = asked.ids.iter().zip(&asked.held).zip(each);
    let results = unix.map(|((id, held), truth)| {
        let epoch = held.as_ref().ok().map(|(held, _)| held.epoch);
        reconciled(&asked.app, id, epoch, truth)
    });
    Ok(Json(Results { results: results.collect() }))
}

impl Asked {
    /// Each lease as it is now, if it is this peer's.
    async fn truths(&self) -> Each<Truth> {
        let (mut each, mut left) = (self.blank(), SHOWN_MAX);
        for (shard, leases) in self.by_shard() {
            for part in leases.chunks(PART) {
                self.look(shard, part, &mut each, &mut left).await;
            }
        }
        each
    }

    async fn look(&self, shard: usize, leases: &[(usize, Held)], each: &mut Each<Truth>, left: &mut usize) {
        let ids: Vec<kernel::LeaseId> = leases.iter().map(|(_, held)| held.lease).collect();
        let look = move |view: &crate::backend::shards::View<'_>| {
            let views: Vec<_> = ids.iter().map(|id| view.kernel.lease(*id, view.now)).collect();
            (views, view.now)
        };
        let seen = self.app.look(shard, look).await;
        for (index, (place, _)) in leases.iter().enumerate() {
            each[*place] = match &seen {
                Ok((views, now)) => self.truth(views[index].clone(), *now, left),
                Err(refusal) => Err(refusal.clone()),
            };
        }
    }

    /// `left` is how many members the answer has room for.
    fn truth(
        &self,
        view: Result<LeaseView, Rejection>,
        now: Time,
        left: &mut usize,
    ) -> Result<Truth, Refusal> {
        let view = view.map_err(|why| rejected(&why))?;
        if view.identity != self.peer.identity {
            return Err(rejected(&Rejection::NotHeld));
        }
        *left = left.checked_sub(view.members.len()).ok_or_else(|| {
            let detail = "the answer would be too long; ask for this one again, among fewer";
            Refusal::new(Code::Throttled, detail)
        })?;
        Ok(Truth { view, now, back: None })
    }

    /// Takes back what ran out and is held for its holder. A retry of the call is answered with the same credentials.
    async fn take_back(&self, headers: &HeaderMap, each: &mut Each<Truth>) -> Result<(), Refusal> {
        let mut commands = Vec::new();
        for (place, (held, truth)) in self.held.iter().zip(each.iter()).enumerate() {
            let (Ok((held, shard)), Ok(truth)) = (held, truth) else { continue };
            let request = parse::part_of_request(headers, "reconcile", &[], &self.ids[place])?;
            // A retry of one that was taken back already finds it live, and asks for its answer.
            let again =
                request.is_some() && truth.view.state == LeaseState::Active && truth.view.epoch > held.epoch;
            if truth.view.held_until.is_some() || again {
                commands.push((place, *shard, self.command(Action::Rebind(*held), request)));
            }
        }
        for (place, answered) in self.all(commands.into_iter(), Seen::look).await {
            let Ok(truth) = &mut each[place] else { continue };
            let (said, seen) = match answered {
                Ok(answered) => answered,
                Err(refusal) => {
                    truth.back = Some(Err(refusal));
                    continue;
                }
            };
            truth.now = seen.now;
            truth.back = match acquire::granted(&said) {
                Some(granted) => Some(Ok(acquire::tell(&self.app, granted, &seen))),
                // It is live under a later credential: the view says so.
                None if matches!(said, Said::Outcome(Outcome::Rejected(Rejection::StaleEpoch { .. }))) => {
                    None
                }
                None => Some(Err(acquire::refusal(&said, None))),
            };
            if let Some(lease) = seen.lease {
                truth.view = lease;
            }
        }
        Ok(())
    }
}

fn reconciled(
    app: &App,
    id: &str,
    epoch: Option<kernel::Epoch>,
    truth: Result<Truth, Refusal>,
) -> Reconciled {
    let lease_id = id.to_string();
    let Truth { view, now, back } = match truth {
        Ok(truth) => truth,
        Err(Refusal { error, detail, .. }) => {
            return Reconciled {
                lease_id,
                error: Some(error),
                detail: Some(detail),
                ..Reconciled::default()
            };
        }
    };
    let live = matches!(view.state, LeaseState::Active | LeaseState::Reserved);
    let (lease, refusal) = match back {
        Some(Ok(lease)) => (Some(lease), None),
        Some(Err(refusal)) => (None, Some(refusal)),
        None => (None, None),
    };
    Reconciled {
        lease_id,
        ok: refusal.is_none(),
        valid: lease.is_some() || live && epoch == Some(view.epoch),
        error: refusal.as_ref().map(|refusal| refusal.error),
        detail: refusal.map(|refusal| refusal.detail),
        view: Some(views::shown(app, &view, now)),
        lease,
    }
}
