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
//! **Returned waiters.** A retry stands at the place of its first try: waiters behind that place wait for it from then
//! on, and a cycle may pass through these edges. The search follows them backward too, and reports the overtaken waiter
//! through which the cycle passes. Overtaken attempts under wait-die are left out: they are going to be refused. A
//! session that waits already returns to the end of the queues, so that no cycle passes through its other waiters.
//!
//! **Why a search over a changing graph is right.** Only a new waiter adds edges between nodes:
//!
//! - a grant to a waiter replaces edges to the waiter by edges to its lease: the same sessions;
//! - a grant without a wait adds none: a waiter that conflicts with it would have blocked it;
//! - releases, expiries, timeouts and disconnects only remove edges; a lease on hold is a holder all the time.
//!
//! So the last-inserted waiter of a cycle finds all edges of the cycle present from its insertion on, and it considers
//! only waiters that were inserted before it, wherever their places are. An edge that is found late existed at the insertion too: a cycle that is found
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
use super::queues::{QueueId, Session, Ticket, Waiter, Waiters, session_of};

/// How many leases are read at a time.
const PAGE: usize = 32;

/// The result of a step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The wait closes no cycle.
    Clear,
    /// The wait closes a cycle, which passes through this waiter behind it, through any ([`Ticket::LAST`]), or does not
    /// depend on its place.
    Cycle { overtaken: Option<Ticket> },
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
    request: LeaseRequest,
    claims: CheckedClaims,
    /// The place of the request: its own, or where it would queue.
    place: Ticket,
    /// Only waiters that joined their queues before this one are considered: up to the request itself.
    queued_before: u64,
    forward: Side,
    backward: Side,
}

/// One of the two directions.
#[derive(Default)]
struct Side {
    /// The nodes, each with the overtaken waiter through which it was reached.
    reached: BTreeMap<Node, Root>,
    /// Per queue, the tickets that have been read or are to be read by a task: those before this one (forward) or
    /// from this one on (backward).
    read: BTreeMap<QueueId, Ticket>,
    leases: BTreeSet<LeaseId>,
    /// A stack: see the module's documentation.
    tasks: Vec<Task>,
    visits: usize,
}

/// The waiter behind the request through which a node was reached backward; `None` for its session's leases and waiters.
type Root = Option<Ticket>;

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
    Queue { queue: QueueId, from: Ticket, until: Ticket, root: Root },
    /// The waiters of a queue behind the request.
    Overtaken { queue: QueueId, from: Ticket },
    /// The holders that block a waiter, or with `None` the request itself.
    Holders { of: Option<Ticket>, cursor: ConflictCursor },
    /// The waiters of a session.
    SessionWaiters { session: Session, from: Ticket, root: Root },
    /// The leases of a session.
    SessionLeases { session: Session, cursor: SessionCursor, root: Root },
}

impl Search {
    /// `own` is the place of a request that has joined its queues; `overtakes`: waiters behind its place count.
    pub(super) fn new(
        view: GraphView<'_>,
        session: Option<Session>,
        request: LeaseRequest,
        place: Ticket,
        own: Option<Ticket>,
        overtakes: bool,
    ) -> Search {
        let claims = CheckedClaims::of(request.bundle.members());
        let own = own.and_then(|own| view.waiters.get(own));
        let queued_before = own.map_or(view.waiters.next_queued(), |waiter| waiter.queued + 1);
        let (forward, backward) = (Side::default(), Side::default());
        let mut search = Search { request, claims, place, queued_before, forward, backward };
        search.forward.follow(view.waiters, None, &search.request, place);
        let node = session.clone().map_or(Node::Waiter(place), Node::Session);
        search.backward.reached.insert(node, None);
        if let Some(session) = session {
            search.backward.follow_session_backward(session, None);
        }
        if overtakes {
            search.backward.follow_overtaken(view.waiters, &search.request, place);
        }
        search
    }

    /// Whether no session can wait for this one: then its own wait closes no cycle. `place`: where it waits.
    pub(super) fn is_needless(view: GraphView<'_>, session: &Session, place: Ticket) -> bool {
        let (namespace, identity, name) = session;
        let none = SessionCursor::default();
        let leases = view.kernel.leases_of_session_from(namespace, identity, name, view.now, none, 1);
        let before = view.waiters.first_of_session(session, Ticket::FIRST, place);
        let waits = before.or(view.waiters.first_of_session(session, place.next(), Ticket::LAST)).is_some();
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
            let (met, rows) =
                if goes_forward { self.step_forward(view, max) } else { self.step_backward(view, max) };
            let side = if goes_forward { &mut self.forward } else { &mut self.backward };
            side.visits += rows;
            budget.spend(Work::Searching, rows);
            if let Some(overtaken) = met {
                return Progress::Cycle { overtaken };
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

    /// Whether a waiter behind the request is not refused because the request has overtaken it.
    fn stays_behind(&self, waiter: &Waiter) -> bool {
        !waiter.is_wait_die() || self.request.attempt.is_none_or(|age| waiter.age <= age)
    }

    /// A waiter that was queued before the request.
    fn earlier<'a>(&self, view: GraphView<'a>, ticket: Ticket) -> Option<&'a Waiter> {
        view.waiters.get(ticket).filter(|waiter| waiter.queued < self.queued_before)
    }

