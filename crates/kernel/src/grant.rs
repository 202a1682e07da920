//! Acquire and reserve: a lease over a whole bundle, or nothing.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::bundle::Bundle;
use crate::chain::Links;
use crate::command::{Grant, OnExpiry};
use crate::history::Details;
use crate::kernel::{Handled, Kernel, Stamp};
use crate::lease::{Deadline, Extra, Lease, LeaseRef, Phase};
use crate::limits::Quota;
use crate::outcome::{Answer, Bounded, Event, Rejection};
use crate::party_lifecycle::space_of;
use crate::party_rows::{Account, Space};
use crate::table::RowId;
use crate::text::{Identity, Namespace};
use crate::units::{Epoch, Time, Token};

/// What a decision to grant found out.
struct Room {
    /// The account, if there is one.
    account: Option<RowId<Account>>,
    /// Leases in the way that are over, to be ended first.
    over: Vec<LeaseRef>,
    quota: Quota,
}

impl Kernel {
    /// Why a grant would be refused at a moment; `None` if it would be made. Decides nothing: whoever has
    /// to wait behind others learns so, before it waits, what no waiting would help against.
    pub fn refusal(&self, now: Time, identity: &Identity, grant: &Grant) -> Option<Rejection> {
        self.decide_grant(now, identity, grant).err()
    }

    pub(crate) fn acquire(
        &mut self,
        stamp: Stamp,
        identity: &Identity,
        grant: &Grant,
        phase: Phase,
    ) -> Handled {
        if planted!(RefusalCounts) && self.decide_grant(stamp.now, identity, grant).is_err() {
            let space = self.spaces.find(None, grant.namespace.as_str());
            let account = space.and_then(|space| self.accounts.find(space.as_parent(), identity.as_str()));
            if let Some(account) = account {
                self.accounts[account].value.leases += 1;
            }
        }
        let room = self.decide_grant(stamp.now, identity, grant)?;
        let departures = self.departures;
        self.begin(stamp, &room.over);
        // Before the account is looked for: an agent may be the last to refer to one.
        if let Some(agent) = &grant.agent {
            self.forget_if_due(&grant.namespace, agent);
        }
        let account = room.account.filter(|_| self.departures == departures);
        let account = account.unwrap_or_else(|| self.open_account(&grant.namespace, identity));
        let lease = self.grant(account, grant, phase, &room.quota);
        let granted = self.granted(&self.leases[lease]);
        self.events.push(Event::Granted(granted.lease, granted.token));
        self.assert_granted(lease);
        Ok(Answer::Granted(granted))
    }

    fn decide_grant(&self, now: Time, identity: &Identity, grant: &Grant) -> Result<Room, Rejection> {
        let limits = self.limits();
        if grant.ttl.0 == 0 || grant.ttl > limits.ttl_max {
            return Err(Rejection::InvalidTtl { max: limits.ttl_max });
        }
        if matches!(grant.on_expiry, OnExpiry::Hold(span) if span > limits.hold_max) {
            return Err(Rejection::InvalidHold { max: limits.hold_max });
        }
        let policy = self.policies.resolve(&grant.namespace, identity);
        if policy.paused {
            return Err(Rejection::Paused);
        }
        let space = self.spaces.find(None, grant.namespace.as_str());
        if space.is_none() && self.spaces.len() >= limits.namespaces_max as usize {
            return Err(Rejection::Full(Bounded::Namespaces));
        }
        let account = space.and_then(|space| self.accounts.find(space.as_parent(), identity.as_str()));
        self.decide_agent(now, space, account, grant)?;
        let session = account.zip(grant.session.as_ref());
        let session =
            session.and_then(|(account, name)| self.sessions.find(account.as_parent(), name.as_str()));
        let found = space.map_or(Ok(Vec::new()), |space| self.find_room(space, &grant.bundle, session, now));
        let over = found.as_ref().map_or(&[] as &[_], Vec::as_slice);
        self.decide_counts(&policy.quota, account, over, &grant.bundle).map_err(|full| {
            // What is due still counts, though it should not: better to ask again than to be refused.
            if self.next_due().is_some_and(|due| due <= now) { Rejection::Behind } else { full }
        })?;
        Ok(Room { account, over: found?, quota: policy.quota })
    }

