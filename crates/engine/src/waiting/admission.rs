//! Admission: a request for a lease is granted, refused, queued, or left pending while a deadlock cycle is searched for.
//!
//! **Invariant.** A request is not granted while an earlier waiter conflicts with it. A request that waits has joined its
//! queues before its search for deadlock cycles begins, so that later searches see its edges. A retry stands at the place
//! of its first try, unless that would close a deadlock cycle.
//!
//! **What would break it.** `T` waits for `q` and `r`, and its connection breaks. `B` holds `r` and queues for `q`. `T`
//! returns to its place before `B`: it waits for `r`, which `B` holds, and `B` waits for `q` behind `T`. So `T` stays
//! behind a waiter if standing before it would close a cycle; attempts under wait-die that it overtakes are refused.

use kernel::{Action, Age, Command, Conflict, Outcome, Rejection, Response, Span, Time};

use super::attempts::{Attempt, CurrentAttempt};
use super::connection::{Wait, WaiterConnection};
use super::deadlock::{GraphView, Progress, Search};
use super::queues::{Session, Ticket, Waiter, is_same_request, lease_request_of, session_of};
use super::verdict;
use super::{LeaseReply, LeaseSubmission, Waiting};
use crate::decider::Decider;
use crate::decision::{Blocked, ContentionOutcome, Decision, OnDecided, Unavailable};

/// The maximum number of waiters. Beyond it, a request that wants to wait is refused as if it did not.
pub const WAITERS_MAX: usize = 100_000;
/// The maximum number of requests whose search for deadlock cycles is unfinished. Beyond it: [`Unavailable::Busy`].
pub const SEARCHES_MAX: usize = 1024;
/// How often a returned waiter is moved behind one that it has overtaken, before it goes to the end of its queues.
const MOVES_MAX: usize = 8;

/// A request whose search for deadlock cycles is unfinished.
pub(super) struct PendingSearch<R> {
    pub(super) search: Option<Search>,
    command: Command,
    pub(super) blocked: Blocked,
    pub(super) requester: Requester<R>,
    /// How often the waiter was moved behind one that it had overtaken.
    moves: usize,
}

/// Where the request of a pending search is.
pub(super) enum Requester<R> {
    /// In the wait queues.
    Queued(Ticket),
    /// It does not want to wait for the lease, only for this reply.
    Replying(R, Option<OnDecided>),
}

impl<R> Requester<R> {
    /// Its place in the wait queues, if it is there.
    fn ticket(&self) -> Option<Ticket> {
        match self {
            Requester::Queued(ticket) => Some(*ticket),
            Requester::Replying(..) => None,
        }
    }

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
    pub(crate) fn admit(&mut self, decider: &mut Decider, mut submission: LeaseSubmission<R>) {
        decider.end_due(decider.now());
        self.hand_off(decider);
        // Read after the hand-off: time must not go back between two records.
        let now = decider.now();
        let current = self.recognize(now, &mut submission);
        let command = &submission.command;
        let request = lease_request_of(command).expect("an acquire or a reserve");
        let ahead = self.queues.oldest_ahead(&request.namespace, &request.bundle, current.place);
        let ahead = ahead.filter(|_| !decider.kernel().is_retry(now, command) && !planted!(Barge));
        let outcome = match ahead {
            Some(_) => Outcome::Rejected(verdict::rejection_behind(decider, now, command)),
            None => decider.execute(now, command, &submission.origin, None),
        };
        match &outcome {
            Outcome::Rejected(Rejection::Conflict(conflict)) => {
                let dies = verdict::dies(request, current.age, conflict, ahead);
                self.block(decider, submission, (**conflict).clone(), current, dies);
            }
            outcome => {
                if matches!(outcome, Outcome::Applied(Response::Granted(_), _)) {
                    self.note_attempt_granted(decider, command);
                }
                let LeaseSubmission { command, on_decided, to, .. } = submission;
                self.reply(decider, to, on_decided, &command, Decision::Outcome(outcome.clone()));
            }
        }
        // After the request has joined its queues: what is freed from here on is offered to it.
        self.after_command(decider, &outcome);
    }

