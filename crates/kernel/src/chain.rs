//! Intrusive doubly linked lists of slab rows, in insertion order: a party's leases, history.
//!
//! A lease joins its parties' chains only when it is granted, so their order is that of lease ids; an
//! ended lease joins history when it ends.

use alloc::vec::Vec;

use crate::lease::Lease;
use crate::slab::{Id, Slab};

/// The head and tail of a chain.
pub(crate) struct Chain<T> {
    head: Option<Id<T>>,
    tail: Option<Id<T>>,
}

/// A row's neighbours in a chain.
pub(crate) struct Links<T> {
    prev: Option<Id<T>>,
    next: Option<Id<T>>,
}

/// Selects a chain: returns a row's links in it.
pub(crate) type LinksOf<T> = fn(&mut T) -> &mut Links<T>;

pub(crate) fn account_links_of(lease: &mut Lease) -> &mut Links<Lease> {
    &mut lease.account_links
}

pub(crate) fn agent_links_of(lease: &mut Lease) -> &mut Links<Lease> {
    &mut lease.optional.as_mut().expect("a lease with an agent has optional fields").agent_links
}

impl<T> Chain<T> {
    pub(crate) fn push(&mut self, row: Id<T>, links_of: LinksOf<T>, rows: &mut Slab<T>) {
        *links_of(&mut rows[row]) = Links { prev: self.tail, next: None };
        match self.tail {
            Some(tail) => links_of(&mut rows[tail]).next = Some(row),
            None => self.head = Some(row),
        }
        self.tail = Some(row);
    }

    pub(crate) fn unlink(&mut self, row: Id<T>, links_of: LinksOf<T>, rows: &mut Slab<T>) {
        let links = core::mem::take(links_of(&mut rows[row]));
        match links.prev {
            Some(prev) => links_of(&mut rows[prev]).next = links.next,
            None => self.head = links.next,
        }
        match links.next {
            Some(next) => links_of(&mut rows[next]).prev = links.prev,
            None => self.tail = links.prev,
        }
    }

    pub(crate) fn head(self) -> Option<Id<T>> {
        self.head
    }

    /// The first `most` rows.
    pub(crate) fn take(self, most: usize, links_of: LinksOf<T>, rows: &mut Slab<T>) -> Vec<Id<T>> {
        core::iter::successors(self.head, |row| links_of(&mut rows[*row]).next).take(most).collect()
    }
}

impl<T> Links<T> {
    pub(crate) fn next(&self) -> Option<Id<T>> {
        self.next
    }
}

impl<T> Default for Chain<T> {
    fn default() -> Chain<T> {
        Chain { head: None, tail: None }
    }
}

impl<T> Clone for Chain<T> {
    fn clone(&self) -> Chain<T> {
        *self
    }
}

impl<T> Copy for Chain<T> {}

impl<T> Default for Links<T> {
    fn default() -> Links<T> {
        Links { prev: None, next: None }
    }
}
