//! Decides commands one after the other, and gathers those that changed something into a batch.
//!
//! **Invariant.** What a batch holds, replayed on the state before it, gives the state after it: every
//! command that was applied is in it, in order, and nothing else is. An answer reveals the state up to
//! the end of the batch under way, and may be given once that is durable; so may a refusal.
//!
//! **What would break it.** To answer a refusal at once: "held by ada", while ada's grant is not on disk.
//! The power fails, ada never had it, and whoever was refused was told what never was.
//!
//! Whoever appends the batch must end the process if that fails: the state is ahead of the log then.
//!
//! Waiters are served in the batch in which their resources become free, as far as it has capacity, and otherwise
//! in the next ones: in order, from where the batch before stopped.

use std::collections::VecDeque;

use kernel::{
    Action, Age, AgentName, Bundle, Command, Conflict, Event, Granted, Identity, Kernel, LeaseId,
    LeaseRequest, Limits, Lsn, Member, Namespace, Open, Outcome, Rejection, Response, Shard, Slots, Span,
    Store, Time, Verdict,
};
use store::{LsnRange, Seq};

use crate::clock::{Clock, Stamps, WrongClock, opening_lsn, reading};
use crate::connection::WaiterConnection;
use crate::deadlock::would_deadlock;
use crate::documents::DocumentLocation;
use crate::record::{BATCH_HEADER, BATCH_RECORDS_MAX, begin_batch, encode_record, seal_batch};
use crate::waiters::{ServeResult, Ticket, Waiter, Waiters, lease_request_of, session_of};

/// A kernel, the clock that stamps for it, and the batch under way.
pub struct Decider {
    kernel: Kernel,
    clock: Box<dyn Clock>,
    stamps: Stamps,
    next_lsn: Lsn,
    next_seq: Seq,
    batch: Vec<u8>,
    first: Option<Lsn>,
    /// What the batch has caused.
    events: Vec<(Lsn, Vec<Event>)>,
    /// Who met others in its way meanwhile.
    contended: Vec<ContentionEvent>,
    waiters: Waiters,
    /// Resources that became free and have not been offered to all of their waiters yet, in order.
    freed: VecDeque<Freed>,
    /// Waiters granted or refused since the last seal.
    served_in_batch: usize,
    /// Grants to waiters may be logged.
    may_serve: bool,
    /// Those whose turn has come, and what came of it; nothing for those that were gone.
    served: Vec<(Ticket, Option<Decision>)>,
    /// Waiters are being served: they are not in their place meanwhile.
    serving: bool,
}

/// What is said to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The kernel's word. Never that others are in the way.
    Outcome(Outcome),
    /// Others are in the way.
    Blocked(Box<Blocked>),
}

impl Decision {
    /// The kernel's response to a command that was applied or changed nothing; `None` if it was rejected or blocked.
    pub fn response(&self) -> Option<&Response> {
        match self {
            Decision::Outcome(Outcome::Applied(answer, _) | Outcome::Unchanged(answer)) => Some(answer),
            Decision::Outcome(Outcome::Rejected(_)) | Decision::Blocked(_) => None,
        }
    }
}

/// Others are in the way of a request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// What to do about it.
    pub advice: Advice,
    /// Some of the leases in the way, the most that a [`Conflict`] shows.
    pub holders: Vec<LeaseId>,
    /// How many who came earlier are in the way, up to [`Waiters::COUNT_MAX`].
    pub position: usize,
    /// What the session holds, if it must give that back.
    pub release: Vec<LeaseId>,
    /// How old the request was taken to be: an attempt comes back with it.
    pub age: Age,
}

/// Others were in the way of a request for a lease. Nothing changed by it, and nothing of it is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentionEvent {
    /// The last record before it.
    pub after: Lsn,
    /// What came of it.
    pub outcome: ContentionOutcome,
    /// Who asked.
    pub identity: Identity,
    /// On whose behalf.
    pub agent: Option<AgentName>,
    /// Where.
    pub namespace: Namespace,
    /// Some of what others were in the way of, at most [`ContentionEvent::SHOWN_MAX`].
    pub members: Vec<Member>,
    /// Some of the leases in the way.
    pub holders: Vec<LeaseId>,
}

impl ContentionEvent {
    /// The most members that are listed.
    pub const SHOWN_MAX: usize = 8;
}

/// What came of a request that others were in the way of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentionOutcome {
    /// It waits.
    Queued,
    /// It was told how things stand.
    Refused,
    /// It had to die, or would have closed a ring.
    Died,
    /// It waited in vain.
    TimedOut,
}

