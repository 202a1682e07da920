//! Acquire and reserve: grant a lease over a whole bundle, or nothing.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::bundle::Bundle;
use crate::chain::Links;
use crate::command::{Action, Command, LeaseRequest, OnExpiry};
use crate::history::LeaseAttributes;
use crate::kernel::{CommandResult, Kernel, Stamp};
use crate::lease::{Deadline, Lease, LeaseRef, OptionalFields, Phase};
use crate::limits::Quota;
use crate::outcome::{BoundedTable, Event, Rejection, Response};
use crate::party_lifecycle::namespace_row;
use crate::party_rows::{Account, NamespaceRow};
use crate::table::RowId;
use crate::text::{Identity, Namespace};
use crate::units::{Epoch, Time, Token};

/// The result of deciding to grant.
struct GrantDecision {
    /// The account, if it already exists.
    account: Option<RowId<Account>>,
    /// Conflicting leases that have expired, to be ended first.
    expired: Vec<LeaseRef>,
    quota: Quota,
}

impl Kernel {
    /// Why a grant would be rejected at a given time; `None` if it would be granted. Changes nothing: a
    /// request that has to queue learns first of any refusal that waiting cannot resolve.
    pub fn refusal(&self, now: Time, identity: &Identity, request: &LeaseRequest) -> Option<Rejection> {
        self.decide_grant(now, identity, request).err()
    }

    pub(crate) fn acquire(
        &mut self,
        stamp: Stamp,
        identity: &Identity,
        request: &LeaseRequest,
        phase: Phase,
    ) -> CommandResult {
        let decision = self.decide_grant(stamp.now, identity, request)?;
        let generation = self.generation;
        self.begin(stamp, &decision.expired);
        // Before the account is used: this agent may hold the last reference to it.
        if let Some(agent) = &request.agent {
            self.forget_if_due(&request.namespace, agent);
        }
        let account = decision.account.filter(|_| self.generation == generation);
        let account = account.unwrap_or_else(|| self.ensure_account_in(&request.namespace, identity));
        let lease = self.grant(account, request, phase, &decision.quota);
        let granted = self.granted(&self.leases[lease]);
        self.events.push(Event::Granted(granted.lease, granted.token));
        self.assert_granted(lease);
        Ok(Response::Granted(granted))
    }

    /// Planted fault: a refused grant counts towards its identity's quota.
    pub(crate) fn count_refused_grant(&mut self, command: &Command) {
        let (Action::Acquire(request) | Action::Reserve(request)) = &command.action else { return };
        let ns = self.find_namespace(&request.namespace);
        let account = ns.zip(command.identity.as_ref());
        let account =
            account.and_then(|(ns, identity)| self.accounts.find(ns.as_parent(), identity.as_str()));
        if let Some(account) = account {
            self.accounts[account].value.leases += 1;
        }
    }

    fn decide_grant(
        &self,
        now: Time,
        identity: &Identity,
        request: &LeaseRequest,
    ) -> Result<GrantDecision, Rejection> {
        let limits = self.limits();
        if request.ttl.0 == 0 || request.ttl > limits.ttl_max {
            return Err(Rejection::InvalidTtl { max: limits.ttl_max });
        }
        if matches!(request.on_expiry, OnExpiry::Hold(span) if span > limits.hold_max) {
            return Err(Rejection::InvalidHold { max: limits.hold_max });
        }
        let policy = self.policies.resolve(&request.namespace, identity);
        if policy.paused {
            return Err(Rejection::Paused);
        }
        let ns = self.find_namespace(&request.namespace);
        if ns.is_none() && self.namespaces.len() >= limits.namespaces_max as usize {
            return Err(Rejection::Full { table: BoundedTable::Namespaces, max: limits.namespaces_max });
        }
        let account = ns.and_then(|ns| self.accounts.find(ns.as_parent(), identity.as_str()));
        self.decide_agent(now, ns, account, request)?;
        let session = account.zip(request.session.as_ref());
        let session =
            session.and_then(|(account, name)| self.sessions.find(account.as_parent(), name.as_str()));
        let found = ns.map_or(Ok(Vec::new()), |ns| self.check_conflicts(ns, &request.bundle, session, now));
        let expired = found.as_ref().map_or(&[] as &[_], Vec::as_slice);
        self.decide_counts(&policy.quota, account, expired, &request.bundle).map_err(|full| {
            // Overdue leases still count, although they should not: ask for a retry instead of rejecting.
            if self.next_due().is_some_and(|due| due <= now) { Rejection::Behind } else { full }
        })?;
        Ok(GrantDecision { account, expired: found?, quota: policy.quota })
    }

