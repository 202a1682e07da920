//! The state of agents: announced by themselves, or set by an operator.

use engine::{Decision, Origin};
use kernel::{
    Action, AgentAnnouncement, AgentName, AgentState, AgentView, Command, IdempotencyKey, Kernel, Namespace,
    Outcome, Pause, Paused, Rejection, Time,
};

use crate::backend::error::BackendError;
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, ShardView, SubmitOptions};
use crate::peer::Peer;

/// One agent, and the peer that changes its state.
pub(crate) struct AgentCommands<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) peer: &'a Peer,
    pub(crate) namespace: &'a Namespace,
    pub(crate) agent: &'a AgentName,
    pub(crate) origin: Origin,
}

impl AgentCommands<'_> {
    /// Announces that the agent runs, or that it restarts. `operator`: on behalf of any identity's agent.
    pub(crate) async fn announce(
        &self,
        restarting: bool,
        operator: bool,
        request: Option<IdempotencyKey>,
    ) -> Result<AgentView, BackendError> {
        let (namespace, agent) = (self.namespace.clone(), self.agent.clone());
        self.submit(Action::Agent(AgentAnnouncement { namespace, agent, restarting, operator }), request)
            .await
    }

    /// Stops grants to the agent, or allows them again.
    pub(crate) async fn set_paused(
        &self,
        paused: bool,
        request: Option<IdempotencyKey>,
    ) -> Result<AgentView, BackendError> {
        let whom = Paused::Agent(self.namespace.clone(), self.agent.clone());
        self.submit(Action::Pause(Pause { whom, paused }), request).await
    }

    async fn submit(
        &self,
        action: Action,
        request: Option<IdempotencyKey>,
    ) -> Result<AgentView, BackendError> {
        let command = Command { identity: Some(self.peer.identity.clone()), request, action };
        let options = SubmitOptions::new(&self.peer.connection, self.origin.clone());
        let (namespace, agent) = (self.namespace.clone(), self.agent.clone());
        let view = move |kernel: &Kernel, at: Moment, _: &Decision| kernel.agent(&namespace, &agent, at.now);
        let shard = self.backend.shard_of(self.namespace);
        let (decision, view) = self.backend.submit(shard, command, options, view).await?;
        match decision {
            Decision::Outcome(Outcome::Applied(..) | Outcome::Unchanged(_)) => {
                view.ok_or(BackendError::NoSuchAgent)
            }
            Decision::Outcome(Outcome::Rejected(Rejection::NotFound)) => Err(BackendError::NoSuchAgent),
            decision => Err(BackendError::Refused(decision)),
        }
    }
}

/// Marks an agent that announced a restart as running again: it has sent a request. Returns the kernel's time.
pub(crate) async fn mark_alive(
    backend: &Backend,
    peer: &Peer,
    namespace: &Namespace,
    agent: &AgentName,
    origin: &Origin,
) -> Result<Time, BackendError> {
    let (of, name) = (namespace.clone(), agent.clone());
    let query = move |view: &ShardView<'_>| (view.kernel.agent(&of, &name, view.now), view.now);
    let (view, now) = backend.query(backend.shard_of(namespace), query).await?;
    let Some(view) = view else { return Ok(now) };
    if view.identity != peer.identity {
        return Err(BackendError::Rejected(Rejection::AgentTaken));
    }
    if view.state != AgentState::Alive {
        let origin = origin.clone();
        let commands = AgentCommands { backend, peer, namespace, agent, origin };
        match commands.announce(false, false, None).await {
            // The kernel has dropped the agent since the query: there is no state to change.
            Ok(_) | Err(BackendError::NoSuchAgent) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(now)
}
