//! Admission: a request for a lease is granted, refused, queued, or left pending while a deadlock cycle is searched for.
//!
//! **Invariant.** A request is not granted while an earlier waiter conflicts with it. A request that waits has joined its
//! queues before its search for deadlock cycles begins, so that later searches see its edges.

use kernel::{Age, Command, Conflict, Outcome, Rejection, Span};

use super::connection::{Wait, WaiterConnection};
use super::deadlock::{GraphView, Progress, Search};
use super::queues::{Ticket, Waiter, lease_request_of, session_of};
use super::verdict;
use super::{LeaseReply, LeaseSubmission, Waiting};
use crate::decider::Decider;
use crate::decision::{Blocked, ContentionOutcome, Decision, OnDecided, Unavailable};

/// The maximum number of waiters. Beyond it, a request that wants to wait is refused as if it did not.
pub const WAITERS_MAX: usize = 100_000;
/// The maximum number of requests whose search for deadlock cycles is unfinished. Beyond it: [`Unavailable::Busy`].
pub const SEARCHES_MAX: usize = 1024;

/// A request whose search for deadlock cycles is unfinished.
pub(super) struct PendingSearch<R> {
    pub(super) search: Option<Search>,
    command: Command,
    blocked: Blocked,
    pub(super) requester: Requester<R>,
}

/// Where the request of a pending search is.
pub(super) enum Requester<R> {
    /// In the wait queues.
    Queued(Ticket),
    /// It does not want to wait for the lease, only for this reply.
    Replying(R, Option<OnDecided>),
}

impl<R> Requester<R> {
    /// Where its reply goes, if it is not in the wait queues.
    pub(super) fn reply_address(self) -> Option<R> {
        match self {
            Requester::Queued(_) => None,
            Requester::Replying(to, _) => Some(to),
        }
    }
}

impl<R> Waiting<R> {
    /// Decides a request for a lease, queues it, or leaves it pending while a deadlock cycle is searched for.
    pub(crate) fn admit(&mut self, decider: &mut Decider, submission: LeaseSubmission<R>) {
        decider.end_due(decider.now());
        self.hand_off(decider);
        // Read after the hand-off: time must not go back between two records.
        let now = decider.now();
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
        let LeaseSubmission { command, correlation, wait, on_decided, to, .. } = submission;
        let request = lease_request_of(&command).expect("an acquire or a reserve");
        let blocked = verdict::blocked(&self.queues, request, age, conflict);
        if dies {
            return self.refuse(decider, Requester::Replying(to, on_decided), &command, blocked);
        }
        if self.searches.len() >= SEARCHES_MAX && session_of(&command).is_some() {
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
        let LeaseSubmission { command, wait, authorization, on_decided, to, .. } = submission;
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
        let wait = wait.unwrap_or_else(|| {
            let connection = WaiterConnection::new(authorization);
            Wait { timeout: Span(0), connection }
        });
        let deadline = decider.now().after(wait.timeout);
        let before = self.parked.replace(ticket, (to, on_decided), &wait.connection, deadline);
        self.queues.reattach(ticket, wait.connection);
        self.replies.push(LeaseReply { to: before, reply: Err(Unavailable::Replaced), request: key, waited });
        None
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

    pub(super) fn continue_searches(&mut self, decider: &Decider) {
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
    pub(super) fn refuse(
        &mut self,
        decider: &Decider,
        requester: Requester<R>,
        command: &Command,
        blocked: Blocked,
    ) {
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
}
