//! Accounts, agents and sessions come and go with what refers to them.

use crate::command::AgentNews;
use crate::kernel::{Handled, Kernel, Stamp, Stop};
use crate::outcome::{Answer, Rejection};
use crate::party_rows::{Account, Agent, Restart, Session, Space};
use crate::slab::Id;
use crate::table::{Parent, RowId};
use crate::text::{AgentName, Identity, Namespace, SessionName};
use crate::units::{Span, Time};

impl Kernel {
    /// How long an agent without leases is remembered.
    pub const AGENT_WINDOW: Span = Span(300_000);

    /// A namespace that is made anew starts where those that are gone left off.
    pub(crate) fn ensure_space(&mut self, namespace: &Namespace) -> RowId<Space> {
        let floor = self.floor;
        match self.spaces.find(None, namespace.as_str()) {
            Some(space) => space,
            None => self.spaces.insert(None, namespace.shared(), Space { floor, ..Space::default() }),
        }
    }

    pub(crate) fn join_space(&mut self, space: RowId<Space>) {
        self.spaces[space].value.referrers += 1;
    }

    /// One thing less is in a namespace; the last one takes it along, and leaves its floor to the shard.
    pub(crate) fn leave_space(&mut self, space: RowId<Space>) {
        let row = &mut self.spaces[space].value;
        row.referrers -= 1;
        if row.referrers == 0 {
            self.floor = self.floor.max(row.floor);
            self.hash.word(self.floor.0);
            self.departures += 1;
            self.spaces.remove(space);
        }
    }

    pub(crate) fn ensure_account(&mut self, space: RowId<Space>, identity: &Identity) -> RowId<Account> {
        if let Some(account) = self.accounts.find(space.as_parent(), identity.as_str()) {
            return account;
        }
        self.join_space(space);
        self.accounts.insert(space.as_parent(), identity.shared(), Account::default())
    }

    /// One thing less refers to an account; the last one takes it along.
    pub(crate) fn drop_referrer(&mut self, account: RowId<Account>) {
        let referrers = &mut self.accounts[account].value.referrers;
        *referrers -= 1;
        if *referrers == 0 {
            self.departures += 1;
            let row = self.accounts.remove(account);
            self.leave_space(space_of(row.parent));
        }
    }

    pub(crate) fn ensure_session(&mut self, account: RowId<Account>, name: &SessionName) -> RowId<Session> {
        match self.sessions.find(account.as_parent(), name.as_str()) {
            Some(session) => session,
            None => self.sessions.insert(account.as_parent(), name.shared(), Session::default()),
        }
    }

    pub(crate) fn ensure_agent(
        &mut self,
        space: RowId<Space>,
        account: RowId<Account>,
        name: &AgentName,
    ) -> RowId<Agent> {
        match self.agents.find(space.as_parent(), name.as_str()) {
            Some(agent) => agent,
            None => self.insert_agent(space, name, Agent::new(self.last, account)),
        }
    }

    pub(crate) fn insert_agent(
        &mut self,
        space: RowId<Space>,
        name: &AgentName,
        agent: Agent,
    ) -> RowId<Agent> {
        let owner = &mut self.accounts[agent.account].value;
        owner.referrers += 1;
        owner.agents += 1;
        self.join_space(space);
        let since = agent.since;
        let id = self.agents.insert(space.as_parent(), name.shared(), agent);
        self.spaces[space].value.agents.insert(since, id);
        id
    }

    /// One whose time is over may still have its row.
    pub(crate) fn forget_if_due(&mut self, namespace: &Namespace, name: &AgentName) {
        let space = self.spaces.find(None, namespace.as_str());
        let Some(agent) = space.and_then(|space| self.agents.find(space.as_parent(), name.as_str())) else {
            return;
        };
        if self.agents[agent].value.forget_at.is_some_and(|at| at < self.now) {
            self.forget(agent);
        }
    }

