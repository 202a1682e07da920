//! One key as its clients see it: who holds it, and the document beside it. Not the kernel: a page of rules.
//!
//! Time is what answers tell of it. A state knows the least that the time can be; a call that tells its own
//! time must not be before that, and one that does not may have come at any moment after it: while a lease
//! lasted, or, as another possibility, just after its deadline.

use std::collections::BTreeMap;

use kernel::{Etag, Lsn, Span, State, Time, Token, Version};

use super::Model;

/// What was asked of a key, and what was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Acquire: granted.
    Granted {
        /// The lease.
        lease: Lsn,
        /// Its fencing token.
        token: Token,
        /// When.
        at: Time,
        /// Until when.
        deadline: Time,
    },
    /// Acquire: somebody is in the way; who, if it was said.
    Blocked(Option<Lsn>),
    /// Renew: it lasts until then.
    Renewed {
        /// The lease.
        lease: Lsn,
        /// For how long from then on.
        ttl: Span,
        /// Until when.
        deadline: Time,
    },
    /// Release: done.
    Released(Lsn),
    /// Release: there was nothing left to give back.
    NothingToRelease(Lsn),
    /// Commit: the document has this version now.
    Committed {
        /// Under which lease.
        lease: Lsn,
        /// On which condition.
        if_version: Option<Version>,
        /// The new content.
        etag: Etag,
        /// The new version.
        version: Version,
        /// Is the lease given back by it?
        release: bool,
    },
    /// Commit: the condition does not hold.
    VersionConflict {
        /// Under which lease.
        lease: Lsn,
        /// The condition.
        if_version: Version,
        /// What is so instead.
        found: (Version, Option<Etag>),
    },
    /// Renew or commit: the lease has ended like this, or is about to.
    Refused(Lsn, State),
    /// Revoke: done.
    Revoking(Lsn),
    /// Reclaim: done.
    Reclaimed(Lsn),
    /// Revoke: not from this state.
    NotRevoked(Lsn, State),
    /// Reclaim: not from this state.
    NotReclaimed(Lsn, State),
    /// The key, looked at.
    Read {
        /// When.
        at: Time,
        /// Its document.
        found: (Version, Option<Etag>),
        /// Who holds it, until when, and is that withdrawn?
        holder: Option<(Holder, Token)>,
    },
    /// A lease, looked at.
    ReadLease {
        /// When.
        at: Time,
        /// Which.
        lease: Lsn,
        /// Where it is in its life.
        state: State,
    },
}

/// Who holds the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Under which lease.
    pub lease: Lsn,
    /// Until when.
    pub deadline: Time,
    /// Its authority is withdrawn, and the key not yet free.
    pub revoking: bool,
}

/// What is known of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// It is not earlier than this.
    now: Time,
    holder: Option<Holder>,
    /// Of the last grant.
    token: Option<Token>,
    document: (Version, Option<Etag>),
    /// How leases ended.
    ended: BTreeMap<Lsn, State>,
}

/// The rules for one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyModel;

impl Model for KeyModel {
    type State = Key;
    type Op = Op;

    fn start(&self) -> Key {
        Key::default()
    }

