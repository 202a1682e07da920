//! One shard, turn by turn: commands go in, and out come a batch to append and the answers to give when it
//! is durable.
//!
//! **Invariant.** Everything that leaves a turn, answers, refusals, what was read, events, is to be published
//! after that turn's batch and all earlier ones are durable, in this order.
//!
//! **What is absent.** Threads, queues, stores: the sequencer has those.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kernel::{
    Action, Command, Event, Identity, Kernel, LeaseId, Lsn, Outcome, Rejection, Renewal, RequestKey,
    Response, Retraction, Span, Time,
};

use crate::connection::WaiterConnection;
use crate::decider::{Admission, BATCH_BYTES, ContentionEvent, Decider, Decision, SealedBatch};
use crate::rates::Rates;
use crate::record::Record;
use crate::waiters::{Ticket, Waiter, Waiters, lease_request_of};

/// How many may wait for leases; one more is refused as if it did not want to wait.
pub const WAITERS_MAX: usize = 100_000;
/// The most renewals in one command. Beyond [`Action::MAX_BATCH`] it becomes several records.
pub const RENEWALS_MAX: usize = 10_000;
/// How many long commands may be under way.
const LONG_MAX: usize = 1000;

/// Why there is no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Too many are waiting already: come back later.
    Busy,
    /// The log has no room: nothing new, but what gives back is still taken.
    NoSpace,
    /// It asks for leases more often than its quota allows.
    TooOften,
    /// A retry of the same request waits in its place now.
    Replaced,
    /// The shard has ended, or is about to.
    Stopped,
    /// Another server owns the shard now; the command was not carried out.
    Deposed,
}

/// What a command comes to, once it is durable.
pub type Reply = Result<Decision, Unavailable>;

/// How long a request for a lease may wait.
#[derive(Clone, Debug)]
pub struct Wait {
    /// At most so long. There is no waiting for ever.
    pub most: Span,
    /// To be set once nobody listens any more: the waiter vanishes before it can be granted anything.
    pub connection: WaiterConnection,
}

/// Looks at the state when a command has been decided: what its answer shows besides. What it sees may be told
/// with the reply, and not before.
/// The second argument reads kernel time, so that a caller can read another clock before it.
pub type OnDecided = Box<dyn FnOnce(&Kernel, &dyn Fn() -> Time, &Decision) + Send>;

/// A command on its way; `to` is where its reply goes.
pub struct Submission<R> {
    /// What is asked.
    pub command: Command,
    /// What the client calls it.
    pub correlation: u128,
    /// The content that rides in the log.
    pub document: Option<Vec<u8>>,
    /// For a lease that others may be in the way of.
    pub wait: Option<Wait>,
    /// What else to look at when it is decided.
    pub on_decided: Option<OnDecided>,
    /// Where the reply goes.
    pub to: R,
}

impl<R> Submission<R> {
    /// A command, and nothing besides.
    pub fn new(command: Command, to: R) -> Submission<R> {
        Submission { command, correlation: 0, document: None, wait: None, on_decided: None, to }
    }
}

/// How much the log can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSpace {
    /// Anything.
    Plenty,
    /// What gives back: releases, revokes, and the end of what is due.
    Reserve,
    /// Nothing at all.
    Nothing,
}

/// What leaves a turn.
#[derive(Debug)]
pub struct TurnOutput<R> {
    /// To be appended first; `None` if nothing changed.
    pub sealed: Option<SealedBatch>,
    /// To be given then, in this order.
    pub replies: Vec<(R, Reply, Option<LeaseId>)>,
    /// To be told then: what happened, and where.
    pub events: Vec<(Lsn, Vec<Event>)>,
    /// To be told then: who met others in its way.
    pub contended: Vec<ContentionEvent>,
    /// The state after the batch: whoever replays it must arrive at this.
    pub state: StateDigest,
    /// How many who waited have their lease by it.
    pub served: usize,
}

/// A state, told by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDigest {
    /// After this record.
    pub lsn: Lsn,
    /// The kernel's running hash.
    pub hash: u64,
}

