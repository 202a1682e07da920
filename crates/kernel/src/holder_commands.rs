//! Commands of holders: activate, renew, touch, release, rebind; and retract, which undoes an undelivered
//! grant.

use alloc::vec::Vec;

use crate::command::{Action, Credential, Renewal, RequestKey, Retraction};
use crate::expiry::EffectivePhase;
use crate::history::EndReason;
use crate::kernel::{CommandResult, Kernel, NotApplied, Stamp};
use crate::lease::{Deadline, LeaseRef, Phase};
use crate::lease_index::IndexEntry;
use crate::limits::Quota;
use crate::outcome::{Event, Live, Rejection, Response};
use crate::text::Identity;
use crate::units::{LeaseId, Span, Time, Token};

impl Kernel {
    /// Reserved → active. The deadline does not change.
    pub(crate) fn activate(&mut self, stamp: Stamp, identity: &Identity, held: Credential) -> CommandResult {
        let lease = self.authority(stamp.now, identity, held)?;
        if self.leases[lease].phase != Phase::Reserved {
            return Err(Rejection::InvalidState(self.leases[lease].state()).into());
        }
        self.begin(stamp, &[]);
        self.change_phase(lease, |row| {
            row.phase = Phase::Active;
            row.used = true;
        });
        self.events.push(Event::Activated(held.lease));
        Ok(Response::Live(self.live_response(&self.leases[lease])))
    }

    pub(crate) fn renew(&mut self, stamp: Stamp, identity: &Identity, renewals: &[Renewal]) -> CommandResult {
        if renewals.is_empty() || renewals.len() > Action::MAX_BATCH {
            return Err(Rejection::InvalidBatch.into());
        }
        // Look up all leases first: back-to-back lookups overlap their cache misses.
        let found: Vec<_> = renewals.iter().map(|renewal| self.lookup(renewal.held.lease)).collect();
        let decide = |(renewal, found)| self.decide_renewal(stamp.now, identity, renewal, found);
        let decided: Vec<Result<(LeaseRef, Span), Rejection>> =
            renewals.iter().zip(found).map(decide).collect();
        if decided.iter().all(Result::is_err) {
            let refused =
                decided.into_iter().map(|result| Err(result.expect_err("all renewals were rejected")));
            return Err(NotApplied::Unchanged(Response::Renewed(refused.collect())));
        }
        self.begin(stamp, &[]);
        let mut extend = |(lease, ttl)| self.extend(lease, ttl);
        Ok(Response::Renewed(decided.into_iter().map(|result| result.map(&mut extend)).collect()))
    }

    fn decide_renewal(
        &self,
        now: Time,
        identity: &Identity,
        renewal: &Renewal,
        found: Result<IndexEntry, Rejection>,
    ) -> Result<(LeaseRef, Span), Rejection> {
        let max = self.limits().ttl_max;
        if renewal.ttl.is_some_and(|ttl| ttl.0 == 0 || ttl > max) {
            return Err(Rejection::InvalidTtl { max });
        }
        let lease = self.authority_over(found?, now, identity, renewal.held.epoch)?;
        self.check_not_reserved(lease)?;
        Ok((lease, renewal.ttl.unwrap_or(self.leases[lease].ttl)))
    }

    /// Extends a lease; never shortens it.
    fn extend(&mut self, lease: LeaseRef, ttl: Span) -> Live {
        let (quota, now) = (self.quota_of(lease), self.now);
        self.change(lease, |row| {
            row.used = true;
            let shortens = planted!(RenewShortens);
            let ttl_until = if shortens { now.after(ttl) } else { row.ttl_until.max(now.after(ttl)) };
            if planted!(RenewCountsAsUse) {
                row.active_at = now;
            }
            let cap = quota.cap(row.granted_at, row.active_at);
            row.set_deadline(Deadline::new(ttl_until, cap, if shortens { now } else { row.deadline }));
        });
        if let Some(agent) = self.leases[lease].agent() {
            self.end_agent_restart(agent);
        }
        self.live_response(&self.leases[lease])
    }

    pub(crate) fn touch(&mut self, stamp: Stamp, identity: &Identity, held: Credential) -> CommandResult {
        let lease = self.authority(stamp.now, identity, held)?;
        self.check_not_reserved(lease)?;
        self.begin(stamp, &[]);
        self.record_activity(lease);
        Ok(Response::Live(self.live_response(&self.leases[lease])))
    }

    /// Restarts the idle clock and raises the deadline again as far as the TTL reaches.
    pub(crate) fn record_activity(&mut self, lease: LeaseRef) {
        let (quota, now) = (self.quota_of(lease), self.now);
        self.change(lease, |row| {
            row.used = true;
            row.active_at = now;
            row.set_deadline(Deadline::new(row.ttl_until, quota.cap(row.granted_at, now), row.deadline));
        });
    }