    /// Where the sides have met, if they have, and the number of rows read.
    fn step_forward(&mut self, view: GraphView<'_>, max: usize) -> (Option<Root>, usize) {
        match self.forward.tasks.pop() {
            Some(Task::Queue { queue, from, until, root }) => {
                let Some(ticket) = view.waiters.first_in(queue, from, until) else { return (None, 1) };
                self.forward.tasks.push(Task::Queue { queue, from: ticket.next(), until, root });
                (self.reach_forward(view, ticket), 1)
            }
            Some(Task::SessionWaiters { session, from, root }) => {
                let Some(ticket) = view.waiters.first_of_session(&session, from, Ticket::LAST) else {
                    return (None, 1);
                };
                self.forward.tasks.push(Task::SessionWaiters { session, from: ticket.next(), root });
                if let Some(waiter) = self.earlier(view, ticket) {
                    self.forward.follow(view.waiters, Some(ticket), waiter.request(), ticket);
                }
                (None, 1)
            }
            Some(Task::Holders { of, cursor }) => self.read_holders(view, of, cursor, max),
            Some(Task::SessionLeases { .. } | Task::Overtaken { .. }) | None => (None, 1),
        }
    }

    fn read_holders(
        &mut self,
        view: GraphView<'_>,
        of: Option<Ticket>,
        cursor: ConflictCursor,
        max: usize,
    ) -> (Option<Root>, usize) {
        let waiting = of.map_or(Some(&self.request), |ticket| Some(view.waiters.get(ticket)?.request()));
        let Some(request) = waiting else { return (None, 1) };
        let namespace = request.namespace.clone();
        let page = view.kernel.conflicting_sessions(&namespace, &request.bundle, view.now, cursor, max);
        if let Some(cursor) = page.next {
            self.forward.tasks.push(Task::Holders { of, cursor });
        }
        let mut met = None;
        for (identity, session) in page.rows {
            met = met.or(self.reach_session_forward((namespace.clone(), identity, session)));
        }
        (met, page.visited.max(1))
    }

    fn reach_forward(&mut self, view: GraphView<'_>, ticket: Ticket) -> Option<Root> {
        let waiter = self.earlier(view, ticket)?;
        if ticket == self.place {
            // Through one of those behind it.
            return Some(Some(Ticket::LAST));
        }
        if let Some(session) = session_of(&waiter.command) {
            return self.reach_session_forward(session);
        }
        let node = Node::Waiter(ticket);
        if self.forward.reached.insert(node.clone(), None).is_none() {
            self.forward.follow(view.waiters, Some(ticket), waiter.request(), ticket);
        }
        self.backward.reached.get(&node).copied()
    }

    fn reach_session_forward(&mut self, session: Session) -> Option<Root> {
        let node = Node::Session(session.clone());
        if let Some(root) = self.backward.reached.get(&node) {
            return Some(*root);
        }
        if self.forward.reached.insert(node, None).is_none() {
            self.forward.tasks.push(Task::SessionWaiters { session, from: Ticket::FIRST, root: None });
        }
        None
    }

    /// Where the sides have met, if they have, and the number of rows read.
    fn step_backward(&mut self, view: GraphView<'_>, max: usize) -> (Option<Root>, usize) {
        match self.backward.tasks.pop() {
            Some(Task::Queue { queue, from, until, root }) => {
                let Some(ticket) = view.waiters.first_in(queue, from, until) else { return (None, 1) };
                self.backward.tasks.push(Task::Queue { queue, from: ticket.next(), until, root });
                (self.reach_backward(view, ticket, root), 1)
            }
            Some(Task::Overtaken { queue, from }) => {
                let Some(ticket) = view.waiters.first_in(queue, from, Ticket::LAST) else { return (None, 1) };
                self.backward.tasks.push(Task::Overtaken { queue, from: ticket.next() });
                let stays = self.earlier(view, ticket).is_some_and(|waiter| self.stays_behind(waiter));
                (if stays { self.reach_backward(view, ticket, Some(ticket)) } else { None }, 1)
            }
            Some(Task::SessionWaiters { session, from, root }) => {
                let Some(ticket) = view.waiters.first_of_session(&session, from, Ticket::LAST) else {
                    return (None, 1);
                };
                self.backward.tasks.push(Task::SessionWaiters { session, from: ticket.next(), root });
                (self.follow_waiter_backward(view, ticket, root), 1)
            }
            Some(Task::SessionLeases { session, cursor, root }) => {
                self.read_leases(view, session, cursor, root, max)
            }
            Some(Task::Holders { .. }) | None => (None, 1),
        }
    }

