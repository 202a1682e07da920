//! A sequential specification of a group of resources as clients see it: leases over bundles, holds after expiry,
//! rebinds, documents, and stored responses. Independent of the kernel, of which it uses only the units.
//!
//! | rule | here |
//! |---|---|
//! | live leases on one resource are pairwise compatible; a bundle is granted whole or not at all | `grant` |
//! | fencing tokens increase for each resource, also at a rebind | `issue_token` |
//! | authority ends when the deadline has passed, a hold when its time has; manual holds end by reclaim | `at` |
//! | refusals in their fixed order | `authority` |
//! | rebind once for each hold caused by expiry, never after a revoke | `rebind` |
//! | a release is idempotent, and frees a lease on hold | `release` |
//! | versions increase with each commit and removal, and are fixed while a lease or a document keeps the key's entry | `documents` |
//! | an accepted request is applied once; its replay shows the current deadline, or that the lease has ended | `replay` |
//!
//! Time is known only from responses. A state has a lower bound of the time. A call whose response shows its time must
//! not be below it; any other call may have happened at the bound, or just after one of the later deadlines.
//!
//! **What is absent.** Wait queues: a conflict with an earlier waiter is not judged here. Quotas, agents, sessions and
//! reservations. Idempotency entries never lapse: a history must be shorter than the window.

mod documents;
mod replay;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kernel::{Epoch, Lsn, Predicate, Span, State, Time, Token};

use self::documents::DocumentState;
use self::replay::StoredResult;
use super::SequentialModel;
use super::operation::{CallResult, CredentialRefusal, FoundHolder, Held, Members, Op, ResourceNumber};

/// The rules for a group of that number of resources.
#[derive(Clone, Copy, Debug)]
pub struct ResourcesModel {
    /// The number of resources.
    pub resources: usize,
}

/// The state of a group of resources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourcesState {
    /// A lower bound of the time.
    now: Time,
    /// Leases that cover their resources.
    live: BTreeMap<Lsn, LiveLease>,
    /// Final states of ended leases, with the epoch issued last.
    ended: BTreeMap<Lsn, (State, Epoch)>,
    /// For each resource the token issued last.
    tokens: Vec<Token>,
    documents: Vec<DocumentState>,
    /// The results stored under idempotency keys.
    requests: BTreeMap<u64, StoredResult>,
}

/// A lease that covers its resources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LiveLease {
    members: Members,
    token: Token,
    deadline: Time,
    hold: Option<Span>,
    /// The epoch issued last.
    epoch: Epoch,
    phase: LeasePhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LeasePhase {
    Active,
    OnHold { until: Time },
    Revoking,
}

impl LiveLease {
    /// When time changes the lease next.
    fn thresholds(&self) -> [Option<Time>; 2] {
        match self.phase {
            LeasePhase::Active => [Some(self.deadline), self.hold.map(|hold| self.deadline.after(hold))],
            LeasePhase::OnHold { until } => [Some(until), None],
            LeasePhase::Revoking => [None, None],
        }
    }

    fn state(&self) -> State {
        match self.phase {
            LeasePhase::Active => State::Active,
            LeasePhase::OnHold { .. } | LeasePhase::Revoking => State::Revoking,
        }
    }

    fn covers(&self, resource: ResourceNumber) -> bool {
        self.members.iter().any(|(covered, _)| *covered == resource)
    }

    fn may_write(&self, resource: ResourceNumber) -> bool {
        let writes = |predicate| matches!(predicate, Predicate::Mutates | Predicate::Deletes);
        self.members.iter().any(|(covered, predicate)| *covered == resource && writes(*predicate))
    }

    fn conflicts_with(&self, members: &Members) -> bool {
        let conflicts = |(mine, predicate): &(ResourceNumber, Predicate)| {
            members.iter().any(|(theirs, other)| mine == theirs && !compatible(*predicate, *other))
        };
        self.members.iter().any(conflicts)
    }
}