impl<R> TurnOutput<R> {
    /// Is there nothing to do?
    pub fn is_empty(&self) -> bool {
        self.sealed.is_none() && self.replies.is_empty()
    }
}

/// A waiter's other half.
struct ParkedRequest<R> {
    to: R,
    on_decided: Option<OnDecided>,
    /// The number of its connection.
    connection: u64,
    until: Time,
    /// A retry of the same request takes its place.
    request: Option<(Identity, RequestKey)>,
}

/// A command that takes several records, part by part, so that others get their turn in between.
struct LongCommand<R> {
    command: Command,
    correlation: u128,
    renewals: VecDeque<Renewal>,
    answer: Response,
    events: Vec<Event>,
    on_decided: Option<OnDecided>,
    to: R,
}

/// A grant of which no response has been handed to its socket yet.
struct Undelivered {
    /// Responses that carry it, decided and not reported yet.
    pending: u32,
    request: Option<RequestKey>,
}

/// One shard of a store.
pub struct Shard<R> {
    decider: Decider,
    space: LogSpace,
    parked: BTreeMap<Ticket, ParkedRequest<R>>,
    /// When those who wait have waited long enough.
    patience: BTreeSet<(Time, Ticket)>,
    retries: BTreeMap<(Identity, RequestKey), Ticket>,
    /// Waiters by the numbers of their connections.
    connections: BTreeMap<u64, Ticket>,
    long: VecDeque<LongCommand<R>>,
    undelivered: BTreeMap<LeaseId, Undelivered>,
    replies: Vec<(R, Reply, Option<LeaseId>)>,
    /// How many who waited were given a lease in this turn.
    served: usize,
    sweeper: Span,
    rates: Rates,
}

impl<R> Shard<R> {
    /// Begins with a decider that has just been opened: its record is in the first turn.
    pub fn new(decider: Decider) -> Shard<R> {
        Shard {
            decider,
            space: LogSpace::Plenty,
            parked: BTreeMap::new(),
            patience: BTreeSet::new(),
            retries: BTreeMap::new(),
            connections: BTreeMap::new(),
            long: VecDeque::new(),
            undelivered: BTreeMap::new(),
            replies: Vec::new(),
            served: 0,
            sweeper: Span(0),
            rates: Rates::default(),
        }
    }

    /// What is due and nobody waits for is ended, and told, this much later at the most. Authority ends on time all
    /// the same, and so does whatever is in somebody's way.
    pub fn set_sweeper(&mut self, interval: Span) {
        self.sweeper = interval;
    }

    /// Takes a command. Its reply is in this turn, or in a later one if it waits.
    pub fn submit(&mut self, submission: Submission<R>) {
        if !self.may_take(&submission.command.action) {
            return self.reply(submission.to, Err(Unavailable::NoSpace));
        }
        let length = submission.document.as_ref().map_or(0, Vec::len);
        assert!(length <= Record::DOCUMENT_MAX, "longer documents are blobs");
        match &submission.command.action {
            Action::Acquire(_) | Action::Reserve(_) => self.ask(submission),
            Action::Renew(renewals) if renewals.len() > Action::MAX_BATCH => self.begin_long(submission),
            Action::RevokeAll(_) | Action::DropNamespace(_) => self.begin_long(submission),
            _ => {
                let Submission { command, correlation, document, on_decided, to, .. } = submission;
                let outcome = self.decider.decide(&command, correlation, document.as_deref());
                self.say(to, on_decided, Decision::Outcome(outcome));
            }
        }
        self.collect_served();
    }

    /// What time brings: leases that are due, waits that are over, parts of long commands. To be called at the
    /// beginning of a turn.
    ///
    /// A full batch gets nothing more.
    pub fn housekeep(&mut self) {
        if self.is_full() {
            return;
        }
        self.decider.resume_serving();
        self.collect_served();
        if self.until_tick() == Some(Span(0)) {
            self.decider.tick();
            self.collect_served();
        }
        self.end_waits();
        for _ in 0..self.long.len() {
            if self.is_full() {
                return;
            }
            self.go_on();
        }
    }