/// What to do when others are in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Wait, or come again.
    Wait,
    /// Wait-die: give back what is held, and come again with the same attempt.
    Die,
    /// A wait would close a ring of sessions that wait for each other: give back what is held first.
    Deadlock,
}

/// What came of a request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Granted, or refused.
    Decided(Decision),
    /// It waits, behind so many who came before it and are in its way.
    Waiting {
        /// To be called off with.
        ticket: Ticket,
        /// 0: only holders are in its way.
        position: usize,
    },
}

/// Who opens a log, and by which limits.
#[derive(Clone, Debug)]
pub struct TenureConfig {
    /// The store it belongs to.
    pub store: Store,
    /// Who writes it from here on.
    pub writer: u128,
    /// In force until the next.
    pub limits: Limits,
    /// The slots that the log owns until the next.
    pub slots: Slots,
}

/// A batch to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedBatch {
    /// At this number.
    pub seq: Seq,
    /// With these LSNs.
    pub lsns: LsnRange,
    /// The records.
    pub payload: Vec<u8>,
}

/// Resources that became free, and how far their wait queues have been served.
struct Freed {
    namespace: Namespace,
    members: Vec<Member>,
    /// The last waiter that was tried, if the batch was full before all of them were.
    tried: Option<Ticket>,
}

impl Freed {
    fn new(namespace: Namespace, members: Vec<Member>) -> Freed {
        Freed { namespace, members, tried: None }
    }
}

/// A batch of this many bytes takes no further commands. One command may exceed it by its own record.
pub const BATCH_BYTES: usize = 1 << 20;
/// Waiters are granted leases while a batch is smaller than this: the rest is left to other commands.
const SERVE_BYTES: usize = BATCH_BYTES / 2;
/// The most waiters that are granted or refused in one batch.
const SERVE_MAX: usize = 4096;
/// Capacity for a batch of one command.
const BATCH_USUAL: usize = 256;
/// How often a command is tried again after a step of what is due, before it is told to come again.
const CATCH_UP_STEPS: usize = 16;

impl Decider {
    /// Takes over a kernel that holds all of a log up to `next_seq`, and opens a tenure: the first record
    /// of the first batch. Nothing may be answered before that is durable.
    pub fn open(
        kernel: Kernel,
        next_seq: Seq,
        clock: Box<dyn Clock>,
        opening: &TenureConfig,
    ) -> Result<Decider, WrongClock> {
        let read_at = clock.boot_clock();
        Decider::open_after(kernel, next_seq, read_at, clock, opening)
    }

    /// Like [`Decider::open`], after this process finished reading the log's last record when its boot clock was at
    /// `read_at`: the time since has certainly passed.
    pub fn open_after(
        kernel: Kernel,
        next_seq: Seq,
        read_at: Span,
        clock: Box<dyn Clock>,
        opening: &TenureConfig,
    ) -> Result<Decider, WrongClock> {
        let stamps = Stamps::after(kernel.now(), kernel.clocks(), read_at, &*clock);
        let lsn = opening_lsn(kernel.last_lsn(), &*clock)?;
        let term = kernel.tenure().map_or(1, |tenure| tenure.open.term + 1);
        let open = Open {
            store: opening.store,
            writer: opening.writer,
            term,
            clocks: reading(&*clock),
            kernel_version: kernel::KERNEL_VERSION,
            limits: opening.limits,
            slots: opening.slots.clone(),
        };
        let mut decider = Decider {
            kernel,
            clock,
            stamps,
            next_lsn: lsn,
            next_seq,
            batch: empty_batch(),
            first: None,
            events: Vec::new(),
            contended: Vec::new(),
            waiters: Waiters::default(),
            freed: VecDeque::new(),
            served_in_batch: 0,
            may_serve: true,
            served: Vec::new(),
            serving: false,
        };
        let command = Command::internal(Action::Open(open));
        let outcome = decider.apply(stamps.opened_at(), &command, 0, None);
        assert!(matches!(outcome, Outcome::Applied(..)), "the limits or the store are wrong: {outcome:?}");
        Ok(decider)
    }

    /// Decides one command now. What is due comes first, a step of it.
    ///
    /// `document` is the content that a commit or relocation carries, if it rides in the log: then that is
    /// where the kernel is told that it is.
    pub fn decide(&mut self, command: &Command, correlation: u128, document: Option<&[u8]>) -> Outcome {
        let now = self.now();
        self.end_due(now);
        let outcome = self.carry_out(now, command, correlation, document);
        self.serve(now);
        outcome
    }