/// Readers and dependents share, also with one provider. Everything else is exclusive.
fn compatible(one: Predicate, other: Predicate) -> bool {
    let shares =
        |predicate| matches!(predicate, Predicate::Consumes | Predicate::DependsOn | Predicate::Provides);
    let two_providers = one == Predicate::Provides && other == Predicate::Provides;
    shares(one) && shares(other) && !two_providers
}

impl SequentialModel for ResourcesModel {
    type State = ResourcesState;
    type Op = Op;

    fn start(&self) -> ResourcesState {
        ResourcesState {
            now: Time(0),
            live: BTreeMap::new(),
            ended: BTreeMap::new(),
            tokens: vec![Token(0); self.resources],
            documents: vec![DocumentState::default(); self.resources],
            requests: BTreeMap::new(),
        }
    }

    /// The earliest moment last: the search tries that state first.
    fn step(&self, state: &ResourcesState, op: &Op) -> Vec<ResourcesState> {
        let mut moments = match state.stamp(op) {
            Some(at) => vec![at],
            None => state.moments(),
        };
        moments.retain(|at| *at >= state.now);
        moments.into_iter().rev().filter_map(|at| state.at(at).after(op)).collect()
    }
}

impl ResourcesState {
    /// The time of a call, if its response shows it. A replay shows the time of the first response.
    fn stamp(&self, op: &Op) -> Option<Time> {
        if op.request.is_some_and(|request| self.requests.contains_key(&request)) {
            return None;
        }
        match &op.result {
            CallResult::Granted { at, .. } | CallResult::Read { at, .. } => *at,
            CallResult::ReadLease { at, .. } => Some(*at),
            CallResult::Rebound { ttl, deadline, .. } => Some(before(*deadline, *ttl)),
            CallResult::Renewed { held, ttl, deadline } => {
                let kept = self.live.get(&held.lease).is_some_and(|lease| lease.deadline == *deadline);
                (!kept).then(|| before(*deadline, *ttl))
            }
            _ => None,
        }
    }

    /// The times at which the state differs: now, and just after each threshold; in ascending order.
    fn moments(&self) -> Vec<Time> {
        let thresholds = self.live.values().flat_map(LiveLease::thresholds).flatten();
        let later = thresholds.filter(|at| *at != Time::NEVER).map(|at| at.after(Span(1)));
        let mut moments: Vec<Time> = later.filter(|at| *at > self.now).chain([self.now]).collect();
        moments.sort_unstable();
        moments.dedup();
        moments
    }

    /// The state at a later time.
    fn at(&self, now: Time) -> ResourcesState {
        let mut state = ResourcesState { now, ..self.clone() };
        for lease in state.live.values_mut() {
            if let (LeasePhase::Active, Some(hold)) = (lease.phase, lease.hold)
                && now > lease.deadline
            {
                lease.phase = LeasePhase::OnHold { until: lease.deadline.after(hold) };
            }
        }
        let over = |lease: &LiveLease| match lease.phase {
            LeasePhase::Active => now > lease.deadline,
            LeasePhase::OnHold { until } => now > until,
            LeasePhase::Revoking => false,
        };
        let over: Vec<Lsn> = state.live.iter().filter(|(_, lease)| over(lease)).map(|(id, _)| *id).collect();
        for lease in over {
            state.end(lease, State::Expired);
        }
        state
    }

    /// The state after the call, if it can have this response.
    fn after(mut self, op: &Op) -> Option<ResourcesState> {
        let stored = op.request.and_then(|request| self.requests.get(&request).copied());
        let possible = match stored {
            Some(stored) => self.replays(stored, &op.result),
            None => self.apply(&op.result),
        };
        if stored.is_none() {
            self.store(op);
        }
        possible.then_some(self)
    }

