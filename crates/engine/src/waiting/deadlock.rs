//! Deadlock detection: would a new wait close a cycle in the wait-for graph of sessions?
//!
//! **Invariant.** The wait-for graph of a namespace's sessions has no cycle once every search has ended. A session
//! waits for the holders of conflicting leases, and for the conflicting waiters ahead of it. A waiter without a
//! session is a node of its own.
//!
//! **What would break it.** Considering holders alone: `A` holds `x` and queues for `y` behind `B`, which
//! holds nothing that `A` wants, and `B` queues for `x`.
//!
//! **Cost.** The search runs from both ends: *forward* from the request (which sessions would it wait for?) and
//! *backward* from its session (which sessions wait for what it holds, or behind its waiters?). It expands the side
//! that has visited fewer rows, and ends when the sides meet (a cycle) or when one of them has no more rows (no cycle).
//! It thus costs at most twice the cheaper side. A session with a private lease that queues for a hot key has an empty
//! backward side; the holder of the hot key that wants a quiet resource has a short forward side. A search that exceeds
//! the budget of its turn is suspended, and continues in the next turn on a graph that may have changed.
//!
//! **Why a search over a changing graph is right.** Only a new waiter adds edges between nodes:
//!
//! - a grant to a waiter replaces edges to the waiter by edges to its lease: the same sessions;
//! - a grant without a wait adds none: a waiter that conflicts with it would have blocked it;
//! - releases, expiries, timeouts and disconnects only remove edges; a lease on hold is a holder all the time.
//!
//! So the last-inserted waiter of a cycle finds all edges of the cycle present from its insertion on, and it considers
//! only waiters before its own ticket. An edge that is found late existed at the insertion too: a cycle that is found
//! did exist at that moment, and is never assumed. A cycle that still exists when the search ends had all its edges
//! throughout, and is found. Searches run one at a time, in order of arrival, so that no request is refused because of an
//! earlier one that is itself going to be refused.
//!
//! **The interleaving that would break it.** A grant moves a row from the wait queues to the leases. If the search read
//! the holders that block a waiter first, and its wait queues later, a waiter that is granted in between would be seen in
//! neither. So a node's wait queues are always read before its leases (tasks are on a stack, the leases beneath), and a
//! rebind, which moves a lease within the order in which holders are read, restarts the reading of holders.

use std::collections::{BTreeMap, BTreeSet};

use kernel::{
    ClaimSetKind, ConflictCursor, Kernel, LeaseId, LeaseRequest, Member, Predicate, SessionCursor, Time,
};

use super::budget::{Budget, Work};
use super::queues::{QueueId, Session, Ticket, Waiters, session_of};

/// How many leases are read at a time.
const PAGE: usize = 32;

/// The result of a step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The wait closes no cycle.
    Clear,
    /// The wait closes a cycle.
    Cycle,
    /// The budget is spent: continue in the next turn.
    Suspended,
}

/// The state that a step of a search reads.
#[derive(Clone, Copy)]
pub(super) struct GraphView<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) waiters: &'a Waiters,
    pub(super) now: Time,
}

/// A search through the wait-for graph for one request.
pub(super) struct Search {
    /// The session that would wait.
    session: Session,
    request: LeaseRequest,
    claims: CheckedClaims,
    /// Only waiters before this ticket are considered: the request's own, or where it would queue.
    end: Ticket,
    forward: Side,
    backward: Side,
}

/// One of the two directions.
#[derive(Default)]
struct Side {
    reached: BTreeSet<Node>,
    /// Per queue, the tickets that have been read or are to be read by a task: those before this one (forward) or
    /// from this one on (backward).
    read: BTreeMap<QueueId, Ticket>,
    leases: BTreeSet<LeaseId>,
    /// A stack: see the module's documentation.
    tasks: Vec<Task>,
    visits: usize,
}