    /// Has the batch reached its bound? Then it takes no further commands.
    pub fn is_full(&self) -> bool {
        self.decider.batch_bytes() >= BATCH_BYTES
    }

    /// Can waiters be served, or long commands be continued, in this batch?
    fn has_unfinished(&self) -> bool {
        !self.long.is_empty() && !self.is_full() || self.decider.can_resume_serving()
    }

    /// How long until [`Shard::housekeep`] has something to do; `None` if nothing is due ever.
    pub fn until_due(&self) -> Option<Span> {
        if self.has_unfinished() {
            return Some(Span(0));
        }
        let due = self.until_tick();
        let tired = self.patience.first().map(|(until, _)| Span(self.decider.now().until(*until).0 + 1));
        due.into_iter().chain(tired).min()
    }

    /// How long until what is due is ended by a tick.
    fn until_tick(&self) -> Option<Span> {
        if self.space == LogSpace::Nothing {
            return None;
        }
        let late = if self.parked.is_empty() { self.sweeper } else { Span(0) };
        self.decider.until_due(late)
    }

    /// The turn is over.
    pub fn end_turn(&mut self) -> TurnOutput<R> {
        let sealed = self.decider.seal();
        let kernel = self.decider.kernel();
        TurnOutput {
            sealed,
            replies: std::mem::take(&mut self.replies),
            state: StateDigest { lsn: kernel.last_lsn(), hash: kernel.state_hash() },
            events: self.decider.take_events(),
            contended: self.decider.take_contended(),
            served: std::mem::take(&mut self.served),
        }
    }

    /// Says how much the log can take from now on.
    pub fn set_space(&mut self, space: LogSpace) {
        self.space = space;
        self.decider.set_may_serve(space == LogSpace::Plenty);
    }

    /// A response that carries this lease was handed to its socket, or could not be. A grant is undone when all of its
    /// responses failed, the first and each replay.
    pub fn delivered(&mut self, lease: LeaseId, reached: bool) {
        if reached && !planted!(DeliveredUndone) {
            self.undelivered.remove(&lease);
        }
        let Some(grant) = self.undelivered.get_mut(&lease) else { return };
        grant.pending -= 1;
        if grant.pending > 0 && !planted!(ReplayIgnored) {
            return;
        }
        let grant = self.undelivered.remove(&lease).expect("it was just looked at");
        if self.space != LogSpace::Nothing && !planted!(UndeliveredStands) {
            let retraction = Retraction { lease, request: grant.request };
            self.decider.decide(&Command::internal(Action::Retract(retraction)), 0, None);
            self.collect_served();
        }
    }

    /// Nobody is served any more: those who wait are told so, and nothing is logged after this turn.
    pub fn stop(&mut self) {
        self.set_space(LogSpace::Nothing);
        self.dismiss();
        for long in std::mem::take(&mut self.long) {
            self.reply(long.to, Err(Unavailable::Stopped));
        }
    }

    /// Those who wait are sent away.
    pub fn dismiss(&mut self) {
        // All at once: nobody is granted anything because somebody else was sent away.
        self.decider.dismiss_waiters();
        for parked in std::mem::take(&mut self.parked).into_values() {
            self.reply(parked.to, Err(Unavailable::Stopped));
        }
        self.patience.clear();
        self.retries.clear();
        self.connections.clear();
    }

    /// Whether resources that became free have not been offered to all of their waiters yet, and there is log space for
    /// grants. New requests for leases must wait meanwhile, or they would overtake the waiters.
    pub fn is_handing_off(&self) -> bool {
        self.space == LogSpace::Plenty && self.decider.has_unserved()
    }

    /// The reply addresses of all commands without a published reply. The shard is not used any more.
    pub fn take_pending(&mut self) -> Vec<R> {
        let parked = std::mem::take(&mut self.parked).into_values().map(|parked| parked.to);
        let long = std::mem::take(&mut self.long).into_iter().map(|long| long.to);
        let replies = std::mem::take(&mut self.replies).into_iter().map(|(to, ..)| to);
        parked.chain(long).chain(replies).collect()
    }

