//! A sequential model of one key as clients see it: its holder and its document. Independent of the kernel.
//!
//! Time is known only from responses. A state has a lower bound of the time. A call with a time stamp must not be below
//! it; a call without one may have happened at any later time: while the lease lasted or, as a second possibility, just
//! after its deadline.

use std::collections::BTreeMap;

use kernel::{Etag, Lsn, Span, State, Time, Token, Version};

use super::SequentialModel;

/// A call on a key, with its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Acquire succeeded.
    Granted {
        /// The lease.
        lease: Lsn,
        /// Its fencing token.
        token: Token,
        /// The time of the grant.
        at: Time,
        /// The deadline.
        deadline: Time,
    },
    /// Acquire failed with a conflict; the conflicting lease, if the response named it.
    Blocked(Option<Lsn>),
    /// Renew succeeded.
    Renewed {
        /// The lease.
        lease: Lsn,
        /// The TTL, from the time of the renewal.
        ttl: Span,
        /// The new deadline.
        deadline: Time,
    },
    /// Release succeeded.
    Released(Lsn),
    /// Release of a lease that had already ended.
    NothingToRelease(Lsn),
    /// Commit succeeded.
    Committed {
        /// The lease.
        lease: Lsn,
        /// The condition.
        if_version: Option<Version>,
        /// The new content.
        etag: Etag,
        /// The new version.
        version: Version,
        /// Whether the commit also released the lease.
        release: bool,
    },
    /// Commit failed: the condition does not hold.
    VersionConflict {
        /// The lease.
        lease: Lsn,
        /// The condition.
        if_version: Version,
        /// The current version and etag.
        found: (Version, Option<Etag>),
    },
    /// Renew or commit failed: the lease has ended, or is being revoked.
    Refused(Lsn, State),
    /// Revoke succeeded.
    Revoking(Lsn),
    /// Reclaim succeeded.
    Reclaimed(Lsn),
    /// Revoke failed: the lease is in this state.
    NotRevoked(Lsn, State),
    /// Reclaim failed: the lease is in this state.
    NotReclaimed(Lsn, State),
    /// A read of the key.
    Read {
        /// The time of the read.
        at: Time,
        /// The version and etag of its document.
        found: (Version, Option<Etag>),
        /// Its holder, if any, and the holder's token.
        holder: Option<(Holder, Token)>,
    },
    /// A read of a lease.
    ReadLease {
        /// The time of the read.
        at: Time,
        /// The lease.
        lease: Lsn,
        /// Its state.
        state: State,
    },
}

/// The holder of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The lease.
    pub lease: Lsn,
    /// Its deadline.
    pub deadline: Time,
    /// The lease is revoked, and the key not yet reclaimed.
    pub revoking: bool,
}

/// The state of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyState {
    /// A lower bound of the time.
    now: Time,
    holder: Option<Holder>,
    /// The token of the last grant.
    token: Option<Token>,
    document: (Version, Option<Etag>),
    /// Final states of ended leases.
    ended: BTreeMap<Lsn, State>,
}

/// The rules for one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyModel;

impl SequentialModel for KeyModel {
    type State = KeyState;
    type Op = Op;

    fn start(&self) -> KeyState {
        KeyState::default()
    }

    fn step(&self, key: &KeyState, op: &Op) -> Vec<KeyState> {
        let now = key.now;
        let moments = match op {
            Op::Granted { at, .. } | Op::Read { at, .. } | Op::ReadLease { at, .. } => [Some(*at), None],
            _ => {
                [Some(now), key.active().map(|holder| Time(holder.deadline.0 + 1)).filter(|over| *over > now)]
            }
        };
        let possible = moments.into_iter().flatten().filter(|at| *at >= now);
        possible.filter_map(|at| key.at(at).after(op)).collect()
    }
}

impl KeyState {
    fn active(&self) -> Option<Holder> {
        self.holder.filter(|holder| !holder.revoking)
    }

    /// The key at a later time.
    fn at(&self, now: Time) -> KeyState {
        let mut key = KeyState { now, ..self.clone() };
        if let Some(over) = key.active().filter(|holder| now > holder.deadline) {
            key.end(over.lease, State::Expired);
        }
        key
    }

    fn end(&mut self, lease: Lsn, how: State) {
        self.holder = None;
        self.ended.insert(lease, how);
    }

    fn state_of(&self, lease: Lsn) -> Option<State> {
        match self.holder.filter(|holder| holder.lease == lease) {
            Some(holder) if holder.revoking => Some(State::Revoking),
            Some(_) => Some(State::Active),
            None => self.ended.get(&lease).copied(),
        }
    }

    fn is(&self, lease: Lsn, state: State) -> bool {
        self.state_of(lease) == Some(state)
    }

