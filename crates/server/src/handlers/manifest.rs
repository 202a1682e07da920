//! `POST /v1/manifest`: all that an agent means to touch, as one lease or not at all.
//!
//! **Invariant.** An attempt is as old as its first try, whatever comes in between: the answer names the age that it was
//! judged by, and the next try brings it back. So of all attempts that retry the oldest is in nobody's way for ever.
//!
//! **What would break it.** To judge a retry by a new age: it dies behind whoever came meanwhile, again and again. To
//! hand back an age that no longer counts: each try would be new, for ever; so an attempt that is too old gets a new age,
//! and takes that one along.

use std::sync::Arc;

use api::agents::{self, InTheWay, Judged, Verdict};
use api::{Code, Refusal};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use engine::decider::{Advice, Blocked, Said};
use engine::sequencer::Delivery;
use kernel::{
    Action, Age, AgentName, Bundle, Command, Grant, Kernel, LeaseView, Member, Namespace, OnExpiry, Outcome,
    Reason, Rejection, ResourceName, SessionName, Span, Time,
};

use crate::backend::shards::{App, Ask};
use crate::handlers::acquire::{self, Seen, owner_of, predicate};
use crate::handlers::agents as parties;
use crate::parse;
use crate::parse::Headers;
use crate::parse::attempt;
use crate::peer::Peer;
use crate::present::delivery;
use crate::present::refusals::{self, Refused};
use identity::Right;

/// The shortest and the longest time that an attempt is told to stay away for.
const BACKOFF: (u64, u64) = (100, 5000);

/// A manifest, read.
struct Asked {
    namespace: Namespace,
    agent: AgentName,
    session: SessionName,
    attempt: Option<Age>,
    bundle: Bundle,
    ttl: Span,
    wait: Option<Span>,
    reason: Option<Reason>,
}

pub(crate) async fn manifest(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Headers(headers): Headers,
    body: Bytes,
) -> Result<Response, Refused> {
    if app.is_draining() {
        return Err(Refusal::new(Code::Draining, "the server is about to stop; ask another").into());
    }
    let asked = Asked::read(&app, &peer, &parse::body(&body)?)?;
    let request = parse::request(&headers, api::path::MANIFEST, &[&body])?;
    let correlation = parse::correlation(&headers)?;
    let now = parties::heard_from(&app, &peer, &asked.namespace, Some(&asked.agent), correlation).await?;
    let age = asked.attempt.filter(|age| age.counts_at(now));
    let age = age.unwrap_or_else(|| Age { at: now, tie: app.chance() });
    let (namespace, wait) = (asked.namespace.clone(), asked.wait);
    let shard = app.shard_of(&namespace);
    let action = Action::Acquire(asked.grant(age));
    let command = Command { identity: Some(peer.identity.clone()), request, action };
    let ask = Ask { correlation, wait, document: None };
    let asked = app.ask_for_lease(shard, command, ask, Looked::look).await;
    let attempt = |age| attempt::issue(&app.key, &peer.identity, &namespace, age);
    let paused = |now, detail| Judged {
        verdict: Verdict::Paused,
        attempt_id: attempt(age),
        backoff_ms: Some(backoff(&app, now, age)),
        detail: Some(detail),
        ..Judged::default()
    };
    let (said, looked, delivery) = match asked {
        Err(refusal) if refusal.error == Code::QuotaExceeded => {
            return Ok(delivery::json(written(&paused(now, refusal.detail)), Delivery::default()));
        }
        asked => asked?,
    };
    if let Some(granted) = acquire::granted(&said) {
        let age = looked.seen.lease.as_ref().map_or(age, |lease| lease.age);
        let lease = Some(acquire::tell(&app, granted, &looked.seen));
        let told = Judged { verdict: Verdict::Granted, attempt_id: attempt(age), lease, ..Judged::default() };
        return Ok(delivery::json(written(&told), delivery));
    }
    let told = match &said {
        Said::Blocked(blocked) => {
            let told = blocked_by(blocked, &looked);
            Judged {
                attempt_id: attempt(blocked.age),
                backoff_ms: Some(backoff(&app, looked.now(), blocked.age)),
                ..told
            }
        }
        Said::Outcome(Outcome::Rejected(why @ (Rejection::Paused | Rejection::QuotaExceeded { .. }))) => {
            paused(looked.now(), refusals::rejected(why).detail)
        }
        Said::Outcome(_) => return Err(acquire::refusal(&said, None).into()),
    };
    Ok(delivery::json(written(&told), delivery))
}