    /// Asks for a lease. Nobody barges: whoever came earlier and is in the way goes first, even if what is
    /// wanted is free just now. With `wait`, which is set once nobody listens any more, it waits for it, if
    /// it may.
    pub fn ask(
        &mut self,
        command: &Command,
        correlation: u128,
        wait: Option<&WaiterConnection>,
    ) -> Admission {
        let (Some(grant), Some(identity)) = (lease_request_of(command), &command.identity) else {
            return Admission::Decided(Decision::Outcome(self.decide(command, correlation, None)));
        };
        let now = self.now();
        self.end_due(now);
        let ahead = self.waiters.oldest_ahead(&grant.namespace, &grant.bundle);
        let ahead = ahead.filter(|_| !self.kernel.is_retry(now, command) && !planted!(Barge));
        let outcome = match ahead {
            Some(_) => self.behind(now, identity, grant),
            None => self.carry_out(now, command, correlation, None),
        };
        self.serve(now);
        let Outcome::Rejected(Rejection::Conflict(conflict)) = outcome else {
            return Admission::Decided(Decision::Outcome(outcome));
        };
        let blocked = self.judge(now, command, grant, *conflict, ahead);
        let wait = wait.filter(|_| blocked.advice == Advice::Wait);
        let outcome = match (blocked.advice, wait) {
            (Advice::Wait, Some(_)) => ContentionOutcome::Queued,
            (Advice::Wait, None) => ContentionOutcome::Refused,
            (Advice::Die | Advice::Deadlock, _) => ContentionOutcome::Died,
        };
        self.note_contended(command, outcome, &blocked);
        match wait {
            Some(connection) => self.queue(now, command, correlation, connection.clone(), blocked.position),
            None => Admission::Decided(Decision::Blocked(Box::new(blocked))),
        }
    }

    fn note_contended(&mut self, command: &Command, outcome: ContentionOutcome, blocked: &Blocked) {
        let (Some(grant), Some(identity)) = (lease_request_of(command), &command.identity) else { return };
        self.contended.push(ContentionEvent {
            after: self.kernel.last_lsn(),
            outcome,
            identity: identity.clone(),
            agent: grant.agent.clone(),
            namespace: grant.namespace.clone(),
            members: self.in_dispute(grant),
            holders: blocked.holders.clone(),
        });
    }

    /// The members that holders are in the way of; where only those who wait are, all of them may be.
    fn in_dispute(&self, grant: &LeaseRequest) -> Vec<Member> {
        let members = grant.bundle.members();
        let now = self.now();
        let is_held = |member: &&Member| {
            let alone = Bundle::new(vec![(*member).clone()]).expect("one member is a bundle");
            self.kernel.conflict(&grant.namespace, &alone, now).is_some()
        };
        let some = ContentionEvent::SHOWN_MAX;
        let held: Vec<Member> = match members {
            [only] => vec![only.clone()],
            several => several.iter().filter(is_held).take(some).cloned().collect(),
        };
        if held.is_empty() { members.iter().take(some).cloned().collect() } else { held }
    }

    /// Others wait for it already. Whatever else speaks against it is said first: no waiting would help.
    fn behind(&self, now: Time, identity: &Identity, grant: &LeaseRequest) -> Outcome {
        let nobody =
            || Rejection::Conflict(Box::new(Conflict { holders: Vec::new(), oldest: Age::YOUNGEST }));
        Outcome::Rejected(self.kernel.refusal(now, identity, grant).unwrap_or_else(nobody))
    }

    /// May it wait for those who are in its way?
    fn judge(
        &self,
        now: Time,
        command: &Command,
        grant: &LeaseRequest,
        conflict: Conflict,
        ahead: Option<Age>,
    ) -> Blocked {
        let session = session_of(command);
        let age = self.age_of(now, grant);
        let dies = grant.attempt.is_some() && kernel::judge(age, [conflict.oldest], ahead) == Verdict::Die;
        let ring = |session| would_deadlock(&self.kernel, &self.waiters, now, session, grant);
        let closes = !dies && session.as_ref().is_some_and(ring);
        let (dies, closes) = if planted!(AttemptsAlwaysWait) { (false, false) } else { (dies, closes) };
        let advice = match (dies || closes, grant.attempt) {
            (false, _) => Advice::Wait,
            (true, Some(_)) => Advice::Die,
            (true, None) => Advice::Deadlock,
        };
        let held = session.filter(|_| advice != Advice::Wait).map(|(namespace, identity, session)| {
            self.kernel.leases_of_session(&namespace, &identity, &session, now)
        });
        Blocked {
            advice,
            holders: conflict.holders,
            position: self.waiters.count_ahead(&grant.namespace, &grant.bundle, None),
            release: held.into_iter().flatten().map(|lease| lease.id).collect(),
            age,
        }
    }