    /// The state after the call, if it can have this response.
    fn after(mut self, op: &Op) -> Option<KeyState> {
        let possible = match op {
            Op::Granted { lease, token, deadline, .. } => self.grant(*lease, *token, *deadline),
            Op::Blocked(by) => self.holder.is_some_and(|holder| by.is_none_or(|lease| lease == holder.lease)),
            Op::Renewed { lease, ttl, deadline } => self.renew(*lease, *ttl, *deadline),
            Op::Released(lease) => self.leave(*lease, State::Active, State::Released),
            Op::NothingToRelease(lease) => self.state_of(*lease).is_some_and(|state| state != State::Active),
            Op::Committed { .. } => self.commit(op),
            Op::VersionConflict { lease, if_version, found } => {
                self.is(*lease, State::Active) && self.document == *found && found.0 != *if_version
            }
            Op::Refused(lease, why) => self.refuses(*lease, *why),
            Op::Revoking(lease) => self.revoke(*lease),
            Op::Reclaimed(lease) => self.leave(*lease, State::Revoking, State::Revoked),
            Op::NotRevoked(lease, state) => *state != State::Active && self.is(*lease, *state),
            Op::NotReclaimed(lease, state) => *state != State::Revoking && self.is(*lease, *state),
            Op::Read { found, holder, .. } => {
                let holds = self.holder.zip(self.token);
                self.document == *found && holds == *holder
            }
            Op::ReadLease { lease, state, .. } => self.is(*lease, *state),
        };
        possible.then_some(self)
    }

    /// Possible if the key is free and the token is above all earlier ones.
    fn grant(&mut self, lease: Lsn, token: Token, deadline: Time) -> bool {
        let possible = self.holder.is_none() && self.token.is_none_or(|last| last < token);
        self.holder = Some(Holder { lease, deadline, revoking: false });
        self.token = Some(token);
        possible
    }

    /// A deadline that moved gives the time of the renewal, which must be before the old deadline.
    fn renew(&mut self, lease: Lsn, ttl: Span, deadline: Time) -> bool {
        let Some(holder) = self.holder.as_mut().filter(|holder| holder.lease == lease && !holder.revoking)
        else {
            return false;
        };
        let before = std::mem::replace(&mut holder.deadline, deadline);
        let at = Time(deadline.0.saturating_sub(ttl.0));
        if deadline == before {
            return self.now <= at;
        }
        let in_time = deadline > before && self.now <= at && at <= before;
        self.now = at;
        in_time
    }

    fn leave(&mut self, lease: Lsn, from: State, how: State) -> bool {
        let possible = self.is(lease, from);
        self.end(lease, how);
        possible
    }

    fn revoke(&mut self, lease: Lsn) -> bool {
        let possible = self.is(lease, State::Active);
        self.holder = self.holder.map(|holder| Holder { revoking: true, ..holder });
        possible
    }

    fn commit(&mut self, op: &Op) -> bool {
        let Op::Committed { lease, if_version, etag, version, release } = op else { return false };
        let possible = self.is(*lease, State::Active)
            && if_version.is_none_or(|expected| expected == self.document.0)
            && version.0 == self.document.0.0 + 1;
        self.document = (*version, Some(*etag));
        if *release {
            self.end(*lease, State::Released);
        }
        possible
    }

