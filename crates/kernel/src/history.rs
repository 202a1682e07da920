//! Leases that have ended: readable for a while, then retired.
//!
//! They are kept in the order of their ends. Nothing here can become a live lease again.

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
    /// Of all of them.
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
    pub(crate) end: End,
    pub(crate) ended_at: Time,
    pub(crate) ended_lsn: Lsn,
    pub(crate) account: RowId<Account>,
    pub(crate) members: OneOrMany<Member>,
    pub(crate) details: Option<Box<Details>>,
    pub(crate) links: Links<EndedLease>,
    /// Among those of its namespace.
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
pub enum End {
    /// Its holder gave it back.
    Released,
    /// It ran out.
    Expired,
    /// An operator took it back.
    Revoked,
}

impl From<End> for State {
    fn from(end: End) -> State {
        match end {
            End::Released => State::Released,
            End::Expired => State::Expired,
            End::Revoked => State::Revoked,
        }
    }
}

/// What a grant may leave out, and mostly does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// What happens to the resources when the lease runs out.
    pub on_expiry: OnExpiry,
    /// The age of the attempt it was granted for.
    pub age: Option<Age>,
    /// The agent on whose behalf.
    pub agent: Option<AgentName>,
    /// The session.
    pub session: Option<SessionName>,
    /// For people to read.
    pub owner: Option<Owner>,
    /// Why it was wanted.
    pub reason: Option<Reason>,
    /// The holder's own.
    pub metadata: Option<Metadata>,
}

impl Details {
    /// Nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Details::default()
    }

    /// Folds it into the state's hash.
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

    /// `space`: the part of its namespace.
    pub(crate) fn push(&mut self, ended: EndedLease, ns: &mut Chain<EndedLease>) -> EndedRef {
        self.members += ended.members.as_slice().len();
        let id = self.rows.insert(ended);
        self.order.push(id, order_links_of, &mut self.rows);
        ns.push(id, namespace_links_of, &mut self.rows);
        id
    }

    /// The one that ended first.
    pub(crate) fn oldest(&self) -> Option<EndedRef> {
        self.order.head()
    }

    /// `space`: the part of its namespace.
    pub(crate) fn remove(&mut self, ended: EndedRef, ns: &mut Chain<EndedLease>) -> EndedLease {
        ns.unlink(ended, namespace_links_of, &mut self.rows);
        self.order.unlink(ended, order_links_of, &mut self.rows);
        let ended = self.rows.remove(ended);
        self.members -= ended.members.as_slice().len();
        ended
    }

    /// Is there more than may be kept?
    pub(crate) fn is_overfull(&self, limits: &Limits) -> bool {
        self.len() > limits.history_max as usize || self.members > limits.history_members_max as usize
    }

    /// Those of one namespace, in the order of their ends.
    pub(crate) fn of_namespace(&self, ns: Chain<EndedLease>) -> impl Iterator<Item = &EndedLease> {
        let order = core::iter::successors(ns.head(), |ended| self.rows[*ended].namespace_links.next());
        order.map(|ended| &self.rows[ended])
    }

    /// In the order of their ends.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &EndedLease> {
        let order = core::iter::successors(self.order.head(), |ended| self.rows[*ended].links.next());
        order.map(|ended| &self.rows[ended])
    }
}
