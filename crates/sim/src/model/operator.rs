//! Commands of operators, and the announcements of agents.

use kernel::{
    AgentAnnouncement, AgentData, BoundedTable, EndReason, Epoch, Event, Identity, LeaseData, LeaseId, Lsn,
    Namespace, Party, Pause, Paused, Phase, Policy, Quota, Rejection, Response, Restart, Scope, SetQuota,
    Span, State, Time,
};

use super::{EffectiveState, Model, ModelResult, NotApplied, mark_returned, timer, weight};

impl Model {
    pub(super) fn revoke(&mut self, lsn: Lsn, now: Time, id: LeaseId) -> ModelResult {
        match self.effective_state_of(now, id)? {
            EffectiveState::Reserved | EffectiveState::Active | EffectiveState::Hold { .. } => {}
            EffectiveState::Revoking => return Err(Rejection::InvalidState(State::Revoking).into()),
            EffectiveState::Expired => return Err(Rejection::InvalidState(State::Expired).into()),
        }
        self.pass_time(lsn, now, &[id.lsn]);
        self.withdraw(now, id.lsn);
        Ok(Response::Revoking(id))
    }

    pub(super) fn withdraw(&mut self, now: Time, lsn: Lsn) {
        let ends_now = self.tenure.as_ref().is_some_and(|tenure| tenure.open.kernel_version >= 3);
        let row = self.live_mut(lsn);
        if ends_now && row.deadline > now {
            row.deadline = now;
        }
        row.epoch = Epoch(row.epoch.0 + row.epoch.0 % 2);
        row.phase = Phase::Revoking;
        self.events.push(Event::Revoked(self.id(lsn)));
    }

    pub(super) fn revoke_all(&mut self, lsn: Lsn, now: Time, party: &Party) -> ModelResult {
        let of = |lease: &&LeaseData| {
            lease.phase != Phase::Revoking
                && match party {
                    Party::Identity(namespace, who) => {
                        lease.namespace == *namespace && lease.identity == *who
                    }
                    Party::Agent(namespace, agent) => {
                        lease.namespace == *namespace && lease.details.agent.as_ref() == Some(agent)
                    }
                }
        };
        let mut leases: Vec<Lsn> = self.leases.iter().filter(of).map(|lease| lease.lsn).collect();
        leases.sort();
        leases.truncate(256);
        let mut work = 0;
        let light = leases.iter().take_while(|lsn| {
            let before = work;
            work += weight(&self.live(**lsn).expect("it is live").members);
            before < 256
        });
        leases = light.copied().collect();
        if leases.is_empty() {
            return Err(NotApplied::Unchanged(Response::RevokedAll { revoked: 0, more: false }));
        }
        self.pass_time(lsn, now, &leases);
        leases.retain(|lease| self.live(*lease).is_some());
        for lease in &leases {
            self.withdraw(now, *lease);
        }
        let more = self.leases.iter().any(|lease| of(&lease));
        Ok(Response::RevokedAll { revoked: u32::try_from(leases.len()).expect("at most 256"), more })
    }

    pub(super) fn reclaim(&mut self, lsn: Lsn, now: Time, id: LeaseId) -> ModelResult {
        let end = match self.effective_state_of(now, id)? {
            EffectiveState::Revoking => EndReason::Revoked,
            EffectiveState::Hold { .. } => EndReason::Expired,
            EffectiveState::Reserved => return Err(Rejection::InvalidState(State::Reserved).into()),
            EffectiveState::Active => return Err(Rejection::InvalidState(State::Active).into()),
            EffectiveState::Expired => return Err(Rejection::InvalidState(State::Expired).into()),
        };
        self.pass_time(lsn, now, &[id.lsn]);
        self.events.push(Event::Reclaimed(id));
        self.end(id.lsn, end);
        Ok(Response::Reclaimed(id))
    }

    pub(super) fn effective_state_of(&self, now: Time, id: LeaseId) -> Result<EffectiveState, Rejection> {
        self.exists(id)?;
        if let Some(lease) = self.live(id.lsn) {
            return Ok(self.effective_state(lease, now));
        }
        let past = self.history.iter().find(|past| past.lsn == id.lsn).expect("it exists");
        Err(Rejection::InvalidState(past.end.into()))
    }

    pub(super) fn pause(&mut self, lsn: Lsn, now: Time, pause: &Pause) -> ModelResult {
        match &pause.whom {
            Paused::Scope(scope) => {
                let policy = Policy { paused: pause.paused, ..self.policy_at(scope) };
                self.set_policy(lsn, now, scope, policy)
            }
            Paused::Agent(namespace, name) => {
                let agent = self.known_agent(now, namespace, name)?;
                if agent.paused == pause.paused {
                    return Err(NotApplied::Unchanged(Response::Done));
                }
                let since = agent.since;
                self.pass_time(lsn, now, &[]);
                self.agents.iter_mut().filter(|agent| agent.since == since).for_each(|agent| {
                    agent.paused = pause.paused;
                });
                self.schedule_forget(since);
                Ok(Response::Done)
            }
        }
    }

