//! A party's leases, threaded through the lease rows in the order of their grants.
//!
//! A lease joins a chain when it is granted and never again, so the order is that of lease ids.

use alloc::vec::Vec;

use crate::lease::{Lease, LeaseRef, Leases};

/// The two ends of a chain.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chain {
    head: Option<LeaseRef>,
    tail: Option<LeaseRef>,
}

/// A lease's neighbours in a chain.
#[derive(Clone, Copy, Default)]
pub(crate) struct Links {
    prev: Option<LeaseRef>,
    next: Option<LeaseRef>,
}

/// Which chain: picks a lease's links in it.
pub(crate) type Thread = fn(&mut Lease) -> &mut Links;

pub(crate) fn by_account(lease: &mut Lease) -> &mut Links {
    &mut lease.account_links
}

pub(crate) fn by_agent(lease: &mut Lease) -> &mut Links {
    &mut lease.extra.as_mut().expect("a lease with an agent has extras").agent_links
}

impl Chain {
    pub(crate) fn push(&mut self, lease: LeaseRef, thread: Thread, leases: &mut Leases) {
        *thread(&mut leases[lease]) = Links { prev: self.tail, next: None };
        match self.tail {
            Some(tail) => thread(&mut leases[tail]).next = Some(lease),
            None => self.head = Some(lease),
        }
        self.tail = Some(lease);
    }

    pub(crate) fn unlink(&mut self, lease: LeaseRef, thread: Thread, leases: &mut Leases) {
        let links = core::mem::take(thread(&mut leases[lease]));
        match links.prev {
            Some(prev) => thread(&mut leases[prev]).next = links.next,
            None => self.head = links.next,
        }
        match links.next {
            Some(next) => thread(&mut leases[next]).prev = links.prev,
            None => self.tail = links.prev,
        }
    }

    /// The first so many.
    pub(crate) fn take(self, most: usize, thread: Thread, leases: &mut Leases) -> Vec<LeaseRef> {
        core::iter::successors(self.head, |lease| thread(&mut leases[*lease]).next).take(most).collect()
    }
}
