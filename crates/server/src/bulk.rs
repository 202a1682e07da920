//! Several leases at once: heartbeat, release, reconcile. Each is answered on its own, in the order in which it was asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::agents::{Bulk, BulkResult, Reconcile, Reconciled, Results};
use api::{Code, Refusal, tell};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use engine::decider::Said;
use kernel::{
    Action, Answer, Command, Held, LeaseView, Live, Outcome, Rejection, Renewal, Request,
    State as LeaseState, Time,
};
use tokio::task::JoinSet;

use crate::acquire::{self, Seen, not_found};
use crate::agents::heard_from;
use crate::app::{App, Ask};
use crate::peer::Peer;
use crate::read::Headers;
use crate::refuse::{Refused, rejected};
use crate::{read, views};

type Told<T> = Result<Json<Results<T>>, Refused>;
type Each<T> = Vec<Result<T, Refusal>>;

/// Who asks for what, read: a credential or what is wrong with it, for each lease.
struct Asked {
    app: Arc<App>,
    peer: Peer,
    correlation: u128,
    ids: Vec<String>,
    held: Each<(Held, usize)>,
}

impl Asked {
    async fn read(app: &Arc<App>, peer: Peer, headers: &HeaderMap, asked: Bulk) -> Result<Asked, Refusal> {
        let Bulk { namespace, agent_id, lease_ids: ids } = asked;
        if ids.is_empty() || ids.len() > Bulk::MAX {
            let detail = format!("lease_ids: one or more, and not too many: max={}", Bulk::MAX);
            return Err(Refusal::new(Code::InvalidBody, detail));
        }
        let namespace = read::namespace(namespace.as_deref())?;
        let agent = agent_id.as_deref().map(read::agent).transpose()?;
        let correlation = read::correlation(headers)?;
        if agent.is_some() {
            heard_from(app, &peer, &namespace, agent.as_ref(), correlation).await?;
        }
        let placed = |id: &String| {
            let held = read::credential(&app.key, id)?;
            Ok((held, app.shard_of_lease(held.lease).ok_or_else(not_found)?))
        };
        let held = ids.iter().map(placed).collect();
        Ok(Asked { app: Arc::clone(app), peer, correlation, ids, held })
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

    /// Sends a command for each lease that is asked for, all at once, and waits for all answers.
    async fn all<T: Send + 'static>(
        &self,
        commands: impl Iterator<Item = (usize, usize, Command)>,
        look: fn(&kernel::Kernel, Time, &Said) -> T,
    ) -> Vec<(usize, Result<(Said, T), Refusal>)> {
        let mut asking = JoinSet::new();
        for (place, shard, command) in commands {
            let (app, correlation) = (Arc::clone(&self.app), self.correlation);
            asking.spawn(async move {
                let ask = Ask { correlation, ..Ask::default() };
                (place, app.ask(shard, command, ask, look).await)
            });
        }
        asking.join_all().await
    }
}

pub(crate) async fn heartbeat(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<BulkResult> {
    let asked = Asked::read(&app, peer, &headers, read::body(&body)?).await?;
    let mut each = asked.blank::<(Live, Time)>();
    for (shard, leases) in asked.by_shard() {
        let renewals = leases.iter().map(|(_, held)| Renewal { held: *held, ttl: None }).collect();
        let command = asked.command(Action::Renew(renewals), None);
        let ask = Ask { correlation: asked.correlation, ..Ask::default() };
        let answered = app.ask(shard, command, ask, |_, now, _| now).await;
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
    let unix_ms = app.unix_ms();
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
pub(crate) async fn release(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<BulkResult> {
    let asked = Asked::read(&app, peer, &headers, read::body(&body)?).await?;
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

pub(crate) async fn reconcile(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<Reconciled> {
    let Reconcile { namespace, agent_id, lease_ids, rebind } = read::body(&body)?;
    let asked = Asked::read(&app, peer, &headers, Bulk { namespace, agent_id, lease_ids }).await?;
    let mut each = asked.truths().await;
    if rebind == Some(true) {
        asked.take_back(&headers, &mut each).await?;
    }
    let unix = asked.ids.iter().zip(&asked.held).zip(each);
    let results = unix.map(|((id, held), truth)| {
        let epoch = held.as_ref().ok().map(|(held, _)| held.epoch);
        reconciled(&app, id, epoch, truth)
    });
    Ok(Json(Results { results: results.collect() }))
}

impl Asked {
    /// Each lease as it is now, if it is this peer's.
    async fn truths(&self) -> Each<Truth> {
        let mut each = self.blank();
        for (shard, leases) in self.by_shard() {
            let ids: Vec<kernel::LeaseId> = leases.iter().map(|(_, held)| held.lease).collect();
            let look = move |view: &crate::app::View<'_>| {
                let views: Vec<_> = ids.iter().map(|id| view.kernel.lease(*id, view.now)).collect();
                (views, view.now)
            };
            let seen = self.app.look(shard, look).await;
            for (index, (place, _)) in leases.iter().enumerate() {
                each[*place] = match &seen {
                    Ok((views, now)) => self.truth(views[index].clone(), *now),
                    Err(refusal) => Err(refusal.clone()),
                };
            }
        }
        each
    }

    fn truth(&self, view: Result<LeaseView, Rejection>, now: Time) -> Result<Truth, Refusal> {
        let view = view.map_err(|why| rejected(&why))?;
        if view.identity != self.peer.identity {
            return Err(rejected(&Rejection::NotHeld));
        }
        Ok(Truth { view, now, back: None })
    }

    /// Takes back what ran out and is held for its holder. A retry of the call is answered with the same credentials.
    async fn take_back(&self, headers: &HeaderMap, each: &mut Each<Truth>) -> Result<(), Refusal> {
        let mut commands = Vec::new();
        for (place, (held, truth)) in self.held.iter().zip(each.iter()).enumerate() {
            let (Ok((held, shard)), Ok(truth)) = (held, truth) else { continue };
            let request = read::part_of_request(headers, "reconcile", &[], &self.ids[place])?;
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
                Some((granted, _)) => Some(Ok(acquire::tell(&self.app, granted, &seen))),
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
