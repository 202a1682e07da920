//! Deadlock detection: would a new wait close a cycle in the wait-for graph of sessions?
//!
//! **Invariant.** The wait-for graph of a namespace's sessions has no cycle. A session waits for the holders
//! of conflicting leases, and for the conflicting waiters ahead of it.
//!
//! **What would break it.** Considering holders alone: `A` holds `x` and queues for `y` behind `B`, which
//! holds nothing that `A` wants, and `B` queues for `x`. Only a new wait can close a cycle: a grant goes to a
//! session that was already waited for. So a search before each new wait is enough.
//!
//! The search is bounded. A cycle that it cannot rule out within the bound counts as a deadlock: an
//! unnecessary refusal costs a retry, a deadlock costs a timeout for every session in it.

use std::collections::{BTreeMap, BTreeSet};

use kernel::{Kernel, LeaseRequest, Time};

use crate::waiters::{Session, Ticket, Waiters, session_of};

/// Maximum number of holders and waiters that a search visits.
const VISITS_MAX: usize = 20_000;

/// Whether `session` would wait for itself, directly or indirectly, if it waited for this lease.
pub(crate) fn would_deadlock(
    kernel: &Kernel,
    waiters: &Waiters,
    now: Time,
    session: &Session,
    request: &LeaseRequest,
) -> bool {
    let holds_nothing = kernel.leases_of_session(&session.0, &session.1, &session.2, now).is_empty();
    if holds_nothing && waiters.of_session(session).next().is_none() {
        // No session can be waiting for it.
        return false;
    }
    let mut search = Search {
        kernel,
        waiters,
        now,
        goal: session,
        visits_left: VISITS_MAX,
        sessions: BTreeSet::new(),
        scanned: BTreeMap::new(),
        found: BTreeSet::new(),
        unvisited: Vec::new(),
    };
    search.follow(request, None) || search.run()
}

/// A search through the wait-for graph, from the new wait.
struct Search<'a> {
    kernel: &'a Kernel,
    waiters: &'a Waiters,
    now: Time,
    /// The session that would wait: reaching it means a deadlock.
    goal: &'a Session,
    visits_left: usize,
    /// The sessions reached so far.
    sessions: BTreeSet<Session>,
    /// Per wait queue, the ticket up to which it has been scanned.
    scanned: BTreeMap<u64, Ticket>,
    /// The waiters reached so far.
    found: BTreeSet<Ticket>,
    /// The waiters reached but not followed yet.
    unvisited: Vec<Ticket>,
}

impl Search<'_> {
    fn run(&mut self) -> bool {
        while let Some(ticket) = self.unvisited.pop() {
            let Some(waiter) = self.waiters.get(ticket) else { continue };
            if session_of(&waiter.command).is_some_and(|session| self.reach(session)) {
                return true;
            }
            if self.follow(waiter.grant(), Some(ticket)) {
                return true;
            }
        }
        false
    }

    /// Whether the session is the goal. If not, all its waiters are added to the search.
    fn reach(&mut self, session: Session) -> bool {
        if session == *self.goal {
            return true;
        }
        if !self.sessions.contains(&session) {
            let waiting: Vec<Ticket> = self.waiters.of_session(&session).collect();
            for ticket in waiting {
                self.add(ticket);
            }
            self.sessions.insert(session);
        }
        false
    }

    fn add(&mut self, ticket: Ticket) {
        if self.found.insert(ticket) {
            self.unvisited.push(ticket);
        }
    }

    /// Follows a wait to the conflicting holders and to the waiters ahead of `before`; all waiters if `None`.
    /// Whether the goal was reached, or the search was cut short.
    fn follow(&mut self, request: &LeaseRequest, before: Option<Ticket>) -> bool {
        let before = before.unwrap_or(Ticket(u64::MAX));
        let queues = self.waiters.conflicting_queues(&request.namespace, request.bundle.members());
        for queue in queues.filter(|_| !planted!(CyclesHoldersOnly)) {
            let from = self.scanned.get(&queue.id).copied().unwrap_or(Ticket(0));
            for ticket in queue.order.range(from..before.max(from)) {
                self.add(*ticket);
                if self.is_exhausted() {
                    return true;
                }
            }
            self.scanned.insert(queue.id, from.max(before));
        }
        for lease in self.kernel.conflicts(&request.namespace, &request.bundle, self.now) {
            let session = lease.details.session.map(|name| (lease.namespace, lease.identity, name));
            if self.is_exhausted() || session.is_some_and(|session| self.reach(session)) {
                return true;
            }
        }
        false
    }

    /// Counts one visit. Whether the bound is reached.
    fn is_exhausted(&mut self) -> bool {
        self.visits_left = self.visits_left.saturating_sub(1);
        self.visits_left == 0
    }
}
