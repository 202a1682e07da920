//! The wait queues: requests for leases that wait for conflicting leases to end, in order of arrival.
//!
//! **Invariant.** No waiter is served before an earlier waiter that it conflicts with. A bundle waits as a
//! whole: it holds nothing until it is granted, and is in the queue of each of its claims.
//!
//! **What would break it.** `A` waits for `x` and `y`; `x` is freed, and `B`, a later request, wants `x`
//! alone. If `B` were granted `x` because `A` cannot use it yet, a stream of such requests would starve `A`.
//! So a waiter blocks later conflicting requests as a holder does.
//!
//! Waiters are volatile: neither the kernel nor the log contains them. Freeing a resource visits the waiters
//! that it serves, and stops at the first exclusive waiter that it cannot serve, which blocks the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use kernel::{
    Action, Age, Bundle, ClaimSetKind, Command, Identity, LeaseRequest, Member, Namespace, Predicate,
    ResourceName, SessionName,
};

use crate::connection::WaiterConnection;

/// A waiter's number, in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A request for a lease that waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The command to apply when it is served: an acquire or a reserve.
    pub command: Command,
    /// The correlation ID of its request.
    pub correlation: u128,
    /// Its age under wait-die.
    pub age: Age,
    /// Set when its connection closes: it is then removed instead of served.
    pub connection: WaiterConnection,
}

/// The result of offering freed resources to one waiter.
pub enum ServeResult<T> {
    /// It leaves the queue with this.
    Served(T),
    /// Leases or earlier waiters still conflict with it.
    Blocked,
    /// Not tried: neither it nor the waiters behind it, until later.
    Postponed,
}

/// A session, with the namespace and the identity that its name is unique in.
pub type Session = (Namespace, Identity, SessionName);

/// The lease request of an acquire or a reserve.
pub fn lease_request_of(command: &Command) -> Option<&LeaseRequest> {
    match &command.action {
        Action::Acquire(request) | Action::Reserve(request) => Some(request),
        _ => None,
    }
}

/// The session of an acquire or a reserve, if it names one.
pub fn session_of(command: &Command) -> Option<Session> {
    let request = lease_request_of(command)?;
    Some((request.namespace.clone(), command.identity.clone()?, request.session.clone()?))
}

impl Waiter {
    /// Its lease request.
    pub fn grant(&self) -> &LeaseRequest {
        lease_request_of(&self.command).expect("every waiter is an acquire or a reserve")
    }

    /// Whether it is subject to wait-die.
    fn is_attempt(&self) -> bool {
        self.grant().attempt.is_some()
    }
}

/// All waiters of a shard.
#[derive(Default)]
pub struct Waiters {
    next: u64,
    waiting: BTreeMap<Ticket, Waiter>,
    queues: BTreeMap<Namespace, BTreeMap<String, QueuesByClaim>>,
    sessions: BTreeMap<Session, BTreeSet<Ticket>>,
}

/// The queues of a name: one per claim set and predicate.
type QueuesByClaim = BTreeMap<(ClaimSetKind, Predicate), Queue>;

/// The waiters in one claim set with one predicate.
#[derive(Default)]
pub(crate) struct Queue {
    /// Unique among all queues that ever existed.
    pub(crate) id: u64,
    pub(crate) order: BTreeSet<Ticket>,
    ages: BTreeSet<(Age, Ticket)>,
    /// The waiters among them that are subject to wait-die.
    attempts: BTreeSet<(Age, Ticket)>,
}

impl Waiters {
    /// The largest queue position that is counted.
    pub const COUNT_MAX: usize = 100;

    /// The number of waiters.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Appends a waiter to the queue of each of its claims.
    pub fn push(&mut self, waiter: Waiter) -> Ticket {
        let ticket = Ticket(if planted!(Lifo) { u64::MAX / 2 - self.next } else { self.next });
        self.next += 1;
        let request = waiter.grant();
        let names = self.queues.entry(request.namespace.clone()).or_default();
        for (name, kind, predicate) in claims(&request.bundle) {
            let queues = names.entry(name.to_string()).or_default();
            let new = Queue { id: self.next, ..Queue::default() };
            self.next += 1;
            let queue = queues.entry((kind, predicate)).or_insert(new);
            queue.order.insert(ticket);
            queue.ages.insert((waiter.age, ticket));
            if waiter.is_attempt() {
                queue.attempts.insert((waiter.age, ticket));
            }
        }
        if let Some(session) = session_of(&waiter.command) {
            self.sessions.entry(session).or_default().insert(ticket);
        }
        self.waiting.insert(ticket, waiter);
        ticket
    }

