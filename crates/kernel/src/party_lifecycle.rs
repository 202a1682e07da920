//! Reference counting of namespaces, accounts, agents and sessions: rows are created on first use and
//! removed with the last reference.

use crate::command::AgentAnnouncement;
use crate::footprint::IdentityFootprint;
use crate::kernel::{CommandResult, Kernel, NotApplied, Stamp};
use crate::outcome::{Rejection, Response};
use crate::party_rows::{Account, Agent, NamespaceRow, Restart, Session};
use crate::slab::Id;
use crate::table::{Parent, RowId};
use crate::text::{AgentName, Identity, Namespace, SessionName};
use crate::units::{Span, Time};

impl Kernel {
    /// How long an agent without leases is remembered.
    pub const AGENT_WINDOW: Span = Span(300_000);

    /// A new namespace starts at the shard's version floor, which covers all deleted ones.
    pub(crate) fn ensure_namespace(&mut self, namespace: &Namespace) -> RowId<NamespaceRow> {
        let floor = self.floor;
        match self.find_namespace(namespace) {
            Some(ns) => ns,
            None => self.namespaces.insert(
                None,
                namespace.shared(),
                NamespaceRow { floor, ..NamespaceRow::default() },
            ),
        }
    }

    pub(crate) fn find_namespace(&self, namespace: &Namespace) -> Option<RowId<NamespaceRow>> {
        self.namespaces.find(None, namespace.as_str())
    }

    pub(crate) fn add_namespace_ref(&mut self, ns: RowId<NamespaceRow>) {
        self.namespaces[ns].value.referrers += 1;
    }

    /// Drops one reference; the last one removes the namespace and raises the shard's floor to the
    /// namespace's.
    pub(crate) fn drop_namespace_ref(&mut self, ns: RowId<NamespaceRow>) {
        let row = &mut self.namespaces[ns].value;
        row.referrers -= 1;
        if row.referrers == 0 {
            self.floor = if planted!(FloorForgotten) { self.floor } else { self.floor.max(row.floor) };
            self.hash.word(self.floor.0);
            self.generation += 1;
            self.namespaces.remove(ns);
        }
    }

    pub(crate) fn ensure_account(&mut self, ns: RowId<NamespaceRow>, identity: &Identity) -> RowId<Account> {
        if let Some(account) = self.accounts.find(ns.as_parent(), identity.as_str()) {
            return account;
        }
        self.add_namespace_ref(ns);
        let row = self.identities.find(None, identity.as_str());
        let row = row
            .unwrap_or_else(|| self.identities.insert(None, identity.shared(), IdentityFootprint::default()));
        self.identities[row].value.namespaces += 1;
        self.accounts.insert(ns.as_parent(), identity.shared(), Account::new(row))
    }

    /// Drops one reference; the last one removes the account.
    pub(crate) fn drop_account_ref(&mut self, account: RowId<Account>) {
        let referrers = &mut self.accounts[account].value.referrers;
        *referrers -= 1;
        if *referrers == 0 {
            self.generation += 1;
            let row = self.accounts.remove(account);
            self.drop_namespace_ref(namespace_row(row.parent));
            self.drop_identity_ref(row.value.identity);
        }
    }

