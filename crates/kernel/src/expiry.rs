//! Expiry: how time ends leases.
//!
//! **Invariant.** Authority ends as soon as `now > deadline`, even if the row still says otherwise: every
//! decision uses [`Kernel::effective_phase`], never the row's phase alone. Rows follow in bounded steps: a
//! command first settles the leases that it touches, then other overdue leases in the order of `(time,
//! lease id)`, until their claims add up to [`Limits::step_max`](crate::Limits).
//!
//! **What would break it.** A million leases expire in the same millisecond; the sweep has ended a hundred
//! when a renewal of the last one arrives. Judged by its row the lease would be revived, although its
//! resource was already due to be free.

use alloc::vec::Vec;

use crate::command::OnExpiry;
use crate::history::{EndReason, EndedRef};
use crate::kernel::{CommandResult, Kernel, NotApplied, Stamp};
use crate::lease::{Lease, LeaseRef, Phase};
use crate::outcome::{Event, Response, State};
use crate::party_lifecycle::namespace_row;
use crate::units::{Lsn, Span, Time};

/// The phase of a lease at a given time, derived from its row and its deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EffectivePhase {
    Reserved,
    Active,
    /// Expired, on hold for its holder.
    OnHold {
        until: Time,
        rebindable: bool,
    },
    /// Revoked, not yet reclaimed.
    Revoking,
    /// Expired, and its resources are free.
    Expired,
}

impl EffectivePhase {
    pub(crate) fn state(self) -> State {
        match self {
            EffectivePhase::Reserved => State::Reserved,
            EffectivePhase::Active => State::Active,
            EffectivePhase::OnHold { .. } | EffectivePhase::Revoking => State::Revoking,
            EffectivePhase::Expired => State::Expired,
        }
    }
}

impl Kernel {
    /// A command discards this many times as much history as it may add, so that history shrinks faster
    /// than it grows.
    pub const RETIRE_STEPS: usize = 4;
    /// The hold on the leases of an agent that announced a restart.
    pub const RESTART_GRACE: Span = Span(15_000);

    pub(crate) fn effective_phase(&self, lease: &Lease, now: Time) -> EffectivePhase {
        let now = observed_now(now);
        match lease.phase {
            Phase::Reserved if now > lease.deadline && !planted!(ReservedOverdue) => EffectivePhase::Expired,
            Phase::Reserved => EffectivePhase::Reserved,
            Phase::Active if now > lease.deadline => match self.hold_after(lease) {
                Some(until) if now <= until => EffectivePhase::OnHold { until, rebindable: !lease.capped },
                _ => EffectivePhase::Expired,
            },
            Phase::Active => EffectivePhase::Active,
            Phase::OnHold { until, .. } if now > until => EffectivePhase::Expired,
            Phase::OnHold { until, rebindable } => EffectivePhase::OnHold { until, rebindable },
            Phase::Revoking => EffectivePhase::Revoking,
        }
    }

    /// The end of the hold that follows the expiry of an active lease, if it has one.
    fn hold_after(&self, lease: &Lease) -> Option<Time> {
        let restart = lease.agent().and_then(|agent| self.agents[agent].value.restart);
        let grace = restart
            .filter(|restart| restart.covers(lease.deadline) && !planted!(GraceIgnored))
            .map(|_| Kernel::RESTART_GRACE);
        let hold = match lease.on_expiry() {
            OnExpiry::Manual if planted!(ManualEnds) => Some(Kernel::RESTART_GRACE),
            OnExpiry::Manual => return Some(Time::NEVER),
            OnExpiry::Hold(_) if planted!(HoldIgnored) => None,
            OnExpiry::Hold(span) => Some(span),
            OnExpiry::Free => None,
        };
        hold.max(grace).map(|span| lease.deadline.after(span))
    }

    pub(crate) fn tick(&mut self, stamp: Stamp) -> CommandResult {
        let due = self.next_due().is_some_and(|due| due <= stamp.now);
        let gc = self.next_gc().is_some_and(|due| due <= stamp.now);
        if !due && !gc {
            return Err(NotApplied::Unchanged(Response::Ticked));
        }
        self.begin(stamp, &[]);
        Ok(Response::Ticked)
    }

