//! Waiting: requests for leases that conflict with leases or with earlier waiters.
//!
//! [`Waiting`] decides every request for a lease. A request that conflicts with nothing is granted; one that conflicts
//! is refused or queued. Freed resources are handed off to waiters in order, and waiters leave by grant, timeout,
//! disconnect or wait-die. The modules in reading order: `connection` is a waiter's connection and timeout; `attempts`
//! recognizes retries of a request, which keep their place; `queues` are the wait queues; `parked` is the reply side of the waiters; `verdict` is wait-die and the reply to a blocked request;
//! `budget` bounds the work of a turn; `deadlock` searches the wait-for graph; `admission` decides requests; `serving`
//! hands off freed resources; `departure` removes waiters that are not granted a lease.
//!
//! **Invariant.** No request barges: a request is not granted while an earlier waiter conflicts with it. Earlier is the
//! one whose attempt began earlier. Every step visits a bounded number of waiters; the rest is done in the next turns.
//!
//! **What is absent.** Logging: the [`Decider`] applies and logs commands. Waiters are volatile.

mod connection;
mod attempts;
mod queues;
mod parked;
mod verdict;
mod budget;
mod deadlock;
mod admission;
mod serving;
mod departure;

use std::collections::VecDeque;

use kernel::{Age, Command, Event, Kernel, LeaseId, Outcome, RequestKey, Response, Span, Time};

use self::admission::PendingSearch;
pub use self::admission::{SEARCHES_MAX, WAITERS_MAX};
use self::attempts::Attempts;
pub use self::attempts::{Arrival, Attempt};
use self::budget::Budget;
pub use self::budget::{VISITS_MAX, Visits};
pub use self::connection::{Wait, WaiterConnection};
use self::deadlock::Search;
use self::departure::ReturnedWaiter;
use self::parked::Parked;
pub use self::queues::{Session, Ticket, Waiter, Waiters, lease_request_of, session_of};
use self::serving::Serving;
use crate::authorization::Authorization;
use crate::decider::Decider;
use crate::decision::{Blocked, ContentionEvent, ContentionOutcome, Decision, OnDecided, Reply};
use crate::origin::Origin;

/// A request for a lease, and where its reply goes.
pub(crate) struct LeaseSubmission<R> {
    pub(crate) command: Command,
    pub(crate) origin: Origin,
    pub(crate) wait: Option<Wait>,
    /// The attempt that it presents as a retry.
    pub(crate) attempt: Option<Attempt>,
    pub(crate) authorization: Authorization,
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
    attempts: Attempts,
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
    /// Waiters that returned to a place before others. The attempts behind them have not been refused yet.
    returned: VecDeque<ReturnedWaiter>,
    replies: Vec<LeaseReply<R>>,
    contended: Vec<ContentionEvent>,
}

impl<R> Waiting<R> {
    /// No waiters, after a tenure was opened.
    pub(crate) fn new(kernel: &Kernel) -> Waiting<R> {
        Waiting {
            attempts: Attempts::new(kernel),
            queues: Waiters::default(),
            parked: Parked::default(),
            serving: Serving::default(),
            budget: Budget::default(),
            searches: VecDeque::new(),
            expiring: VecDeque::new(),
            disconnected: VecDeque::new(),
            new_leases: VecDeque::new(),
            returned: VecDeque::new(),
            replies: Vec::new(),
            contended: Vec::new(),
        }
    }

    /// Sets how long after its last reply an attempt may be retried.
    pub(crate) fn set_attempt_idle_max(&mut self, idle_max: Span, kernel: &Kernel) {
        self.attempts.set_idle_max(idle_max, kernel);
    }

    /// A grant of an attempt of this age was undone.
    pub(crate) fn note_retracted(&mut self, age: Age) {
        self.attempts.note_retracted(age);
    }

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
            let is_rebind =
                |event: &Event| matches!(event, Event::Rebound(..)) && !planted!(RebindOverlooked);
            if events.iter().any(is_rebind) {
                let searches = self.searches.iter_mut().filter_map(|pending| pending.search.as_mut());
                searches.for_each(Search::restart_holders);
            }
        }
        self.hand_off(decider);
    }

    /// Offers freed resources to waiters. Attempts behind a new holder or a returned waiter that is older are refused,
    /// which may free more.
    fn hand_off(&mut self, decider: &mut Decider) {
        self.serve(decider);
        while self.refuse_younger(decider) | self.refuse_overtaken(decider) {
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
            || !self.returned.is_empty()
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

    /// The reply addresses of all requests without a published reply. Nothing else is used any more.
    pub(crate) fn take_pending(&mut self) -> Vec<R> {
        let searches = std::mem::take(&mut self.searches).into_iter();
        let replying = searches.filter_map(|pending| pending.requester.reply_address());
        let replies = std::mem::take(&mut self.replies).into_iter().map(|reply| reply.to);
        let parked = std::mem::take(&mut self.parked).into_replies();
        parked.chain(replying).chain(replies).collect()
    }

    /// Requests that were blocked, since the last call; to be published when the current batch is durable.
    pub(crate) fn take_contended(&mut self) -> Vec<ContentionEvent> {
        std::mem::take(&mut self.contended)
    }

    /// The number of requests that were blocked since the last call of [`Waiting::take_contended`].
    pub(crate) fn contended(&self) -> usize {
        self.contended.len()
    }

    /// Replies to a waiter that has left the queues.
    fn settle(&mut self, decider: &Decider, ticket: Ticket, decision: Decision) {
        let Some(parked) = self.parked.remove(ticket) else { return };
        if let Some(on_decided) = parked.on_decided {
            on_decided(decider.kernel(), &|| decider.now(), &decision);
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
            on_decided(decider.kernel(), &|| decider.now(), &decision);
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