    /// An attempt keeps its age; anything else is as old as its arrival.
    fn age_of(&self, now: Time, grant: &LeaseRequest) -> Age {
        let attempt = grant.attempt.filter(|age| age.counts_at(now) && !planted!(AttemptAgeReset));
        attempt.unwrap_or(Age { at: now, tie: self.next_lsn.0 })
    }

    fn queue(
        &mut self,
        now: Time,
        command: &Command,
        correlation: u128,
        connection: WaiterConnection,
        position: usize,
    ) -> Admission {
        let age = self.age_of(now, lease_request_of(command).expect("only requests for leases wait"));
        let ticket = self.waiters.push(Waiter { command: command.clone(), correlation, age, connection });
        Admission::Waiting { ticket, position }
    }

    /// A waiter has waited long enough. Returns what it may be told.
    pub fn time_out(&mut self, ticket: Ticket) -> Option<Decision> {
        let command = self.waiters.get(ticket)?.command.clone();
        let said = self.call_off(ticket)?;
        if let Decision::Blocked(blocked) = &said {
            self.note_contended(&command, ContentionOutcome::TimedOut, blocked);
        }
        Some(said)
    }

    /// Calls a waiter off: it timed out, or is gone. Those whom it kept waiting may be served by that.
    /// Returns what it may be told.
    pub fn call_off(&mut self, ticket: Ticket) -> Option<Decision> {
        let now = self.now();
        let said = Decision::Blocked(Box::new(self.still_blocked(now, ticket)?));
        if !planted!(TimedOutStillGranted) {
            self.take_out(ticket);
        }
        self.serve(now);
        Some(said)
    }

    /// Nobody waits any more.
    pub fn dismiss_waiters(&mut self) {
        self.waiters = Waiters::default();
    }

    /// Takes a waiter out. Those behind it may have been waiting for it alone.
    fn take_out(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.remove(ticket) {
            self.note_departure(&waiter);
        }
    }

    /// Waiters behind one that left its queues may have been waiting for it alone.
    fn note_departure(&mut self, waiter: &Waiter) {
        let grant = waiter.grant();
        self.freed.push_back(Freed::new(grant.namespace.clone(), grant.bundle.members().to_vec()));
    }

    fn still_blocked(&self, now: Time, ticket: Ticket) -> Option<Blocked> {
        let waiter = self.waiters.get(ticket)?;
        let (grant, age) = (waiter.grant(), waiter.age);
        let conflict = self.kernel.conflict(&grant.namespace, &grant.bundle, now);
        Some(Blocked {
            advice: Advice::Wait,
            holders: conflict.map(|conflict| conflict.holders).unwrap_or_default(),
            position: self.waiters.position(ticket)?,
            release: Vec::new(),
            age,
        })
    }

    /// Those whose turn has come since this was last called, granted or refused; with nothing, those that
    /// were gone by then.
    pub fn take_served(&mut self) -> Vec<(Ticket, Option<Decision>)> {
        std::mem::take(&mut self.served)
    }

    /// Those who wait.
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Another connection waits for a waiter's answer now.
    pub fn listen(&mut self, ticket: Ticket, connection: WaiterConnection) {
        self.waiters.reattach(ticket, connection);
    }

    /// Offers what became free to its waiters, in order, while the batch has capacity for their grants; the next
    /// batch continues where this one stopped ([`Decider::resume_serving`]). A grant may end other leases that
    /// were due, and so free more: that comes next.
    ///
    /// **What would break it.** One release frees a key that 60,000 shared waiters can have. Granted in one
    /// batch, they exceed what any log takes at once, and a refused append is fatal.
    fn serve(&mut self, now: Time) {
        while let Some(mut freed) = self.freed.pop_front() {
            if self.waiters.is_empty() {
                self.freed.clear();
                return;
            }
            let mut waiters = std::mem::take(&mut self.waiters);
            self.serving = true;
            let (served, all_tried) =
                waiters.wake(&freed.namespace, &freed.members, &mut freed.tried, |waiter| {
                    self.try_serve(now, waiter)
                });
            self.serving = false;
            self.waiters = waiters;
            for (ticket, waiter, said) in served {
                self.note_served(now, ticket, &waiter, said);
            }
            if !all_tried {
                self.freed.push_front(freed);
                return;
            }
        }
    }