    fn read_leases(
        &mut self,
        view: GraphView<'_>,
        session: Session,
        cursor: SessionCursor,
        root: Root,
        max: usize,
    ) -> (Option<Root>, usize) {
        let (namespace, identity, name) = &session;
        let page = view.kernel.leases_of_session_from(namespace, identity, name, view.now, cursor, max);
        if let Some(cursor) = page.next {
            self.backward.tasks.push(Task::SessionLeases { session, cursor, root });
        }
        let mut met = None;
        for id in page.rows {
            if !self.backward.leases.insert(id) {
                continue;
            }
            if let Ok(lease) = view.kernel.lease(id, view.now) {
                met = met.or(self.claims.conflict_with(&lease.members).then_some(root));
                self.follow_back(view.waiters, &lease.members, Ticket::FIRST, root);
            }
        }
        (met, page.visited.max(1))
    }

    fn reach_backward(&mut self, view: GraphView<'_>, ticket: Ticket, root: Root) -> Option<Root> {
        let waiter = self.earlier(view, ticket)?;
        let session = session_of(&waiter.command);
        let node = session.clone().map_or(Node::Waiter(ticket), Node::Session);
        if self.forward.reached.contains_key(&node) {
            return Some(root);
        }
        if self.backward.reached.contains_key(&node) {
            return None;
        }
        self.backward.reached.insert(node, root);
        match session {
            Some(session) => {
                self.backward.follow_session_backward(session, root);
                None
            }
            None => self.follow_waiter_backward(view, ticket, root),
        }
    }

    /// Adds the waiters behind this one. The sides have met if the request itself would wait behind it.
    fn follow_waiter_backward(&mut self, view: GraphView<'_>, ticket: Ticket, root: Root) -> Option<Root> {
        let waiter = self.earlier(view, ticket)?;
        if ticket == self.place {
            // Those behind the request itself are overtaken waiters.
            return None;
        }
        let members = waiter.request().bundle.members();
        self.follow_back(view.waiters, members, ticket.next(), root);
        (ticket < self.place && self.claims.conflict_with(members)).then_some(root)
    }

    fn follow_back(&mut self, waiters: &Waiters, members: &[Member], from: Ticket, root: Root) {
        self.backward.follow_back(waiters, &self.request, members, from, root);
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
                self.tasks.push(Task::Queue { queue, from: *read, until: before, root: None });
                *read = before;
            }
        }
        self.plant_leases_first();
    }

    /// Adds the waiters for a session: for its waiters first, then for its leases.
    fn follow_session_backward(&mut self, session: Session, root: Root) {
        let cursor = SessionCursor::default();
        self.tasks.push(Task::SessionLeases { session: session.clone(), cursor, root });
        self.tasks.push(Task::SessionWaiters { session, from: Ticket::FIRST, root });
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

    /// Adds the waiters behind the request itself.
    fn follow_overtaken(&mut self, waiters: &Waiters, request: &LeaseRequest, place: Ticket) {
        let queues: BTreeSet<QueueId> =
            waiters.conflicting_queues(&request.namespace, request.bundle.members()).collect();
        self.tasks.extend(queues.into_iter().map(|queue| Task::Overtaken { queue, from: place.next() }));
    }

    /// Adds the waiters from the ticket `from` on that conflict with these members.
    fn follow_back(
        &mut self,
        waiters: &Waiters,
        request: &LeaseRequest,
        members: &[Member],
        from: Ticket,
        root: Root,
    ) {
        // A planted fault: the edge is followed in the wrong direction.
        let reversed = planted!(CycleEdgeReversed) && from != Ticket::FIRST;
        for queue in waiters.conflicting_queues(&request.namespace, members) {
            let read = self.read.entry(queue).or_insert(Ticket::LAST);
            let (from, until) = if reversed { (Ticket::FIRST, from) } else { (from, *read) };
            if waiters.first_in(queue, from, until).is_some() {
                self.tasks.push(Task::Queue { queue, from, until, root });
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