    /// Is a response that carries this lease on its way, and none delivered yet?
    pub fn is_delivering(&self, lease: LeaseId) -> bool {
        self.undelivered.contains_key(&lease)
    }

    /// What is refused in this turn, to be told at once: a planted fault.
    #[cfg(feature = "planted")]
    pub(crate) fn take_refusals(&mut self) -> Vec<(R, Reply)> {
        let refusal = |(_, reply, _): &mut (R, Reply, Option<LeaseId>)| {
            matches!(reply, Ok(Decision::Blocked(_) | Decision::Outcome(Outcome::Rejected(_))))
        };
        self.replies.extract_if(.., refusal).map(|(to, reply, _)| (to, reply)).collect()
    }

    /// Can anything be logged?
    pub fn has_space(&self) -> bool {
        self.space != LogSpace::Nothing
    }

    /// How large the batch is so far, and how many replies wait for it.
    pub fn load(&self) -> (usize, usize) {
        (self.decider.batch_bytes(), self.replies.len())
    }

    /// How many of the replies are to waiters that were granted a lease in this batch.
    pub fn served(&self) -> usize {
        self.served
    }

    /// How many met others in their way, in this turn so far.
    pub fn contended(&self) -> usize {
        self.decider.contended()
    }

    /// The state, to look at: what it shows may be told once this turn is durable.
    pub fn kernel(&self) -> &Kernel {
        self.decider.kernel()
    }

    /// Those who wait.
    pub fn waiters(&self) -> &Waiters {
        self.decider.waiters()
    }

    /// Kernel time now.
    pub fn now(&self) -> Time {
        self.decider.now()
    }

    fn may_take(&self, action: &Action) -> bool {
        match self.space {
            LogSpace::Plenty => true,
            _ if planted!(NoSpaceIgnored) => true,
            LogSpace::Reserve => gives_back(action),
            LogSpace::Nothing => false,
        }
    }

    fn ask(&mut self, submission: Submission<R>) {
        let Submission { command, correlation, wait, on_decided, to, .. } = submission;
        let request = command.identity.clone().zip(command.request.map(|request| request.key));
        let waiting = request.as_ref().and_then(|request| self.retries.get(request)).copied();
        if let Some(ticket) = waiting.filter(|_| !planted!(RetryQueuesTwice)) {
            return self.take_its_place(ticket, &command, wait, on_decided, to);
        }
        if !self.may_ask(&command) {
            return self.reply(to, Err(Unavailable::TooOften));
        }
        let wait = wait.filter(|_| self.parked.len() < WAITERS_MAX);
        match self.decider.ask(&command, correlation, wait.as_ref().map(|wait| &wait.connection)) {
            Admission::Decided(said) => {
                self.note_grant(&command, &said);
                self.say(to, on_decided, said);
            }
            Admission::Waiting { ticket, .. } => {
                let wait = wait.expect("only who wants to wait does");
                let until = self.decider.now().after(wait.most);
                if let Some(request) = &request {
                    self.retries.insert(request.clone(), ticket);
                }
                if !planted!(WaitUnbounded) {
                    self.patience.insert((until, ticket));
                }
                let connection = wait.connection.number();
                self.connections.insert(connection, ticket);
                self.parked.insert(ticket, ParkedRequest { to, on_decided, connection, until, request });
            }
        }
    }

    /// Counts a request for a lease, where a quota says how many there may be. A retry asks for nothing new.
    fn may_ask(&mut self, command: &Command) -> bool {
        let (Some(grant), Some(identity)) = (lease_request_of(command), &command.identity) else {
            return true;
        };
        let (kernel, now) = (self.decider.kernel(), self.decider.now());
        let max = kernel.resolved_policy(&grant.namespace, identity).quota.acquires_per_second;
        let Some(max) = max.filter(|_| !kernel.is_retry(now, command)) else { return true };
        self.rates.allow(now, &grant.namespace, identity, max)
    }