    fn note_served(&mut self, now: Time, ticket: Ticket, waiter: &Waiter, said: Option<Decision>) {
        match &said {
            None | Some(Decision::Outcome(Outcome::Rejected(_))) => self.note_departure(waiter),
            Some(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) => {
                self.judge_waiters(now, granted);
            }
            _ => {}
        }
        self.served.push((ticket, said));
    }

    /// Any outcome ends the wait, except that other leases still conflict: then the next release wakes it again.
    fn try_serve(&mut self, now: Time, waiter: &Waiter) -> ServeResult<Decision> {
        if !self.can_serve() {
            return ServeResult::Postponed;
        }
        let outcome = self.try_again(now, &waiter.command, waiter.correlation, None);
        if matches!(outcome, Outcome::Rejected(Rejection::Conflict(_))) {
            return ServeResult::Blocked;
        }
        self.served_in_batch += 1;
        ServeResult::Served(Decision::Outcome(outcome))
    }

    fn can_serve(&self) -> bool {
        let has_capacity = self.batch.len() < SERVE_BYTES && self.served_in_batch < SERVE_MAX;
        self.may_serve && (has_capacity || planted!(BatchUnbounded))
    }

    /// Continues to serve waiters that the batch before had no capacity for. To be called before any new request.
    pub fn resume_serving(&mut self) {
        if self.has_unserved() {
            self.serve(self.now());
        }
    }

    /// Have resources become free that not all of their waiters have been offered yet?
    pub fn has_unserved(&self) -> bool {
        !self.freed.is_empty() && !self.waiters.is_empty()
    }

    /// Would [`Decider::resume_serving`] try a waiter?
    pub fn can_resume_serving(&self) -> bool {
        self.has_unserved() && self.can_serve()
    }

    /// Whether grants to waiters may be logged. Without it, freed resources are kept for their waiters.
    pub fn set_may_serve(&mut self, may_serve: bool) {
        self.may_serve = may_serve;
    }

    /// Ends what is due, a step of it, and forgets what may be forgotten.
    pub fn tick(&mut self) {
        let now = self.now();
        self.apply(now, &Command::internal(Action::Tick), 0, None);
        self.serve(now);
    }

    fn end_due(&mut self, now: Time) {
        if self.kernel.next_due().is_some_and(|due| due <= now) {
            self.apply(now, &Command::internal(Action::Tick), 0, None);
            self.serve(now);
        }
    }

    /// How long until something has been due for `late`: a lease to end, or history to retire; `None` if nothing ever
    /// is.
    pub fn until_due(&self, late: Span) -> Option<Span> {
        if self.kernel.tenure().is_some_and(|tenure| tenure.closed.is_some()) {
            return None;
        }
        let gc = self.kernel.next_gc().filter(|_| !planted!(IdleHistoryKept));
        let due = self.kernel.next_due().into_iter().chain(gc).min()?;
        Some(self.now().until(due.after(late)))
    }

    /// The batch so far, to be appended; `None` if nothing changed since the last.
    pub fn seal(&mut self) -> Option<SealedBatch> {
        self.served_in_batch = 0;
        let first = self.first.take()?;
        let last = self.kernel.last_lsn();
        assert!(last.0 - first.0 < BATCH_RECORDS_MAX, "a batch has fewer records than an opening skips");
        let mut payload = std::mem::replace(&mut self.batch, empty_batch());
        let clocks = reading(&*self.clock);
        seal_batch(&mut payload, clocks);
        self.kernel.set_clocks(Some(clocks));
        let seq = self.next_seq;
        self.next_seq = seq.next();
        Some(SealedBatch { seq, lsns: LsnRange::new(first.0, last.0), payload })
    }

    /// What happened in the batch so far, for those who follow events: to be told when it is durable.
    pub fn take_events(&mut self) -> Vec<(Lsn, Vec<Event>)> {
        std::mem::take(&mut self.events)
    }

    /// Who met others in its way, since this was last called: to be told when the batch so far is durable.
    pub fn take_contended(&mut self) -> Vec<ContentionEvent> {
        std::mem::take(&mut self.contended)
    }

    /// How many of them there are.
    pub fn contended(&self) -> usize {
        self.contended.len()
    }