    /// Drops one account of an identity; the last one removes the identity.
    fn drop_identity_ref(&mut self, identity: RowId<IdentityFootprint>) {
        let namespaces = &mut self.identities[identity].value.namespaces;
        *namespaces -= 1;
        if *namespaces == 0 {
            self.identities.remove(identity);
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
        ns: RowId<NamespaceRow>,
        account: RowId<Account>,
        name: &AgentName,
    ) -> RowId<Agent> {
        match self.agents.find(ns.as_parent(), name.as_str()) {
            Some(agent) => agent,
            None => self.insert_agent(ns, name, Agent::new(self.last, account)),
        }
    }

    pub(crate) fn insert_agent(
        &mut self,
        ns: RowId<NamespaceRow>,
        name: &AgentName,
        agent: Agent,
    ) -> RowId<Agent> {
        let owner = &mut self.accounts[agent.account].value;
        owner.referrers += 1;
        owner.agents += 1;
        self.add_namespace_ref(ns);
        let since = agent.since;
        let id = self.agents.insert(ns.as_parent(), name.shared(), agent);
        let namespace = &mut self.namespaces[ns].value;
        namespace.agents.insert(since, id);
        namespace.agents_by_name.insert(name.shared().clone(), id);
        id
    }

    /// Removes an agent that is overdue for removal but still has its row.
    pub(crate) fn forget_if_due(&mut self, namespace: &Namespace, name: &AgentName) {
        let ns = self.find_namespace(namespace);
        let Some(agent) = ns.and_then(|ns| self.agents.find(ns.as_parent(), name.as_str())) else {
            return;
        };
        if self.agents[agent].value.forget_at.is_some_and(|at| at < self.now) {
            self.forget(agent);
        }
    }

    /// Records that an agent restarts or has returned, as announced by the agent or an operator.
    pub(crate) fn agent_news(
        &mut self,
        stamp: Stamp,
        identity: &Identity,
        news: &AgentAnnouncement,
    ) -> CommandResult {
        let agent = self.find_agent(stamp.now, &news.namespace, &news.agent)?;
        let row = &self.agents[agent].value;
        if !news.operator {
            self.check_owner(row.account, identity).map_err(|_| Rejection::AgentTaken)?;
        }
        if row.is_restarting() == news.restarting {
            return Err(NotApplied::Unchanged(Response::Done));
        }
        // Some leases that expired during the last restart are still unsettled: overwriting that restart
        // would lose their grace.
        let earlier = row.restart.and_then(|restart| restart.until);
        let behind = self.timers.first().map(|(at, _)| at);
        if news.restarting && behind.is_some_and(|at| earlier.is_some_and(|until| at < until)) {
            return Err(Rejection::Behind.into());
        }
        self.begin(stamp, &[]);
        if news.restarting {
            self.agents[agent].value.restart = Some(Restart { since: self.now, until: None });
        } else {
            self.end_agent_restart(agent);
        }
        self.reset_agent_timer(agent);
        Ok(Response::Done)
    }

    pub(crate) fn find_agent(
        &self,
        now: Time,
        namespace: &Namespace,
        name: &AgentName,
    ) -> Result<RowId<Agent>, Rejection> {
        let ns = self.find_namespace(namespace).ok_or(Rejection::NotFound)?;
        self.known_agent(now, ns, name).ok_or(Rejection::NotFound)
    }

    /// An agent that is remembered at a given time, whether or not its overdue row has been removed.
    pub(crate) fn known_agent(
        &self,
        now: Time,
        ns: RowId<NamespaceRow>,
        name: &AgentName,
    ) -> Option<RowId<Agent>> {
        let agent = self.agents.find(ns.as_parent(), name.as_str())?;
        let forgotten = self.agents[agent].value.forget_at.is_some_and(|at| at < now);
        (!forgotten).then_some(agent)
    }

    /// Ends the agent's restart: a request from it shows that it is running.
    pub(crate) fn end_agent_restart(&mut self, agent: RowId<Agent>) {
        let now = self.now;
        if let Some(Restart { until: until @ None, .. }) = &mut self.agents[agent].value.restart {
            *until = Some(now);
            self.hash_agent(agent);
        }
    }

    /// Starts or stops the timer that removes an agent: it runs while the agent has no leases and is not
    /// paused.
    pub(crate) fn reset_agent_timer(&mut self, agent: RowId<Agent>) {
        let row = &self.agents[agent].value;
        let idle = row.leases == 0 && !row.paused;
        let (was, since) = (row.forget_at, row.since);
        if let Some(at) = was {
            self.agent_timers.remove(&(at, since));
        }
        let forget_at = idle.then(|| self.now.after(Kernel::AGENT_WINDOW));
        if let Some(at) = forget_at {
            self.agent_timers.insert((at, since), agent);
        }
        self.agents[agent].value.forget_at = forget_at;
        self.hash_agent(agent);
    }

    /// Folds the current row into the state hash.
    fn hash_agent(&mut self, agent: RowId<Agent>) {
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
            match self.agent_timers.first_key_value() {
                Some(((at, _), agent)) if *at < self.now => self.forget(*agent),
                _ => break,
            }
        }
    }

    pub(crate) fn forget(&mut self, agent: RowId<Agent>) {
        let row = self.agents.remove(agent);
        let agent = row.value;
        let namespace = self.namespace_mut(row.parent);
        namespace.agents.remove(&agent.since);
        namespace.agents_by_name.remove(&row.text);
        if let Some(at) = agent.forget_at {
            self.agent_timers.remove(&(at, agent.since));
        }
        self.accounts[agent.account].value.agents -= 1;
        self.drop_namespace_ref(namespace_row(row.parent));
        self.drop_account_ref(agent.account);
    }

    pub(crate) fn namespace_mut(&mut self, scope: Parent) -> &mut NamespaceRow {
        &mut self.namespaces[namespace_row(scope)].value
    }

    pub(crate) fn namespace_of(&self, scope: Parent) -> Namespace {
        Namespace::from_shared(&self.namespaces[namespace_row(scope)].text)
    }

    pub(crate) fn identity_of(&self, account: RowId<Account>) -> Identity {
        Identity::from_shared(&self.accounts[account].text)
    }
}

/// The namespace row that is the parent of a row in another table.
pub(crate) fn namespace_row(scope: Parent) -> RowId<NamespaceRow> {
    Id::from_number(scope.expect("nodes, accounts and agents have a namespace as parent"))
}
