//! Waiting: requests for leases that conflict with leases or with earlier waiters.
//!
//! [`Waiting`] decides every request for a lease. A request that conflicts with nothing is granted; one that conflicts
//! is refused or queued. Freed resources are handed off to waiters in order, and waiters leave by grant, timeout,
//! disconnect or wait-die. The modules in reading order: `connection` is a waiter's connection and timeout; `queues` are
//! the wait queues; `parked` is the reply side of the waiters; `verdict` is wait-die and what a blocked client is told;
//! `deadlock` searches the wait-for graph; `serving` hands off freed resources; `budget` bounds the work of a turn.
//!
//! **Invariant.** No request barges: a request is not granted while an earlier waiter conflicts with it. Every step
//! visits a bounded number of waiters; the rest is done in the next turns.
//!
//! **What is absent.** Logging: the [`Decider`] applies and logs commands. Waiters are volatile.

mod budget;
mod connection;
mod deadlock;
mod parked;
mod queues;
mod serving;
mod verdict;

use std::collections::VecDeque;

use kernel::{Age, Command, Conflict, Event, LeaseId, Outcome, Rejection, RequestKey, Response, Span, Time};

use self::budget::{Budget, Work};
pub use self::budget::{VISITS_MAX, Visits};
pub use self::connection::{Wait, WaiterConnection};
use self::deadlock::{GraphView, Progress, Search};
use self::parked::Parked;
pub use self::queues::{Session, Ticket, Waiter, Waiters, lease_request_of, session_of};
use self::serving::Serving;
use crate::decider::Decider;
use crate::decision::{Blocked, ContentionEvent, ContentionOutcome, Decision, OnDecided, Reply, Unavailable};

/// The maximum number of waiters. Beyond it, a request that wants to wait is refused as if it did not.
pub const WAITERS_MAX: usize = 100_000;
/// The maximum number of requests whose search for deadlock cycles is unfinished. Beyond it: [`Unavailable::Busy`].
pub const SEARCHES_MAX: usize = 1024;

/// A request for a lease, and where its reply goes.
pub(crate) struct LeaseSubmission<R> {
    pub(crate) command: Command,
    pub(crate) correlation: u128,
    pub(crate) wait: Option<Wait>,
    pub(crate) on_decided: Option<OnDecided>,
    pub(crate) to: R,
}

/// The reply to a request for a lease.
pub(crate) struct LeaseReply<R> {
    pub(crate) to: R,
    pub(crate) reply: Reply,
    /// The idempotency key of the request.
    pub(crate) request: Option<RequestKey>,
    /// The request was queued before.
    pub(crate) waited: bool,
}

/// The waiters of a shard, and the unfinished work on them.
pub(crate) struct Waiting<R> {
    queues: Waiters,
    parked: Parked<R>,
    serving: Serving,
    budget: Budget,
    /// Requests whose search for deadlock cycles is unfinished, in order of arrival.
    searches: VecDeque<PendingSearch<R>>,
    /// Waiters past their deadline, with the number of the first freed resources that need not be offered before.
    expiring: VecDeque<(u64, Ticket)>,
    /// Waiters whose connection has closed.
    disconnected: VecDeque<Ticket>,
    /// New leases whose younger waiters have not been looked for yet.
    new_leases: VecDeque<LeaseId>,
    replies: Vec<LeaseReply<R>>,
    contended: Vec<ContentionEvent>,
}

/// A request whose search for deadlock cycles is unfinished.
struct PendingSearch<R> {
    search: Option<Search>,
    command: Command,
    blocked: Blocked,
    requester: Requester<R>,
}

/// Where the request of a pending search is.
enum Requester<R> {
    /// In the wait queues.
    Queued(Ticket),
    /// It does not want to wait for the lease, only for this reply.
    Replying(R, Option<OnDecided>),
}

impl<R> Default for Waiting<R> {
    fn default() -> Waiting<R> {
        Waiting {
            queues: Waiters::default(),
            parked: Parked::default(),
            serving: Serving::default(),
            budget: Budget::default(),
            searches: VecDeque::new(),
            expiring: VecDeque::new(),
            disconnected: VecDeque::new(),
            new_leases: VecDeque::new(),
            replies: Vec::new(),
            contended: Vec::new(),
        }
    }
}