    /// Recognizes the attempt of a request. A retry has the age of its first try, and takes the place of a waiter of the
    /// same attempt.
    fn recognize(&mut self, now: Time, submission: &mut LeaseSubmission<R>) -> CurrentAttempt {
        let place = submission.attempt.and_then(|attempt| self.queues.place_of(attempt.arrival));
        let is_other = |waiter: &Waiter| !is_same_request(&waiter.command, &submission.command);
        let is_taken = place.and_then(|place| self.queues.get(place)).is_some_and(is_other);
        let presented = submission.attempt.filter(|_| !is_taken);
        let (Action::Acquire(request) | Action::Reserve(request)) = &mut submission.command.action else {
            unreachable!("an acquire or a reserve")
        };
        let mut current = self.attempts.recognize(now, presented, request.attempt);
        if current.is_retry {
            request.attempt = Some(current.age);
            if let Some(place) = place {
                self.displace(place);
            }
            if self.must_queue_behind(&submission.command, current.place) {
                current.place = Ticket::of(self.attempts.next_arrival());
            }
        }
        current
    }

    /// Whether a retry must not overtake anyone: its session waits for something else. If it were granted its lease now,
    /// those that it overtakes would wait for that session.
    fn must_queue_behind(&self, command: &Command, place: Ticket) -> bool {
        let request = lease_request_of(command).expect("an acquire or a reserve");
        let waits =
            |session: &Session| self.queues.first_of_session(session, Ticket::FIRST, Ticket::LAST).is_some();
        session_of(command).as_ref().is_some_and(waits)
            && self.queues.is_before(&request.namespace, &request.bundle, place)
            && !planted!(ReturnClosesCycle)
    }

    /// A retry takes the place of the waiter of its attempt.
    fn displace(&mut self, ticket: Ticket) {
        self.remove(ticket);
        self.searches.retain(|pending| pending.requester.ticket() != Some(ticket));
        if let Some(parked) = self.parked.remove(ticket) {
            let (reply, request) = (Err(Unavailable::Replaced), parked.request.map(|(_, key)| key));
            self.replies.push(LeaseReply { to: parked.to, reply, request, waited: true });
        }
    }

    /// An attempt was granted its lease: its token does not count any more.
    pub(super) fn note_attempt_granted(&mut self, decider: &Decider, command: &Command) {
        if let Some(age) = lease_request_of(command).and_then(|request| request.attempt) {
            self.attempts.note_granted(decider.now(), age);
        }
    }

    /// A blocked request: refused by wait-die, or queued, or refused because it does not want to wait.
    fn block(
        &mut self,
        decider: &mut Decider,
        submission: LeaseSubmission<R>,
        conflict: Conflict,
        current: CurrentAttempt,
        dies: bool,
    ) {
        let LeaseSubmission { command, origin, wait, on_decided, to, .. } = submission;
        let request = lease_request_of(&command).expect("an acquire or a reserve");
        let mut place = current.place;
        let attempt = Attempt { last: decider.now(), ..current.attempt };
        let blocked = verdict::blocked(&self.queues, request, attempt, place, conflict);
        if dies {
            return self.refuse(decider, Requester::Replying(to, on_decided), &command, blocked);
        }
        if self.searches.len() >= SEARCHES_MAX {
            if session_of(&command).is_some() {
                let request = command.request.map(|request| request.key);
                self.replies.push(LeaseReply { to, reply: Err(Unavailable::Busy), request, waited: false });
                return;
            }
            // At the end of the queues it closes no cycle.
            place = Ticket::of(self.attempts.next_arrival());
        }
        let requester = match wait.filter(|_| self.parked.len() < WAITERS_MAX) {
            Some(wait) => {
                let waiter = Waiter::new(command.clone(), origin, attempt, current.age, &wait);
                self.enqueue(decider, place, waiter, &wait, (to, on_decided));
                if current.is_retry {
                    self.note_returned(place);
                }
                Requester::Queued(place)
            }
            None => Requester::Replying(to, on_decided),
        };
        self.search(decider, PendingSearch { search: None, command, blocked, requester, moves: 0 }, place);
    }