    /// A revoked lease is reported as revoked, whether or not the key is reclaimed yet.
    fn refuses(&self, lease: Lsn, why: State) -> bool {
        match self.state_of(lease) {
            Some(State::Revoking | State::Revoked) => why == State::Revoked,
            Some(State::Active) | None => false,
            Some(state) => state == why,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linearizability::{Call, explain};

    const FAR: Time = Time(1000);

    fn granted(lease: u64, at: u64) -> Op {
        let deadline = Time(at).after(Span(1000));
        Op::Granted { lease: Lsn(lease), token: Token(lease), at: Time(at), deadline }
    }

    fn committed(lease: u64, if_version: Option<u64>, content: u8, version: u64) -> Op {
        let (if_version, version) = (if_version.map(Version), Version(version));
        Op::Committed { lease: Lsn(lease), if_version, etag: Etag([content; 32]), version, release: false }
    }

    fn read(at: u64, version: u64, content: Option<u8>) -> Op {
        let found = (Version(version), content.map(|content| Etag([content; 32])));
        Op::Read { at: Time(at), found, holder: None }
    }

    /// Checks calls that do not overlap.
    fn sequential(ops: Vec<Op>) -> bool {
        let numbered = ops.into_iter().zip((0..).step_by(2));
        concurrent(numbered.map(|(op, n)| (n, n + 1, op)).collect())
    }

    fn concurrent(calls: Vec<(u64, u64, Op)>) -> bool {
        let calls = calls.into_iter().map(|(invoked, returned, op)| Call { op, invoked, returned });
        explain(&KeyModel, calls.collect()).is_ok()
    }

    #[test]
    fn a_valid_history_is_linearizable() {
        assert!(sequential(vec![
            read(0, 0, None),
            granted(5, 0),
            Op::Blocked(Some(Lsn(5))),
            committed(5, Some(0), 1, 1),
            Op::VersionConflict {
                lease: Lsn(5),
                if_version: Version(0),
                found: (Version(1), Some(Etag([1; 32])))
            },
            Op::Renewed { lease: Lsn(5), ttl: Span(1000), deadline: Time(1007) },
            Op::Revoking(Lsn(5)),
            Op::Refused(Lsn(5), State::Revoked),
            Op::Blocked(None),
            Op::Reclaimed(Lsn(5)),
            Op::NotReclaimed(Lsn(5), State::Revoked),
            granted(9, 7),
            Op::Released(Lsn(9)),
            Op::NothingToRelease(Lsn(9)),
            Op::Refused(Lsn(9), State::Released),
            read(8, 1, Some(1)),
        ]));
    }

    #[test]
    fn a_stale_read_is_not_linearizable() {
        let until = |reading| vec![granted(5, 0), committed(5, None, 1, 1), Op::Released(Lsn(5)), reading];
        assert!(sequential(until(read(3, 1, Some(1)))));
        assert!(!sequential(until(read(3, 0, None))), "an old version");
        assert!(!sequential(until(read(3, 1, Some(2)))), "another document");
        let held = Some((Holder { lease: Lsn(5), deadline: FAR, revoking: false }, Token(5)));
        let found = (Version(1), Some(Etag([1; 32])));
        assert!(
            !sequential(until(Op::Read { at: Time(3), found, holder: held })),
            "a holder that has released"
        );
    }

    #[test]
    fn two_holders_are_not_linearizable() {
        assert!(!sequential(vec![granted(5, 0), granted(6, 1)]));
        assert!(!concurrent(vec![(0, 3, granted(5, 0)), (1, 2, granted(6, 1))]), "not even at once");
        let reclaimed = vec![granted(5, 0), Op::Revoking(Lsn(5)), granted(6, 1), Op::Reclaimed(Lsn(5))];
        assert!(!sequential(reclaimed), "a revoke frees nothing");
        let overlapping = vec![(0, 1, granted(5, 0)), (2, 5, granted(6, 1)), (3, 4, Op::Released(Lsn(5)))];
        assert!(concurrent(overlapping), "a waiter is granted the key when it is released");
    }

    #[test]
    fn a_lost_update_is_not_linearizable() {
        let both = |second| vec![granted(5, 0), committed(5, Some(0), 1, 1), second];
        assert!(!sequential(both(committed(5, Some(0), 2, 1))));
        assert!(!sequential(both(committed(5, None, 2, 1))), "the same version twice");
        assert!(sequential(both(committed(5, Some(1), 2, 2))));
    }

    #[test]
    fn a_decreasing_token_is_not_linearizable() {
        let then = |lease| vec![granted(5, 0), Op::Released(Lsn(5)), granted(lease, 1)];
        assert!(sequential(then(6)));
        assert!(!sequential(then(4)) && !sequential(then(5)));
    }

    #[test]
    fn a_commit_under_an_ended_lease_is_not_linearizable() {
        for end in [Op::Released(Lsn(5)), Op::Revoking(Lsn(5))] {
            assert!(!sequential(vec![granted(5, 0), end.clone(), committed(5, None, 1, 1)]));
            assert!(!sequential(vec![granted(5, 0), end, Op::Refused(Lsn(5), State::Expired)]));
        }
        assert!(!sequential(vec![granted(5, 0), Op::Refused(Lsn(5), State::Released)]), "it is still active");
        assert!(!sequential(vec![Op::Blocked(None)]), "the key is free");
    }

    #[test]
    fn a_lease_ends_after_its_deadline_and_not_before() {
        assert!(sequential(vec![granted(5, 0), granted(6, 1001)]));
        assert!(!sequential(vec![granted(5, 0), granted(6, 1000)]), "not in its last millisecond");
        let refused = |then| vec![granted(5, 0), Op::Refused(Lsn(5), State::Expired), then];
        assert!(sequential(refused(read(1001, 0, None))));
        assert!(!sequential(refused(read(1000, 0, None))), "the earlier rejection shows that it had expired");
        assert!(!sequential(refused(committed(5, None, 1, 1))), "it stays expired");
        let late = Op::Renewed { lease: Lsn(5), ttl: Span(1000), deadline: Time(2001) };
        assert!(!sequential(vec![granted(5, 0), late]), "renewed after it expired");
    }
}
