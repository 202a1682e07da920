//! Acquire and reserve: a lease over a whole bundle, or nothing.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::chain::Links;
use crate::command::{Grant, OnExpiry};
use crate::history::Details;
use crate::kernel::{Handled, Kernel, Stamp};
use crate::lease::{Extra, Lease, LeaseRef, Phase};
use crate::limits::Quota;
use crate::outcome::{Answer, Event, Rejection, Table as Bounded};
use crate::party::{Account, Space};
use crate::table::RowId;
use crate::text::Identity;
use crate::units::{Age, Epoch, Span, Time, Token};

/// What a decision to grant found out.
struct Room {
    /// The namespace, unless nobody has used it yet.
    space: Option<RowId<Space>>,
    /// Leases in the way that are over, to be ended first.
    over: Vec<LeaseRef>,
    quota: Quota,
}

/// The end of authority, and whether a quota made it.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) ttl_until: Time,
    pub(crate) at: Time,
    pub(crate) capped: bool,
}

impl Deadline {
    /// `ttl_until`, or sooner by a quota's `cap`; never before `floor`, since nothing shortens a lease.
    pub(crate) fn new(ttl_until: Time, cap: Time, floor: Time) -> Deadline {
        let at = ttl_until.min(cap).max(floor);
        Deadline { ttl_until, at, capped: at < ttl_until }
    }
}

impl Quota {
    /// The latest moment that a lease may live to.
    pub(crate) fn cap(&self, granted_at: Time, active_at: Time) -> Time {
        let total = self.total_max.map_or(Time::NEVER, |span| granted_at.after(span));
        let idle = self.idle_max.map_or(Time::NEVER, |span| active_at.after(span));
        total.min(idle)
    }
}

impl Kernel {
    /// An attempt older than this counts as new.
    pub const ATTEMPT_MAX: Span = Span(3_600_000);

    pub(crate) fn acquire(
        &mut self,
        stamp: Stamp,
        identity: &Identity,
        grant: &Grant,
        phase: Phase,
    ) -> Handled {
        let room = self.decide_grant(stamp.now, identity, grant)?;
        self.begin(stamp, &room.over);
        let lease = self.grant(identity, grant, phase, &room);
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
        let Some(space) = self.spaces.find(None, grant.namespace.as_str()) else {
            self.decide_first_grant(&policy.quota, grant)?;
            return Ok(Room { space: None, over: Vec::new(), quota: policy.quota });
        };
        self.decide_agent(now, space, identity, grant)?;
        let account = self.accounts.find(space.scope(), identity.as_str());
        let session = account.zip(grant.session.as_ref());
        let session = session.and_then(|(account, name)| self.sessions.find(account.scope(), name.as_str()));
        let found = self.find_room(space, &grant.bundle, session, now);
        let over = found.as_ref().map_or(&[] as &[_], Vec::as_slice);
        self.decide_counts(&policy.quota, account, over)?;
        Ok(Room { space: Some(space), over: found?, quota: policy.quota })
    }

    /// In a namespace that nobody has used nothing can be in the way.
    fn decide_first_grant(&self, quota: &Quota, grant: &Grant) -> Result<(), Rejection> {
        if self.spaces.len() >= self.limits().namespaces_max as usize {
            return Err(Rejection::Full(Bounded::Namespaces));
        }
        if grant.agent.is_some() && self.agents.len() >= self.limits().agents_max as usize {
            return Err(Rejection::Full(Bounded::Agents));
        }
        self.decide_counts(quota, None, &[])
    }

    /// An agent belongs to the identity that first used it.
    fn decide_agent(
        &self,
        now: Time,
        space: RowId<Space>,
        identity: &Identity,
        grant: &Grant,
    ) -> Result<(), Rejection> {
        let Some(name) = &grant.agent else { return Ok(()) };
        let Some(agent) = self.known_agent(now, space, name) else {
            let full = self.agents.len() >= self.limits().agents_max as usize;
            return if full { Err(Rejection::Full(Bounded::Agents)) } else { Ok(()) };
        };
        let agent = &self.agents[agent].value;
        self.belongs(agent.account, identity).map_err(|_| Rejection::AgentTaken)?;
        if agent.paused { Err(Rejection::Paused) } else { Ok(()) }
    }

    /// How many leases there would be, once those that are over have ended.
    fn decide_counts(
        &self,
        quota: &Quota,
        account: Option<RowId<Account>>,
        over: &[LeaseRef],
    ) -> Result<(), Rejection> {
        if self.leases.len() - over.len() >= self.limits().leases_max as usize {
            return Err(Rejection::Full(Bounded::Leases));
        }
        let max = quota.leases_max.unwrap_or(self.limits().leases_per_identity_max);
        let held = account.map_or(0, |account| {
            let ending = over.iter().filter(|lease| self.leases[**lease].account == account).count();
            self.accounts[account].value.leases as usize - ending
        });
        if held >= max as usize { Err(Rejection::QuotaExceeded { max }) } else { Ok(()) }
    }

    fn grant(&mut self, identity: &Identity, grant: &Grant, phase: Phase, room: &Room) -> LeaseRef {
        let (lsn, now) = (self.last, self.now);
        let space = room.space.unwrap_or_else(|| self.ensure_space(&grant.namespace));
        let account = self.ensure_account(space, identity);
        let members = grant.bundle.members().iter().map(|member| self.ensure_nodes(space, member)).collect();
        let extra = self.extra(space, account, grant);
        let deadline = Deadline::new(now.after(grant.ttl), room.quota.cap(now, now), now);
        self.enter(Lease {
            lsn,
            epoch: Epoch::FIRST,
            token: Token::from(lsn),
            granted_at: now,
            ttl: grant.ttl,
            ttl_until: deadline.ttl_until,
            active_at: now,
            deadline: deadline.at,
            phase,
            account,
            account_links: Links::default(),
            capped: deadline.capped,
            used: false,
            members,
            extra,
        })
    }

    fn extra(&mut self, space: RowId<Space>, account: RowId<Account>, grant: &Grant) -> Option<Box<Extra>> {
        let details = Details {
            on_expiry: grant.on_expiry,
            age: grant.attempt.filter(|age| self.is_valid_attempt(*age)),
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

    /// One that is too old, or from a time that has not come, counts as new.
    fn is_valid_attempt(&self, age: Age) -> bool {
        age.at <= self.now && age.at.until(self.now) <= Kernel::ATTEMPT_MAX
    }
}