    pub(super) fn set_quota(&mut self, lsn: Lsn, now: Time, set: &SetQuota) -> ModelResult {
        let policy = Policy { quota: set.quota, ..self.policy_at(&set.scope) };
        self.set_policy(lsn, now, &set.scope, policy)
    }

    pub(super) fn set_policy(&mut self, lsn: Lsn, now: Time, scope: &Scope, policy: Policy) -> ModelResult {
        if self.policy_at(scope) == policy {
            return Err(NotApplied::Unchanged(Response::Done));
        }
        let is_new = !self.policies.iter().any(|(at, _)| at == scope);
        if is_new && self.policies.len() >= self.limits().policies_max as usize {
            return Err(
                Rejection::Full { table: BoundedTable::Policies, max: self.limits().policies_max }.into()
            );
        }
        self.pass_time(lsn, now, &[]);
        self.policies.retain(|(at, _)| at != scope);
        if policy != Policy::default() {
            self.policies.push((scope.clone(), policy));
        }
        Ok(Response::Done)
    }

    pub(super) fn policy_at(&self, scope: &Scope) -> Policy {
        self.policies.iter().find(|(at, _)| at == scope).map(|(_, policy)| *policy).unwrap_or_default()
    }

    /// The policy in force: paused if any scope is, each quota from the most specific scope that sets it.
    pub(super) fn policy_for(&self, namespace: &Namespace, who: &Identity) -> Policy {
        let at = |namespace: Option<&Namespace>, identity: Option<&Identity>| {
            self.policy_at(&Scope { namespace: namespace.cloned(), identity: identity.cloned() })
        };
        let scopes =
            [at(Some(namespace), Some(who)), at(Some(namespace), None), at(None, Some(who)), at(None, None)];
        let first = |field: fn(&Quota) -> Option<u64>| scopes.iter().find_map(|policy| field(&policy.quota));
        let small = |n: u64| u32::try_from(n).expect("it was one");
        Policy {
            paused: scopes.iter().any(|policy| policy.paused),
            quota: Quota {
                leases_max: first(|quota| quota.leases_max.map(u64::from)).map(small),
                total_max: first(|quota| quota.total_max.map(|span| span.0)).map(Span),
                idle_max: first(|quota| quota.idle_max.map(|span| span.0)).map(Span),
                acquires_per_second: first(|quota| quota.acquires_per_second.map(u64::from)).map(small),
            },
        }
    }

    pub(super) fn quota_of(&self, lsn: Lsn) -> Quota {
        let lease = self.live(lsn).expect("the caller looked");
        self.policy_for(&lease.namespace, &lease.identity).quota
    }

    pub(super) fn agent_news(
        &mut self,
        lsn: Lsn,
        now: Time,
        who: &Identity,
        news: &AgentAnnouncement,
    ) -> ModelResult {
        let agent = self.known_agent(now, &news.namespace, &news.agent)?.clone();
        if !news.operator && agent.identity != *who {
            return Err(Rejection::AgentTaken.into());
        }
        let restarting = agent.restart.is_some_and(|restart| restart.until.is_none());
        if restarting == news.restarting {
            return Err(NotApplied::Unchanged(Response::Done));
        }
        let behind = self.leases.iter().filter_map(timer).min();
        let back = agent.restart.and_then(|restart| restart.until);
        if news.restarting && behind.zip(back).is_some_and(|(at, back)| at < back) {
            return Err(Rejection::Behind.into());
        }
        self.pass_time(lsn, now, &[]);
        for agent in self.agents.iter_mut().filter(|row| row.since == agent.since) {
            if news.restarting {
                agent.restart = Some(Restart { since: now, until: None });
            } else {
                mark_returned(agent, now);
            }
        }
        self.schedule_forget(agent.since);
        Ok(Response::Done)
    }

    pub(super) fn known_agent(
        &self,
        now: Time,
        namespace: &Namespace,
        name: &kernel::AgentName,
    ) -> Result<&AgentData, Rejection> {
        let matches = |agent: &&AgentData| {
            agent.namespace == *namespace && agent.name == *name && agent.forget_at.is_none_or(|at| now <= at)
        };
        self.agents.iter().find(matches).ok_or(Rejection::NotFound)
    }

    pub(super) fn agent_returned(&mut self, namespace: &Namespace, name: Option<&kernel::AgentName>) {
        let now = self.now;
        let matches = |agent: &&mut AgentData| agent.namespace == *namespace && Some(&agent.name) == name;
        if let Some(agent) = self.agents.iter_mut().find(matches) {
            mark_returned(agent, now);
        }
    }

    /// Schedules the removal of an agent: five minutes from now, unless it has leases or is paused.
    pub(super) fn schedule_forget(&mut self, since: Lsn) {
        let now = self.now;
        for agent in self.agents.iter_mut().filter(|agent| agent.since == since) {
            let has_lease = self.leases.iter().any(|lease| {
                lease.namespace == agent.namespace && lease.details.agent.as_ref() == Some(&agent.name)
            });
            agent.forget_at = (!has_lease && !agent.paused).then(|| now.after(Span(300_000)));
        }
    }
}
