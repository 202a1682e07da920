//! One shard, turn by turn: commands go in; a batch to append and the replies to publish come out.
//!
//! A turn is a call of [`Shard::housekeep`], then any number of commands, deliveries and disconnects, then
//! [`Shard::end_turn`]. Several calls of `housekeep` with their commands may share one batch.
//!
//! **Invariant.** The output of a turn (replies, refusals, query results, events) is published after the turn's batch
//! and all earlier ones are durable, in this order.
//!
//! **What is absent.** Threads, inboxes, stores: the sequencer has those.

mod long_command;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kernel::{
    Action, Close, Command, Event, Kernel, LeaseId, Lsn, Outcome, Rejection, RequestKey, Retraction, Span,
    Time,
};

use self::long_command::LongCommand;
use crate::audit::AuditEntry;
use crate::authorization::Authorization;
use crate::decider::{Decider, SealedBatch};
use crate::decision::{ContentionEvent, Decision};
pub use crate::decision::{OnDecided, Reply, Unavailable};
use crate::documents::DocumentLocation;
use crate::inline_documents::DocumentPositions;
use crate::memory::{ExceededLimit, MemoryBudget, ShardMemory};
use crate::origin::Origin;
use crate::rates::Rates;
use crate::record::Record;
use crate::waiting::{
    Attempt, LeaseReply, LeaseSubmission, WaiterConnection, Waiters, Waiting, lease_request_of,
};
pub use crate::waiting::{Visits, WAITERS_MAX, Wait};

/// The maximum number of renewals in one command. More than [`Action::MAX_BATCH`] become several records.
pub const RENEWALS_MAX: usize = 10_000;
/// The maximum number of unfinished long commands.
const LONG_MAX: usize = 1000;

/// A command, and where its reply goes.
pub struct Submission<R> {
    /// The command.
    pub command: Command,
    /// Where the command comes from, for the audit trail.
    pub origin: Origin,
    /// A document that is stored in the log.
    pub document: Option<Vec<u8>>,
    /// Set if a request for a lease may wait while it is blocked.
    pub wait: Option<Wait>,
    /// The attempt that a request for a lease presents as a retry.
    pub attempt: Option<Attempt>,
    /// Whether its client may still act when the command is decided.
    pub authorization: Authorization,
    /// Called when the command is decided.
    pub on_decided: Option<OnDecided>,
    /// The submitting thread may block: if the log is not in use, it appends the batch itself.
    pub may_block: bool,
    /// Where the reply goes.
    pub to: R,
}

impl<R> Submission<R> {
    /// A command without options.
    pub fn new(command: Command, to: R) -> Submission<R> {
        let authorization = Authorization::default();
        Submission {
            command,
            origin: Origin::default(),
            document: None,
            wait: None,
            attempt: None,
            authorization,
            on_decided: None,
            may_block: false,
            to,
        }
    }
}

/// What may be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSpace {
    /// Everything.
    Plenty,
    /// Releases, revokes, reclaims, retractions and ticks.
    Reserve,
    /// Nothing.
    Nothing,
}

/// The output of a turn.
#[derive(Debug)]
pub struct TurnOutput<R> {
    /// To be appended first; `None` if nothing changed.
    pub sealed: Option<SealedBatch>,
    /// To be published then, in this order. The lease is set where its delivery has to be reported.
    pub replies: Vec<(R, Reply, Option<LeaseId>)>,
    /// To be published then: the events, by record.
    pub events: Vec<(Lsn, Vec<Event>)>,
    /// To be published then: audit entries, if the shard is audited.
    pub audit: Vec<AuditEntry>,
    /// To be published then: requests that were blocked.
    pub contended: Vec<ContentionEvent>,
    /// The state after the batch, which a replay has to reproduce.
    pub state: StateDigest,
    /// The number of waiters that were granted a lease in this batch.
    pub served: usize,
}

/// The hash of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDigest {
    /// The last record of the state.
    pub lsn: Lsn,
    /// The kernel's state hash.
    pub hash: u64,
}

impl<R> TurnOutput<R> {
    /// Whether there is nothing to append and nothing to reply.
    pub fn is_empty(&self) -> bool {
        self.sealed.is_none() && self.replies.is_empty()
    }
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
    waiting: Waiting<R>,
    space: LogSpace,
    long: VecDeque<LongCommand<R>>,
    undelivered: BTreeMap<LeaseId, Undelivered>,
    /// Grants to undo: all their responses failed.
    retractions: VecDeque<LeaseId>,
    replies: Vec<(R, Reply, Option<LeaseId>)>,
    /// The number of waiters that were granted a lease in this batch.
    served: usize,
    sweeper: Span,
    rates: Rates,
    memory: ShardMemory,
}

