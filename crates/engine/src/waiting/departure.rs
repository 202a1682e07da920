//! Waiters that leave without a grant: by timeout, disconnect, wait-die or shutdown.
//!
//! **Invariant.** A waiter does not time out before everything that was freed by its deadline has been offered to it, nor
//! while it could be granted its lease.
//!
//! **What would break it.** Two waiters are due at once, and the first, a bundle, blocked the second alone. If both time
//! out, the second is refused although nothing conflicts with it. So a waiter that nothing precedes is tried once more.

use kernel::{Conflict, LeaseId};

use super::admission::Requester;
use super::attempts::Attempt;
use super::budget::{VISITS_MAX, Work};
use super::connection::WaiterConnection;
use super::queues::{Ticket, Waiter};
use super::serving::Offer;
use super::verdict;
use super::{LeaseReply, Waiting};
use crate::decider::Decider;
use crate::decision::{ContentionOutcome, Decision, Unavailable};

/// A waiter that returned to its place, and how far the attempts behind it have been looked at.
#[derive(Clone, Copy)]
pub(super) struct ReturnedWaiter {
    place: Ticket,
    next: Ticket,
}

impl<R> Waiting<R> {
    /// The connection of a waiter has closed: the waiter is removed, now or in one of the next turns, and until then not
    /// granted anything.
    pub(crate) fn disconnect(&mut self, decider: &mut Decider, connection: &WaiterConnection) {
        connection.close();
        if let Some(ticket) = self.parked.of_connection(connection) {
            self.disconnected.push_back(ticket);
            self.remove_disconnected(decider);
        }
    }

    /// Removes all waiters at once, so that no removal serves another waiter. Their replies are
    /// [`Unavailable::Dismissed`].
    pub(crate) fn dismiss(&mut self, decider: &Decider) {
        let last = decider.now();
        let queues = std::mem::take(&mut self.queues);
        self.serving.clear();
        self.expiring.clear();
        self.disconnected.clear();
        self.new_leases.clear();
        self.returned.clear();
        let parked = self.parked.drain().filter_map(|(ticket, parked)| {
            Some((parked.to, queues.get(ticket).map(|waiter| waiter.attempt)?))
        });
        let searching = self.searches.drain(..).filter_map(|pending| match pending.requester {
            Requester::Queued(_) => None,
            Requester::Replying(to, _) => Some((to, pending.blocked.attempt)),
        });
        let dismissed = parked.chain(searching).map(|(to, attempt)| LeaseReply {
            to,
            reply: Err(Unavailable::Dismissed(Attempt { last, ..attempt })),
            request: None,
            waited: true,
        });
        self.replies.extend(dismissed);
    }

    /// A new or rebound lease: an attempt that is younger must not wait for it.
    pub(super) fn note_grant(&mut self, lease: LeaseId) {
        if !self.queues.is_empty() && !planted!(YoungerStays) {
            self.new_leases.push_back(lease);
        }
    }

    /// Refuses attempts that wait behind a new holder that is older than they are. Returns whether there were any.
    pub(super) fn refuse_younger(&mut self, decider: &Decider) -> bool {
        let mut removed = false;
        while let Some(id) = self.new_leases.front().copied() {
            let lease = decider.kernel().lease(id, decider.now()).ok().filter(|lease| lease.ended.is_none());
            while let Some(lease) = &lease
                && let Some(ticket) = self.queues.younger_attempt(&lease.namespace, &lease.members, lease.age)
            {
                if self.budget.is_spent(Work::Removing) {
                    return removed;
                }
                self.budget.spend(Work::Removing, 1);
                removed = true;
                let waiter = self.queues.get(ticket).expect("it was just found");
                let conflict = Conflict { holders: vec![lease.id], oldest: lease.age };
                let command = waiter.command.clone();
                let attempt = Attempt { last: decider.now(), ..waiter.attempt };
                let blocked = verdict::blocked(&self.queues, waiter.request(), attempt, ticket, conflict);
                self.refuse(decider, Requester::Queued(ticket), &command, blocked);
            }
            self.new_leases.pop_front();
        }
        removed
    }

    /// A waiter has returned to its place: attempts behind it must not wait for it, because it is older.
    pub(super) fn note_returned(&mut self, place: Ticket) {
        if !planted!(OvertakenStays) {
            self.returned.push_back(ReturnedWaiter { place, next: place.next() });
        }
    }

    /// Refuses attempts that a returned waiter has overtaken. Returns whether there were any.
    pub(super) fn refuse_overtaken(&mut self, decider: &Decider) -> bool {
        let mut removed = false;
        while let Some(ReturnedWaiter { place, next }) = self.returned.front().copied() {
            let Some((ticket, is_younger)) = self.queues.attempt_behind(place, next) else {
                self.returned.pop_front();
                continue;
            };
            if self.budget.is_spent(Work::Removing) {
                return removed;
            }
            self.budget.spend(Work::Removing, 1);
            self.returned[0].next = ticket.next();
            if let Some(blocked) =
                verdict::still_blocked(decider, &self.queues, ticket).filter(|_| is_younger)
            {
                removed = true;
                let command = self.queues.get(ticket).expect("it was just found").command.clone();
                self.refuse(decider, Requester::Queued(ticket), &command, blocked);
            }
        }
        removed
    }

    pub(super) fn remove_disconnected(&mut self, decider: &mut Decider) {
        while !self.budget.is_spent(Work::Removing)
            && let Some(ticket) = self.disconnected.pop_front()
        {
            // A retry may have taken its place with another connection.
            let is_closed = |waiter: &Waiter| waiter.connection.is_closed();
            if self.queues.get(ticket).is_some_and(is_closed) {
                self.budget.spend(Work::Removing, 1);
                self.remove(ticket);
                self.parked.remove(ticket);
            }
        }
        self.hand_off(decider);
    }

    /// Ends the waits whose deadline has passed, after everything that was freed by then has been offered to them.
    pub(super) fn end_waits(&mut self, decider: &mut Decider) {
        let now = decider.now();
        while self.expiring.len() < VISITS_MAX
            && let Some(ticket) = self.parked.take_due(now)
        {
            self.expiring.push_back((self.serving.next_number(), ticket));
        }
        while !self.budget.is_spent(Work::Removing)
            && let Some((number, ticket)) = self.expiring.front().copied()
            && self.serving.has_offered(number)
        {
            // A retry may have extended its deadline.
            if self.parked.is_due(ticket, now) {
                self.budget.spend(Work::Removing, 1);
                match self.offer_last(decider, ticket) {
                    Some(Offer::Granted | Offer::Left) => {}
                    Some(Offer::Behind | Offer::Held) => self.time_out(decider, ticket),
                    None => break,
                }
            }
            self.expiring.pop_front();
        }
        self.hand_off(decider);
    }

    fn time_out(&mut self, decider: &Decider, ticket: Ticket) {
        let Some(blocked) = verdict::still_blocked(decider, &self.queues, ticket) else { return };
        let command = self.queues.get(ticket).expect("it was just found").command.clone();
        self.note_contended(decider, &command, ContentionOutcome::TimedOut, &blocked);
        if !planted!(TimedOutStillGranted) {
            self.remove(ticket);
        }
        self.settle(decider, ticket, Decision::Blocked(Box::new(blocked)));
    }

    /// Removes a waiter without a grant: waiters behind it may have been blocked by it alone.
    pub(super) fn remove(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.queues.remove(ticket) {
            self.note_departure(ticket, &waiter);
        }
    }
}
