//! Who waits for what, in the order in which they came.
//!
//! **Invariant.** Nobody is served before someone who came earlier and whom it would be in the way of. A
//! bundle waits as a whole: it holds nothing, and stands in every queue that it has to pass.
//!
//! **What would break it.** Two queues, `x` and `y`. `A` waits for both; `x` becomes free, and `B`, who came
//! later, asks for `x` alone. If `x` were given to `B` because `A` cannot use it yet, a stream of `B`s would
//! keep `A` waiting for ever. So a waiter is in the way of later ones like a holder is.
//!
//! Waiters are volatile: the kernel and the log know nothing of them. Freeing a resource looks at those that
//! it serves and at the first that it cannot: whoever stands behind an exclusive one waits with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kernel::{
    Action, Age, Bundle, ClaimSetKind, Command, Identity, LeaseRequest, Member, Namespace, Predicate,
    ResourceName, SessionName,
};

/// A place in the queue: the smaller, the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One who waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// What to apply when its turn has come: an acquire or a reserve.
    pub command: Command,
    /// What the client called it.
    pub correlation: u128,
    /// How old wait-die takes it to be.
    pub age: Age,
    /// Set once nobody listens any more: it is passed by when its turn comes.
    pub gone: Arc<AtomicBool>,
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

/// A run of a program, among all.
pub type Session = (Namespace, Identity, SessionName);

/// The request for a lease that a command is, if it is one.
pub fn lease_request_of(command: &Command) -> Option<&LeaseRequest> {
    match &command.action {
        Action::Acquire(grant) | Action::Reserve(grant) => Some(grant),
        _ => None,
    }
}

/// The session on whose behalf a command asks.
pub fn session_of(command: &Command) -> Option<Session> {
    let grant = lease_request_of(command)?;
    Some((grant.namespace.clone(), command.identity.clone()?, grant.session.clone()?))
}

impl Waiter {
    /// What it waits for.
    pub fn grant(&self) -> &LeaseRequest {
        lease_request_of(&self.command).expect("only requests for leases wait")
    }

    /// Is it under wait-die?
    fn is_attempt(&self) -> bool {
        self.grant().attempt.is_some()
    }
}

/// Everyone who waits.
#[derive(Default)]
pub struct Waiters {
    next: u64,
    waiting: BTreeMap<Ticket, Waiter>,
    places: BTreeMap<Namespace, BTreeMap<String, QueuesByClaim>>,
    sessions: BTreeMap<Session, BTreeSet<Ticket>>,
}

/// The queues at a name: one for each part of it and each predicate.
type QueuesByClaim = BTreeMap<(ClaimSetKind, Predicate), Queue>;

/// Those that stand at a place.
#[derive(Default)]
pub(crate) struct Queue {
    /// Tells it from every other: the first ticket that stood in it.
    pub(crate) id: u64,
    pub(crate) order: BTreeSet<Ticket>,
    ages: BTreeSet<(Age, Ticket)>,
    /// Those of them that are under wait-die.
    attempts: BTreeSet<(Age, Ticket)>,
}

impl Waiters {
    /// The furthest place in a queue that is told.
    pub const COUNT_MAX: usize = 100;

    /// How many there are.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Does nobody wait?
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Puts one at the end of every queue that it has to pass.
    pub fn push(&mut self, waiter: Waiter) -> Ticket {
        let ticket = Ticket(if planted!(Lifo) { u64::MAX / 2 - self.next } else { self.next });
        self.next += 1;
        let grant = waiter.grant();
        let names = self.places.entry(grant.namespace.clone()).or_default();
        for (text, part, predicate) in claims(&grant.bundle) {
            let place = names.entry(text.to_string()).or_default();
            let new = Queue { id: self.next, ..Queue::default() };
            self.next += 1;
            let queue = place.entry((part, predicate)).or_insert(new);
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

    /// Takes one out: served, gone, or tired of waiting.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiting.remove(&ticket)?;
        let grant = waiter.grant();
        if let Some(names) = self.places.get_mut(&grant.namespace) {
            for (text, part, predicate) in claims(&grant.bundle) {
                leave(names, text, (part, predicate), (waiter.age, ticket));
            }
            if names.is_empty() {
                self.places.remove(&grant.namespace);
            }
        }
        self.leave_session(&waiter, ticket);
        Some(waiter)
    }

    fn leave_session(&mut self, waiter: &Waiter, ticket: Ticket) {
        let Some(session) = session_of(&waiter.command) else { return };
        if let Some(tickets) = self.sessions.get_mut(&session) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }

    /// One who waits.
    pub fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiting.get(&ticket)
    }

    /// Somebody else listens for its answer from now on.
    pub fn listen(&mut self, ticket: Ticket, gone: Arc<AtomicBool>) {
        if let Some(waiter) = self.waiting.get_mut(&ticket) {
            waiter.gone = gone;
        }
    }

    /// Those that wait on behalf of a session.
    pub fn of_session(&self, session: &Session) -> impl Iterator<Item = Ticket> {
        self.sessions.get(session).into_iter().flatten().copied()
    }

