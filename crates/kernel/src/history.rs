//! Leases that have ended: readable for a while, then retired.
//!
//! They are kept in the order of their ends. Nothing here can become a live lease again.

use alloc::boxed::Box;

use crate::bundle::Member;
use crate::chain::{Chain, Links};
use crate::command::OnExpiry;
use crate::lease::Few;
use crate::limits::Limits;
use crate::outcome::State;
use crate::party_rows::Account;
use crate::slab::{Id, Slab};
use crate::statehash::StateHash;
use crate::table::{RowId, fold};
use crate::text::{AgentName, Metadata, Owner, Reason, SessionName};
use crate::units::{Age, Epoch, Lsn, Span, Time, Token};

pub(crate) type PastRef = Id<Past>;

#[derive(Default)]
pub(crate) struct History {
    rows: Slab<Past>,
    order: Chain<Past>,
    /// Of all of them.
    members: usize,
}

/// A lease that has ended.
pub(crate) struct Past {
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
    pub(crate) members: Few<Member>,
    pub(crate) details: Option<Box<Details>>,
    pub(crate) links: Links<Past>,
    /// Among those of its namespace.
    pub(crate) space_links: Links<Past>,
}

fn by_end(past: &mut Past) -> &mut Links<Past> {
    &mut past.links
}

fn by_space(past: &mut Past) -> &mut Links<Past> {
    &mut past.space_links
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
    pub(crate) fn note(&self, hash: &mut StateHash) {
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

    pub(crate) fn get(&self, past: PastRef) -> &Past {
        &self.rows[past]
    }

    /// `space`: the part of its namespace.
    pub(crate) fn push(&mut self, past: Past, space: &mut Chain<Past>) -> PastRef {
        self.members += past.members.as_slice().len();
        let id = self.rows.insert(past);
        self.order.push(id, by_end, &mut self.rows);
        space.push(id, by_space, &mut self.rows);
        id
    }

    /// The one that ended first.
    pub(crate) fn oldest(&self) -> Option<PastRef> {
        self.order.head()
    }

    /// `space`: the part of its namespace.
    pub(crate) fn remove(&mut self, past: PastRef, space: &mut Chain<Past>) -> Past {
        space.unlink(past, by_space, &mut self.rows);
        self.order.unlink(past, by_end, &mut self.rows);
        let past = self.rows.remove(past);
        self.members -= past.members.as_slice().len();
        past
    }

    /// Is there more than may be kept?
    pub(crate) fn is_overfull(&self, limits: &Limits) -> bool {
        self.len() > limits.history_max as usize || self.members > limits.history_members_max as usize
    }

    /// Those of one namespace, in the order of their ends.
    pub(crate) fn of_space(&self, space: Chain<Past>) -> impl Iterator<Item = &Past> {
        let order = core::iter::successors(space.head(), |past| self.rows[*past].space_links.next());
        order.map(|past| &self.rows[past])
    }

    /// In the order of their ends.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Past> {
        let order = core::iter::successors(self.order.head(), |past| self.rows[*past].links.next());
        order.map(|past| &self.rows[past])
    }
}
