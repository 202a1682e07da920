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

use kernel::{Age, Bundle, Command, Member, Namespace, Part, Predicate, ResourceName};

/// A place in the queue: the smaller, the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One who waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Where.
    pub namespace: Namespace,
    /// For what.
    pub bundle: Bundle,
    /// How old wait-die takes it to be.
    pub age: Age,
    /// What to apply when its turn has come.
    pub command: Command,
    /// What the client called it.
    pub correlation: u128,
    /// Set once nobody listens any more: it is passed by when its turn comes.
    pub gone: Arc<AtomicBool>,
}

/// A set of tickets: namespace, text of the place, part, predicate.
type Place = (Namespace, String, Part, Predicate);

/// Everyone who waits.
#[derive(Default)]
pub struct Waiters {
    next: u64,
    waiting: BTreeMap<Ticket, Waiter>,
    queues: BTreeMap<Place, Queue>,
}

/// Those that stand at a place.
#[derive(Default)]
struct Queue {
    order: BTreeSet<Ticket>,
    ages: BTreeSet<(Age, Ticket)>,
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
        let ticket = Ticket(self.next);
        self.next += 1;
        for place in claims(&waiter) {
            let queue = self.queues.entry(place).or_default();
            queue.order.insert(ticket);
            queue.ages.insert((waiter.age, ticket));
        }
        self.waiting.insert(ticket, waiter);
        ticket
    }

    /// Takes one out: served, gone, or tired of waiting.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiting.remove(&ticket)?;
        for place in claims(&waiter) {
            if let Some(queue) = self.queues.get_mut(&place) {
                queue.order.remove(&ticket);
                queue.ages.remove(&(waiter.age, ticket));
                if queue.order.is_empty() {
                    self.queues.remove(&place);
                }
            }
        }
        Some(waiter)
    }

    /// One who waits.
    pub fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiting.get(&ticket)
    }

    /// The age of the oldest of those who would be in the way of someone who comes now; `None` if nobody is.
    pub fn oldest_ahead(&self, namespace: &Namespace, bundle: &Bundle) -> Option<Age> {
        let members = bundle.members().iter();
        let queues = members.flat_map(|member| self.in_the_way_of(namespace, member));
        queues.filter_map(|queue| queue.ages.first()).map(|(age, _)| *age).min()
    }

    /// How many would be in the way of someone who comes now; [`Waiters::COUNT_MAX`] stands for that many
    /// or more.
    pub fn count_ahead(&self, namespace: &Namespace, bundle: &Bundle) -> usize {
        let members = bundle.members().iter();
        let queues = members.flat_map(|member| self.in_the_way_of(namespace, member));
        let ahead: BTreeSet<Ticket> =
            queues.flat_map(|queue| queue.order.iter().take(Waiters::COUNT_MAX)).copied().collect();
        ahead.len().min(Waiters::COUNT_MAX)
    }

    /// Has everyone who came before it and would be in its way gone?
    pub fn is_next(&self, ticket: Ticket) -> bool {
        let Some(waiter) = self.waiting.get(&ticket) else { return false };
        let mut members = waiter.bundle.members().iter();
        members.all(|member| {
            let mut queues = self.in_the_way_of(&waiter.namespace, member);
            queues.all(|queue| queue.order.first().is_none_or(|first| *first >= ticket))
        })
    }

    /// Offers what became free to those who wait for it, in order. `serve` says what came of it, or nothing
    /// if the waiter has to wait on; it is asked only for waiters with nobody ahead. Returns those that
    /// were served, and with nothing those that are gone, taken out of all queues.
    pub fn wake<T>(
        &mut self,
        namespace: &Namespace,
        freed: &[Member],
        mut serve: impl FnMut(&Waiter) -> Option<T>,
    ) -> Vec<(Ticket, Waiter, Option<T>)> {
        let mut served = Vec::new();
        let mut after = None;
        while let Some(ticket) = self.first_touched(namespace, freed, after) {
            after = Some(ticket);
            let waiter = self.waiting.get(&ticket).expect("a ticket in a queue is waiting");
            let gone = waiter.gone.load(Ordering::Acquire);
            let answer = (!gone && self.is_next(ticket)).then(|| serve(waiter)).flatten();
            if gone || answer.is_some() {
                let waiter = self.remove(ticket).expect("it was just looked at");
                served.push((ticket, waiter, answer));
            } else if freed.iter().all(|member| blocks(waiter, member)) {
                // Everyone behind would be in its way.
                break;
            }
        }
        served
    }

    /// The first waiter after a ticket whose bundle has to do with what became free.
    fn first_touched(
        &self,
        namespace: &Namespace,
        freed: &[Member],
        after: Option<Ticket>,
    ) -> Option<Ticket> {
        let from = after.map_or(Ticket(0), |ticket| Ticket(ticket.0 + 1));
        let queues = freed.iter().flat_map(|member| self.overlapping(namespace, &member.resource));
        queues.filter_map(|queue| queue.order.range(from..).next()).min().copied()
    }

    fn overlapping<'a>(
        &'a self,
        namespace: &'a Namespace,
        resource: &'a ResourceName,
    ) -> impl Iterator<Item = &'a Queue> {
        let places =
            resource.met().flat_map(|(text, part)| Predicate::ALL.map(|predicate| (text, part, predicate)));
        places.filter_map(|(text, part, predicate)| {
            self.queues.get(&(namespace.clone(), text.to_string(), part, predicate))
        })
    }

    fn in_the_way_of<'a>(
        &'a self,
        namespace: &'a Namespace,
        member: &'a Member,
    ) -> impl Iterator<Item = &'a Queue> {
        let clashing = move |(text, part)| {
            let clash =
                Predicate::ALL.into_iter().filter(|predicate| !predicate.compatible(member.predicate));
            clash.map(move |predicate| (text, part, predicate))
        };
        member.resource.met().flat_map(clashing).filter_map(
            |(text, part, predicate): (&str, Part, Predicate)| {
                self.queues.get(&(namespace.clone(), text.to_string(), part, predicate))
            },
        )
    }
}

/// Would a waiter who stands at this keep out everyone behind it?
fn blocks(waiter: &Waiter, freed: &Member) -> bool {
    let same = |member: &&Member| member.resource == freed.resource;
    let mut members = waiter.bundle.members().iter().filter(same);
    members.any(|member| Predicate::ALL.into_iter().all(|predicate| !member.predicate.compatible(predicate)))
}

fn claims(waiter: &Waiter) -> impl Iterator<Item = Place> {
    waiter.bundle.members().iter().flat_map(|member| {
        let place =
            |(text, part): (&str, Part)| (waiter.namespace.clone(), text.to_string(), part, member.predicate);
        member.resource.claimed().map(place)
    })
}