    /// Everyone, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &Waiter)> {
        self.waiting.iter().map(|(ticket, waiter)| (*ticket, waiter))
    }

    /// The age of the oldest of those who would be in the way of someone who comes now; `None` if nobody is.
    pub fn oldest_ahead(&self, namespace: &Namespace, bundle: &Bundle) -> Option<Age> {
        let queues = self.in_the_way_of(namespace, bundle.members());
        queues.filter_map(|queue| queue.ages.first()).map(|(age, _)| *age).min()
    }

    /// How many are in the way of a bundle, of those that came before a ticket if there is one;
    /// [`Waiters::COUNT_MAX`] stands for that many or more.
    pub fn count_ahead(&self, namespace: &Namespace, bundle: &Bundle, before: Option<Ticket>) -> usize {
        let before = before.unwrap_or(Ticket(u64::MAX));
        let queues = self.in_the_way_of(namespace, bundle.members());
        let tickets = queues.flat_map(|queue| queue.order.range(..before).take(Waiters::COUNT_MAX));
        tickets.copied().collect::<BTreeSet<Ticket>>().len().min(Waiters::COUNT_MAX)
    }

    /// How many of those that came before it are in its way.
    pub fn position(&self, ticket: Ticket) -> Option<usize> {
        let grant = self.waiting.get(&ticket)?.grant();
        Some(self.count_ahead(&grant.namespace, &grant.bundle, Some(ticket)))
    }

    /// Has everyone who came before it and would be in its way gone?
    pub fn is_next(&self, ticket: Ticket) -> bool {
        let Some(waiter) = self.waiting.get(&ticket) else { return false };
        let grant = waiter.grant();
        let mut queues = self.in_the_way_of(&grant.namespace, grant.bundle.members());
        queues.all(|queue| queue.order.first().is_none_or(|first| *first >= ticket))
    }

    /// Those under wait-die that wait for any of this and are younger than `age`: behind a holder of that
    /// age they may not stand.
    pub fn younger_attempts(&self, namespace: &Namespace, held: &[Member], age: Age) -> BTreeSet<Ticket> {
        let queues = self.in_the_way_of(namespace, held);
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
        while let Some(ticket) = self.first_touched(namespace, freed, *tried) {
            let waiter = self.waiting.get(&ticket).expect("a ticket in a queue is waiting");
            let gone = waiter.gone.load(Ordering::Acquire) && !planted!(DisconnectedStillServed);
            let attempt = if !gone && self.is_next(ticket) { serve(waiter) } else { ServeResult::Blocked };
            let answer = match attempt {
                ServeResult::Served(answer) => Some(answer),
                ServeResult::Blocked => None,
                ServeResult::Postponed => return (served, false),
            };
            *tried = Some(ticket);
            if gone || answer.is_some() {
                let waiter = self.remove(ticket).expect("it was just looked at");
                served.push((ticket, waiter, answer));
            } else if freed.iter().all(|member| blocks(waiter, member)) {
                // It blocks every waiter behind it.
                break;
            }
        }
        (served, true)
    }

    /// The first waiter after a ticket whose bundle has to do with what became free.
    fn first_touched(
        &self,
        namespace: &Namespace,
        freed: &[Member],
        after: Option<Ticket>,
    ) -> Option<Ticket> {
        let from = after.map_or(Ticket(0), |ticket| Ticket(ticket.0 + 1));
        let names = self.places.get(namespace)?;
        let met = freed.iter().flat_map(|member| member.resource.met());
        let queues = met.flat_map(|(text, part)| queues_at(names, text, part));
        queues.filter_map(|(_, queue)| queue.order.range(from..).next()).min().copied()
    }

    /// The queues whose members would be in the way of these.
    pub(crate) fn in_the_way_of<'a>(
        &'a self,
        namespace: &Namespace,
        members: &'a [Member],
    ) -> impl Iterator<Item = &'a Queue> {
        let names = self.places.get(namespace);
        let met = members.iter().flat_map(|member| met_with(&member.resource, member.predicate));
        names.into_iter().zip(std::iter::once(met)).flat_map(|(names, met)| {
            met.flat_map(move |(text, part, predicate)| {
                let clashing = move |(other, _): &(Predicate, &Queue)| !other.compatible(predicate);
                queues_at(names, text, part).filter(clashing).map(|(_, queue)| queue)
            })
        })
    }
}

fn met_with(
    resource: &ResourceName,
    predicate: Predicate,
) -> impl Iterator<Item = (&str, ClaimSetKind, Predicate)> {
    resource.met().map(move |(text, part)| (text, part, predicate))
}

fn queues_at<'a>(
    names: &'a BTreeMap<String, QueuesByClaim>,
    text: &str,
    part: ClaimSetKind,
) -> impl Iterator<Item = (Predicate, &'a Queue)> {
    let place = names.get(text).into_iter().flatten();
    place.filter(move |((at, _), _)| *at == part).map(|((_, predicate), queue)| (*predicate, queue))
}

fn leave(
    names: &mut BTreeMap<String, QueuesByClaim>,
    text: &str,
    place: (ClaimSetKind, Predicate),
    who: (Age, Ticket),
) {
    let Some(queues) = names.get_mut(text) else { return };
    if let Some(queue) = queues.get_mut(&place) {
        queue.order.remove(&who.1);
        queue.ages.remove(&who);
        queue.attempts.remove(&who);
        if queue.order.is_empty() {
            queues.remove(&place);
        }
    }
    if queues.is_empty() {
        names.remove(text);
    }
}

/// Would a waiter who stands at this keep out everyone behind it?
fn blocks(waiter: &Waiter, freed: &Member) -> bool {
    let same = |member: &&Member| member.resource == freed.resource;
    let mut members = waiter.grant().bundle.members().iter().filter(same);
    members.any(|member| Predicate::ALL.into_iter().all(|predicate| !member.predicate.compatible(predicate)))
}

fn claims(bundle: &Bundle) -> impl Iterator<Item = (&str, ClaimSetKind, Predicate)> {
    bundle
        .members()
        .iter()
        .flat_map(|member| member.resource.claimed().map(|(text, part)| (text, part, member.predicate)))
}