    fn apply(&mut self, result: &CallResult) -> bool {
        match result {
            CallResult::Granted { .. } => self.grant(result),
            CallResult::Blocked { members, by } => {
                let named = |id: &Lsn| by.is_none_or(|by| by == *id);
                self.live.iter().any(|(id, lease)| named(id) && lease.conflicts_with(members))
            }
            CallResult::Rebound { .. } => self.rebind(result),
            CallResult::NotRebound(held, why) => self.rebind_refusal(*held) == Some(*why),
            CallResult::ReplayRefused(_) | CallResult::RequestMismatch => false,
            CallResult::Renewed { held, ttl, deadline } => self.renew(*held, *ttl, *deadline),
            CallResult::Released(_)
            | CallResult::NothingToRelease(_)
            | CallResult::ReleasedOrEnded(_)
            | CallResult::NotReleased(..) => self.release(result),
            CallResult::Committed { .. } | CallResult::Removed { .. } => self.write(result),
            CallResult::VersionConflict { write, found } => self.version_conflict(write, *found),
            CallResult::Refused { held, written, why } => self.authority(*held, *written) == Err(*why),
            CallResult::Revoking(lease) => self.revoke(*lease),
            CallResult::Reclaimed(lease) => self.reclaim(*lease),
            CallResult::NotRevoked(lease, state) => !self.is_revocable(*lease) && self.is(*lease, *state),
            CallResult::NotReclaimed(lease, state) => *state != State::Revoking && self.is(*lease, *state),
            CallResult::Read { resource, found, holders, .. } => {
                let shown = holders.as_ref().is_none_or(|holders| self.holders(*resource) == *holders);
                shown && self.read_document(*resource, *found)
            }
            CallResult::ReadLease { lease, state, .. } => self.is(*lease, *state),
        }
    }

    fn grant(&mut self, result: &CallResult) -> bool {
        let CallResult::Granted { lease, token, deadline, hold, members, .. } = result else { return false };
        let free = !self.live.values().any(|live| live.conflicts_with(members));
        let unused = !self.live.contains_key(lease) && !self.ended.contains_key(lease);
        let (token, deadline, hold, members) = (*token, *deadline, *hold, members.clone());
        let increasing = self.issue_token(&members, token);
        let (epoch, phase) = (Epoch::FIRST, LeasePhase::Active);
        self.live.insert(*lease, LiveLease { members, token, deadline, hold, epoch, phase });
        free && unused && increasing
    }

    /// A token must be above every earlier one of each of its resources.
    fn issue_token(&mut self, members: &Members, token: Token) -> bool {
        members.iter().all(|(resource, _)| std::mem::replace(&mut self.tokens[*resource], token) < token)
    }

    fn rebind(&mut self, result: &CallResult) -> bool {
        let CallResult::Rebound { held, epoch, token, deadline, .. } = result else { return false };
        let possible = self.rebind_refusal(*held).is_none() && epoch.0 == held.epoch.0 + 2;
        let Some(lease) = self.live.get_mut(&held.lease) else { return false };
        (lease.phase, lease.epoch) = (LeasePhase::Active, *epoch);
        (lease.token, lease.deadline) = (*token, *deadline);
        let members = lease.members.clone();
        possible && self.issue_token(&members, *token)
    }

    fn rebind_refusal(&self, held: Held) -> Option<CredentialRefusal> {
        match (self.authority(held, None), self.live.get(&held.lease)) {
            (Ok(()), _) => Some(CredentialRefusal::Live),
            (Err(CredentialRefusal::Expired), Some(lease)) => {
                (held.epoch != lease.epoch).then_some(CredentialRefusal::Expired)
            }
            (Err(why), _) => Some(why),
        }
    }

    /// Renewals never shorten.
    fn renew(&mut self, held: Held, ttl: Span, deadline: Time) -> bool {
        let possible = self.authority(held, None).is_ok() && self.now <= before(deadline, ttl);
        let Some(lease) = self.live.get_mut(&held.lease) else { return false };
        let earlier = std::mem::replace(&mut lease.deadline, deadline);
        possible && deadline >= earlier
    }