/// A node of the wait-for graph.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Session(Session),
    /// A waiter without a session.
    Waiter(Ticket),
}

/// Rows that are still to be read.
enum Task {
    /// The waiters of a queue in a range of tickets.
    Queue { queue: QueueId, from: Ticket, until: Ticket },
    /// The holders that block a waiter, or with `None` the request itself.
    Holders { of: Option<Ticket>, cursor: ConflictCursor },
    /// The waiters of a session.
    SessionWaiters { session: Session, from: Ticket },
    /// The leases of a session.
    SessionLeases { session: Session, cursor: SessionCursor },
}

impl Search {
    pub(super) fn new(view: GraphView<'_>, session: Session, request: LeaseRequest, end: Ticket) -> Search {
        let claims = CheckedClaims::of(request.bundle.members());
        let (forward, backward) = (Side::default(), Side::default());
        let mut search = Search { session: session.clone(), request, claims, end, forward, backward };
        search.forward.follow(view.waiters, None, &search.request, end);
        search.backward.reached.insert(Node::Session(session.clone()));
        search.backward.follow_session_backward(session);
        search
    }

    /// Whether no session can wait for this one: then its own wait closes no cycle.
    pub(super) fn is_needless(view: GraphView<'_>, session: &Session, end: Ticket) -> bool {
        let (namespace, identity, name) = session;
        let none = SessionCursor::default();
        let leases = view.kernel.leases_of_session_from(namespace, identity, name, view.now, none, 1);
        let waits = view.waiters.first_of_session(session, Ticket::FIRST, end).is_some();
        leases.rows.is_empty() && leases.next.is_none() && !waits
    }

    /// Continues until the search ends or the budget is spent.
    pub(super) fn run(&mut self, view: GraphView<'_>, budget: &mut Budget) -> Progress {
        while !self.forward.tasks.is_empty() && !self.backward.tasks.is_empty() {
            let max = budget.left(Work::Searching).min(PAGE);
            if max == 0 {
                return Progress::Suspended;
            }
            let goes_forward = self.forward.visits <= self.backward.visits;
            let (found, rows) =
                if goes_forward { self.step_forward(view, max) } else { self.step_backward(view, max) };
            let side = if goes_forward { &mut self.forward } else { &mut self.backward };
            side.visits += rows;
            budget.spend(Work::Searching, rows);
            if found {
                return Progress::Cycle;
            }
        }
        Progress::Clear
    }

    /// A lease has moved within the order of holders: reads them again.
    pub(super) fn restart_holders(&mut self) {
        for task in &mut self.forward.tasks {
            if let Task::Holders { cursor, .. } = task {
                *cursor = ConflictCursor::default();
            }
        }
    }

    /// Whether the sides have met, and the number of rows read.
    fn step_forward(&mut self, view: GraphView<'_>, max: usize) -> (bool, usize) {
        match self.forward.tasks.pop() {
            Some(Task::Queue { queue, from, until }) => {
                let Some(ticket) = view.waiters.first_in(queue, from, until) else { return (false, 1) };
                self.forward.tasks.push(Task::Queue { queue, from: ticket.next(), until });
                (self.reach_forward(view, ticket), 1)
            }
            Some(Task::SessionWaiters { session, from }) => {
                let next = view.waiters.first_of_session(&session, from, self.end);
                if let Some((ticket, waiter)) = next.and_then(|next| Some((next, view.waiters.get(next)?))) {
                    self.forward.tasks.push(Task::SessionWaiters { session, from: ticket.next() });
                    self.forward.follow(view.waiters, Some(ticket), waiter.request(), ticket);
                }
                (false, 1)
            }
            Some(Task::Holders { of, cursor }) => self.read_holders(view, of, cursor, max),
            Some(Task::SessionLeases { .. }) | None => (false, 1),
        }
    }

