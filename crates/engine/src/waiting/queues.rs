//! The wait queues: requests for leases that wait for conflicting leases to end, in order of their first tries.
//!
//! **Invariant.** No waiter is served before an earlier waiter that it conflicts with. A bundle waits as a
//! whole: it holds nothing until it is granted, and is in the queue of each of its claims.
//!
//! **What would break it.** `A` waits for `x` and `y`; `x` is freed, and `B`, a later request, wants `x`
//! alone. If `B` were granted `x` because `A` cannot use it yet, a stream of such requests would starve `A`.
//! So a waiter blocks later conflicting requests as a holder does.
//!
//! There is one queue per name, claim set and predicate: all its waiters conflict with the same claims. Waiters are
//! volatile: neither the kernel nor the log contains them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use kernel::{
    Action, Age, Bundle, ClaimSetKind, Command, Identity, LeaseRequest, Member, Namespace, Predicate,
    SessionName,
};

use super::attempts::{Arrival, Attempt};
use super::connection::{Wait, WaiterConnection};
use crate::origin::Origin;

/// A waiter's place in the order of all waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    arrival: Arrival,
    /// 0: the place of this arrival. Otherwise a place behind it, for a waiter that may not stand before it.
    behind: u64,
}

impl Ticket {
    /// Before every waiter.
    pub(crate) const FIRST: Ticket = Ticket { arrival: Arrival { term: 0, number: 0 }, behind: 0 };
    /// Behind every waiter.
    pub const LAST: Ticket =
        Ticket { arrival: Arrival { term: u64::MAX, number: u64::MAX }, behind: u64::MAX };

    /// The place of an arrival.
    pub fn of(arrival: Arrival) -> Ticket {
        Ticket { arrival, behind: 0 }
    }

    /// The place that follows immediately.
    pub(crate) fn next(self) -> Ticket {
        Ticket { behind: self.behind.saturating_add(1), ..self }
    }
}

/// A request for a lease that waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The command to apply when it is served: an acquire or a reserve.
    pub command: Command,
    /// Where its request comes from.
    pub origin: Origin,
    /// The attempt that it is a try of.
    pub attempt: Attempt,
    /// Its age under wait-die.
    pub age: Age,
    /// Numbers waiters in the order in which they were queued.
    pub(super) queued: u64,
    /// Its connection: once closed, the waiter is removed instead of served.
    pub connection: WaiterConnection,
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

/// Whether two requests may be tries of one attempt: the same client wants the same resources in the same session.
pub(super) fn is_same_request(one: &Command, other: &Command) -> bool {
    let parts = |command: &Command| {
        let request = lease_request_of(command)?;
        Some((
            command.identity.clone(),
            request.namespace.clone(),
            request.session.clone(),
            request.bundle.clone(),
        ))
    };
    parts(one) == parts(other)
}

impl Waiter {
    /// A waiter that has not joined its queues yet.
    pub(super) fn new(command: Command, origin: Origin, attempt: Attempt, age: Age, wait: &Wait) -> Waiter {
        Waiter { command, origin, attempt, age, queued: 0, connection: wait.connection.clone() }
    }

    /// Its lease request.
    pub fn request(&self) -> &LeaseRequest {
        lease_request_of(&self.command).expect("every waiter is an acquire or a reserve")
    }

    /// Whether wait-die decides if it may wait.
    pub(super) fn is_wait_die(&self) -> bool {
        self.request().is_wait_die()
    }
}

/// The tasks, buffers and queue entries of a waiter, without its names, in bytes.
const WAITER_BYTES: u64 = 4096;

/// All waiters of a shard.
#[derive(Default)]
pub struct Waiters {
    next: u64,
    waiting: BTreeMap<Ticket, Waiter>,
    queues: BTreeMap<QueueId, Queue>,
    names: BTreeMap<Namespace, BTreeMap<String, QueuesByClaim>>,
    sessions: BTreeMap<Session, BTreeSet<Ticket>>,
    /// The places of waiters that are not at the place of their arrival.
    moved: BTreeMap<Arrival, Ticket>,
    footprint: WaiterFootprint,
    /// The memory of each identity's waiters.
    identities: BTreeMap<Identity, WaiterFootprint>,
}

/// An estimate of the memory that waiters occupy, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaiterFootprint {
    /// The waiters themselves.
    pub(crate) waiter_bytes: u64,
    /// The leases that they wait for.
    pub(crate) lease_bytes: u64,
}

/// The number of a queue, unique among all queues that ever existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueId(u64);

