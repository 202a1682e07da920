//! Would a wait close a ring of sessions that wait for each other?
//!
//! **Invariant.** Among the sessions of a namespace nobody waits, over any number of others, for itself. A
//! session waits for the holders that are in the way of what it asked for, and for those who asked earlier.
//!
//! **What would break it.** To look at holders alone: `A` holds `x` and queues for `y` behind `B`, who holds
//! nothing that `A` wants, and `B` queues for `x`. Only a new wait can close a ring: a grant goes to someone
//! who was waited for already. So it is enough to look when somebody is about to wait.
//!
//! The search is bounded. What it cannot rule out within its bounds counts as a ring: a refusal too many
//! costs a retry, a ring costs a time-out for everyone in it.

use std::collections::{BTreeMap, BTreeSet};

use kernel::{Grant, Kernel, Time};

use crate::waiters::{Session, Ticket, Waiters, session_of};

/// How many holders and waiters a search looks at.
const LOOK_MAX: usize = 20_000;

/// Would `session` wait for itself, if it waited for this?
pub(crate) fn closes_a_ring(
    kernel: &Kernel,
    waiters: &Waiters,
    now: Time,
    session: &Session,
    grant: &Grant,
) -> bool {
    let holds_nothing = kernel.leases_of_session(&session.0, &session.1, &session.2, now).is_empty();
    if holds_nothing && waiters.of_session(session).next().is_none() {
        // Nobody waits for it.
        return false;
    }
    let mut search = Search {
        kernel,
        waiters,
        now,
        goal: session,
        left: LOOK_MAX,
        sessions: BTreeSet::new(),
        passed: BTreeMap::new(),
        known: BTreeSet::new(),
        todo: Vec::new(),
    };
    search.look_behind(grant, None) || search.run()
}

struct Search<'a> {
    kernel: &'a Kernel,
    waiters: &'a Waiters,
    now: Time,
    goal: &'a Session,
    left: usize,
    sessions: BTreeSet<Session>,
    /// How far each queue has been gone through.
    passed: BTreeMap<u64, Ticket>,
    known: BTreeSet<Ticket>,
    todo: Vec<Ticket>,
}

impl Search<'_> {
    fn run(&mut self) -> bool {
        while let Some(ticket) = self.todo.pop() {
            let Some(waiter) = self.waiters.get(ticket) else { continue };
            if session_of(&waiter.command).is_some_and(|session| self.meets(session)) {
                return true;
            }
            if self.look_behind(waiter.grant(), Some(ticket)) {
                return true;
            }
        }
        false
    }

    /// Is it the one that would wait for itself? If not, whatever that one waits for counts too.
    fn meets(&mut self, session: Session) -> bool {
        if session == *self.goal {
            return true;
        }
        if !self.sessions.contains(&session) {
            let waiting: Vec<Ticket> = self.waiters.of_session(&session).collect();
            for ticket in waiting {
                self.note(ticket);
            }
            self.sessions.insert(session);
        }
        false
    }

    fn note(&mut self, ticket: Ticket) {
        if self.known.insert(ticket) {
            self.todo.push(ticket);
        }
    }

    /// Holders, and those who came before a ticket if there is one.
    fn look_behind(&mut self, grant: &Grant, before: Option<Ticket>) -> bool {
        let before = before.unwrap_or(Ticket(u64::MAX));
        let queues = self.waiters.in_the_way_of(&grant.namespace, grant.bundle.members());
        for queue in queues.filter(|_| !planted!(RingsHoldersOnly)) {
            let from = self.passed.get(&queue.id).copied().unwrap_or(Ticket(0));
            for ticket in queue.order.range(from..before.max(from)) {
                self.note(*ticket);
                if self.is_tired() {
                    return true;
                }
            }
            self.passed.insert(queue.id, from.max(before));
        }
        for lease in self.kernel.conflicts(&grant.namespace, &grant.bundle, self.now) {
            let session = lease.details.session.map(|name| (lease.namespace, lease.identity, name));
            if self.is_tired() || session.is_some_and(|session| self.meets(session)) {
                return true;
            }
        }
        false
    }

    fn is_tired(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}