impl<R> Shard<R> {
    /// Begins with a decider that was just opened: its `open` record is in the first batch.
    pub fn new(decider: Decider) -> Shard<R> {
        let waiting = Waiting::new(decider.kernel());
        Shard {
            decider,
            waiting,
            space: LogSpace::Plenty,
            long: VecDeque::new(),
            undelivered: BTreeMap::new(),
            retractions: VecDeque::new(),
            replies: Vec::new(),
            served: 0,
            sweeper: Span(0),
            rates: Rates::default(),
            memory: ShardMemory::default(),
        }
    }

    /// Without waiters, the end of a lease that is due may be logged up to `interval` late. Authority ends on time in any
    /// case, and a conflicting request ends the lease at once.
    pub fn set_sweeper(&mut self, interval: Span) {
        self.sweeper = interval;
    }

    /// Collects an audit entry for every change of a lease or document and every act of an operator from here on.
    pub fn set_audited(&mut self) {
        self.decider.set_audited();
    }

    /// Notes from here on where documents are in their batches.
    pub(crate) fn set_positions(&mut self, positions: Arc<DocumentPositions>) {
        self.decider.set_positions(positions);
    }

    /// Sets how long after its last reply an attempt may be retried and keeps its place.
    pub fn set_attempt_idle_max(&mut self, idle_max: Span) {
        self.waiting.set_attempt_idle_max(idle_max, self.decider.kernel());
    }

    /// Sets the limits in bytes, and counts what the shard uses in a budget.
    pub fn set_memory(&mut self, budget: MemoryBudget) {
        self.memory = ShardMemory::new(budget);
        self.memory.publish(self.decider.kernel(), self.waiting.waiters());
    }

    /// Takes a command, unless [`Shard::is_full`]. Its reply is in the output of this turn, or of a later one if it waits.
    ///
    /// A request for a lease never overtakes a waiter that it conflicts with: it queues behind it. Whether a request that
    /// conflicts with no waiter is decided while freed resources are being handed off is up to the caller: the sequencer
    /// postpones it while [`Shard::is_handing_off`].
    pub fn submit(&mut self, submission: Submission<R>) {
        if submission.authorization.is_withdrawn() && !planted!(WithdrawnDecided) {
            return self.reply(submission.to, Err(Unavailable::Withdrawn));
        }
        if !self.may_take(&submission.command.action) {
            return self.reply(submission.to, Err(Unavailable::NoSpace));
        }
        if self.names_foreign_blob(&submission.command.action) {
            return self.reply(submission.to, Err(Unavailable::Deposed));
        }
        let length = submission.document.as_ref().map_or(0, Vec::len);
        assert!(length <= Record::DOCUMENT_MAX, "longer documents are blobs");
        match &submission.command.action {
            Action::Acquire(_) | Action::Reserve(_) => self.admit(submission),
            Action::Renew(renewals) if renewals.len() > Action::MAX_BATCH => self.begin_long(submission),
            Action::RevokeAll(_) | Action::DropNamespace(_) => self.begin_long(submission),
            _ => {
                let Submission { command, origin, document, on_decided, to, .. } = submission;
                if let Err(exceeded) = self.check_memory(&command, false) {
                    return self.reply(to, Err(Unavailable::OverLimit(exceeded)));
                }
                let outcome = self.decide(&command, &origin, document.as_deref());
                self.reply_decided(to, on_decided, Decision::Outcome(outcome));
            }
        }
        self.collect_replies();
    }

    /// Whether a commit names a blob of another term. Such a blob is not pinned: the writer that collects garbage takes
    /// it for one that no commit will ever name.
    fn names_foreign_blob(&self, action: &Action) -> bool {
        let Action::Commit(commit) = action else { return false };
        let term = self.kernel().tenure().map(|tenure| tenure.open.term);
        let blob = match DocumentLocation::of(commit.location) {
            DocumentLocation::Blob(blob) => blob,
            DocumentLocation::Inline { .. } => return false,
        };
        Some(blob.term.0) != term && !planted!(ForeignBlobCommitted)
    }