    fn step(&self, key: &Key, op: &Op) -> Vec<Key> {
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

impl Key {
    fn active(&self) -> Option<Holder> {
        self.holder.filter(|holder| !holder.revoking)
    }

    /// The same key at a later moment.
    fn at(&self, now: Time) -> Key {
        let mut key = Key { now, ..self.clone() };
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

    /// What the call leaves behind, if it can be answered like this.
    fn after(mut self, op: &Op) -> Option<Key> {
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

    /// To nobody else's harm, and with a token above all before it.
    fn grant(&mut self, lease: Lsn, token: Token, deadline: Time) -> bool {
        let possible = self.holder.is_none() && self.token.is_none_or(|last| last < token);
        self.holder = Some(Holder { lease, deadline, revoking: false });
        self.token = Some(token);
        possible
    }

    /// A deadline that moved tells when that was: still in time.
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

    /// Withdrawn is withdrawn, whether or not the key is free yet.
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
    use crate::linear::{Call, explain};

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

    /// One after the other.
    fn in_turn(ops: Vec<Op>) -> bool {
        let numbered = ops.into_iter().zip((0..).step_by(2));
        at_once(numbered.map(|(op, n)| (n, n + 1, op)).collect())
    }

    fn at_once(calls: Vec<(u64, u64, Op)>) -> bool {
        let calls = calls.into_iter().map(|(asked, answered, op)| Call { op, asked, answered });
        explain(&KeyModel, calls.collect()).is_ok()
    }

    #[test]
    fn a_right_history_is_explained() {
        assert!(in_turn(vec![
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
    fn a_stale_read_is_not() {
        let until = |reading| vec![granted(5, 0), committed(5, None, 1, 1), Op::Released(Lsn(5)), reading];
        assert!(in_turn(until(read(3, 1, Some(1)))));
        assert!(!in_turn(until(read(3, 0, None))), "an old version");
        assert!(!in_turn(until(read(3, 1, Some(2)))), "another document");
        let held = Some((Holder { lease: Lsn(5), deadline: FAR, revoking: false }, Token(5)));
        let found = (Version(1), Some(Etag([1; 32])));
        assert!(!in_turn(until(Op::Read { at: Time(3), found, holder: held })), "a holder that has gone");
    }

    #[test]
    fn two_holders_are_not() {
        assert!(!in_turn(vec![granted(5, 0), granted(6, 1)]));
        assert!(!at_once(vec![(0, 3, granted(5, 0)), (1, 2, granted(6, 1))]), "not even at once");
        let reclaimed = vec![granted(5, 0), Op::Revoking(Lsn(5)), granted(6, 1), Op::Reclaimed(Lsn(5))];
        assert!(!in_turn(reclaimed), "a revoke frees nothing");
        let overlapping = vec![(0, 1, granted(5, 0)), (2, 5, granted(6, 1)), (3, 4, Op::Released(Lsn(5)))];
        assert!(at_once(overlapping), "who waits is granted it when it is free");
    }

    #[test]
    fn a_lost_update_is_not() {
        let both = |second| vec![granted(5, 0), committed(5, Some(0), 1, 1), second];
        assert!(!in_turn(both(committed(5, Some(0), 2, 1))));
        assert!(!in_turn(both(committed(5, None, 2, 1))), "a version that is used twice");
        assert!(in_turn(both(committed(5, Some(1), 2, 2))));
    }

    #[test]
    fn a_token_that_goes_back_is_not() {
        let then = |lease| vec![granted(5, 0), Op::Released(Lsn(5)), granted(lease, 1)];
        assert!(in_turn(then(6)));
        assert!(!in_turn(then(4)) && !in_turn(then(5)));
    }

    #[test]
    fn what_is_done_under_a_lease_that_ended_is_not() {
        for end in [Op::Released(Lsn(5)), Op::Revoking(Lsn(5))] {
            assert!(!in_turn(vec![granted(5, 0), end.clone(), committed(5, None, 1, 1)]));
            assert!(!in_turn(vec![granted(5, 0), end, Op::Refused(Lsn(5), State::Expired)]));
        }
        assert!(!in_turn(vec![granted(5, 0), Op::Refused(Lsn(5), State::Released)]), "it lasts");
        assert!(!in_turn(vec![Op::Blocked(None)]), "nobody is in the way");
    }

    #[test]
    fn a_lease_ends_after_its_deadline_and_not_before() {
        assert!(in_turn(vec![granted(5, 0), granted(6, 1001)]));
        assert!(!in_turn(vec![granted(5, 0), granted(6, 1000)]), "not in its last millisecond");
        let refused = |then| vec![granted(5, 0), Op::Refused(Lsn(5), State::Expired), then];
        assert!(in_turn(refused(read(1001, 0, None))));
        assert!(!in_turn(refused(read(1000, 0, None))), "what was refused before shows that it was over");
        assert!(!in_turn(refused(committed(5, None, 1, 1))), "over is over");
        let late = Op::Renewed { lease: Lsn(5), ttl: Span(1000), deadline: Time(2001) };
        assert!(!in_turn(vec![granted(5, 0), late]), "renewed when it had run out");
    }
}