/// The queues of a name: one per claim set and predicate.
type QueuesByClaim = BTreeMap<(ClaimSetKind, Predicate), QueueId>;

/// The waiters in one claim set with one predicate.
#[derive(Default)]
struct Queue {
    order: BTreeSet<Ticket>,
    ages: BTreeSet<(Age, Ticket)>,
    /// The waiters among them that are subject to wait-die.
    attempts: BTreeSet<(Age, Ticket)>,
    /// The same, by their places.
    attempt_places: BTreeSet<Ticket>,
}

impl Queue {
    /// The age of the oldest waiter before this place. Ages follow the order of the queue, with few exceptions. Where
    /// there are many, the result is the oldest age of all.
    fn oldest_before(&self, place: Ticket) -> Option<Age> {
        self.order.first().filter(|first| **first < place)?;
        let mut oldest = self.ages.iter().take(Waiters::COUNT_VISITS_MAX);
        let before = oldest.find(|(_, ticket)| *ticket < place).or(self.ages.first())?;
        Some(before.0)
    }
}

impl Waiters {
    /// The largest queue position that is counted.
    pub const COUNT_MAX: usize = 100;
    /// The maximum number of waiters visited to count a queue position: a bundle may meet the same waiter in
    /// several queues.
    const COUNT_VISITS_MAX: usize = 256;

    /// The number of waiters.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The age of the waiter at the first place: since its first try, with few exceptions the longest wait.
    pub fn oldest(&self) -> Option<Age> {
        self.waiting.first_key_value().map(|(_, waiter)| waiter.age)
    }

    /// Whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a waiter to the queue of each of its claims, at a place that is not taken.
    pub(crate) fn insert(&mut self, ticket: Ticket, mut waiter: Waiter) {
        waiter.queued = self.next;
        self.next += 1;
        if ticket != Ticket::of(waiter.attempt.arrival) {
            self.moved.insert(waiter.attempt.arrival, ticket);
        }
        let request = waiter.request();
        let names = self.names.entry(request.namespace.clone()).or_default();
        for (name, kind, predicate) in claims(&request.bundle) {
            let new = QueueId(self.next);
            self.next += 1;
            let by_claim = names.entry(name.to_string()).or_default();
            let id = *by_claim.entry((kind, predicate)).or_insert(new);
            let queue = self.queues.entry(id).or_default();
            queue.order.insert(ticket);
            queue.ages.insert((waiter.age, ticket));
            if waiter.is_wait_die() {
                queue.attempts.insert((waiter.age, ticket));
                queue.attempt_places.insert(ticket);
            }
        }
        if let Some(session) = session_of(&waiter.command) {
            self.sessions.entry(session).or_default().insert(ticket);
        }
        self.count_footprint(&waiter, u64::wrapping_add);
        let before = self.waiting.insert(ticket, waiter);
        assert!(before.is_none(), "two waiters have one place");
    }

    /// The place of the waiter of an attempt.
    pub(crate) fn place_of(&self, arrival: Arrival) -> Option<Ticket> {
        let is_its =
            |ticket: &Ticket| self.get(*ticket).is_some_and(|waiter| waiter.attempt.arrival == arrival);
        let moved = self.moved.get(&arrival).copied();
        moved.or(Some(Ticket::of(arrival))).filter(is_its)
    }

    /// A free place directly behind a waiter and those that were moved behind it before.
    pub(crate) fn place_behind(&self, ticket: Ticket) -> Ticket {
        Ticket { behind: self.next + 1, ..ticket }
    }

    /// The number of the next waiter.
    pub(crate) fn next_queued(&self) -> u64 {
        self.next
    }

    /// An estimate of the memory that all waiters occupy.
    pub(crate) fn footprint(&self) -> WaiterFootprint {
        self.footprint
    }

    /// The same for the waiters of one identity.
    pub(crate) fn footprint_of(&self, identity: &Identity) -> WaiterFootprint {
        self.identities.get(identity).copied().unwrap_or_default()
    }

    /// An estimate of the memory that a waiter with this request occupies: the request, its names in the wait queues, and
    /// the HTTP request that waits for the reply.
    pub(crate) fn bytes_of(request: &LeaseRequest) -> u64 {
        WAITER_BYTES + 2 * request.footprint()
    }