    /// Begins a turn: continues hand-offs and other unfinished work, ends leases that are due and waits that timed out,
    /// and continues long commands. Nothing is added to a full batch.
    pub fn housekeep(&mut self) {
        self.waiting.begin_turn();
        if self.is_full() {
            return;
        }
        self.retract();
        if self.until_tick() == Some(Span(0)) {
            self.decider.tick();
        }
        self.waiting.work(&mut self.decider);
        self.collect_replies();
        for _ in 0..self.long.len() {
            if self.is_full() {
                return;
            }
            self.continue_long();
        }
    }

    /// Whether the batch has reached its bound: then it takes no further commands.
    pub fn is_full(&self) -> bool {
        self.decider.is_full()
    }

    /// Whether freed resources have not been offered to all of their waiters, and there is log space for grants. The caller
    /// postpones new requests for leases; renewals, releases and commits go on.
    pub fn is_handing_off(&self) -> bool {
        self.waiting.is_handing_off()
    }

    /// Whether [`Shard::housekeep`] has something to continue in this batch.
    fn is_unfinished(&self) -> bool {
        let has_retractions = !self.retractions.is_empty() && self.has_space();
        !self.is_full()
            && (!self.long.is_empty() || has_retractions || self.waiting.is_unfinished(&self.decider))
    }

    /// The time until [`Shard::housekeep`] has something to do: 0 while work is unfinished, `None` if nothing will ever be
    /// due.
    pub fn until_due(&self) -> Option<Span> {
        if self.is_unfinished() {
            return Some(Span(0));
        }
        let timeout = self.waiting.until_timeout(self.decider.now());
        self.until_tick().into_iter().chain(timeout).min()
    }

    /// The time until leases that are due are ended by a tick.
    fn until_tick(&self) -> Option<Span> {
        if self.space == LogSpace::Nothing {
            return None;
        }
        let late = if self.waiting.waiters().is_empty() { self.sweeper } else { Span(0) };
        self.decider.until_due(late)
    }

    /// Ends the turn and seals the batch.
    pub fn end_turn(&mut self) -> TurnOutput<R> {
        self.memory.publish(self.decider.kernel(), self.waiting.waiters());
        self.waiting.begin_batch();
        let sealed = self.decider.seal();
        let kernel = self.decider.kernel();
        TurnOutput {
            sealed,
            replies: std::mem::take(&mut self.replies),
            state: StateDigest { lsn: kernel.last_lsn(), hash: kernel.state_hash() },
            events: self.decider.take_events(),
            audit: self.decider.take_audit(),
            contended: self.waiting.take_contended(),
            served: std::mem::take(&mut self.served),
        }
    }

    /// Sets what may be logged from now on.
    pub fn set_space(&mut self, space: LogSpace) {
        self.space = space;
        self.waiting.set_may_serve(space == LogSpace::Plenty);
    }

    /// Reports a response that carries this lease: it was handed to its socket, or could not be. A grant is undone when
    /// all of its responses have failed, the first and each replay; in a later batch if this one is full or the log has no
    /// space. A replay that is decided before that prevents it.
    pub fn delivered(&mut self, lease: LeaseId, reached: bool) {
        if reached && !planted!(DeliveredUndone) {
            self.undelivered.remove(&lease);
        }
        let Some(grant) = self.undelivered.get_mut(&lease) else { return };
        grant.pending = grant.pending.saturating_sub(1);
        if grant.pending == 0 || planted!(ReplayIgnored) {
            grant.pending = 0;
            self.retractions.push_back(lease);
            self.retract();
        }
    }

    /// Undoes grants that were not delivered, while the batch has capacity.
    fn retract(&mut self) {
        while !self.is_full()
            && self.has_space()
            && let Some(lease) = self.retractions.pop_front()
        {
            if self.undelivered.get(&lease).is_none_or(|grant| grant.pending > 0) {
                // A replay delivers it, or has delivered it.
                continue;
            }
            let grant = self.undelivered.remove(&lease).expect("it was just found");
            if planted!(UndeliveredStands) {
                continue;
            }
            if let Ok(view) = self.decider.kernel().lease(lease, self.decider.now()) {
                self.waiting.note_retracted(view.age);
            }
            let retraction = Retraction { lease, request: grant.request };
            self.decide(&Command::internal(Action::Retract(retraction)), &Origin::default(), None);
        }
        self.collect_replies();
    }