    /// The first time at which a lease must change: a tick at that time has work to do.
    pub fn next_due(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| at.after(Span(1)))
    }

    /// The first time at which history, an idempotency entry or an agent can be discarded. Being late is
    /// harmless.
    pub fn next_gc(&self) -> Option<Time> {
        let ended = self
            .history
            .oldest()
            .map(|ended| self.history.get(ended).ended_at.after(self.limits().history_window));
        let overfull = self.history.is_overfull(self.limits());
        let request = self.requests.oldest().map(|entry| entry.lapses_at);
        let agent = self.agent_timers.first_key_value().map(|((at, _), _)| *at);
        let next = [ended, request, agent].into_iter().flatten().min().map(|at| at.after(Span(1)));
        if overfull { Some(self.now) } else { next }
    }

    /// Ends overdue leases, earliest first, up to the step limit.
    pub(crate) fn expire_due(&mut self) {
        let mut found = self.find_due().into_iter().peekable();
        let mut work = 0;
        while work < self.limits().step_max {
            let due = if planted!(TickSkipsOne) { self.timers.iter().nth(1) } else { self.timers.first() };
            let Some((_, lsn)) = due.filter(|(at, _)| *at < observed_now(self.now)) else { break };
            // A hold that began in this loop may itself be overdue, and come before the next lease found.
            let expected = found.next_if(|(found, _)| *found == lsn).map(|(_, lease)| lease);
            let lease = expected.or_else(|| self.live(lsn)).expect("every timer belongs to a live lease");
            work += self.leases[lease].weight;
            self.step(lease);
        }
    }

    /// Looks up all leases of one step before ending the first: back-to-back lookups overlap their cache
    /// misses.
    fn find_due(&self) -> Vec<(Lsn, LeaseRef)> {
        let due = self.timers.iter().take_while(|(at, _)| *at < observed_now(self.now));
        let step = due.take(self.limits().step_max as usize);
        step.filter_map(|(_, lsn)| Some((lsn, self.live(lsn)?))).collect()
    }

    /// Brings a row up to date with its deadlines: at most two transitions.
    pub(crate) fn settle(&mut self, lease: LeaseRef) {
        let lsn = self.leases[lease].lsn;
        while self.live(lsn).is_some_and(|lease| self.is_due(lease)) {
            self.step(lease);
        }
    }

    fn is_due(&self, lease: LeaseRef) -> bool {
        self.leases[lease].timer().is_some_and(|at| at < observed_now(self.now))
    }

    /// Makes one transition caused by time: authority ends, or a hold does.
    fn step(&mut self, lease: LeaseRef) {
        let row = &self.leases[lease];
        let id = self.lease_id(row.lsn);
        assert!(self.is_due(lease), "a lease must not expire early: {id}");
        match row.phase {
            Phase::Reserved => self.expire_free(lease),
            Phase::Active => match self.hold_after(row) {
                None => self.expire_free(lease),
                Some(until) => self.expire_into_hold(lease, until),
            },
            Phase::OnHold { .. } => {
                self.events.push(Event::Reclaimed(id));
                self.end(lease, EndReason::Expired);
            }
            Phase::Revoking => unreachable!("a revoking lease has no timer: {id}"),
        }
    }

    fn expire_free(&mut self, lease: LeaseRef) {
        let id = self.lease_id(self.leases[lease].lsn);
        self.events.push(Event::Expired { lease: id, held_until: None });
        self.end(lease, EndReason::Expired);
    }

    fn expire_into_hold(&mut self, lease: LeaseRef, until: Time) {
        let id = self.lease_id(self.leases[lease].lsn);
        self.events.push(Event::Expired { lease: id, held_until: Some(until) });
        self.change_phase(lease, |row| {
            row.end_authority();
            row.phase = Phase::OnHold { until, rebindable: !row.capped };
        });
    }

    /// Discards history beyond its age or size limit.
    pub(crate) fn retire(&mut self) {
        let (window, step) = (self.limits().history_window, self.limits().step_max as usize);
        let mut work = 0;
        while work < Kernel::RETIRE_STEPS * step {
            let overfull = self.history.is_overfull(self.limits());
            match self.history.oldest() {
                Some(ended)
                    if overfull
                        || self.history.get(ended).ended_at.after(window) < self.now
                        || planted!(HistoryRetiredEarly) =>
                {
                    work += self.retire_one(ended);
                }
                _ => break,
            }
        }
    }

    /// Discards an ended lease and returns the number of its members.
    pub(crate) fn retire_one(&mut self, ended: EndedRef) -> usize {
        let ns = namespace_row(self.accounts[self.history.get(ended).account].parent);
        let ended = self.history.remove(ended, &mut self.namespaces[ns].value.ended);
        self.index.remove(ended.lsn);
        self.drop_account_ref(ended.account);
        ended.members.as_slice().len()
    }
}

/// The time that deadlines are compared with: `now`, except under two planted faults.
fn observed_now(now: Time) -> Time {
    let (early, late) = (u64::from(planted!(ExpireEarly)), u64::from(planted!(ExpireLate)));
    Time(now.0.saturating_add(early).saturating_sub(late))
}