    /// An agent, or an operator for it, says that it restarts or is back.
    pub(crate) fn agent_news(&mut self, stamp: Stamp, identity: &Identity, news: &AgentNews) -> Handled {
        let agent = self.find_agent(stamp.now, &news.namespace, &news.agent)?;
        let row = &self.agents[agent].value;
        if !news.operator {
            self.belongs(row.account, identity).map_err(|_| Rejection::AgentTaken)?;
        }
        if row.is_restarting() == news.restarting {
            return Err(Stop::Unchanged(Answer::Done));
        }
        // Leases that ran out before the agent was last back have not all been settled: their grace
        // would be lost with the record of that restart.
        let earlier = row.restart.and_then(|restart| restart.until);
        let behind = self.timers.first().map(|(at, _)| at);
        if news.restarting && behind.is_some_and(|at| earlier.is_some_and(|until| at < until)) {
            return Err(Rejection::Behind.into());
        }
        self.begin(stamp, &[]);
        if news.restarting {
            self.agents[agent].value.restart = Some(Restart { since: self.now, until: None });
        } else {
            self.agent_is_back(agent);
        }
        self.reset_forgetting(agent);
        Ok(Answer::Done)
    }

    pub(crate) fn find_agent(
        &self,
        now: Time,
        namespace: &Namespace,
        name: &AgentName,
    ) -> Result<RowId<Agent>, Rejection> {
        let space = self.spaces.find(None, namespace.as_str()).ok_or(Rejection::NotFound)?;
        self.known_agent(now, space, name).ok_or(Rejection::NotFound)
    }

    /// An agent that is remembered at a moment, whether or not its row is gone by then.
    pub(crate) fn known_agent(
        &self,
        now: Time,
        space: RowId<Space>,
        name: &AgentName,
    ) -> Option<RowId<Agent>> {
        let agent = self.agents.find(space.as_parent(), name.as_str())?;
        let forgotten = self.agents[agent].value.forget_at.is_some_and(|at| at < now);
        (!forgotten).then_some(agent)
    }

    /// It asked for something, so it runs.
    pub(crate) fn agent_is_back(&mut self, agent: RowId<Agent>) {
        let now = self.now;
        if let Some(Restart { until: until @ None, .. }) = &mut self.agents[agent].value.restart {
            *until = Some(now);
            self.note_agent(agent);
        }
    }

    /// An agent without leases is forgotten after a while, unless an operator paused it.
    pub(crate) fn reset_forgetting(&mut self, agent: RowId<Agent>) {
        let row = &self.agents[agent].value;
        let idle = row.leases == 0 && !row.paused;
        let (was, since) = (row.forget_at, row.since);
        if let Some(at) = was {
            self.quiet.remove(&(at, since));
        }
        let forget_at = idle.then(|| self.now.after(Kernel::AGENT_WINDOW));
        if let Some(at) = forget_at {
            self.quiet.insert((at, since), agent);
        }
        self.agents[agent].value.forget_at = forget_at;
        self.note_agent(agent);
    }

    /// Folds a row, as it is now, into the state's hash.
    fn note_agent(&mut self, agent: RowId<Agent>) {
        let row = &self.agents[agent];
        self.hash.text(&row.text);
        let agent = &row.value;
        let restart =
            agent.restart.map_or([0, 0], |restart| [restart.since.0, restart.until.map_or(0, |at| at.0 + 1)]);
        self.hash.words(restart);
        self.hash.words([agent.since.0, u64::from(agent.paused), agent.forget_at.map_or(0, |at| at.0 + 1)]);
    }

    pub(crate) fn forget_agents(&mut self) {
        for _ in 0..self.limits().step_max {
            match self.quiet.first_key_value() {
                Some(((at, _), agent)) if *at < self.now => self.forget(*agent),
                _ => break,
            }
        }
    }

    pub(crate) fn forget(&mut self, agent: RowId<Agent>) {
        let row = self.agents.remove(agent);
        let agent = row.value;
        self.space_mut(row.parent).agents.remove(&agent.since);
        if let Some(at) = agent.forget_at {
            self.quiet.remove(&(at, agent.since));
        }
        self.accounts[agent.account].value.agents -= 1;
        self.leave_space(space_of(row.parent));
        self.drop_referrer(agent.account);
    }

    pub(crate) fn space_mut(&mut self, scope: Parent) -> &mut Space {
        &mut self.spaces[space_of(scope)].value
    }

    pub(crate) fn namespace_of(&self, scope: Parent) -> Namespace {
        Namespace::from_shared(&self.spaces[space_of(scope)].text)
    }

    pub(crate) fn identity_of(&self, account: RowId<Account>) -> Identity {
        Identity::from_shared(&self.accounts[account].text)
    }
}

/// The namespace that a row of another table is in.
pub(crate) fn space_of(scope: Parent) -> RowId<Space> {
    Id::from_number(scope.expect("resources, accounts and agents are in a namespace"))
}
