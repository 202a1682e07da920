//! Agents: who they are, and what is said of them.

use std::sync::Arc;

use api::agents::{Agent, AgentState as Wire, Agents, SetAgent};
use api::words;
use api::{Code, Refusal};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use engine::decider::Said;
use identity::{Right, Role};
use kernel::{
    Action, AgentName, AgentNews, AgentState, AgentView, Command, Namespace, Outcome, Pause, Paused,
    Rejection, Request, Time,
};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::shards::{App, Ask};
use crate::handlers::acquire::{not_found, refusal};
use crate::handlers::views::bad_cursor;
use crate::parse::query::Query;
use crate::parse::{self, Headers};
use crate::peer::Peer;
use crate::present::refusals::{Refused, rejected};

type Told<T> = Result<Json<T>, Refused>;

/// How many agents are on a page.
const PAGE_MAX: usize = 1000;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paging {
    /// The namespace; `default` if missing.
    #[param(value_type = Option<words::Namespace>)]
    namespace: Option<String>,
    /// `cursor` of the previous page.
    #[param(value_type = Option<words::AgentId>)]
    cursor: Option<String>,
    /// Maximum number of agents on a page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

pub(crate) async fn agents(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<Paging>,
) -> Told<Agents> {
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::may(&peer, &namespace, Right::Read)?;
    let after = query.cursor.as_deref().map(AgentName::new).transpose().map_err(|_| bad_cursor())?;
    let limit = query.limit.unwrap_or(PAGE_MAX);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Refusal::new(Code::InvalidBody, format!("limit is 1 to {PAGE_MAX}")).into());
    }
    let place = namespace.clone();
    let mut views = app
        .look(app.shard_of(&namespace), move |view| {
            let mut views = view.kernel.agents(&place, view.now);
            views.retain(|agent| after.as_ref().is_none_or(|after| agent.name > *after));
            views.truncate(limit + 1);
            views
        })
        .await?;
    let more = views.len() > limit;
    views.truncate(limit);
    let last = views.last().filter(|_| more);
    let cursor = last.map(|agent| agent.name.as_str().to_string());
    Ok(Json(Agents { agents: views.iter().map(|agent| shown(&namespace, agent)).collect(), cursor }))
}

fn shown(namespace: &Namespace, agent: &AgentView) -> Agent {
    Agent {
        agent_id: agent.name.as_str().to_string(),
        namespace: namespace.as_str().to_string(),
        identity: agent.identity.as_str().to_string(),
        state: match agent.state {
            AgentState::Alive => Wire::Alive,
            AgentState::Restarting => Wire::DieRestart,
            AgentState::Paused => Wire::Paused,
        },
        leases: u64::from(agent.leases),
    }
}

pub(crate) async fn set_state(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    Headers(headers): Headers,
    body: Bytes,
) -> Told<Agent> {
    let asked: SetAgent = parse::body(&body)?;
    let namespace = parse::namespace(asked.namespace.as_deref())?;
    let agent = parse::agent(&id)?;
    let operator = peer.role == Role::Operator;
    if !operator {
        parse::may(&peer, &namespace, Right::Write)?;
    }
    if asked.state == Wire::Paused {
        parse::operator(&peer)?;
    }
    let speaker = Speaker { app: &app, peer: &peer, namespace: &namespace, agent: &agent };
    let correlation = parse::correlation(&headers)?;
    let sent: [&[u8]; 2] = [id.as_bytes(), &body];
    let request = |part| parse::part_of_request(&headers, "agent", &sent, part);
    let news = request("")?;
    let view = match asked.state {
        Wire::Paused => speaker.says(speaker.pause(true), news, correlation).await?,
        Wire::DieRestart => speaker.says(speaker.news(true, operator), news, correlation).await?,
        Wire::Alive => {
            // Whoever stopped its grants lets them go on.
            if operator {
                speaker.says(speaker.pause(false), request("pause")?, correlation).await?;
            }
            speaker.says(speaker.news(false, operator), news, correlation).await?
        }
    };
    Ok(Json(shown(&namespace, &view)))
}

/// Notes that an agent runs, if it had said that it restarts: it asks for something. Tells kernel time.
pub(crate) async fn heard_from(
    app: &App,
    peer: &Peer,
    namespace: &Namespace,
    agent: Option<&AgentName>,
    correlation: u128,
) -> Result<Time, Refusal> {
    let (place, name) = (namespace.clone(), agent.cloned());
    let look = move |view: &crate::backend::shards::View<'_>| {
        (name.and_then(|name| view.kernel.agent(&place, &name, view.now)), view.now)
    };
    let (view, now) = app.look(app.shard_of(namespace), look).await?;
    let (Some(view), Some(agent)) = (view, agent) else { return Ok(now) };
    if view.identity != peer.identity {
        return Err(rejected(&Rejection::AgentTaken));
    }
    if view.state != AgentState::Alive {
        let speaker = Speaker { app, peer, namespace, agent };
        match speaker.says(speaker.news(false, false), None, correlation).await {
            // Forgotten meanwhile: there is nothing to note.
            Err(refusal) if refusal.error == api::Code::NotFound => {}
            said => drop(said?),
        }
    }
    Ok(now)
}

/// Says something of an agent.
struct Speaker<'a> {
    app: &'a App,
    peer: &'a Peer,
    namespace: &'a Namespace,
    agent: &'a AgentName,
}

impl Speaker<'_> {
    fn news(&self, restarting: bool, operator: bool) -> Action {
        let (namespace, agent) = (self.namespace.clone(), self.agent.clone());
        Action::Agent(AgentNews { namespace, agent, restarting, operator })
    }

    fn pause(&self, paused: bool) -> Action {
        Action::Pause(Pause { whom: Paused::Agent(self.namespace.clone(), self.agent.clone()), paused })
    }

    async fn says(
        &self,
        action: Action,
        request: Option<Request>,
        correlation: u128,
    ) -> Result<AgentView, Refusal> {
        let command = Command { identity: Some(self.peer.identity.clone()), request, action };
        let ask = Ask { correlation, ..Ask::default() };
        let (place, name) = (self.namespace.clone(), self.agent.clone());
        let look = move |kernel: &kernel::Kernel, now: Time, _: &Said| kernel.agent(&place, &name, now);
        let (said, view) = self.app.ask(self.app.shard_of(self.namespace), command, ask, look).await?;
        match said {
            Said::Outcome(Outcome::Applied(..) | Outcome::Unchanged(_)) => view.ok_or_else(not_found),
            said => Err(refusal(&said, None)),
        }
    }
}
