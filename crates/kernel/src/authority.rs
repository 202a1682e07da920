//! Checks whether a credential has authority. Every holder command starts here.
//!
//! Refusals are checked in a fixed order, and the first that applies is returned: unknown or retired
//! lease; other identity; revoked; expired; released; older epoch.

use crate::command::Credential;
use crate::expiry::EffectivePhase;
use crate::history::EndReason;
use crate::kernel::Kernel;
use crate::lease::{Lease, LeaseRef};
use crate::lease_index::IndexEntry;
use crate::outcome::{Granted, Live, Rejection, Response, State};
use crate::party_rows::Account;
use crate::predicate::Predicate;
use crate::resource::ResourceName;
use crate::table::RowId;
use crate::text::Identity;
use crate::units::{Epoch, LeaseId, Lsn, Time};

impl Kernel {
    /// Whether the holder of this credential may read the document of `resource`. Any predicate suffices.
    pub fn may_read(
        &self,
        now: Time,
        identity: &Identity,
        held: Credential,
        resource: &ResourceName,
    ) -> Result<(), Rejection> {
        let lease = self.authority(now, identity, held)?;
        self.covering(lease, resource).map(drop).ok_or(Rejection::NotHeld)
    }

    /// The lease over which this credential has authority; it may still be reserved.
    pub(crate) fn authority(
        &self,
        now: Time,
        identity: &Identity,
        held: Credential,
    ) -> Result<LeaseRef, Rejection> {
        self.authority_over(self.lookup(held.lease)?, now, identity, held.epoch)
    }

    /// Like [`Kernel::authority`], for a lease that has been looked up.
    pub(crate) fn authority_over(
        &self,
        found: IndexEntry,
        now: Time,
        identity: &Identity,
        epoch: Epoch,
    ) -> Result<LeaseRef, Rejection> {
        let lease = match found {
            IndexEntry::Live(lease) => lease,
            IndexEntry::Ended(ended) => {
                let ended = self.history.get(ended);
                self.check_owner(ended.account, identity)?;
                return Err(match ended.end {
                    EndReason::Revoked => Rejection::LeaseRevoked,
                    EndReason::Expired => Rejection::LeaseExpired,
                    EndReason::Released => Rejection::NotHeld,
                });
            }
        };
        let row = &self.leases[lease];
        self.check_owner(row.account, identity)?;
        match self.effective_phase(row, now) {
            EffectivePhase::Revoking => Err(Rejection::LeaseRevoked),
            EffectivePhase::Expired if planted!(DeadlineIgnored) => Ok(lease),
            EffectivePhase::OnHold { .. } | EffectivePhase::Expired => Err(Rejection::LeaseExpired),
            EffectivePhase::Reserved | EffectivePhase::Active if epoch < row.epoch => {
                Err(Rejection::StaleEpoch { current: row.epoch })
            }
            // A future epoch was never issued.
            EffectivePhase::Reserved | EffectivePhase::Active if epoch > row.epoch => Err(Rejection::NotHeld),
            EffectivePhase::Reserved | EffectivePhase::Active => Ok(lease),
        }
    }

    pub(crate) fn check_not_reserved(&self, lease: LeaseRef) -> Result<(), Rejection> {
        match self.leases[lease].state() {
            State::Reserved if !planted!(ReservedUsed) => Err(Rejection::InvalidState(State::Reserved)),
            _ => Ok(()),
        }
    }

    /// The predicate with which a lease covers exactly this resource.
    pub(crate) fn covering(&self, lease: LeaseRef, resource: &ResourceName) -> Option<Predicate> {
        let row = &self.leases[lease];
        let ns = self.accounts[row.account].parent;
        let node = self.nodes.find(ns, resource.as_str())?;
        let member = row.members.as_slice().iter().find(|member| member.node == node && !member.subtree)?;
        Some(member.predicate)
    }

    pub(crate) fn check_owner(&self, account: RowId<Account>, identity: &Identity) -> Result<(), Rejection> {
        if *self.accounts[account].text == *identity.as_str() { Ok(()) } else { Err(Rejection::NotHeld) }
    }

    /// Looks up a lease. The last LSN distinguishes ids never issued from retired ones.
    pub(crate) fn lookup(&self, lease: LeaseId) -> Result<IndexEntry, Rejection> {
        if lease.shard != self.lease_id(lease.lsn).shard || lease.lsn > self.last {
            return Err(Rejection::NotFound);
        }
        let found = self.index.get(lease.lsn).ok_or(Rejection::Retired)?;
        if self.owns_all_slots() {
            return Ok(found);
        }
        let namespace = self.namespace_of(self.accounts[self.account_of(found)].parent);
        if self.owns(&namespace) { Ok(found) } else { Err(Rejection::Moved { to: None }) }
    }

    fn owns_all_slots(&self) -> bool {
        self.tenure.as_ref().is_none_or(|tenure| tenure.open.slots.is_all())
    }

    /// The account of the lease in an entry of the index.
    pub(crate) fn account_of(&self, found: IndexEntry) -> RowId<Account> {
        match found {
            IndexEntry::Live(lease) => self.leases[lease].account,
            IndexEntry::Ended(ended) => self.history.get(ended).account,
        }
    }

    pub(crate) fn live(&self, lsn: Lsn) -> Option<LeaseRef> {
        match self.index.get(lsn)? {
            IndexEntry::Live(lease) => Some(lease),
            IndexEntry::Ended(_) => None,
        }
    }

    /// Replays a stored response with the current deadline, or rejects if the lease has ended.
    pub(crate) fn replay(
        &self,
        now: Time,
        identity: &Identity,
        answer: &Response,
    ) -> Result<Response, Rejection> {
        // However the granted lease ended, except by a revoke, the retry sees it as expired.
        let again = |lease, epoch| match self.authority(now, identity, Credential { lease, epoch }) {
            Err(rejection @ (Rejection::LeaseRevoked | Rejection::Moved { .. })) => Err(rejection),
            Err(_) => Err(Rejection::LeaseExpired),
            Ok(lease) => Ok(lease),
        };
        Ok(match answer {
            Response::Granted(granted) if planted!(ReplayStored) => Response::Granted(*granted),
            Response::Granted(granted) => {
                let row = &self.leases[again(granted.lease, granted.epoch)?];
                let deadline = if planted!(ReplayRestartsTtl) { now.after(row.ttl) } else { row.deadline };
                Response::Granted(Granted { deadline, ..self.granted(row) })
            }
            Response::Live(live) => {
                Response::Live(self.live_response(&self.leases[again(live.lease, live.epoch)?]))
            }
            other => other.clone(),
        })
    }

    pub(crate) fn granted(&self, row: &Lease) -> Granted {
        Granted {
            lease: self.lease_id(row.lsn),
            epoch: row.epoch,
            token: row.token,
            granted_at: row.granted_at,
            deadline: row.deadline,
            ttl: row.ttl,
        }
    }

    pub(crate) fn live_response(&self, row: &Lease) -> Live {
        Live { lease: self.lease_id(row.lsn), epoch: row.epoch, deadline: row.deadline }
    }
}