    /// A retry of a request that waits: it waits on, for the retry's own time, and answers the retry.
    fn take_its_place(
        &mut self,
        ticket: Ticket,
        command: &Command,
        wait: Option<Wait>,
        on_decided: Option<OnDecided>,
        to: R,
    ) {
        // The fingerprint tells, as it does once there is an answer. What the edge adds may differ: how old a new
        // attempt is. The waiter keeps what it came with.
        let same = |waiter: &Waiter| waiter.command.request == command.request;
        let same = self.decider.waiters().get(ticket).is_some_and(same);
        if !same {
            return self.reply(to, Ok(refused(Rejection::RequestMismatch)));
        }
        // One that does not want to wait is told at once how things stand, at the end of its time.
        let wait = wait.unwrap_or(Wait { most: Span(0), connection: WaiterConnection::default() });
        let until = self.decider.now().after(wait.most);
        let parked = self.parked.get_mut(&ticket).expect("whoever waits is parked");
        let before = std::mem::replace(&mut parked.to, to);
        parked.on_decided = on_decided;
        self.connections.remove(&parked.connection);
        parked.connection = wait.connection.number();
        self.connections.insert(parked.connection, ticket);
        self.decider.listen(ticket, wait.connection);
        self.patience.remove(&(parked.until, ticket));
        parked.until = until;
        self.patience.insert((until, ticket));
        self.reply(before, Err(Unavailable::Replaced));
    }

    fn collect_served(&mut self) {
        for (ticket, said) in self.decider.take_served() {
            let Some(parked) = self.unpark(ticket) else { continue };
            // Nobody waits for the answers of those that are gone.
            let Some(said) = said else { continue };
            if let Some(lease) = newly_granted(&said) {
                self.served += 1;
                let request = parked.request.map(|(_, key)| key);
                self.undelivered.insert(lease, Undelivered { pending: 0, request });
            }
            self.say(parked.to, parked.on_decided, said);
        }
    }

    /// Ends the waits whose time is up. While waiters are still to be offered what became free, none ends: it may be
    /// theirs.
    fn end_waits(&mut self) {
        if self.space == LogSpace::Plenty && self.decider.has_unserved() {
            return;
        }
        while let Some((until, ticket)) = self.patience.first().copied() {
            if until >= self.decider.now() {
                break;
            }
            let said = self.decider.time_out(ticket);
            if let Some((parked, said)) = self.unpark(ticket).zip(said) {
                self.say(parked.to, parked.on_decided, said);
            }
            self.collect_served();
        }
    }

    fn unpark(&mut self, ticket: Ticket) -> Option<ParkedRequest<R>> {
        let parked = self.parked.remove(&ticket)?;
        self.patience.remove(&(parked.until, ticket));
        self.connections.remove(&parked.connection);
        if let Some(request) = &parked.request {
            self.retries.remove(request);
        }
        Some(parked)
    }

    /// Nobody listens any more for the answer of the waiter with this flag: it goes, and those behind it move up.
    pub fn hang_up(&mut self, connection: &WaiterConnection) {
        connection.close();
        if let Some(ticket) = self.connections.get(&connection.number()).copied() {
            self.decider.call_off(ticket);
            self.unpark(ticket);
            self.collect_served();
        }
    }

    /// A grant has to be delivered from now on. A replay of one that is on its way may deliver it too.
    fn note_grant(&mut self, command: &Command, said: &Decision) {
        if let Some(lease) = newly_granted(said).filter(|_| lease_request_of(command).is_some()) {
            let request = command.request.map(|request| request.key);
            self.undelivered.insert(lease, Undelivered { pending: 0, request });
        }
    }

    fn say(&mut self, to: R, on_decided: Option<OnDecided>, said: Decision) {
        if let Some(on_decided) = on_decided {
            on_decided(self.decider.kernel(), &|| self.decider.now(), &said);
        }
        self.reply(to, Ok(said));
    }

    fn reply(&mut self, to: R, reply: Reply) {
        let lease =
            reply.as_ref().ok().and_then(granted).filter(|lease| match self.undelivered.get_mut(lease) {
                Some(grant) => {
                    grant.pending += 1;
                    true
                }
                None => false,
            });
        self.replies.push((to, reply, lease));
    }