    /// An agent belongs to the identity that first used it.
    fn decide_agent(
        &self,
        now: Time,
        space: Option<RowId<Space>>,
        account: Option<RowId<Account>>,
        grant: &Grant,
    ) -> Result<(), Rejection> {
        let Some(name) = &grant.agent else { return Ok(()) };
        if let Some(agent) = space.and_then(|space| self.known_agent(now, space, name)) {
            let agent = &self.agents[agent].value;
            return match agent.paused {
                _ if Some(agent.account) != account => Err(Rejection::AgentTaken),
                true => Err(Rejection::Paused),
                false => Ok(()),
            };
        }
        let mine = account.map_or(0, |account| self.accounts[account].value.agents);
        let full = self.agents.len() >= self.limits().agents_max as usize;
        if !full && mine < self.limits().agents_per_identity_max {
            return Ok(());
        }
        let behind = self.quiet.first_key_value().is_some_and(|((at, _), _)| *at < now);
        Err(if behind { Rejection::Behind } else { Rejection::Full(Bounded::Agents) })
    }

    /// How much there would be, once what is over has ended.
    fn decide_counts(
        &self,
        quota: &Quota,
        account: Option<RowId<Account>>,
        over: &[LeaseRef],
        bundle: &Bundle,
    ) -> Result<(), Rejection> {
        if self.leases.len() - over.len() >= self.limits().leases_max as usize {
            return Err(Rejection::Full(Bounded::Leases));
        }
        if self.nodes.len() + bundle.weight() > self.limits().nodes_max as usize {
            return Err(Rejection::Full(Bounded::Nodes));
        }
        let max = quota.leases_max.unwrap_or(self.limits().leases_per_identity_max);
        let held = account.map_or(0, |account| {
            let ending = over.iter().filter(|lease| self.leases[**lease].account == account).count();
            self.accounts[account].value.leases as usize - ending
        });
        if held >= max as usize { Err(Rejection::QuotaExceeded { max }) } else { Ok(()) }
    }

    fn open_account(&mut self, namespace: &Namespace, identity: &Identity) -> RowId<Account> {
        let space = self.ensure_space(namespace);
        self.ensure_account(space, identity)
    }

    fn grant(&mut self, account: RowId<Account>, grant: &Grant, phase: Phase, quota: &Quota) -> LeaseRef {
        let (lsn, now) = (self.last, self.now);
        let space = space_of(self.accounts[account].parent);
        let members = grant.bundle.members().iter().map(|member| self.ensure_nodes(space, member)).collect();
        let extra = self.extra(space, account, grant);
        let deadline = Deadline::new(now.after(grant.ttl), quota.cap(now, now), now);
        let mut lease = Lease {
            lsn,
            epoch: Epoch::FIRST,
            token: if planted!(TokenReused) { Token(self.leases.len() as u64 + 1) } else { Token::from(lsn) },
            granted_at: now,
            ttl: grant.ttl,
            ttl_until: now,
            active_at: now,
            deadline: now,
            phase,
            account,
            account_links: Links::default(),
            capped: false,
            used: false,
            weight: u32::try_from(grant.bundle.weight()).expect("a bundle is bounded"),
            members,
            extra,
        };
        lease.set_deadline(deadline);
        self.enter(lease)
    }

    fn extra(&mut self, space: RowId<Space>, account: RowId<Account>, grant: &Grant) -> Option<Box<Extra>> {
        let details = Details {
            on_expiry: grant.on_expiry,
            age: grant.attempt.filter(|age| age.counts_at(self.now)),
            agent: grant.agent.clone(),
            session: grant.session.clone(),
            owner: grant.owner.clone(),
            reason: grant.reason.clone(),
            metadata: grant.metadata.clone(),
        };
        if details.is_default() {
            return None;
        }
        let agent = grant.agent.as_ref().map(|name| self.ensure_agent(space, account, name));
        if let Some(agent) = agent {
            self.agent_is_back(agent);
        }
        let session = grant.session.as_ref().map(|name| self.ensure_session(account, name));
        Some(Box::new(Extra { details, agent, agent_links: Links::default(), session }))
    }
}
