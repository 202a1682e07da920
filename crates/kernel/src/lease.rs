//! Live leases: one row per lease that covers resources, until it ends.
//!
//! Rows here are never terminal. A lease that ends moves to history and never returns.

use alloc::boxed::Box;

use crate::chain::Links;
use crate::command::OnExpiry;
use crate::history::LeaseAttributes;
use crate::node::Node;
use crate::outcome::State;
use crate::party_rows::{Account, Agent, Session};
use crate::predicate::Predicate;
use crate::slab::{Id, Slab};
use crate::table::RowId;
use crate::units::{Age, Epoch, Lsn, Span, Time, Token};

pub(crate) type Leases = Slab<Lease>;
pub(crate) type LeaseRef = Id<Lease>;

pub(crate) struct Lease {
    /// The LSN of its grant; with the shard, its public id.
    pub(crate) lsn: Lsn,
    pub(crate) epoch: Epoch,
    pub(crate) token: Token,
    pub(crate) granted_at: Time,
    pub(crate) ttl: Span,
    /// The end of the TTL, counted from the last renewal.
    pub(crate) ttl_until: Time,
    /// The time of the last commit or touch, or of the grant.
    pub(crate) active_at: Time,
    /// Authority ends when this time has passed: `ttl_until`, or earlier because of a quota.
    pub(crate) deadline: Time,
    pub(crate) phase: Phase,
    pub(crate) account: RowId<Account>,
    pub(crate) account_links: Links<Lease>,
    /// The deadline comes from a quota: a lease that expires by it cannot be rebound.
    pub(crate) capped: bool,
    /// The lease was renewed, activated, touched or written under: its grant can no longer be retracted.
    pub(crate) used: bool,
    /// The number of its claims.
    pub(crate) weight: u32,
    pub(crate) members: OneOrMany<MemberRow>,
    /// Fields that most leases do not have.
    pub(crate) optional: Option<Box<OptionalFields>>,
}

/// The phase stored in the row. It may be out of date: the deadlines take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Granted, not yet activated.
    Reserved,
    /// The holder has authority.
    Active,
    /// Expired, on hold for its holder.
    OnHold {
        /// The hold ends when this time has passed.
        until: Time,
        /// The holder may rebind the lease.
        rebindable: bool,
    },
    /// Revoked, not yet reclaimed.
    Revoking,
}

/// A member of a lease row.
#[derive(Clone, Copy)]
pub(crate) struct MemberRow {
    /// The resource, or the directory if `subtree`.
    pub(crate) node: RowId<Node>,
    pub(crate) predicate: Predicate,
    pub(crate) subtree: bool,
}

#[derive(Default)]
pub(crate) struct OptionalFields {
    pub(crate) details: LeaseAttributes,
    pub(crate) agent: Option<RowId<Agent>>,
    pub(crate) agent_links: Links<Lease>,
    pub(crate) session: Option<RowId<Session>>,
}

/// The end of authority, and whether it comes from a quota.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    ttl_until: Time,
    at: Time,
    capped: bool,
}

impl Deadline {
    /// `ttl_until`, or earlier because of a quota's `cap`; never before `floor`, because nothing shortens
    /// a lease.
    pub(crate) fn new(ttl_until: Time, cap: Time, floor: Time) -> Deadline {
        Deadline { ttl_until, at: ttl_until.min(cap).max(floor), capped: cap <= ttl_until }
    }
}

/// One or more values; a single one needs no heap allocation.
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Box<[T]>),
}

impl<T> OneOrMany<T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(one) => core::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }
}

impl<T> FromIterator<T> for OneOrMany<T> {
    /// The iterator must not be empty: a lease has at least one member.
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> OneOrMany<T> {
        let mut items = items.into_iter();
        let first = items.next().expect("a lease has at least one member");
        match items.next() {
            None => OneOrMany::One(first),
            Some(second) => OneOrMany::Many([first, second].into_iter().chain(items).collect()),
        }
    }
}

impl Lease {
    pub(crate) fn on_expiry(&self) -> OnExpiry {
        self.optional.as_ref().map_or(OnExpiry::Free, |optional| optional.details.on_expiry)
    }

    pub(crate) fn agent(&self) -> Option<RowId<Agent>> {
        self.optional.as_ref().and_then(|optional| optional.agent)
    }

    pub(crate) fn session(&self) -> Option<RowId<Session>> {
        self.optional.as_ref().and_then(|optional| optional.session)
    }

    /// The age of its attempt, or else of its grant.
    pub(crate) fn age(&self) -> Age {
        let grant = Age { at: self.granted_at, tie: self.lsn.0 };
        self.optional.as_ref().and_then(|optional| optional.details.age).unwrap_or(grant)
    }

    /// The age for wait-die. A lease that is waiting for an operator or for its own end waits for no other
    /// lease: no deadlock cycle can pass through it, and every attempt may wait for it.
    pub(crate) fn wait_age(&self) -> Age {
        match self.phase {
            Phase::Revoking
            | Phase::OnHold { until: Time::NEVER, .. }
            | Phase::OnHold { rebindable: false, .. } => Age::YOUNGEST,
            Phase::Reserved | Phase::Active | Phase::OnHold { .. } => self.age(),
        }
    }

    /// When time changes the row next, if ever.
    pub(crate) fn timer(&self) -> Option<Time> {
        match self.phase {
            Phase::Reserved | Phase::Active => Some(self.deadline),
            Phase::OnHold { until: Time::NEVER, .. } | Phase::Revoking => None,
            Phase::OnHold { until, .. } => Some(until),
        }
    }

    /// The state according to the row; see [`Kernel::effective_phase`](crate::Kernel) for the state at a
    /// given time.
    pub(crate) fn state(&self) -> State {
        match self.phase {
            Phase::Reserved => State::Reserved,
            Phase::Active => State::Active,
            Phase::OnHold { .. } | Phase::Revoking => State::Revoking,
        }
    }

    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.ttl_until = deadline.ttl_until;
        self.deadline = deadline.at;
        self.capped = deadline.capped;
    }

    /// Ends authority: the current credential is no longer valid.
    pub(crate) fn end_authority(&mut self) {
        assert!(self.epoch.is_authority(), "authority must not end twice: lsn={:?}", self.lsn);
        self.epoch = self.epoch.next();
    }
}