    fn read_holders(
        &mut self,
        view: GraphView<'_>,
        of: Option<Ticket>,
        cursor: ConflictCursor,
        max: usize,
    ) -> (bool, usize) {
        let waiting = of.map_or(Some(&self.request), |ticket| Some(view.waiters.get(ticket)?.request()));
        let Some(request) = waiting else { return (false, 1) };
        let namespace = &request.namespace;
        let page = view.kernel.conflicting_sessions(namespace, &request.bundle, view.now, cursor, max);
        if let Some(cursor) = page.next {
            self.forward.tasks.push(Task::Holders { of, cursor });
        }
        let mut found = false;
        for (identity, session) in page.rows {
            let session = (self.session.0.clone(), identity, session);
            found |= self.reach_session_forward(session);
        }
        (found, page.visited.max(1))
    }

    fn reach_forward(&mut self, view: GraphView<'_>, ticket: Ticket) -> bool {
        let Some(waiter) = view.waiters.get(ticket) else { return false };
        if let Some(session) = session_of(&waiter.command) {
            return self.reach_session_forward(session);
        }
        if self.forward.reached.insert(Node::Waiter(ticket)) {
            self.forward.follow(view.waiters, Some(ticket), waiter.request(), ticket);
        }
        self.backward.reached.contains(&Node::Waiter(ticket))
    }

    fn reach_session_forward(&mut self, session: Session) -> bool {
        let node = Node::Session(session.clone());
        if self.backward.reached.contains(&node) {
            return true;
        }
        if self.forward.reached.insert(node) {
            self.forward.tasks.push(Task::SessionWaiters { session, from: Ticket::FIRST });
        }
        false
    }

    /// Whether the sides have met, and the number of rows read.
    fn step_backward(&mut self, view: GraphView<'_>, max: usize) -> (bool, usize) {
        match self.backward.tasks.pop() {
            Some(Task::Queue { queue, from, until }) => {
                let Some(ticket) = view.waiters.first_in(queue, from, until) else { return (false, 1) };
                self.backward.tasks.push(Task::Queue { queue, from: ticket.next(), until });
                (self.reach_backward(view, ticket), 1)
            }
            Some(Task::SessionWaiters { session, from }) => {
                let next = view.waiters.first_of_session(&session, from, self.end);
                let Some(ticket) = next else { return (false, 1) };
                self.backward.tasks.push(Task::SessionWaiters { session, from: ticket.next() });
                (self.follow_waiter_backward(view, ticket), 1)
            }
            Some(Task::SessionLeases { session, cursor }) => self.read_leases(view, session, cursor, max),
            Some(Task::Holders { .. }) | None => (false, 1),
        }
    }

    fn read_leases(
        &mut self,
        view: GraphView<'_>,
        session: Session,
        cursor: SessionCursor,
        max: usize,
    ) -> (bool, usize) {
        let (namespace, identity, name) = &session;
        let page = view.kernel.leases_of_session_from(namespace, identity, name, view.now, cursor, max);
        if let Some(cursor) = page.next {
            self.backward.tasks.push(Task::SessionLeases { session, cursor });
        }
        let mut found = false;
        for id in page.rows {
            if !self.backward.leases.insert(id) {
                continue;
            }
            if let Ok(lease) = view.kernel.lease(id, view.now) {
                found |= self.claims.conflict_with(&lease.members);
                self.backward.follow_back(
                    view.waiters,
                    &lease.members,
                    Ticket::FIRST,
                    self.end,
                    &self.session,
                );
            }
        }
        (found, page.visited.max(1))
    }

    fn reach_backward(&mut self, view: GraphView<'_>, ticket: Ticket) -> bool {
        let Some(waiter) = view.waiters.get(ticket) else { return false };
        let session = session_of(&waiter.command);
        let node = session.clone().map_or(Node::Waiter(ticket), Node::Session);
        if self.forward.reached.contains(&node) {
            return true;
        }
        if !self.backward.reached.insert(node) {
            return false;
        }
        match session {
            Some(session) => {
                self.backward.follow_session_backward(session);
                false
            }
            None => self.follow_waiter_backward(view, ticket),
        }
    }