    fn begin_long(&mut self, submission: Submission<R>) {
        let Submission { command, correlation, on_decided, to, .. } = submission;
        let renewals = match &command.action {
            Action::Renew(renewals) => renewals.iter().copied().collect(),
            _ => VecDeque::new(),
        };
        if renewals.len() > RENEWALS_MAX {
            return self.reply(to, Ok(refused(Rejection::InvalidBatch)));
        }
        if self.long.len() >= LONG_MAX {
            return self.reply(to, Err(Unavailable::Busy));
        }
        let answer = match command.action {
            Action::Renew(_) => Response::Renewed(Vec::with_capacity(renewals.len())),
            Action::DropNamespace(_) => Response::Dropped { more: false },
            _ => Response::RevokedAll { revoked: 0, more: false },
        };
        self.long.push_back(LongCommand {
            command,
            correlation,
            renewals,
            answer,
            events: Vec::new(),
            on_decided,
            to,
        });
        self.go_on();
    }

    /// The next part of the first long command.
    fn go_on(&mut self) {
        let Some(mut long) = self.long.pop_front() else { return };
        if !self.may_take(&long.command.action) {
            return self.reply(long.to, Err(Unavailable::NoSpace));
        }
        let part = long.next_part();
        let outcome = self.decider.decide(&part, long.correlation, None);
        self.collect_served();
        match long.add(outcome) {
            Some(outcome) => self.say(long.to, long.on_decided, Decision::Outcome(outcome)),
            None => self.long.push_back(long),
        }
    }
}

impl<R> LongCommand<R> {
    fn next_part(&mut self) -> Command {
        let mut part = self.command.clone();
        // A retry may do it all again: what is done stays done. Under one key the second part would be
        // answered with the first. But what a namespace has got since it was deleted is not deleted again: there
        // the kernel keeps the answer of the last part.
        if !matches!(part.action, Action::DropNamespace(_)) {
            part.request = None;
        }
        if let Action::Renew(renewals) = &mut part.action {
            let most = self.renewals.len().min(Action::MAX_BATCH);
            *renewals = self.renewals.drain(..most).collect();
        }
        part
    }

    /// Adds what came of a part; returns the whole once there is no more.
    fn add(&mut self, outcome: Outcome) -> Option<Outcome> {
        let (answer, events) = match outcome {
            Outcome::Applied(answer, events) => (answer, events),
            Outcome::Unchanged(answer) => (answer, Vec::new()),
            Outcome::Rejected(rejection) => return Some(Outcome::Rejected(rejection)),
        };
        self.events.extend(events);
        let goes_on = match (&mut self.answer, answer) {
            (Response::Renewed(all), Response::Renewed(some)) => {
                all.extend(some);
                !self.renewals.is_empty()
            }
            (Response::RevokedAll { revoked, .. }, Response::RevokedAll { revoked: some, more }) => {
                *revoked += some;
                more
            }
            (Response::Dropped { .. }, Response::Dropped { more }) => {
                // There may be millions of them, and whoever follows the log has seen each.
                self.events.clear();
                more
            }
            (whole, other) => {
                *whole = other;
                false
            }
        };
        let whole = || Outcome::Applied(self.answer.clone(), std::mem::take(&mut self.events));
        (!goes_on).then(whole)
    }
}

fn refused(rejection: Rejection) -> Decision {
    Decision::Outcome(Outcome::Rejected(rejection))
}

/// The lease that an answer gives.
fn granted(said: &Decision) -> Option<LeaseId> {
    match said {
        Decision::Outcome(
            Outcome::Applied(Response::Granted(granted), _) | Outcome::Unchanged(Response::Granted(granted)),
        ) => Some(granted.lease),
        _ => None,
    }
}

fn newly_granted(said: &Decision) -> Option<LeaseId> {
    granted(said).filter(|_| matches!(said, Decision::Outcome(Outcome::Applied(..))))
}

/// What is still taken when the log has no room to spare.
fn gives_back(action: &Action) -> bool {
    matches!(
        action,
        Action::Release(_)
            | Action::Revoke(_)
            | Action::RevokeAll(_)
            | Action::Reclaim(_)
            | Action::Retract(_)
            | Action::Tick
    )
}