    /// How large the batch is so far; 0 if nothing changed since the last.
    pub fn batch_bytes(&self) -> usize {
        if self.first.is_some() { self.batch.len() } else { 0 }
    }

    /// The kernel, to look at. What it shows is revealed up to its last LSN.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Kernel time now.
    pub fn now(&self) -> Time {
        self.stamps.now(&*self.clock).max(self.kernel.now())
    }

    fn carry_out(
        &mut self,
        now: Time,
        command: &Command,
        correlation: u128,
        document: Option<&[u8]>,
    ) -> Outcome {
        let outcome = self.try_again(now, command, correlation, document);
        if let Outcome::Applied(Response::Granted(granted), _) = &outcome {
            self.judge_waiters(now, granted);
        }
        outcome
    }

    /// Where so much is due that nothing can be decided, a few steps of that come first.
    fn try_again(
        &mut self,
        now: Time,
        command: &Command,
        correlation: u128,
        document: Option<&[u8]>,
    ) -> Outcome {
        for _ in 0..CATCH_UP_STEPS {
            match self.apply(now, command, correlation, document) {
                Outcome::Rejected(Rejection::Behind) => {
                    self.apply(now, &Command::internal(Action::Tick), 0, None);
                }
                outcome => return outcome,
            }
        }
        Outcome::Rejected(Rejection::Behind)
    }

    /// Nobody under wait-die stands behind a holder that is older: a lease that was taken back may be.
    fn judge_waiters(&mut self, now: Time, granted: &Granted) {
        if self.waiters.is_empty() || planted!(YoungerStays) {
            return;
        }
        let Ok(lease) = self.kernel.lease(granted.lease, now) else { return };
        for ticket in self.waiters.younger_attempts(&lease.namespace, &lease.members, lease.age) {
            let waiter = self.waiters.get(ticket).expect("it was just found");
            let (command, age) = (waiter.command.clone(), waiter.age);
            let conflict = Conflict { holders: vec![lease.id], oldest: lease.age };
            let blocked = self.judge(
                now,
                &command,
                lease_request_of(&command).expect("it waits for a lease"),
                conflict,
                None,
            );
            let blocked = Blocked { advice: Advice::Die, age, ..blocked };
            self.note_contended(&command, ContentionOutcome::Died, &blocked);
            self.take_out(ticket);
            self.served.push((ticket, Some(Decision::Blocked(Box::new(blocked)))));
        }
    }

    fn apply(&mut self, now: Time, command: &Command, correlation: u128, document: Option<&[u8]>) -> Outcome {
        let lsn = self.next_lsn;
        let located = document.map(|_| located(command, self.shard(), lsn));
        let command = located.as_ref().unwrap_or(command);
        let outcome = self.kernel.apply(lsn, now, command);
        if let Outcome::Applied(_, events) = &outcome {
            if !self.waiters.is_empty() || self.serving {
                self.note_freed(now, events);
            }
            if !(planted!(TickUnlogged) && matches!(command.action, Action::Tick)) {
                encode_record(&mut self.batch, lsn, now, correlation, command, document);
            }
            self.first.get_or_insert(lsn);
            self.next_lsn = Lsn(lsn.0 + 1);
            if !events.is_empty() {
                self.events.push((lsn, events.clone()));
            }
        }
        outcome
    }

    fn shard(&self) -> Shard {
        self.kernel.tenure().map(|tenure| tenure.open.store.shard).unwrap_or_default()
    }

    /// Ended leases can be read until the next command is applied.
    fn note_freed(&mut self, now: Time, events: &[Event]) {
        let told =
            |event: &&Event| !(planted!(ExpiryWithoutWakeup) && matches!(event, Event::Expired { .. }));
        for lease in events.iter().filter(told).filter_map(Event::freed) {
            if let Ok(view) = self.kernel.lease(lease, now) {
                self.freed.push_back(Freed::new(view.namespace, view.members));
            }
        }
    }
}

/// A batch without records.
fn empty_batch() -> Vec<u8> {
    let mut batch = Vec::with_capacity(BATCH_HEADER + BATCH_USUAL);
    begin_batch(&mut batch);
    batch
}

/// The same command, with its document at this LSN.
fn located(command: &Command, shard: Shard, lsn: Lsn) -> Command {
    let mut command = command.clone();
    let location = DocumentLocation::Inline { shard, lsn }.location();
    match &mut command.action {
        Action::Commit(commit) => commit.location = location,
        Action::Relocate(relocation) => relocation.location = location,
        _ => {}
    }
    command
}
