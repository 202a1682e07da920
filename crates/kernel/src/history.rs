//! Ended leases: readable for a while, then discarded.
//!
//! They are kept in the order of their ends. An ended lease never becomes live again.

use alloc::boxed::Box;

use crate::bundle::Member;
use crate::chain::{Chain, Links};
use crate::command::OnExpiry;
use crate::lease::OneOrMany;
use crate::limits::Limits;
use crate::outcome::State;
use crate::party_rows::Account;
use crate::slab::{Id, Slab};
use crate::statehash::StateHash;
use crate::table::{RowId, fold};
use crate::text::{AgentName, Metadata, Owner, Reason, SessionName};
use crate::units::{Age, Epoch, Lsn, Span, Time, Token};

pub(crate) type EndedRef = Id<EndedLease>;

#[derive(Default)]
pub(crate) struct History {
    rows: Slab<EndedLease>,
    order: Chain<EndedLease>,
    /// The number of members of all ended leases.
    members: usize,
}

/// A lease that has ended.
pub(crate) struct EndedLease {
    pub(crate) lsn: Lsn,
    pub(crate) epoch: Epoch,
    pub(crate) token: Token,
    pub(crate) granted_at: Time,
    pub(crate) deadline: Time,
    pub(crate) ttl: Span,
    pub(crate) end: EndReason,
    pub(crate) ended_at: Time,
    pub(crate) ended_lsn: Lsn,
    pub(crate) account: RowId<Account>,
    pub(crate) members: OneOrMany<Member>,
    pub(crate) details: Option<Box<LeaseAttributes>>,
    pub(crate) links: Links<EndedLease>,
    /// Links in the chain of its namespace.
    pub(crate) namespace_links: Links<EndedLease>,
}

fn order_links_of(ended: &mut EndedLease) -> &mut Links<EndedLease> {
    &mut ended.links
}

fn namespace_links_of(ended: &mut EndedLease) -> &mut Links<EndedLease> {
    &mut ended.namespace_links
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndReason {
    /// Its holder released it.
    Released,
    /// It expired.
    Expired,
    /// An operator revoked and reclaimed it.
    Revoked,
}

impl From<EndReason> for State {
    fn from(end: EndReason) -> State {
        match end {
            EndReason::Released => State::Released,
            EndReason::Expired => State::Expired,
            EndReason::Revoked => State::Revoked,
        }
    }
}

/// Optional attributes of a lease, mostly unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseAttributes {
    /// When the resources become free after the lease has expired.
    pub on_expiry: OnExpiry,
    /// The age of the attempt that was granted.
    pub age: Option<Age>,
    /// The agent that uses the lease.
    pub agent: Option<AgentName>,
    /// The session that holds the lease.
    pub session: Option<SessionName>,
    /// The owner shown to people.
    pub owner: Option<Owner>,
    /// Why the holder wanted the resources.
    pub reason: Option<Reason>,
    /// Opaque data of the holder.
    pub metadata: Option<Metadata>,
}

impl LeaseAttributes {
    /// Whether no attribute is set.
    pub fn is_default(&self) -> bool {
        *self == LeaseAttributes::default()
    }

    /// Folds the attributes into the state hash.
    pub(crate) fn hash_into(&self, hash: &mut StateHash) {
        let expiry = match self.on_expiry {
            OnExpiry::Free => 0,
            OnExpiry::Manual => 1,
            OnExpiry::Hold(span) => 2 + span.0,
        };
        hash.word(expiry);
        hash.words(self.age.map_or([0, 0], |age| [age.at.0 + 1, age.tie]));
        let texts = [
            self.agent.as_ref().map(AgentName::as_str),
            self.session.as_ref().map(SessionName::as_str),
            self.owner.as_ref().map(Owner::as_str),
            self.reason.as_ref().map(Reason::as_str),
        ];
        for text in texts {
            hash.text(text.unwrap_or_default());
        }
        let metadata = self.metadata.as_ref().map_or(&[][..], Metadata::as_bytes);
        hash.word(
            metadata.iter().fold(metadata.len() as u64, |sum, byte| fold(sum ^ u64::from(*byte), PRIME)),
        );
    }
}

const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;

impl History {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn members(&self) -> usize {
        self.members
    }

    pub(crate) fn get(&self, ended: EndedRef) -> &EndedLease {
        &self.rows[ended]
    }

    /// `ns`: the chain of its namespace.
    pub(crate) fn push(&mut self, ended: EndedLease, ns: &mut Chain<EndedLease>) -> EndedRef {
        self.members += ended.members.as_slice().len();
        let id = self.rows.insert(ended);
        self.order.push(id, order_links_of, &mut self.rows);
        ns.push(id, namespace_links_of, &mut self.rows);
        id
    }

    /// The lease that ended first.
    pub(crate) fn oldest(&self) -> Option<EndedRef> {
        self.order.head()
    }

    /// `ns`: the chain of its namespace.
    pub(crate) fn remove(&mut self, ended: EndedRef, ns: &mut Chain<EndedLease>) -> EndedLease {
        ns.unlink(ended, namespace_links_of, &mut self.rows);
        self.order.unlink(ended, order_links_of, &mut self.rows);
        let ended = self.rows.remove(ended);
        self.members -= ended.members.as_slice().len();
        ended
    }

    /// Whether history exceeds its limits.
    pub(crate) fn is_overfull(&self, limits: &Limits) -> bool {
        self.len() > limits.history_max as usize || self.members > limits.history_members_max as usize
    }

    /// The ended leases of one namespace, in the order of their ends.
    pub(crate) fn of_namespace(&self, ns: Chain<EndedLease>) -> impl Iterator<Item = &EndedLease> {
        let order = core::iter::successors(ns.head(), |ended| self.rows[*ended].namespace_links.next());
        order.map(|ended| &self.rows[ended])
    }

    /// All ended leases, in the order of their ends.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &EndedLease> {
        let order = core::iter::successors(self.order.head(), |ended| self.rows[*ended].links.next());
        order.map(|ended| &self.rows[ended])
    }
}