    /// Stops the shard: waiters get [`Unavailable::Dismissed`], long commands [`Unavailable::Stopped`], and nothing is logged after this turn.
    pub fn stop(&mut self) {
        self.set_space(LogSpace::Nothing);
        self.dismiss();
        for long in std::mem::take(&mut self.long) {
            self.reply(long.to, Err(Unavailable::Stopped));
        }
    }

    /// Logs the record that ends the tenure and hands the log over. Nothing may be decided afterwards.
    pub(crate) fn hand_over(&mut self, close: Close) {
        let command = Command::internal(Action::Close(close));
        let outcome = self.decider.execute(self.decider.now(), &command, &Origin::default(), None);
        assert!(matches!(outcome, Outcome::Applied(..)), "an open log can be closed: {outcome:?}");
    }

    /// Removes all waiters; they get [`Unavailable::Dismissed`].
    pub fn dismiss(&mut self) {
        self.waiting.dismiss(&self.decider);
        self.collect_replies();
    }

    /// The reply addresses of all commands without a published reply. The shard is not used any more.
    pub(crate) fn take_pending(&mut self) -> Vec<R> {
        let waiting = self.waiting.take_pending();
        let long = std::mem::take(&mut self.long).into_iter().map(|long| long.to);
        let replies = std::mem::take(&mut self.replies).into_iter().map(|(to, ..)| to);
        waiting.into_iter().chain(long).chain(replies).collect()
    }

    /// Whether a response that carries this lease is on its way, and none has been delivered yet.
    pub fn is_delivering(&self, lease: LeaseId) -> bool {
        self.undelivered.contains_key(&lease)
    }

    /// The refusals of this turn, to be published before they are durable: a planted fault.
    #[cfg(feature = "planted")]
    pub(crate) fn take_refusals(&mut self) -> Vec<(R, Reply)> {
        let refusal = |(_, reply, _): &mut (R, Reply, Option<LeaseId>)| {
            matches!(reply, Ok(Decision::Blocked(_) | Decision::Outcome(Outcome::Rejected(_))))
        };
        self.replies.extract_if(.., refusal).map(|(to, reply, _)| (to, reply)).collect()
    }

    /// Whether anything may be logged.
    pub fn has_space(&self) -> bool {
        self.space != LogSpace::Nothing
    }

    /// The size of the batch in bytes, and the number of replies that wait for it.
    pub fn load(&self) -> (usize, usize) {
        (self.decider.batch_bytes(), self.replies.len())
    }

    /// How many of the replies are to waiters that were granted a lease in this batch.
    pub fn served(&self) -> usize {
        self.served
    }

    /// The number of blocked requests in this turn so far.
    pub fn contended(&self) -> usize {
        self.waiting.contended()
    }

    /// Sets how many rows each kind of work on waiters may visit in one turn, [`VISITS_MAX`](crate::waiting::VISITS_MAX) by
    /// default. Tests use a small number, so that work is suspended often.
    pub fn set_visits_max(&mut self, max: usize) {
        self.waiting.set_visits_max(max);
    }

    /// The waiters and leases that work on waiters has visited since the last [`Shard::housekeep`].
    pub fn visits(&self) -> Visits {
        self.waiting.visits()
    }

    /// The state, to read: what it shows may be published once this turn is durable.
    pub fn kernel(&self) -> &Kernel {
        self.decider.kernel()
    }

    /// The wait queues.
    pub fn waiters(&self) -> &Waiters {
        self.waiting.waiters()
    }

    /// Kernel time now.
    pub fn now(&self) -> Time {
        self.decider.now()
    }

    /// The connection of a waiter has closed: the waiter is removed without a reply, and not granted anything.
    pub fn disconnect(&mut self, connection: &WaiterConnection) {
        self.waiting.disconnect(&mut self.decider, connection);
        self.collect_replies();
    }

    fn may_take(&self, action: &Action) -> bool {
        match self.space {
            LogSpace::Plenty => true,
            _ if planted!(NoSpaceIgnored) => true,
            LogSpace::Reserve => frees_something(action),
            LogSpace::Nothing => false,
        }
    }

    /// `waits`: the command may become a waiter.
    fn check_memory(&mut self, command: &Command, waits: bool) -> Result<(), ExceededLimit> {
        let (kernel, waiters) = (self.decider.kernel(), self.waiting.waiters());
        self.memory.check(kernel, waiters, self.decider.now(), command, waits)
    }

