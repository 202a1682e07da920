//! Commands of operators: revoke and reclaim leases, pause grants, set quotas.
//!
//! **Invariant.** A revoke withdraws authority and frees nothing; only a reclaim frees. The old holder may
//! still be working: late reuse of a resource is safe, early reuse never is.

use alloc::vec::Vec;

use crate::chain::{LinksOf, account_links_of, agent_links_of};
use crate::command::{Action, Party, Pause, Paused, Scope, SetQuota};
use crate::expiry::EffectivePhase;
use crate::history::EndReason;
use crate::kernel::{CommandResult, Kernel, NotApplied, Stamp};
use crate::lease::{Lease, LeaseRef, Phase};
use crate::lease_index::IndexEntry;
use crate::outcome::{BoundedTable, Event, Rejection, Response};
use crate::party_rows::Policy;
use crate::text::{Identity, Namespace};
use crate::units::{LeaseId, Time};

/// The kernel version since which a revoke moves the deadline to the moment of the revoke.
const REVOKE_ENDS_SINCE: u32 = 3;

impl Kernel {
    pub(crate) fn revoke(&mut self, stamp: Stamp, id: LeaseId) -> CommandResult {
        let (lease, phase) = self.find_effective_phase(stamp.now, id)?;
        match phase {
            EffectivePhase::Reserved | EffectivePhase::Active | EffectivePhase::OnHold { .. } => {}
            EffectivePhase::Revoking | EffectivePhase::Expired => {
                return Err(Rejection::InvalidState(phase.state()).into());
            }
        }
        self.begin(stamp, &[lease]);
        self.revoke_now(stamp.now, lease);
        if planted!(RevokeFrees) {
            self.end(lease, EndReason::Revoked);
        }
        Ok(Response::Revoking(id))
    }

    /// In an expiry hold, authority has already ended and the epoch does not change again. The deadline becomes the moment
    /// at which authority ended.
    fn revoke_now(&mut self, now: Time, lease: LeaseRef) {
        let id = self.lease_id(self.leases[lease].lsn);
        let ends_now = self.follows_rules_since(REVOKE_ENDS_SINCE) && !planted!(RevokeKeepsDeadline);
        self.change_phase(lease, |row| {
            if row.epoch.is_authority() && !planted!(EpochKept) {
                row.end_authority();
            }
            if ends_now {
                row.deadline = row.deadline.min(now);
            }
            row.phase = Phase::Revoking;
        });
        self.events.push(Event::Revoked(id));
    }

    pub(crate) fn revoke_all(&mut self, stamp: Stamp, party: &Party) -> CommandResult {
        let leases = self.first_revocable(party);
        if leases.is_empty() {
            return Err(NotApplied::Unchanged(Response::RevokedAll { revoked: 0, more: false }));
        }
        let lsns: Vec<_> = leases.iter().map(|lease| self.leases[*lease].lsn).collect();
        self.begin(stamp, &leases);
        let mut revoked = 0;
        for lsn in lsns {
            // Expired leases have ended in `begin` instead.
            if let Some(lease) = self.live(lsn) {
                self.revoke_now(stamp.now, lease);
                revoked += 1;
            }
        }
        Ok(Response::RevokedAll { revoked, more: !self.first_revocable(party).is_empty() })
    }

    /// The first leases of a party that are not being revoked yet, at most one batch.
    fn first_revocable(&mut self, party: &Party) -> Vec<LeaseRef> {
        let (Party::Identity(namespace, _) | Party::Agent(namespace, _)) = party;
        let ns = self.find_namespace(namespace);
        let chain = ns.and_then(|ns| match party {
            Party::Identity(_, identity) => {
                let account = self.accounts.find(ns.as_parent(), identity.as_str())?;
                Some((self.accounts[account].value.revocable, account_links_of as LinksOf<Lease>))
            }
            Party::Agent(_, name) => {
                let agent = self.agents.find(ns.as_parent(), name.as_str())?;
                Some((self.agents[agent].value.revocable, agent_links_of as LinksOf<Lease>))
            }
        });
        chain
            .map(|(chain, links_of)| chain.take(Action::MAX_BATCH, links_of, &mut self.leases))
            .unwrap_or_default()
    }