impl<R> Waiting<R> {
    /// The wait queues, to read.
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.queues
    }

    /// Begins a turn: the budget is full again, and unfinished work continues.
    pub(crate) fn begin_turn(&mut self) {
        self.budget.reset();
    }

    /// Continues what earlier turns left unfinished: hand-offs first.
    pub(crate) fn work(&mut self, decider: &mut Decider) {
        self.hand_off(decider);
        self.remove_disconnected(decider);
        self.continue_searches(decider);
        self.end_waits(decider);
    }

    /// To be called after every command that the decider applied.
    pub(crate) fn after_command(&mut self, decider: &mut Decider, outcome: &Outcome) {
        if let Outcome::Applied(response, events) = outcome {
            if let Response::Granted(granted) = response {
                self.note_grant(granted.lease);
            }
            if events.iter().any(|event| matches!(event, Event::Rebound(..))) {
                let searches = self.searches.iter_mut().filter_map(|pending| pending.search.as_mut());
                searches.for_each(Search::restart_holders);
            }
        }
        self.hand_off(decider);
    }

    /// Offers freed resources to waiters. Attempts behind a new holder that is older are refused, which may free more.
    fn hand_off(&mut self, decider: &mut Decider) {
        self.serve(decider);
        while self.refuse_younger(decider) {
            self.serve(decider);
        }
    }

    /// A batch was sealed.
    pub(crate) fn begin_batch(&mut self) {
        self.serving.begin_batch();
    }

    /// Sets whether grants to waiters may be logged. Without log space, freed resources are kept for their waiters.
    pub(crate) fn set_may_serve(&mut self, may_serve: bool) {
        self.serving.set_may_serve(may_serve);
    }

    /// Whether freed resources have not been offered to all of their waiters, and there is log space for grants.
    pub(crate) fn is_handing_off(&self) -> bool {
        self.serving.is_handing_off()
    }

    /// Whether [`Waiting::work`] has something to do now.
    pub(crate) fn is_unfinished(&self, decider: &Decider) -> bool {
        self.serving.can_continue(decider)
            || !self.searches.is_empty()
            || !self.disconnected.is_empty()
            || !self.new_leases.is_empty()
            || self.expiring.front().is_some_and(|(number, _)| self.serving.has_offered(*number))
    }

    /// The time until the next deadline of a waiter has passed. Deadlines that have passed and cannot be handled yet do not
    /// count: their waiters are to be offered freed resources first.
    pub(crate) fn until_timeout(&self, now: Time) -> Option<Span> {
        let deadline = self.parked.next_deadline()?;
        if deadline >= now {
            return Some(Span(now.until(deadline).0 + 1));
        }
        (self.expiring.len() < VISITS_MAX).then_some(Span(0))
    }

    /// Sets how many rows each kind of work may visit in one turn.
    pub(crate) fn set_visits_max(&mut self, max: usize) {
        self.budget.set_max(max);
    }

    /// Rows visited in this turn.
    pub(crate) fn visits(&self) -> Visits {
        self.budget.visits()
    }

    /// The replies since the last call, in order.
    pub(crate) fn take_replies(&mut self) -> Vec<LeaseReply<R>> {
        std::mem::take(&mut self.replies)
    }

    /// Requests that were blocked, since the last call; to be published when the current batch is durable.
    pub(crate) fn take_contended(&mut self) -> Vec<ContentionEvent> {
        std::mem::take(&mut self.contended)
    }

    /// The number of requests that were blocked since the last call of [`Waiting::take_contended`].
    pub(crate) fn contended(&self) -> usize {
        self.contended.len()
    }

    /// Decides a request for a lease, queues it, or leaves it pending while a deadlock cycle is searched for.
    pub(crate) fn admit(&mut self, decider: &mut Decider, submission: LeaseSubmission<R>) {
        let now = decider.now();
        decider.end_due(now);
        self.hand_off(decider);
        let command = &submission.command;
        let request = lease_request_of(command).expect("an acquire or a reserve");
        let ahead = self.queues.oldest_ahead(&request.namespace, &request.bundle);
        let ahead = ahead.filter(|_| !decider.kernel().is_retry(now, command) && !planted!(Barge));
        let outcome = match ahead {
            Some(_) => Outcome::Rejected(verdict::rejection_behind(decider, now, command)),
            None => decider.execute(now, command, submission.correlation, None),
        };
        match &outcome {
            Outcome::Rejected(Rejection::Conflict(conflict)) => {
                let age = verdict::age_of(decider, now, request);
                let dies = verdict::dies(request, age, conflict, ahead);
                self.block(decider, submission, (**conflict).clone(), age, dies);
            }
            outcome => {
                let LeaseSubmission { command, on_decided, to, .. } = submission;
                self.reply(decider, to, on_decided, &command, Decision::Outcome(outcome.clone()));
            }
        }
        // After the request has joined its queues: what is freed from here on is offered to it.
        self.after_command(decider, &outcome);
    }

    /// A blocked request: refused by wait-die, or queued, or refused because it does not want to wait.
    fn block(
        &mut self,
        decider: &mut Decider,
        submission: LeaseSubmission<R>,
        conflict: Conflict,
        age: Age,
        dies: bool,
    ) {
        let LeaseSubmission { command, correlation, wait, on_decided, to } = submission;
        let request = lease_request_of(&command).expect("an acquire or a reserve");
        let blocked = verdict::blocked(&self.queues, request, age, conflict);
        if dies {
            return self.refuse(decider, Requester::Replying(to, on_decided), &command, blocked);
        }
        if self.searches.len() >= SEARCHES_MAX {
            let request = command.request.map(|request| request.key);
            self.replies.push(LeaseReply { to, reply: Err(Unavailable::Busy), request, waited: false });
            return;
        }
        let requester = match wait.filter(|_| self.parked.len() < WAITERS_MAX) {
            Some(wait) => {
                let ticket = self.enqueue(decider, &command, correlation, age, &wait, (to, on_decided));
                Requester::Queued(ticket)
            }
            None => Requester::Replying(to, on_decided),
        };
        self.search(decider, command, blocked, requester);
    }

    fn enqueue(
        &mut self,
        decider: &mut Decider,
        command: &Command,
        correlation: u128,
        age: Age,
        wait: &Wait,
        reply: (R, Option<OnDecided>),
    ) -> Ticket {
        decider.watch_freed(true);
        let connection = wait.connection.clone();
        let ticket = self.queues.push(Waiter { command: command.clone(), correlation, age, connection });
        let request = command.identity.clone().zip(command.request.map(|request| request.key));
        let deadline = decider.now().after(wait.timeout);
        self.parked.insert(ticket, reply, &wait.connection, deadline, request);
        ticket
    }

    /// A retry of a request that waits takes its place: it keeps the queue position and gets the reply. Returns the
    /// submission if there is no such waiter.
    pub(crate) fn reattach(
        &mut self,
        decider: &Decider,
        submission: LeaseSubmission<R>,
    ) -> Option<LeaseSubmission<R>> {
        let command = &submission.command;
        let request = command.identity.clone().zip(command.request.map(|request| request.key));
        let ticket = request.and_then(|request| self.parked.of_request(&request));
        let Some(ticket) = ticket.filter(|_| !planted!(RetryQueuesTwice)) else { return Some(submission) };
        let LeaseSubmission { command, wait, on_decided, to, .. } = submission;
        // Fingerprints are compared, as they are once there is a response. Other fields that the edge adds may differ,
        // such as the age of a new attempt: the waiter keeps its own.
        let is_same = |waiter: &Waiter| waiter.command.request == command.request;
        let (key, waited) = (command.request.map(|request| request.key), false);
        if !self.queues.get(ticket).is_some_and(is_same) {
            let reply = Ok(Decision::rejected(Rejection::RequestMismatch));
            self.replies.push(LeaseReply { to, reply, request: key, waited });
            return None;
        }
        // A retry that does not want to wait gets its reply when it times out, at once.
        let wait = wait.unwrap_or(Wait { timeout: Span(0), connection: WaiterConnection::default() });
        let deadline = decider.now().after(wait.timeout);
        let before = self.parked.replace(ticket, (to, on_decided), &wait.connection, deadline);
        self.queues.reattach(ticket, wait.connection);
        self.replies.push(LeaseReply { to: before, reply: Err(Unavailable::Replaced), request: key, waited });
        None
    }

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
    /// [`Unavailable::Stopped`].
    pub(crate) fn dismiss(&mut self) {
        self.queues = Waiters::default();
        self.serving.clear();
        self.expiring.clear();
        self.disconnected.clear();
        self.new_leases.clear();
        let parked = self.parked.drain().map(|parked| parked.to);
        let searching = self.searches.drain(..).filter_map(|pending| match pending.requester {
            Requester::Queued(_) => None,
            Requester::Replying(to, _) => Some(to),
        });
        let stopped = parked.chain(searching).map(|to| LeaseReply {
            to,
            reply: Err(Unavailable::Stopped),
            request: None,
            waited: true,
        });
        self.replies.extend(stopped);
    }

    /// Searches for a deadlock cycle through a new wait, and leaves the search pending if it exceeds the budget. Searches
    /// run in order of arrival.
    fn search(&mut self, decider: &Decider, command: Command, blocked: Blocked, requester: Requester<R>) {
        let view = GraphView { kernel: decider.kernel(), waiters: &self.queues, now: decider.now() };
        let mut pending = PendingSearch { search: None, command, blocked, requester };
        let own = match pending.requester {
            Requester::Queued(ticket) => Some(ticket),
            Requester::Replying(..) => None,
        };
        let session = session_of(&pending.command).filter(|_| !planted!(AttemptsAlwaysWait));
        let end = own.unwrap_or(self.queues.end());
        let session = session.filter(|session| !Search::is_needless(view, session, end));
        let request = lease_request_of(&pending.command).expect("an acquire or a reserve");
        pending.search = session.map(|session| Search::new(view, session, request.clone(), end));
        let progress = match &mut pending.search {
            None => Progress::Clear,
            Some(_) if !self.searches.is_empty() => Progress::Suspended,
            Some(search) => search.run(view, &mut self.budget),
        };
        match progress {
            Progress::Suspended => self.searches.push_back(pending),
            progress => self.conclude(decider, pending, progress == Progress::Cycle),
        }
    }

    fn continue_searches(&mut self, decider: &Decider) {
        while let Some(mut pending) = self.searches.pop_front() {
            let is_gone = match pending.requester {
                Requester::Queued(ticket) => self.queues.get(ticket).is_none(),
                Requester::Replying(..) => false,
            };
            if is_gone {
                // It was granted or removed: there is no wait to judge.
                continue;
            }
            let view = GraphView { kernel: decider.kernel(), waiters: &self.queues, now: decider.now() };
            let progress = match &mut pending.search {
                Some(search) if !planted!(SearchForgotten) => search.run(view, &mut self.budget),
                _ => Progress::Clear,
            };
            match progress {
                Progress::Suspended => return self.searches.push_front(pending),
                progress => self.conclude(decider, pending, progress == Progress::Cycle),
            }
        }
    }

    /// A search has ended: the request may wait, or closes a cycle.
    fn conclude(&mut self, decider: &Decider, pending: PendingSearch<R>, closes_cycle: bool) {
        let PendingSearch { command, blocked, requester, .. } = pending;
        if closes_cycle {
            return self.refuse(decider, requester, &command, blocked);
        }
        match requester {
            Requester::Queued(_) => {
                self.note_contended(decider, &command, ContentionOutcome::Queued, &blocked);
            }
            Requester::Replying(to, on_decided) => {
                self.note_contended(decider, &command, ContentionOutcome::Refused, &blocked);
                self.reply(decider, to, on_decided, &command, Decision::Blocked(Box::new(blocked)));
            }
        }
    }

    /// Refuses a request by wait-die or because of a deadlock cycle.
    fn refuse(&mut self, decider: &Decider, requester: Requester<R>, command: &Command, blocked: Blocked) {
        let blocked = verdict::refused(decider, command, blocked);
        self.note_contended(decider, command, ContentionOutcome::Died, &blocked);
        let decision = Decision::Blocked(Box::new(blocked));
        match requester {
            Requester::Queued(ticket) => {
                self.remove(ticket);
                self.settle(decider, ticket, decision);
            }
            Requester::Replying(to, on_decided) => self.reply(decider, to, on_decided, command, decision),
        }
    }

    /// A new or rebound lease: an attempt that is younger must not wait for it.
    fn note_grant(&mut self, lease: LeaseId) {
        if !self.queues.is_empty() && !planted!(YoungerStays) {
            self.new_leases.push_back(lease);
        }
    }

    /// Refuses attempts that wait behind a new holder that is older than they are. Returns whether there were any.
    fn refuse_younger(&mut self, decider: &Decider) -> bool {
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
                let (command, age) = (waiter.command.clone(), waiter.age);
                let blocked = verdict::blocked(&self.queues, waiter.request(), age, conflict);
                self.refuse(decider, Requester::Queued(ticket), &command, blocked);
            }
            self.new_leases.pop_front();
        }
        removed
    }

    fn remove_disconnected(&mut self, decider: &mut Decider) {
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
    fn end_waits(&mut self, decider: &mut Decider) {
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
            self.expiring.pop_front();
            // A retry may have extended its deadline.
            if self.parked.is_due(ticket, now) {
                self.budget.spend(Work::Removing, 1);
                self.time_out(decider, ticket);
            }
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
    fn remove(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.queues.remove(ticket) {
            self.note_departure(ticket, &waiter);
        }
    }

    /// Replies to a waiter that has left the queues.
    fn settle(&mut self, decider: &Decider, ticket: Ticket, decision: Decision) {
        let Some(parked) = self.parked.remove(ticket) else { return };
        if let Some(on_decided) = parked.on_decided {
            on_decided(decider.kernel(), decider.now(), &decision);
        }
        let request = parked.request.map(|(_, key)| key);
        self.replies.push(LeaseReply { to: parked.to, reply: Ok(decision), request, waited: true });
    }

    fn reply(
        &mut self,
        decider: &Decider,
        to: R,
        on_decided: Option<OnDecided>,
        command: &Command,
        decision: Decision,
    ) {
        if let Some(on_decided) = on_decided {
            on_decided(decider.kernel(), decider.now(), &decision);
        }
        let request = command.request.map(|request| request.key);
        self.replies.push(LeaseReply { to, reply: Ok(decision), request, waited: false });
    }

    fn note_contended(
        &mut self,
        decider: &Decider,
        command: &Command,
        outcome: ContentionOutcome,
        blocked: &Blocked,
    ) {
        self.contended.extend(verdict::contention(decider, command, outcome, blocked));
    }
}