impl Asked {
    fn read(app: &App, peer: &Peer, asked: &agents::Manifest) -> Result<Asked, Refusal> {
        let invalid = |what: &str, error: kernel::TextError| {
            Refusal::new(Code::InvalidBody, format!("{what}: {error}"))
        };
        let namespace = parse::namespace(asked.namespace.as_deref())?;
        parse::may(peer, &namespace, Right::Write)?;
        let attempt = asked.attempt_id.as_deref().map(|text| {
            attempt::verify(&app.key, &peer.identity, &namespace, text).ok_or_else(|| {
                let detail =
                    "attempt_id was not given to this identity in this namespace; leave it out to begin anew";
                Refusal::new(Code::InvalidBody, detail)
            })
        });
        Ok(Asked {
            attempt: attempt.transpose()?,
            agent: parse::agent(&asked.agent_id)?,
            session: SessionName::new(&asked.session_id).map_err(|error| invalid("session_id", error))?,
            bundle: bundle(asked)?,
            ttl: acquire::ttl(app, None, asked.ttl_ms)?,
            wait: asked.wait_ms.filter(|ms| *ms > 0).map(|ms| Span(ms).min(app.settings.acquire_block)),
            reason: asked
                .reason
                .as_deref()
                .map(Reason::new)
                .transpose()
                .map_err(|error| invalid("reason", error))?,
            namespace,
        })
    }

    fn grant(self, age: Age) -> Grant {
        Grant {
            namespace: self.namespace,
            bundle: self.bundle,
            ttl: self.ttl,
            on_expiry: OnExpiry::Free,
            owner: None,
            agent: Some(self.agent),
            session: Some(self.session),
            attempt: Some(age),
            reason: self.reason,
            metadata: None,
        }
    }
}

fn bundle(asked: &agents::Manifest) -> Result<Bundle, Refusal> {
    if let Some(root) = &asked.root {
        is_directory(root)?;
    }
    let members = asked.intents.iter().map(|intent| member(intent, asked.root.as_deref()));
    let members = members.collect::<Result<Vec<Member>, Refusal>>()?;
    Bundle::merged(members).map_err(|error| Refusal::new(Code::InvalidBody, format!("intents: {error}")))
}

/// Checked even where nothing is relative: a root that is wrong is wrong with the next manifest too.
fn is_directory(root: &str) -> Result<(), Refusal> {
    let wrong =
        |why: &dyn std::fmt::Display| Refusal::new(Code::InvalidKey, format!("root: {why}: root={root}"));
    let name = ResourceName::new(ResourceName::FILE, root).map_err(|error| wrong(&error))?;
    if name.name().ends_with('*') { Err(wrong(&"a directory, without '*'")) } else { Ok(()) }
}

fn member(intent: &agents::Intent, root: Option<&str>) -> Result<Member, Refusal> {
    let resource = ResourceName::parse(&intent.object, root)
        .map_err(|error| Refusal::new(Code::InvalidKey, format!("{error}: object={}", intent.object)))?;
    Ok(Member { resource, predicate: predicate(&intent.predicate)? })
}

/// What is shown of the state in which a manifest was decided.
struct Looked {
    seen: Seen,
    holders: Vec<LeaseView>,
}

impl Looked {
    fn look(kernel: &Kernel, now: Time, said: &Said) -> Looked {
        let holders = match said {
            Said::Blocked(blocked) => blocked.holders.as_slice(),
            Said::Outcome(_) => &[],
        };
        let holders = holders.iter().filter_map(|lease| kernel.lease(*lease, now).ok()).collect();
        Looked { seen: Seen::look(kernel, now, said), holders }
    }

    fn now(&self) -> Time {
        self.seen.now
    }
}

fn blocked_by(blocked: &Blocked, looked: &Looked) -> Judged {
    let (verdict, detail) = match blocked.advice {
        Advice::Wait => (Verdict::Wait, "younger ones hold it, or came first: wait, with wait_ms"),
        Advice::Die | Advice::Deadlock => (
            Verdict::Die,
            "give back what `release` names, stay away for backoff_ms, and come again with attempt_id",
        ),
    };
    Judged {
        verdict,
        holders: looked.holders.iter().map(|lease| in_the_way(lease, looked.now())).collect(),
        position: Some(blocked.position as u64),
        release: blocked.release.iter().map(ToString::to_string).collect(),
        detail: Some(detail.to_string()),
        ..Judged::default()
    }
}

pub(crate) fn in_the_way(lease: &LeaseView, now: Time) -> InTheWay {
    InTheWay {
        public_id: lease.id.to_string(),
        holder: lease.identity.as_str().to_string(),
        owner: owner_of(lease),
        agent_id: lease.details.agent.as_ref().map(|agent| agent.as_str().to_string()),
        reason: lease.details.reason.as_ref().map(|reason| reason.as_str().to_string()),
        state: lease.state.as_str().to_string(),
        remaining_ms: now.until(lease.deadline).0,
    }
}

/// The longer an attempt has been under way, the longer it stays away; chance keeps those apart that died together.
fn backoff(app: &App, now: Time, age: Age) -> u64 {
    let span = (age.at.until(now).0 / 2).clamp(BACKOFF.0, BACKOFF.1);
    span / 2 + app.chance() % (span / 2 + 1)
}

fn written(told: &Judged) -> Vec<u8> {
    serde_json::to_vec(told).expect("it can always be written")
}