    /// An agent belongs to the identity that first used it.
    fn decide_agent(
        &self,
        now: Time,
        ns: Option<RowId<NamespaceRow>>,
        account: Option<RowId<Account>>,
        request: &LeaseRequest,
    ) -> Result<(), Rejection> {
        let Some(name) = &request.agent else { return Ok(()) };
        if let Some(agent) = ns.and_then(|ns| self.known_agent(now, ns, name)) {
            let agent = &self.agents[agent].value;
            return match agent.paused {
                _ if Some(agent.account) != account => Err(Rejection::AgentTaken),
                true => Err(Rejection::Paused),
                false => Ok(()),
            };
        }
        let mine = account.map_or(0, |account| self.accounts[account].value.agents);
        let (all_max, mine_max) = (self.limits().agents_max, self.limits().agents_per_identity_max);
        let full = if self.agents.len() >= all_max as usize {
            Rejection::Full { table: BoundedTable::Agents, max: all_max }
        } else if mine >= mine_max {
            Rejection::Full { table: BoundedTable::AgentsPerIdentity, max: mine_max }
        } else {
            return Ok(());
        };
        let behind = self.agent_timers.first_key_value().is_some_and(|((at, _), _)| *at < now);
        Err(if behind { Rejection::Behind } else { full })
    }

    /// Checks the limits as they will be once the expired leases have ended.
    fn decide_counts(
        &self,
        quota: &Quota,
        account: Option<RowId<Account>>,
        expired: &[LeaseRef],
        bundle: &Bundle,
    ) -> Result<(), Rejection> {
        let (leases_max, nodes_max) = (self.limits().leases_max, self.limits().nodes_max);
        if self.leases.len() - expired.len() >= leases_max as usize {
            return Err(Rejection::Full { table: BoundedTable::Leases, max: leases_max });
        }
        if self.nodes.len() + bundle.weight() > nodes_max as usize {
            return Err(Rejection::Full { table: BoundedTable::Nodes, max: nodes_max });
        }
        let max = quota.leases_max.unwrap_or(self.limits().leases_per_identity_max);
        let held = account.map_or(0, |account| {
            let ending = expired.iter().filter(|lease| self.leases[**lease].account == account).count();
            self.accounts[account].value.leases as usize - ending
        });
        let max_held = max as usize + usize::from(planted!(QuotaOffByOne));
        if held >= max_held { Err(Rejection::QuotaExceeded { max }) } else { Ok(()) }
    }

    fn ensure_account_in(&mut self, namespace: &Namespace, identity: &Identity) -> RowId<Account> {
        let ns = self.ensure_namespace(namespace);
        self.ensure_account(ns, identity)
    }

    fn grant(
        &mut self,
        account: RowId<Account>,
        request: &LeaseRequest,
        phase: Phase,
        quota: &Quota,
    ) -> LeaseRef {
        let (lsn, now) = (self.last, self.now);
        let ns = namespace_row(self.accounts[account].parent);
        let members = request.bundle.members().iter().map(|member| self.ensure_nodes(ns, member)).collect();
        let optional = self.optional_fields(ns, account, request);
        let deadline = Deadline::new(now.after(request.ttl), quota.cap(now, now), now);
        let mut lease = Lease {
            lsn,
            epoch: Epoch::FIRST,
            token: if planted!(TokenReused) { Token(self.leases.len() as u64 + 1) } else { Token::from(lsn) },
            granted_at: now,
            ttl: request.ttl,
            ttl_until: now,
            active_at: now,
            deadline: now,
            phase,
            account,
            account_links: Links::default(),
            capped: false,
            used: false,
            weight: u32::try_from(request.bundle.weight()).expect("a bundle has a bounded number of claims"),
            members,
            optional,
        };
        lease.set_deadline(deadline);
        self.insert_lease(lease)
    }

    fn optional_fields(
        &mut self,
        ns: RowId<NamespaceRow>,
        account: RowId<Account>,
        request: &LeaseRequest,
    ) -> Option<Box<OptionalFields>> {
        let details = LeaseAttributes {
            on_expiry: request.on_expiry,
            age: request.attempt.filter(|age| age.counts_at(self.now)),
            agent: request.agent.clone(),
            session: request.session.clone(),
            owner: request.owner.clone(),
            reason: request.reason.clone(),
            metadata: request.metadata.clone(),
        };
        if details.is_default() {
            return None;
        }
        let agent = request.agent.as_ref().map(|name| self.ensure_agent(ns, account, name));
        if let Some(agent) = agent {
            self.end_agent_restart(agent);
        }
        let session = request.session.as_ref().map(|name| self.ensure_session(account, name));
        Some(Box::new(OptionalFields { details, agent, agent_links: Links::default(), session }))
    }
}
