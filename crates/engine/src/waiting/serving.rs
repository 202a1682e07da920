//! Hand-off: freed resources are offered to their waiters, in order, at bounded cost per turn.
//!
//! **Invariant.** Every waiter that freed resources could unblock is tried before a later waiter that conflicts with it,
//! and before its wait times out. Until it has been tried it keeps its queue position and blocks newcomers.
//!
//! **What would break it.** One release frees a key that 60,000 shared waiters can have. Granted in one batch, they
//! exceed what any log takes at once, and a refused append is fatal. So serving stops when half of the batch is used or
//! the turn's budget is spent, and the next turn continues after the last waiter that was tried.
//!
//! **Cost.** A freed member can only unblock waiters that conflict with it. A waiter that was tried blocks every later
//! waiter that conflicts with it, as a holder if it was granted and as an earlier waiter otherwise: queues whose waiters
//! conflict with it are skipped from there on. In a queue of exclusive waiters only the first is tried. Where a lease or
//! an earlier waiter blocks a member, it blocks all waiters for that member.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kernel::{Member, Namespace, Outcome, Rejection, Response};

use super::Waiting;
use super::budget::Work;
use super::queues::{QueueId, Ticket, Waiter, Waiters};
use super::verdict;
use crate::decider::{BATCH_BYTES, Decider};
use crate::decision::Decision;

/// Waiters are granted leases while a batch is smaller than this: the rest is for other commands.
const SERVE_BYTES: usize = BATCH_BYTES / 2;
/// The maximum number of waiters granted or refused in one batch.
const SERVE_MAX: usize = 4096;

/// Freed resources that have not been offered to all of their waiters yet.
pub(super) struct Serving {
    freed: VecDeque<Freed>,
    /// The number of the next entry.
    next: u64,
    /// Waiters granted or refused since the last batch was sealed.
    served_in_batch: usize,
    /// Whether grants to waiters may be logged.
    may_serve: bool,
}

/// Resources that became free, and how far their wait queues have been served.
struct Freed {
    /// Numbered in order.
    number: u64,
    namespace: Namespace,
    members: Vec<Member>,
    /// Waiters up to this one have been tried, or were not blocked by what left.
    tried: Option<Ticket>,
}

impl Default for Serving {
    fn default() -> Serving {
        Serving { freed: VecDeque::new(), next: 0, served_in_batch: 0, may_serve: true }
    }
}

impl Serving {
    pub(super) fn set_may_serve(&mut self, may_serve: bool) {
        self.may_serve = may_serve;
    }

    /// The batch was sealed.
    pub(super) fn begin_batch(&mut self) {
        self.served_in_batch = 0;
    }

    /// Drops all entries: there are no waiters.
    pub(super) fn clear(&mut self) {
        self.freed.clear();
    }

    /// The number that the next entry gets: all entries so far are before it.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Whether all entries before this number have been offered, or cannot be because there is no log space.
    pub(super) fn has_offered(&self, number: u64) -> bool {
        !self.may_serve || self.freed.front().is_none_or(|freed| freed.number >= number)
    }

    /// Whether freed resources have not been offered to all of their waiters, and there is log space for grants.
    pub(super) fn is_handing_off(&self) -> bool {
        self.may_serve && !self.freed.is_empty()
    }

    /// Whether a waiter can be tried in this batch.
    fn has_capacity(&self, decider: &Decider) -> bool {
        let has_capacity = decider.batch_bytes() < SERVE_BYTES && self.served_in_batch < SERVE_MAX;
        self.may_serve && (has_capacity || planted!(BatchUnbounded))
    }

    /// Whether the next turn would try a waiter.
    pub(super) fn can_continue(&self, decider: &Decider) -> bool {
        !self.freed.is_empty() && self.has_capacity(decider)
    }

    /// Adds freed resources, if they conflict with a waiter after `tried`.
    fn push(&mut self, waiters: &Waiters, namespace: &Namespace, members: &[Member], tried: Option<Ticket>) {
        let from = tried.map_or(Ticket::FIRST, Ticket::next);
        let mut queues = waiters.conflicting_queues(namespace, members);
        if queues.any(|queue| waiters.first_in(queue, from, Ticket::LAST).is_some()) {
            let (namespace, members) = (namespace.clone(), members.to_vec());
            self.freed.push_back(Freed { number: self.next, namespace, members, tried });
            self.next += 1;
        }
    }
}

/// The result of offering freed resources to one waiter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// It holds a lease now.
    Granted,
    /// An earlier waiter blocks it.
    Behind,
    /// Leases block it.
    Held,
    /// It left the queues without a lease.
    Left,
}

impl<R> Waiting<R> {
    /// Offers freed resources to their waiters while the batch has capacity and the budget lasts.
    pub(super) fn serve(&mut self, decider: &mut Decider) {
        self.note_freed(decider);
        while let Some(mut freed) = self.serving.freed.pop_front() {
            let complete = self.offer(decider, &mut freed);
            self.note_freed(decider);
            if !complete {
                if planted!(CursorRestarted) {
                    freed.tried = None;
                }
                self.serving.freed.push_front(freed);
                break;
            }
        }
        if self.queues.is_empty() {
            self.serving.clear();
        }
        decider.watch_freed(!self.queues.is_empty());
    }

    fn note_freed(&mut self, decider: &mut Decider) {
        for freed in decider.take_freed() {
            self.serving.push(&self.queues, &freed.namespace, &freed.members, None);
        }
    }

    /// Waiters behind one that left its queues may have been blocked by it alone.
    pub(super) fn note_departure(&mut self, ticket: Ticket, waiter: &Waiter) {
        let request = waiter.request();
        self.serving.push(&self.queues, &request.namespace, request.bundle.members(), Some(ticket));
    }

