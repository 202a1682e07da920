//! Agents: the list of a namespace, and changes of one agent's state.

use std::sync::Arc;

use api::agents::{Agent, AgentState, Agents, SetAgent};
use api::schema_types;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use identity::Right;
use kernel::{AgentName, AgentView, Namespace};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::act_target::{ActTarget, TargetSlot};
use crate::backend::agents::AgentCommands;
use crate::backend::history::HistorySubject;
use crate::backend::history_feed;
use crate::backend::lists;
use crate::backend::shards::Backend;
use crate::parse::paging::{PAGE_BYTES, PAGE_MAX};
use crate::parse::query::Query;
use crate::parse::{self, Headers, idempotency};
use crate::peer::Peer;
use crate::present::JsonResult;
use crate::present::agents::agent as presented;
use crate::present::refusals::bad_cursor;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentsQuery {
    /// The namespace; `default` if missing.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
    /// `cursor` of the previous page.
    #[param(value_type = Option<schema_types::AgentId>)]
    cursor: Option<String>,
    /// Maximum number of agents on a page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

pub(crate) async fn agents(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<AgentsQuery>,
) -> JsonResult<Agents> {
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::require_right(&peer, &namespace, Right::Read)?;
    let after = query.cursor.as_deref().map(AgentName::new).transpose().map_err(|_| bad_cursor())?;
    let limit = parse::page_limit(query.limit, PAGE_MAX)?;
    let mut agents = lists::agents(&backend, &namespace, after, limit + 1).await?;
    let kept = limit.min(rows_within(PAGE_BYTES, &namespace, &agents));
    let more = agents.len() > kept;
    agents.truncate(kept);
    let last = agents.last().filter(|_| more);
    let cursor = last.map(|agent| agent.name.as_str().to_string());
    history_feed::catch_up(&backend).await?;
    let agents = agents.iter().map(|agent| presented_with_activity(&backend, &namespace, agent)).collect();
    Ok(Json(Agents { agents, cursor }))
}

/// The most bytes of an agent in a response, without its names, of which each character may need a backslash.
const AGENT_BYTES: usize = 192;

/// How many of the first agents fit into a page.
fn rows_within(bytes_max: usize, namespace: &Namespace, agents: &[AgentView]) -> usize {
    let mut bytes = 0;
    let fits = |agent: &&AgentView| {
        let names = [namespace.as_str(), agent.name.as_str(), agent.identity.as_str()];
        bytes += AGENT_BYTES + 2 * names.iter().map(|name| name.len()).sum::<usize>();
        bytes <= bytes_max
    };
    agents.iter().take_while(fits).count()
}

fn presented_with_activity(backend: &Backend, namespace: &Namespace, agent: &AgentView) -> Agent {
    let last_activity = backend.history.last_unix_ms(HistorySubject::agent(namespace, &agent.name));
    presented(namespace, agent, last_activity)
}

/// Agents announce their own state. An operator of the namespace sets that of any agent, and alone pauses one.
pub(crate) async fn set_state(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Extension(target): Extension<TargetSlot>,
    Path(id): Path<String>,
    Headers(headers): Headers,
    body: Bytes,
) -> JsonResult<Agent> {
    let SetAgent { namespace, state } = parse::body(&body)?;
    let namespace = parse::namespace(namespace.as_deref())?;
    let agent = parse::agent(&id)?;
    let operator = peer.operates(Some(&namespace));
    target.name(ActTarget::agent(&namespace, &agent, paused_by(state)));
    if !operator {
        parse::require_right(&peer, &namespace, Right::Write)?;
    }
    if state == AgentState::Paused {
        parse::require_operator_of(&peer, Some(&namespace))?;
    }
    let origin = parse::origin(&headers)?;
    let commands =
        AgentCommands { backend: &backend, peer: &peer, namespace: &namespace, agent: &agent, origin };
    let sent: [&[u8]; 2] = [id.as_bytes(), &body];
    let request = |part| idempotency::key_of_part(&headers, "agent", &sent, part);
    let view = match state {
        AgentState::Paused => commands.set_paused(true, request("")?).await?,
        AgentState::DieRestart => commands.announce(true, operator, request("")?).await?,
        AgentState::Alive => {
            let announcement = request("")?;
            // Only an operator pauses grants, so only an operator resumes them.
            if operator {
                commands.set_paused(false, request("pause")?).await?;
            }
            commands.announce(false, operator, announcement).await?
        }
    };
    history_feed::catch_up(&backend).await?;
    Ok(Json(presented_with_activity(&backend, &namespace, &view)))
}

/// Whether an operator's announcement pauses or resumes the agent's grants.
fn paused_by(state: AgentState) -> Option<bool> {
    match state {
        AgentState::Paused => Some(true),
        AgentState::Alive => Some(false),
        AgentState::DieRestart => None,
    }
}