    fn release(&mut self, result: &CallResult) -> bool {
        let (CallResult::Released(held)
        | CallResult::NothingToRelease(held)
        | CallResult::ReleasedOrEnded(held)
        | CallResult::NotReleased(held, _)) = result
        else {
            return false;
        };
        let Some((state, issued)) = self.state_of(held.lease) else { return false };
        if let CallResult::NotReleased(_, why) = result {
            let superseded = state == State::Active && held.epoch < issued;
            let expected =
                if superseded { CredentialRefusal::StaleEpoch } else { CredentialRefusal::NotHeld };
            return held.epoch != issued && *why == expected;
        }
        let revoked = self.live.get(&held.lease).is_some_and(|lease| lease.phase == LeasePhase::Revoking);
        let frees = self.live.contains_key(&held.lease) && !revoked;
        if frees {
            self.end(held.lease, State::Released);
        }
        let shown = match result {
            CallResult::Released(_) => frees,
            CallResult::NothingToRelease(_) => !frees,
            _ => true,
        };
        shown && held.epoch == issued
    }

    /// A revoke frees nothing, and ends a hold's rebind.
    fn revoke(&mut self, lease: Lsn) -> bool {
        let possible = self.is_revocable(lease);
        if let Some(lease) = self.live.get_mut(&lease) {
            lease.phase = LeasePhase::Revoking;
        }
        possible
    }

    fn is_revocable(&self, lease: Lsn) -> bool {
        self.live.get(&lease).is_some_and(|lease| lease.phase != LeasePhase::Revoking)
    }

    fn reclaim(&mut self, lease: Lsn) -> bool {
        let end = match self.live.get(&lease).map(|lease| lease.phase) {
            Some(LeasePhase::Revoking) => State::Revoked,
            Some(LeasePhase::OnHold { .. }) => State::Expired,
            Some(LeasePhase::Active) | None => return false,
        };
        self.end(lease, end);
        true
    }

    fn end(&mut self, id: Lsn, how: State) {
        let Some(lease) = self.live.remove(&id) else { return };
        self.ended.insert(id, (how, lease.epoch));
        for (resource, _) in lease.members {
            self.drop_unused_entry(resource);
        }
    }

    /// Whether a credential has authority, also for writing this resource.
    fn authority(&self, held: Held, written: Option<ResourceNumber>) -> Result<(), CredentialRefusal> {
        let Some(lease) = self.live.get(&held.lease) else {
            return Err(match self.ended.get(&held.lease) {
                Some((State::Revoked, _)) => CredentialRefusal::Revoked,
                Some((State::Expired, _)) => CredentialRefusal::Expired,
                _ => CredentialRefusal::NotHeld,
            });
        };
        match lease.phase {
            LeasePhase::Revoking => Err(CredentialRefusal::Revoked),
            LeasePhase::OnHold { .. } => Err(CredentialRefusal::Expired),
            LeasePhase::Active if held.epoch < lease.epoch => Err(CredentialRefusal::StaleEpoch),
            LeasePhase::Active if held.epoch > lease.epoch => Err(CredentialRefusal::NotHeld),
            LeasePhase::Active if written.is_some_and(|written| !lease.may_write(written)) => {
                Err(CredentialRefusal::NotHeld)
            }
            LeasePhase::Active => Ok(()),
        }
    }

    /// The state of a lease, and the epoch issued last.
    fn state_of(&self, id: Lsn) -> Option<(State, Epoch)> {
        let live = self.live.get(&id).map(|lease| (lease.state(), lease.epoch));
        live.or_else(|| self.ended.get(&id).copied())
    }

    fn is(&self, id: Lsn, state: State) -> bool {
        self.state_of(id).is_some_and(|(found, _)| found == state)
    }

    fn is_covered(&self, resource: ResourceNumber) -> bool {
        self.live.values().any(|lease| lease.covers(resource))
    }

    fn holders(&self, resource: ResourceNumber) -> Vec<FoundHolder> {
        let covering = self.live.iter().filter(|(_, lease)| lease.covers(resource));
        covering
            .map(|(id, lease)| FoundHolder { lease: *id, token: lease.token, state: lease.state() })
            .collect()
    }
}

fn before(time: Time, span: Span) -> Time {
    Time(time.0.saturating_sub(span.0))
}