    /// Adds the memory of a waiter to the counts, or subtracts it.
    fn count_footprint(&mut self, waiter: &Waiter, apply: fn(u64, u64) -> u64) {
        let request = waiter.request();
        let (waiter_bytes, lease_bytes) = (Waiters::bytes_of(request), request.footprint());
        let count = |footprint: &mut WaiterFootprint| {
            footprint.waiter_bytes = apply(footprint.waiter_bytes, waiter_bytes);
            footprint.lease_bytes = apply(footprint.lease_bytes, lease_bytes);
        };
        count(&mut self.footprint);
        let Some(identity) = &waiter.command.identity else { return };
        let mine = self.identities.entry(identity.clone()).or_default();
        count(mine);
        if mine.waiter_bytes == 0 {
            self.identities.remove(identity);
        }
    }

    /// Removes a waiter from all its queues: it was served, timed out, or its connection closed.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiting.remove(&ticket)?;
        self.moved.remove(&waiter.attempt.arrival);
        self.count_footprint(&waiter, u64::wrapping_sub);
        let request = waiter.request();
        if let Some(names) = self.names.get_mut(&request.namespace) {
            for (name, kind, predicate) in claims(&request.bundle) {
                remove_from_queue(&mut self.queues, names, (name, kind, predicate), (waiter.age, ticket));
            }
            if names.is_empty() {
                self.names.remove(&request.namespace);
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

    /// Replaces the connection of a waiter.
    pub(crate) fn reattach(&mut self, ticket: Ticket, connection: WaiterConnection) {
        if let Some(waiter) = self.waiting.get_mut(&ticket) {
            waiter.connection = connection;
        }
    }

    /// The first waiter of a session from `from` on and before `until`.
    pub(crate) fn first_of_session(&self, session: &Session, from: Ticket, until: Ticket) -> Option<Ticket> {
        self.sessions.get(session)?.range(from..until.max(from)).next().copied()
    }

    /// All waiters, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &Waiter)> {
        self.waiting.iter().map(|(ticket, waiter)| (*ticket, waiter))
    }

    /// The waiters after `after`, in order.
    pub fn iter_after(&self, after: Option<Ticket>) -> impl Iterator<Item = (Ticket, &Waiter)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).map(|(ticket, waiter)| (*ticket, waiter))
    }

    /// The age of the oldest waiter that would block a request for this bundle at this place, or an older one.
    pub(crate) fn oldest_ahead(&self, namespace: &Namespace, bundle: &Bundle, place: Ticket) -> Option<Age> {
        let queues = self.conflicting(namespace, bundle.members());
        queues.filter_map(|(_, queue)| queue.oldest_before(place)).min()
    }

    /// The number of waiters before this place that conflict with a bundle; at most [`Waiters::COUNT_MAX`].
    pub fn count_ahead(&self, namespace: &Namespace, bundle: &Bundle, before: Ticket) -> usize {
        let queues = self.conflicting(namespace, bundle.members());
        let tickets = queues.flat_map(|(_, queue)| queue.order.range(..before).take(Waiters::COUNT_MAX));
        let visited = tickets.take(Waiters::COUNT_VISITS_MAX).copied();
        visited.collect::<BTreeSet<Ticket>>().len().min(Waiters::COUNT_MAX)
    }

    /// The queue position: the number of earlier conflicting waiters, at most [`Waiters::COUNT_MAX`].
    pub fn position(&self, ticket: Ticket) -> Option<usize> {
        let request = self.waiting.get(&ticket)?.request();
        Some(self.count_ahead(&request.namespace, &request.bundle, ticket))
    }

    /// Whether no earlier waiter blocks it.
    pub(crate) fn is_next(&self, ticket: Ticket) -> bool {
        let Some(waiter) = self.waiting.get(&ticket) else { return false };
        let request = waiter.request();
        let mut queues = self.conflicting(&request.namespace, request.bundle.members());
        queues.all(|(_, queue)| queue.order.first().is_none_or(|first| *first >= ticket))
    }

    /// Whether a waiter before this ticket conflicts with a member.
    pub(crate) fn is_behind(&self, namespace: &Namespace, member: &Member, ticket: Ticket) -> bool {
        let mut queues = self.conflicting(namespace, std::slice::from_ref(member));
        queues.any(|(_, queue)| queue.order.first().is_some_and(|first| *first < ticket))
    }

    /// A waiter subject to wait-die that conflicts with a lease over `held` and is younger than `age`, its holder's:
    /// wait-die does not let it wait.
    pub(crate) fn younger_attempt(&self, namespace: &Namespace, held: &[Member], age: Age) -> Option<Ticket> {
        let queues = self.conflicting(namespace, held);
        let mut younger = queues.filter_map(|(_, queue)| queue.attempts.range((age, Ticket::LAST)..).next());
        younger.next().map(|(_, ticket)| *ticket)
    }

    /// The first waiter subject to wait-die from the place `from` on that conflicts with the waiter at `place`, and whether
    /// it is the younger of the two.
    pub(crate) fn attempt_behind(&self, place: Ticket, from: Ticket) -> Option<(Ticket, bool)> {
        let waiter = self.waiting.get(&place)?;
        let request = waiter.request();
        let queues = self.conflicting(&request.namespace, request.bundle.members());
        let behind = queues.filter_map(|(_, queue)| queue.attempt_places.range(from..).next());
        let first = *behind.min()?;
        Some((first, self.waiting.get(&first)?.age > waiter.age))
    }

    /// Whether a waiter behind this place that may stay conflicts with the bundle and would not wait for everything that
    /// the bundle waits for. For a single exclusive name all waiters for that name would.
    pub(crate) fn overtakes(&self, namespace: &Namespace, bundle: &Bundle, place: Ticket) -> bool {
        let own = match bundle.members() {
            [only] if only.predicate.is_exclusive() => self.queue_of(namespace, only),
            _ => None,
        };
        let mut queues = self.conflicting(namespace, bundle.members());
        queues.any(|(id, queue)| Some(id) != own && queue.order.last().is_some_and(|last| *last > place))
    }

    /// Whether a waiter that conflicts with this bundle stands behind this place.
    pub(crate) fn is_before(&self, namespace: &Namespace, bundle: &Bundle, place: Ticket) -> bool {
        let mut queues = self.conflicting(namespace, bundle.members());
        queues.any(|(_, queue)| queue.order.last().is_some_and(|last| *last > place))
    }

    /// The queues whose waiters conflict with these members. A queue may be listed repeatedly.
    pub(crate) fn conflicting_queues<'a>(
        &'a self,
        namespace: &Namespace,
        members: &'a [Member],
    ) -> impl Iterator<Item = QueueId> {
        self.conflicting(namespace, members).map(|(id, _)| id)
    }

    /// The queue of the waiters for exactly this member; without those for members above or beneath it.
    pub(crate) fn queue_of(&self, namespace: &Namespace, member: &Member) -> Option<QueueId> {
        let (name, kind) = member.resource.claimed().next()?;
        self.names.get(namespace)?.get(name)?.get(&(kind, member.predicate)).copied()
    }

    /// The first ticket of a queue from `from` on and before `until`.
    pub(crate) fn first_in(&self, queue: QueueId, from: Ticket, until: Ticket) -> Option<Ticket> {
        self.queues.get(&queue)?.order.range(from..until.max(from)).next().copied()
    }

    fn conflicting<'a>(
        &'a self,
        namespace: &Namespace,
        members: &'a [Member],
    ) -> impl Iterator<Item = (QueueId, &'a Queue)> {
        let names = self.names.get(namespace);
        names.into_iter().flat_map(move |names| {
            members.iter().flat_map(move |member| {
                let by_claim = member.resource.met().flat_map(move |(name, kind)| {
                    let queues = names.get(name).into_iter().flatten();
                    queues.filter(move |((other, _), _)| *other == kind)
                });
                let conflicting =
                    by_claim.filter(|((_, predicate), _)| !predicate.compatible(member.predicate));
                conflicting.map(|(_, id)| (*id, self.queues.get(id).expect("a named queue exists")))
            })
        })
    }
}

/// Removes a waiter from one queue, and the queue if that was its last.
fn remove_from_queue(
    queues: &mut BTreeMap<QueueId, Queue>,
    names: &mut BTreeMap<String, QueuesByClaim>,
    (name, kind, predicate): (&str, ClaimSetKind, Predicate),
    waiter: (Age, Ticket),
) {
    let Some(by_claim) = names.get_mut(name) else { return };
    let Some(id) = by_claim.get(&(kind, predicate)).copied() else { return };
    let queue = queues.get_mut(&id).expect("a named queue exists");
    queue.order.remove(&waiter.1);
    queue.ages.remove(&waiter);
    queue.attempts.remove(&waiter);
    queue.attempt_places.remove(&waiter.1);
    if queue.order.is_empty() {
        queues.remove(&id);
        by_claim.remove(&(kind, predicate));
    }
    if by_claim.is_empty() {
        names.remove(name);
    }
}

/// The claims that a waiter for this bundle makes: one queue each.
fn claims(bundle: &Bundle) -> impl Iterator<Item = (&str, ClaimSetKind, Predicate)> {
    bundle
        .members()
        .iter()
        .flat_map(|member| member.resource.claimed().map(|(name, kind)| (name, kind, member.predicate)))
}