    fn enqueue(
        &mut self,
        decider: &mut Decider,
        place: Ticket,
        waiter: Waiter,
        wait: &Wait,
        reply: (R, Option<OnDecided>),
    ) {
        decider.watch_freed(true);
        let command = &waiter.command;
        let request = command.identity.clone().zip(command.request.map(|request| request.key));
        self.queues.insert(place, waiter);
        let deadline = decider.now().after(wait.timeout);
        self.parked.insert(place, reply, &wait.connection, deadline, request);
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

    /// Searches for a deadlock cycle through a new wait at this place, and leaves the search pending if it exceeds the
    /// budget. Searches run in order of arrival.
    fn search(&mut self, decider: &Decider, mut pending: PendingSearch<R>, place: Ticket) {
        let view = GraphView { kernel: decider.kernel(), waiters: &self.queues, now: decider.now() };
        let request = lease_request_of(&pending.command).expect("an acquire or a reserve");
        let session = session_of(&pending.command).filter(|_| !planted!(AttemptsAlwaysWait));
        let overtakes =
            self.queues.overtakes(&request.namespace, &request.bundle, place) && !planted!(ReturnClosesCycle);
        let waited_for = |session: &Session| !Search::is_needless(view, session, place);
        if overtakes || session.as_ref().is_some_and(waited_for) {
            let own = pending.requester.ticket();
            pending.search = Some(Search::new(view, session, request.clone(), place, own, overtakes));
        }
        let progress = match &mut pending.search {
            None => Progress::Clear,
            Some(_) if !self.searches.is_empty() => Progress::Suspended,
            Some(search) => search.run(view, &mut self.budget),
        };
        match progress {
            Progress::Suspended => self.searches.push_back(pending),
            progress => self.conclude(decider, pending, progress),
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
                progress => self.conclude(decider, pending, progress),
            }
        }
    }

    /// A search has ended: the request may wait, has to stand behind a waiter that it has overtaken, or closes a cycle.
    fn conclude(&mut self, decider: &Decider, pending: PendingSearch<R>, progress: Progress) {
        match (progress, &pending.requester) {
            (Progress::Cycle { overtaken: Some(overtaken) }, Requester::Queued(ticket)) => {
                let ticket = *ticket;
                return self.step_back(decider, pending, ticket, overtaken);
            }
            (Progress::Cycle { overtaken: None }, _) => {
                let PendingSearch { command, blocked, requester, .. } = pending;
                return self.refuse(decider, requester, &command, blocked);
            }
            // A request that does not wait now would have to stand behind the other.
            (Progress::Cycle { .. } | Progress::Clear | Progress::Suspended, _) => {}
        }
        let PendingSearch { command, blocked, requester, .. } = pending;
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

    /// Moves a returned waiter behind one that it has overtaken: standing before it would close a deadlock cycle. After
    /// [`MOVES_MAX`] moves it goes to the end.
    fn step_back(
        &mut self,
        decider: &Decider,
        mut pending: PendingSearch<R>,
        ticket: Ticket,
        overtaken: Ticket,
    ) {
        let Some(waiter) = self.queues.get(ticket).cloned() else { return };
        let command = waiter.command.clone();
        let is_behind = pending.moves < MOVES_MAX && self.queues.get(overtaken).is_some();
        self.remove(ticket);
        let place = if is_behind {
            self.queues.place_behind(overtaken)
        } else {
            Ticket::of(self.attempts.next_arrival())
        };
        let age = waiter.age;
        self.queues.insert(place, waiter);
        self.parked.relocate(ticket, place);
        self.note_returned(place);
        let request = lease_request_of(&command).expect("an acquire or a reserve");
        let ahead = self.queues.oldest_ahead(&request.namespace, &request.bundle, place);
        let conflict = decider.kernel().conflict(&request.namespace, &request.bundle, decider.now());
        let conflict = conflict.unwrap_or(Conflict { holders: Vec::new(), oldest: Age::YOUNGEST });
        let dies = verdict::dies(request, age, &conflict, ahead);
        pending.blocked = verdict::still_blocked(decider, &self.queues, place).unwrap_or(pending.blocked);
        pending.requester = Requester::Queued(place);
        pending.moves += 1;
        if dies {
            return self.refuse(decider, pending.requester, &command, pending.blocked);
        }
        self.search(decider, pending, place);
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