    /// With the credential issued last: frees a lease that is live or on hold; any other lease the holder
    /// once had counts as already released.
    pub(crate) fn release(&mut self, stamp: Stamp, identity: &Identity, held: Credential) -> CommandResult {
        let nothing_to_do = Err(NotApplied::Unchanged(Response::Released));
        let lease = match self.lookup(held.lease) {
            Err(Rejection::Retired) => return nothing_to_do,
            Err(rejection) => return Err(rejection.into()),
            Ok(IndexEntry::Ended(ended)) => {
                let ended = self.history.get(ended);
                self.check_owner(ended.account, identity)?;
                let last = held.epoch == ended.epoch.issued();
                return if last { nothing_to_do } else { Err(Rejection::NotHeld.into()) };
            }
            Ok(IndexEntry::Live(lease)) => lease,
        };
        let row = &self.leases[lease];
        if !planted!(ReleaseAnothers) {
            self.check_owner(row.account, identity)?;
        }
        let (phase, issued) = (self.effective_phase(row, stamp.now), row.epoch.issued());
        let live = matches!(phase, EffectivePhase::Reserved | EffectivePhase::Active);
        let old_epoch = held.epoch < issued && !planted!(ReleaseOldEpoch);
        if live && old_epoch {
            return Err(Rejection::StaleEpoch { current: row.epoch }.into());
        }
        if held.epoch > issued || old_epoch {
            return Err(Rejection::NotHeld.into());
        }
        if planted!(ReleaseKeepsHold) && !live {
            return nothing_to_do;
        }
        if matches!(phase, EffectivePhase::Revoking | EffectivePhase::Expired) {
            return nothing_to_do;
        }
        self.begin(stamp, &[lease]);
        self.release_now(lease);
        Ok(Response::Released)
    }

    pub(crate) fn release_now(&mut self, lease: LeaseRef) {
        let id = self.lease_id(self.leases[lease].lsn);
        self.events.push(Event::Released(id));
        self.end(lease, EndReason::Released);
    }

    /// Restores an expired lease while it is on hold for its holder: new epoch, new token.
    pub(crate) fn rebind(&mut self, stamp: Stamp, identity: &Identity, held: Credential) -> CommandResult {
        let lease = self.decide_rebind(stamp.now, identity, held)?;
        let quota = self.quota_of(lease);
        let (lsn, now) = (stamp.lsn, stamp.now);
        self.begin(stamp, &[lease]);
        self.rebound.remove(&(self.leases[lease].token, self.leases[lease].lsn));
        self.change_phase(lease, |row| {
            row.epoch = row.epoch.next();
            row.token = if planted!(TokenKept) { row.token } else { Token::from(lsn) };
            row.phase = Phase::Active;
            row.used = true;
            let cap = quota.cap(row.granted_at, row.active_at);
            row.set_deadline(Deadline::new(now.after(row.ttl), cap, now));
        });
        self.index_token(lease);
        if let Some(agent) = self.leases[lease].agent() {
            self.end_agent_restart(agent);
        }
        let granted = self.granted(&self.leases[lease]);
        self.events.push(Event::Rebound(granted.lease, granted.token));
        self.assert_granted(lease);
        Ok(Response::Granted(granted))
    }

    fn decide_rebind(&self, now: Time, identity: &Identity, held: Credential) -> Result<LeaseRef, Rejection> {
        let lease = match self.authority(now, identity, held) {
            Ok(lease) => return Err(Rejection::InvalidState(self.leases[lease].state())),
            Err(Rejection::LeaseExpired) => self.live(held.lease.lsn).ok_or(Rejection::LeaseExpired)?,
            Err(rejection) => return Err(rejection),
        };
        let row = &self.leases[lease];
        match self.effective_phase(row, now) {
            EffectivePhase::OnHold { rebindable: true, .. } => {}
            EffectivePhase::OnHold { .. } if planted!(RebindCapped) => {}
            _ => return Err(Rejection::LeaseExpired),
        }
        if held.epoch != row.epoch.issued() && !planted!(RebindOldEpoch) {
            return Err(Rejection::LeaseExpired);
        }
        let namespace = self.namespace_of(self.accounts[row.account].parent);
        let agent_paused = row.agent().is_some_and(|agent| self.agents[agent].value.paused);
        let paused = agent_paused || self.policies.resolve(&namespace, identity).paused;
        if paused && !planted!(RebindPaused) {
            return Err(Rejection::Paused);
        }
        // A lease that has reached its total or idle quota has ended for good.
        if self.quota_of(lease).cap(row.granted_at, row.active_at) < now {
            return Err(Rejection::LeaseExpired);
        }
        Ok(lease)
    }

    /// Undoes a grant whose response was not delivered. If the lease has been used since, the response did
    /// arrive.
    pub(crate) fn retract(&mut self, stamp: Stamp, retraction: Retraction) -> CommandResult {
        let not_undone = Err(NotApplied::Unchanged(Response::Retracted { undone: false }));
        let Ok(IndexEntry::Live(lease)) = self.lookup(retraction.lease) else { return not_undone };
        let row = &self.leases[lease];
        let live =
            matches!(self.effective_phase(row, stamp.now), EffectivePhase::Reserved | EffectivePhase::Active);
        if row.used && !planted!(RetractUsed) || !live {
            return not_undone;
        }
        let identity = self.identity_of(row.account);
        self.begin(stamp, &[]);
        if let Some(key) = retraction.request.filter(|_| !planted!(RetractKeepsRequest)) {
            self.forget_request(&identity, key, retraction.lease);
        }
        self.release_now(lease);
        Ok(Response::Retracted { undone: true })
    }

    /// Removes the entry of this grant only: the key may have been reused since.
    fn forget_request(&mut self, identity: &Identity, key: RequestKey, lease: LeaseId) {
        let entry = self.requests.find(identity, key, self.now);
        if entry
            .is_some_and(|entry| matches!(entry.answer, Response::Granted(granted) if granted.lease == lease))
        {
            self.requests.remove(identity, key);
        }
    }

    /// The quota that applies to the lease's holder.
    pub(crate) fn quota_of(&self, lease: LeaseRef) -> Quota {
        if self.policies.0.is_empty() {
            return Quota::default();
        }
        let account = self.leases[lease].account;
        let namespace = self.namespace_of(self.accounts[account].parent);
        self.policies.resolve(&namespace, &self.identity_of(account)).quota
    }
}