    /// Whether the request itself would wait behind this waiter.
    fn follow_waiter_backward(&mut self, view: GraphView<'_>, ticket: Ticket) -> bool {
        let Some(waiter) = view.waiters.get(ticket) else { return false };
        let members = waiter.request().bundle.members();
        self.backward.follow_back(view.waiters, members, ticket.next(), self.end, &self.session);
        self.claims.conflict_with(members)
    }
}

impl Side {
    /// Adds what a waiter waits for: conflicting waiters before its ticket `before`, and conflicting holders.
    fn follow(&mut self, waiters: &Waiters, of: Option<Ticket>, request: &LeaseRequest, before: Ticket) {
        self.tasks.push(Task::Holders { of, cursor: ConflictCursor::default() });
        let queues = waiters.conflicting_queues(&request.namespace, request.bundle.members());
        for queue in queues.filter(|_| !planted!(CyclesHoldersOnly)) {
            let read = self.read.entry(queue).or_insert(Ticket::FIRST);
            if waiters.first_in(queue, *read, before).is_some() {
                self.tasks.push(Task::Queue { queue, from: *read, until: before });
                *read = before;
            }
        }
        self.plant_leases_first();
    }

    /// Adds the waiters for a session: for its waiters first, then for its leases.
    fn follow_session_backward(&mut self, session: Session) {
        let cursor = SessionCursor::default();
        self.tasks.push(Task::SessionLeases { session: session.clone(), cursor });
        self.tasks.push(Task::SessionWaiters { session, from: Ticket::FIRST });
        self.plant_leases_first();
    }

    /// A planted fault: what was pushed first, the leases, comes to the top of the stack.
    fn plant_leases_first(&mut self) {
        if planted!(LeasesReadFirst) {
            let leases = |task: &Task| matches!(task, Task::Holders { .. } | Task::SessionLeases { .. });
            if let Some(index) = self.tasks.iter().rposition(leases) {
                let task = self.tasks.remove(index);
                self.tasks.push(task);
            }
        }
    }

    /// Adds the waiters from the ticket `from` on that conflict with these members.
    fn follow_back(
        &mut self,
        waiters: &Waiters,
        members: &[Member],
        from: Ticket,
        end: Ticket,
        of: &Session,
    ) {
        // A planted fault: the edge is followed in the wrong direction.
        let reversed = planted!(CycleEdgeReversed) && from != Ticket::FIRST;
        for queue in waiters.conflicting_queues(&of.0, members) {
            let read = self.read.entry(queue).or_insert(end);
            let (from, until) = if reversed { (Ticket::FIRST, from) } else { (from, *read) };
            if waiters.first_in(queue, from, until).is_some() {
                self.tasks.push(Task::Queue { queue, from, until });
                *read = from.min(*read);
            }
        }
    }
}

/// The claim sets that the request checks, to tell quickly whether it conflicts with a bundle.
struct CheckedClaims(BTreeMap<String, Vec<(ClaimSetKind, Predicate)>>);

impl CheckedClaims {
    fn of(members: &[Member]) -> CheckedClaims {
        let mut claims: BTreeMap<String, Vec<(ClaimSetKind, Predicate)>> = BTreeMap::new();
        for member in members {
            for (name, kind) in member.resource.met() {
                claims.entry(name.to_string()).or_default().push((kind, member.predicate));
            }
        }
        CheckedClaims(claims)
    }

    fn conflict_with(&self, members: &[Member]) -> bool {
        members.iter().any(|member| {
            member.resource.claimed().any(|(name, kind)| {
                let checked = self.0.get(name).into_iter().flatten();
                checked
                    .copied()
                    .any(|(other, predicate)| other == kind && !predicate.compatible(member.predicate))
            })
        })
    }
}