    /// Removes a waiter from all its queues: it was served, timed out, or its connection closed.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiting.remove(&ticket)?;
        let request = waiter.grant();
        if let Some(names) = self.queues.get_mut(&request.namespace) {
            for (name, kind, predicate) in claims(&request.bundle) {
                remove_from_queue(names, name, (kind, predicate), (waiter.age, ticket));
            }
            if names.is_empty() {
                self.queues.remove(&request.namespace);
            }
        }
        self.remove_from_session(&waiter, ticket);
        Some(waiter)
    }

    fn remove_from_session(&mut self, waiter: &Waiter, ticket: Ticket) {
        let Some(session) = session_of(&waiter.command) else { return };
        if let Some(tickets) = self.sessions.get_mut(&session) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }

    /// The waiter with this ticket.
    pub fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiting.get(&ticket)
    }

    /// Replaces the connection of a waiter: `gone` is set when the new one closes.
    pub fn reattach(&mut self, ticket: Ticket, connection: WaiterConnection) {
        if let Some(waiter) = self.waiting.get_mut(&ticket) {
            waiter.connection = connection;
        }
    }

    /// The waiters of a session.
    pub fn of_session(&self, session: &Session) -> impl Iterator<Item = Ticket> {
        self.sessions.get(session).into_iter().flatten().copied()
    }

    /// The waiters after `after`, in order of arrival.
    pub fn iter_after(&self, after: Option<Ticket>) -> impl Iterator<Item = (Ticket, &Waiter)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).map(|(ticket, waiter)| (*ticket, waiter))
    }

    /// All waiters, in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &Waiter)> {
        self.waiting.iter().map(|(ticket, waiter)| (*ticket, waiter))
    }

    /// The age of the oldest waiter that would block a new request for this bundle.
    pub fn oldest_ahead(&self, namespace: &Namespace, bundle: &Bundle) -> Option<Age> {
        let queues = self.conflicting_queues(namespace, bundle.members());
        queues.filter_map(|queue| queue.ages.first()).map(|(age, _)| *age).min()
    }

    /// The number of waiters that conflict with a bundle, earlier than the ticket `before` if there is one;
    /// at most [`Waiters::COUNT_MAX`].
    pub fn count_ahead(&self, namespace: &Namespace, bundle: &Bundle, before: Option<Ticket>) -> usize {
        let before = before.unwrap_or(Ticket(u64::MAX));
        let queues = self.conflicting_queues(namespace, bundle.members());
        let tickets = queues.flat_map(|queue| queue.order.range(..before).take(Waiters::COUNT_MAX));
        tickets.copied().collect::<BTreeSet<Ticket>>().len().min(Waiters::COUNT_MAX)
    }

    /// The queue position: the number of earlier conflicting waiters, at most [`Waiters::COUNT_MAX`].
    pub fn position(&self, ticket: Ticket) -> Option<usize> {
        let request = self.waiting.get(&ticket)?.grant();
        Some(self.count_ahead(&request.namespace, &request.bundle, Some(ticket)))
    }

    /// Whether no earlier waiter blocks it.
    pub fn is_next(&self, ticket: Ticket) -> bool {
        let Some(waiter) = self.waiting.get(&ticket) else { return false };
        let request = waiter.grant();
        let mut queues = self.conflicting_queues(&request.namespace, request.bundle.members());
        queues.all(|queue| queue.order.first().is_none_or(|first| *first >= ticket))
    }

    /// The waiters subject to wait-die that conflict with a lease over `held` and are younger than `age`, its
    /// holder's: wait-die does not let them wait for it.
    pub fn younger_attempts(&self, namespace: &Namespace, held: &[Member], age: Age) -> BTreeSet<Ticket> {
        let queues = self.conflicting_queues(namespace, held);
        queues
            .flat_map(|queue| queue.attempts.range((age, Ticket(u64::MAX))..))
            .map(|(_, ticket)| *ticket)
            .collect()
    }

    /// Offers what became free to its waiters, in order, from after the ticket `tried`; that is kept up to date.
    /// `serve` is called only for waiters that no earlier waiter blocks. Returns the waiters that were served, and
    /// with `None` those whose connection has closed, taken out of all queues; and whether all were tried:
    /// `serve` may postpone the rest.
    pub fn wake<T>(
        &mut self,
        namespace: &Namespace,
        freed: &[Member],
        tried: &mut Option<Ticket>,
        mut serve: impl FnMut(&Waiter) -> ServeResult<T>,
    ) -> (Vec<(Ticket, Waiter, Option<T>)>, bool) {
        let mut served = Vec::new();
        while let Some(ticket) = self.next_overlapping(namespace, freed, *tried) {
            let waiter = self.waiting.get(&ticket).expect("a ticket in a queue is waiting");
            let gone = waiter.connection.is_closed() && !planted!(DisconnectedStillServed);
            let attempt = if !gone && self.is_next(ticket) { serve(waiter) } else { ServeResult::Blocked };
            let result = match attempt {
                ServeResult::Served(result) => Some(result),
                ServeResult::Blocked => None,
                ServeResult::Postponed => return (served, false),
            };
            *tried = Some(ticket);
            if gone || result.is_some() {
                let waiter = self.remove(ticket).expect("it is in the queues");
                served.push((ticket, waiter, result));
            } else if freed.iter().all(|member| blocks_all(waiter, member)) {
                // It blocks every waiter behind it.
                break;
            }
        }
        (served, true)
    }

    /// The first waiter after the ticket `after` whose bundle overlaps a freed resource.
    fn next_overlapping(
        &self,
        namespace: &Namespace,
        freed: &[Member],
        after: Option<Ticket>,
    ) -> Option<Ticket> {
        let from = after.map_or(Ticket(0), |ticket| Ticket(ticket.0 + 1));
        let names = self.queues.get(namespace)?;
        let claim_sets = freed.iter().flat_map(|member| member.resource.met());
        let queues = claim_sets.flat_map(|(name, kind)| queues_at(names, name, kind));
        queues.filter_map(|(_, queue)| queue.order.range(from..).next()).min().copied()
    }

    /// The queues whose waiters conflict with these members.
    pub(crate) fn conflicting_queues<'a>(
        &'a self,
        namespace: &Namespace,
        members: &'a [Member],
    ) -> impl Iterator<Item = &'a Queue> {
        let names = self.queues.get(namespace);
        let claim_sets = members.iter().flat_map(|member| sets_to_check(&member.resource, member.predicate));
        names.into_iter().zip(std::iter::once(claim_sets)).flat_map(|(names, claim_sets)| {
            claim_sets.flat_map(move |(name, kind, predicate)| {
                let conflicting = move |(other, _): &(Predicate, &Queue)| !other.compatible(predicate);
                queues_at(names, name, kind).filter(conflicting).map(|(_, queue)| queue)
            })
        })
    }
}