    /// Decides a command, and hands off what it freed.
    fn decide(&mut self, command: &Command, origin: &Origin, document: Option<&[u8]>) -> Outcome {
        let outcome = self.decider.decide(command, origin, document);
        self.waiting.after_command(&mut self.decider, &outcome);
        outcome
    }

    fn admit(&mut self, submission: Submission<R>) {
        let Submission { command, origin, wait, attempt, authorization, on_decided, to, .. } = submission;
        let submission = LeaseSubmission { command, origin, wait, attempt, authorization, on_decided, to };
        let Some(submission) = self.waiting.reattach(&self.decider, submission) else { return };
        if !self.is_within_rate(&submission.command) {
            return self.reply(submission.to, Err(Unavailable::TooOften));
        }
        if let Err(exceeded) = self.check_memory(&submission.command, submission.wait.is_some()) {
            return self.reply(submission.to, Err(Unavailable::OverLimit(exceeded)));
        }
        self.waiting.admit(&mut self.decider, submission);
    }

    /// Counts a request for a lease towards the rate quota of its identity. A replay does not count.
    fn is_within_rate(&mut self, command: &Command) -> bool {
        let (Some(request), Some(identity)) = (lease_request_of(command), &command.identity) else {
            return true;
        };
        let (kernel, now) = (self.decider.kernel(), self.decider.now());
        let max = kernel.resolved_policy(&request.namespace, identity).quota.acquires_per_second;
        let retries = kernel.is_retry(now, command) && !planted!(RetryRateLimited);
        let Some(max) = max.filter(|_| !retries) else { return true };
        self.rates.allow(now, &request.namespace, identity, max)
    }

    /// Takes the replies of requests for leases. The delivery of a new grant is tracked from here on.
    fn collect_replies(&mut self) {
        for LeaseReply { to, reply, request, waited } in self.waiting.take_replies() {
            if let Some(lease) = reply.as_ref().ok().and_then(Decision::new_lease) {
                self.served += usize::from(waited);
                self.undelivered.insert(lease, Undelivered { pending: 0, request });
            }
            self.reply(to, reply);
        }
    }

    fn reply_decided(&mut self, to: R, on_decided: Option<OnDecided>, decision: Decision) {
        if let Some(on_decided) = on_decided {
            on_decided(self.decider.kernel(), &|| self.decider.now(), &decision);
        }
        self.reply(to, Ok(decision));
    }

    /// A replay of a grant that is not delivered yet may deliver it too.
    fn reply(&mut self, to: R, reply: Reply) {
        let lease = reply.as_ref().ok().and_then(Decision::lease);
        let lease = lease.filter(|lease| match self.undelivered.get_mut(lease) {
            Some(grant) => {
                grant.pending += 1;
                true
            }
            None => false,
        });
        self.replies.push((to, reply, lease));
    }

    fn begin_long(&mut self, submission: Submission<R>) {
        let Submission { command, origin, authorization, on_decided, to, .. } = submission;
        if matches!(&command.action, Action::Renew(renewals) if renewals.len() > RENEWALS_MAX) {
            return self.reply(to, Ok(Decision::rejected(Rejection::InvalidBatch)));
        }
        if self.long.len() >= LONG_MAX {
            return self.reply(to, Err(Unavailable::Busy));
        }
        self.long.push_back(LongCommand::new(command, origin, authorization, on_decided, to));
        if !self.is_full() {
            self.continue_long();
        }
    }

    /// Decides the next part of the first long command.
    fn continue_long(&mut self) {
        let Some(mut long) = self.long.pop_front() else { return };
        if long.authorization.is_withdrawn() && !planted!(WithdrawnContinues) {
            return self.reply(long.to, Err(Unavailable::Withdrawn));
        }
        if !self.may_take(long.action()) {
            return self.reply(long.to, Err(Unavailable::NoSpace));
        }
        let part = long.next_part();
        let outcome = self.decide(&part, &long.origin, None);
        self.collect_replies();
        match long.add(outcome) {
            Some(outcome) => self.reply_decided(long.to, long.on_decided, Decision::Outcome(outcome)),
            None => self.long.push_back(long),
        }
    }
}

/// Whether a command is accepted when the log has only its reserve left.
fn frees_something(action: &Action) -> bool {
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
