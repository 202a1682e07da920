//! One lease that covers resources: the row behind a lease id until it ends.
//!
//! Rows here are never terminal. A lease that ends moves to history, from where nothing leads back.

use alloc::boxed::Box;

use crate::chain::Links;
use crate::command::OnExpiry;
use crate::history::Details;
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
    /// Of its grant: with the shard, its public id.
    pub(crate) lsn: Lsn,
    pub(crate) epoch: Epoch,
    pub(crate) token: Token,
    pub(crate) granted_at: Time,
    pub(crate) ttl: Span,
    /// As far as the TTL reaches by the last renewal.
    pub(crate) ttl_until: Time,
    /// The grant, or the last commit or touch.
    pub(crate) active_at: Time,
    /// Authority ends once this has passed: `ttl_until`, or sooner by a quota.
    pub(crate) deadline: Time,
    pub(crate) phase: Phase,
    pub(crate) account: RowId<Account>,
    pub(crate) account_links: Links<Lease>,
    /// A quota made the deadline: what ends by it cannot be rebound.
    pub(crate) capped: bool,
    /// Renewed, activated, touched or written under: its grant cannot be retracted any more.
    pub(crate) used: bool,
    /// How many places it claims.
    pub(crate) weight: u32,
    pub(crate) members: OneOrMany<MemberRow>,
    /// What most leases have not.
    pub(crate) optional: Option<Box<OptionalFields>>,
}

/// What the row says; the deadline may already say otherwise, and then it is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Granted, and not yet activated.
    Reserved,
    /// The holder has authority.
    Active,
    /// Expired, and held for its holder.
    OnHold {
        /// The hold is over once this has passed.
        until: Time,
        /// The holder may take it back.
        rebindable: bool,
    },
    /// Revoked, and not yet reclaimed.
    Revoking,
}

/// A member as its lease keeps it.
#[derive(Clone, Copy)]
pub(crate) struct MemberRow {
    /// The resource, or the directory if `subtree`.
    pub(crate) node: RowId<Node>,
    pub(crate) predicate: Predicate,
    pub(crate) subtree: bool,
}

#[derive(Default)]
pub(crate) struct OptionalFields {
    pub(crate) details: Details,
    pub(crate) agent: Option<RowId<Agent>>,
    pub(crate) agent_links: Links<Lease>,
    pub(crate) session: Option<RowId<Session>>,
}

/// The end of authority, and whether a quota made it.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    ttl_until: Time,
    at: Time,
    capped: bool,
}

impl Deadline {
    /// `ttl_until`, or sooner by a quota's `cap`; never before `floor`, since nothing shortens a lease.
    pub(crate) fn new(ttl_until: Time, cap: Time, floor: Time) -> Deadline {
        Deadline { ttl_until, at: ttl_until.min(cap).max(floor), capped: cap <= ttl_until }
    }
}

/// One of something without a heap allocation, or several.
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

    /// How old it is: as its attempt, or else as its grant.
    pub(crate) fn age(&self) -> Age {
        let grant = Age { at: self.granted_at, tie: self.lsn.0 };
        self.optional.as_ref().and_then(|optional| optional.details.age).unwrap_or(grant)
    }

    /// How old wait-die takes it to be. What waits for an operator or for its own end waits for nobody
    /// else: no cycle can lead through it, and whoever meets it may wait.
    pub(crate) fn wait_age(&self) -> Age {
        match self.phase {
            Phase::Revoking
            | Phase::OnHold { until: Time::NEVER, .. }
            | Phase::OnHold { rebindable: false, .. } => Age::YOUNGEST,
            Phase::Reserved | Phase::Active | Phase::OnHold { .. } => self.age(),
        }
    }

    /// When the row has to change by itself, if ever.
    pub(crate) fn timer(&self) -> Option<Time> {
        match self.phase {
            Phase::Reserved | Phase::Active => Some(self.deadline),
            Phase::OnHold { until: Time::NEVER, .. } | Phase::Revoking => None,
            Phase::OnHold { until, .. } => Some(until),
        }
    }

    /// The state as the row has it; see [`Kernel::standing`](crate::Kernel) for what holds at a moment.
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

    /// Authority is over: the credential is worth nothing from here on.
    pub(crate) fn end_authority(&mut self) {
        assert!(self.epoch.is_authority(), "authority ends once: lsn={:?}", self.lsn);
        self.epoch = self.epoch.next();
    }
}