    /// Whether all waiters for these resources have been tried.
    fn offer(&mut self, decider: &mut Decider, freed: &mut Freed) -> bool {
        if self.budget.is_spent(Work::Serving) || !self.serving.has_capacity(decider) {
            return false;
        }
        let mut walk = Walk::new(&self.queues, &freed.namespace, &freed.members, freed.tried);
        let mut visits = 0;
        while let Some(ticket) = walk.next(&self.queues) {
            if self.budget.is_spent(Work::Serving) || !self.serving.has_capacity(decider) {
                return false;
            }
            self.budget.spend(Work::Serving, 1);
            visits += 1;
            freed.tried = Some(ticket);
            self.offer_to(decider, ticket, &mut walk);
        }
        // An entry without waiters is not free either.
        self.budget.spend(Work::Serving, usize::from(visits == 0));
        true
    }

    /// Offers freed resources to one waiter, and skips the queues of waiters that cannot be served after it.
    fn offer_to(&mut self, decider: &mut Decider, ticket: Ticket, walk: &mut Walk) {
        let Some(waiter) = self.queues.get(ticket) else { return };
        let request = waiter.request().clone();
        let offer = self.try_waiter(decider, ticket);
        if offer == Offer::Left {
            return;
        }
        let (namespace, members) = (&request.namespace, request.bundle.members());
        for queue in self.queues.conflicting_queues(namespace, members) {
            walk.skip(queue);
        }
        // The waiters for a member that is blocked are all blocked.
        for member in members {
            let queue = self.queues.queue_of(namespace, member).filter(|queue| walk.has(*queue));
            let is_blocked = || match offer {
                Offer::Behind => self.queues.is_behind(namespace, member, ticket),
                Offer::Held => verdict::is_held(decider, &request, member),
                Offer::Granted | Offer::Left => false,
            };
            if let Some(queue) = queue.filter(|_| is_blocked()) {
                walk.skip(queue);
            }
        }
    }

    /// Tries a waiter for the last time before it times out. `None` if the batch has no capacity for a grant.
    pub(super) fn offer_last(&mut self, decider: &mut Decider, ticket: Ticket) -> Option<Offer> {
        if !self.serving.may_serve || planted!(LastOfferSkipped) || !self.queues.is_next(ticket) {
            return Some(Offer::Behind);
        }
        self.serving.has_capacity(decider).then(|| self.try_waiter(decider, ticket))
    }

    /// Tries to grant a waiter its lease. Any outcome but a conflict ends its wait.
    fn try_waiter(&mut self, decider: &mut Decider, ticket: Ticket) -> Offer {
        let Some(waiter) = self.queues.get(ticket) else { return Offer::Left };
        if waiter.connection.is_closed() && !planted!(DisconnectedStillServed) {
            self.remove(ticket);
            self.parked.remove(ticket);
            return Offer::Left;
        }
        if !self.queues.is_next(ticket) {
            return Offer::Behind;
        }
        let outcome = decider.execute(decider.now(), &waiter.command, &waiter.origin, None);
        if matches!(outcome, Outcome::Rejected(Rejection::Conflict(_))) {
            return Offer::Held;
        }
        self.serving.served_in_batch += 1;
        let granted = match &outcome {
            Outcome::Applied(Response::Granted(granted), _) => Some(*granted),
            _ => None,
        };
        if granted.is_some() {
            let waiter = self.queues.remove(ticket).expect("it was just tried");
            self.note_attempt_granted(decider, &waiter.command);
        } else {
            self.remove(ticket);
        }
        self.settle(decider, ticket, Decision::Outcome(outcome));
        if let Some(granted) = granted {
            self.note_grant(granted.lease);
            return Offer::Granted;
        }
        Offer::Left
    }
}

/// A walk through the queues that conflict with freed resources, in order of tickets.
struct Walk {
    heads: BTreeSet<(Ticket, QueueId)>,
    queues: BTreeMap<QueueId, Ticket>,
    /// The last ticket returned, or where the walk began.
    after: Option<Ticket>,
}

impl Walk {
    fn new(waiters: &Waiters, namespace: &Namespace, freed: &[Member], after: Option<Ticket>) -> Walk {
        let mut walk = Walk { heads: BTreeSet::new(), queues: BTreeMap::new(), after };
        let from = after.map_or(Ticket::FIRST, Ticket::next);
        for queue in waiters.conflicting_queues(namespace, freed) {
            walk.advance(waiters, queue, from);
        }
        walk
    }

    fn advance(&mut self, waiters: &Waiters, queue: QueueId, from: Ticket) {
        if let Some(ticket) = waiters.first_in(queue, from, Ticket::LAST) {
            self.heads.insert((ticket, queue));
            self.queues.insert(queue, ticket);
        }
    }

    /// The next waiter.
    fn next(&mut self, waiters: &Waiters) -> Option<Ticket> {
        while let Some((ticket, queue)) = self.heads.pop_first() {
            self.queues.remove(&queue);
            self.advance(waiters, queue, ticket.next());
            // A bundle is in several queues.
            if self.after.is_none_or(|after| after < ticket) {
                self.after = Some(ticket);
                return Some(ticket);
            }
        }
        None
    }

    fn has(&self, queue: QueueId) -> bool {
        self.queues.contains_key(&queue)
    }

    /// Leaves out the rest of a queue.
    fn skip(&mut self, queue: QueueId) {
        if let Some(ticket) = self.queues.remove(&queue) {
            self.heads.remove(&(ticket, queue));
        }
    }
}