/// The claim sets to check for claims that conflict with this one.
fn sets_to_check(
    resource: &ResourceName,
    predicate: Predicate,
) -> impl Iterator<Item = (&str, ClaimSetKind, Predicate)> {
    resource.met().map(move |(name, kind)| (name, kind, predicate))
}

fn queues_at<'a>(
    names: &'a BTreeMap<String, QueuesByClaim>,
    name: &str,
    kind: ClaimSetKind,
) -> impl Iterator<Item = (Predicate, &'a Queue)> {
    let queues = names.get(name).into_iter().flatten();
    queues.filter(move |((other, _), _)| *other == kind).map(|((_, predicate), queue)| (*predicate, queue))
}

/// Removes a waiter from one queue, and the queue if that was its last.
fn remove_from_queue(
    names: &mut BTreeMap<String, QueuesByClaim>,
    name: &str,
    claim: (ClaimSetKind, Predicate),
    waiter: (Age, Ticket),
) {
    let Some(queues) = names.get_mut(name) else { return };
    if let Some(queue) = queues.get_mut(&claim) {
        queue.order.remove(&waiter.1);
        queue.ages.remove(&waiter);
        queue.attempts.remove(&waiter);
        if queue.order.is_empty() {
            queues.remove(&claim);
        }
    }
    if queues.is_empty() {
        names.remove(name);
    }
}

/// Whether a waiter blocks all later waiters for this resource: it wants it exclusively.
fn blocks_all(waiter: &Waiter, freed: &Member) -> bool {
    let same = |member: &&Member| member.resource == freed.resource;
    let mut members = waiter.grant().bundle.members().iter().filter(same);
    members.any(|member| Predicate::ALL.into_iter().all(|predicate| !member.predicate.compatible(predicate)))
}

/// The claims that a waiter for this bundle makes: one queue each.
fn claims(bundle: &Bundle) -> impl Iterator<Item = (&str, ClaimSetKind, Predicate)> {
    bundle
        .members()
        .iter()
        .flat_map(|member| member.resource.claimed().map(|(name, kind)| (name, kind, member.predicate)))
}