    /// Frees the resources. A revoking lease ends as revoked, a lease on hold as expired.
    pub(crate) fn reclaim(&mut self, stamp: Stamp, id: LeaseId) -> CommandResult {
        let (lease, phase) = self.find_effective_phase(stamp.now, id)?;
        let end = match phase {
            EffectivePhase::Revoking => EndReason::Revoked,
            EffectivePhase::OnHold { .. } => {
                if planted!(ReclaimAsRevoked) {
                    EndReason::Revoked
                } else {
                    EndReason::Expired
                }
            }
            EffectivePhase::Active if planted!(ReclaimActive) => EndReason::Revoked,
            EffectivePhase::Reserved | EffectivePhase::Active | EffectivePhase::Expired => {
                return Err(Rejection::InvalidState(phase.state()).into());
            }
        };
        self.begin(stamp, &[lease]);
        self.events.push(Event::Reclaimed(id));
        self.end(lease, end);
        Ok(Response::Reclaimed(id))
    }

    fn find_effective_phase(&self, now: Time, id: LeaseId) -> Result<(LeaseRef, EffectivePhase), Rejection> {
        match self.lookup(id)? {
            IndexEntry::Live(lease) => Ok((lease, self.effective_phase(&self.leases[lease], now))),
            IndexEntry::Ended(ended) => Err(Rejection::InvalidState(self.history.get(ended).end.into())),
        }
    }

    pub(crate) fn pause(&mut self, stamp: Stamp, pause: &Pause) -> CommandResult {
        match &pause.whom {
            Paused::Scope(scope) => {
                let policy = Policy { paused: pause.paused, ..self.policy(scope) };
                self.set_policy(stamp, scope, policy)
            }
            Paused::Agent(namespace, name) => {
                let agent = self.find_agent(stamp.now, namespace, name)?;
                if self.agents[agent].value.paused == pause.paused {
                    return Err(NotApplied::Unchanged(Response::Done));
                }
                self.begin(stamp, &[]);
                self.agents[agent].value.paused = pause.paused;
                self.reset_agent_timer(agent);
                Ok(Response::Done)
            }
        }
    }

    pub(crate) fn set_quota(&mut self, stamp: Stamp, set: &SetQuota) -> CommandResult {
        let policy = Policy { quota: set.quota, ..self.policy(&set.scope) };
        self.set_policy(stamp, &set.scope, policy)
    }

    fn set_policy(&mut self, stamp: Stamp, scope: &Scope, policy: Policy) -> CommandResult {
        if self.policy(scope) == policy {
            return Err(NotApplied::Unchanged(Response::Done));
        }
        let is_new = !self.policies.0.contains_key(scope);
        if is_new && self.policies.0.len() >= self.limits().policies_max as usize {
            return Err(
                Rejection::Full { table: BoundedTable::Policies, max: self.limits().policies_max }.into()
            );
        }
        self.begin(stamp, &[]);
        self.put_policy(scope, policy);
        Ok(Response::Done)
    }

    pub(crate) fn put_policy(&mut self, scope: &Scope, policy: Policy) {
        self.policies.set(scope, policy);
        self.hash.text(scope.namespace.as_ref().map_or("", Namespace::as_str));
        self.hash.text(scope.identity.as_ref().map_or("", Identity::as_str));
        let quota = policy.quota;
        let number = |number: Option<u64>| number.map_or(0, |number| number.saturating_add(1));
        self.hash.words([
            u64::from(policy.paused),
            number(quota.leases_max.map(u64::from)),
            number(quota.total_max.map(|span| span.0)),
            number(quota.idle_max.map(|span| span.0)),
            number(quota.acquires_per_second.map(u64::from)),
        ]);
    }

    /// The policy set for exactly this scope, without inheritance.
    pub fn policy(&self, scope: &Scope) -> Policy {
        self.policies.0.get(scope).copied().unwrap_or_default()
    }
}
