//! Everything that leaves a simulated server: replies, appends, events, the results of queries. The simulation drains it.
//!
//! **Checked here.** Nothing is published before the state that it reveals is durable: neither a response nor a refusal,
//! an event or the result of a query.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::document::DocumentLocation;
use engine::internals::checkpoint::Mark;
use engine::internals::documents::BlobId;
use engine::internals::sequencer::{BatchObserver, Ended, OnEnd};
use engine::internals::shard::StateDigest;
use engine::observe::AuditEntry;
use engine::{Delivery, OnDecided, Reply, ReplyTo};
use kernel::{Event, Lsn, Version};
use store::{Bounds, Extent, LogCapacity, LogReader, LogStore, LsnRange, Preparation, Seq, StoreError};

use super::clock::Machine;
use super::ledger::DecisionTime;
use super::server::RequestNumber;

/// Everything that a server has published. Clones share it.
#[derive(Clone, Default)]
pub struct Outbox(Arc<Mutex<OutboxState>>);

#[derive(Default)]
struct OutboxState {
    replies: Vec<PublishedReply>,
    /// Decisions that are not published yet.
    decided: BTreeMap<RequestNumber, (DecisionTime, Lsn)>,
    reads: Vec<VersionRead>,
    steps: Vec<LogStep>,
    /// The last record that is durable.
    durable: Lsn,
    /// This server has appended a batch.
    has_appended: bool,
    superseded: Vec<BlobId>,
    mark: Option<Mark>,
    ended: Option<Ended>,
    /// The first violation.
    violation: Option<String>,
    largest_batch: usize,
    during_append: Option<DuringAppend>,
}

/// To be done once, during the next append of at least this number of bytes.
struct DuringAppend {
    bytes: usize,
    act: Box<dyn FnOnce() + Send>,
}

/// A reply that a server has written.
pub struct PublishedReply {
    /// The request.
    pub number: RequestNumber,
    /// The reply.
    pub reply: Reply,
    /// To be confirmed when the client has it.
    pub delivery: Delivery,
    /// When it was decided; `None` if it was refused without a decision.
    pub decided: Option<DecisionTime>,
}

/// The result of a query.
pub struct VersionRead {
    /// The key.
    pub key: &'static str,
    /// The last record of the state that was read.
    pub lsn: Lsn,
    /// The version that was acknowledged before the query was made.
    pub known: Option<Version>,
    /// The version that was found; `None` if the key has no row.
    pub found: Option<Version>,
}

/// What happened to the log, in order.
pub enum LogStep {
    /// The append of a batch up to this record has begun.
    Appending(Lsn),
    /// It is durable.
    Appended(Lsn),
    /// The state after it.
    Marked(StateDigest),
}

impl Outbox {
    /// Of a server that has recovered the log up to this record.
    pub fn new(durable: Lsn) -> Outbox {
        let outbox = Outbox::default();
        outbox.state().durable = durable;
        outbox
    }

    /// Where a reply goes.
    pub fn reply_to(&self, number: RequestNumber) -> ReplyTo {
        let outbox = self.clone();
        Box::new(move |reply, delivery| outbox.replied(number, reply, delivery))
    }

    /// Notes when and in which state a command is decided.
    pub fn on_decided(&self, number: RequestNumber, machine: &Machine) -> OnDecided {
        let (outbox, machine) = (self.clone(), machine.clone());
        Box::new(move |kernel, now, _| {
            let decided = DecisionTime { at: machine.true_time(), now: now() };
            outbox.state().decided.insert(number, (decided, kernel.last_lsn()));
        })
    }

    fn replied(&self, number: RequestNumber, reply: Reply, delivery: Delivery) {
        let mut state = self.state();
        let decided = state.decided.remove(&number);
        if let Some((_, lsn)) = decided.filter(|_| reply.is_ok()) {
            state.check_durable(lsn, &format_args!("the response to request {number}"));
        }
        let decided = decided.map(|(decided, _)| decided);
        state.replies.push(PublishedReply { number, reply, delivery, decided });
    }

    /// The results of a query of the state at `lsn`.
    pub fn read(&self, lsn: Lsn, reads: Vec<VersionRead>) {
        let mut state = self.state();
        state.check_durable(lsn, &"the result of a query");
        state.reads.extend(reads);
    }

    /// Receives the end of the sequencer.
    pub fn on_end(&self) -> OnEnd {
        let outbox = self.clone();
        Box::new(move |ended| outbox.state().ended = Some(ended))
    }

    /// Does something during the next append of at least `bytes` bytes: the log is in use, and the sequencer is not.
    pub fn during_append(&self, bytes: usize, act: Box<dyn FnOnce() + Send>) {
        self.state().during_append = Some(DuringAppend { bytes, act });
    }

    /// Does now what no append was large enough for.
    pub fn flush(&self) {
        let left = self.state().during_append.take();
        if let Some(left) = left {
            (left.act)();
        }
    }

    /// Replies since the last call.
    pub fn take_replies(&self) -> Vec<PublishedReply> {
        std::mem::take(&mut self.state().replies)
    }

    /// Results of queries since the last call.
    pub fn take_reads(&self) -> Vec<VersionRead> {
        std::mem::take(&mut self.state().reads)
    }

    /// What happened to the log since the last call.
    pub fn take_steps(&self) -> Vec<LogStep> {
        std::mem::take(&mut self.state().steps)
    }

    /// Blobs that durable records have superseded since the last call.
    pub fn take_superseded(&self) -> Vec<BlobId> {
        std::mem::take(&mut self.state().superseded)
    }

    /// The last mark.
    pub fn mark(&self) -> Option<Mark> {
        self.state().mark.clone()
    }

    /// Why the sequencer ended, once.
    pub fn take_ended(&self) -> Option<Ended> {
        self.state().ended.take()
    }

    /// The first thing that was published too early.
    pub fn violation(&self) -> Option<String> {
        self.state().violation.clone()
    }

    /// The last record that is durable.
    pub fn durable(&self) -> Lsn {
        self.state().durable
    }

    /// Whether this server has appended a batch: it owns the log since then.
    pub fn has_appended(&self) -> bool {
        self.state().has_appended
    }

    /// The largest batch so far, in bytes.
    pub fn largest_batch(&self) -> usize {
        self.state().largest_batch
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutboxState {
    fn check_durable(&mut self, lsn: Lsn, what: &dyn std::fmt::Display) {
        if lsn > self.durable && self.violation.is_none() {
            let durable = self.durable;
            self.violation = Some(format!("{what} reveals {lsn:?}, and only {durable:?} is durable"));
        }
    }
}

impl BatchObserver for Outbox {
    fn durable(&mut self, events: &[(Lsn, Vec<Event>)]) {
        let mut state = self.state();
        for (lsn, events) in events {
            state.check_durable(*lsn, &"an event");
            state.superseded.extend(events.iter().filter_map(superseded));
        }
    }

    fn audited(&mut self, entries: Vec<AuditEntry>) {
        let mut state = self.state();
        for entry in entries {
            state.check_durable(entry.lsn, &"an audit entry");
        }
    }

    fn marked(&mut self, mark: Mark) {
        let mut state = self.state();
        state.steps.push(LogStep::Marked(mark.state));
        state.mark = Some(mark);
    }
}

fn superseded(event: &Event) -> Option<BlobId> {
    let location = match event {
        Event::Committed { superseded, .. } => *superseded,
        Event::Removed { superseded, .. } | Event::Dropped { superseded, .. } => Some(*superseded),
        _ => None,
    };
    match location.map(DocumentLocation::of) {
        Some(DocumentLocation::Blob(blob)) => Some(blob),
        _ => None,
    }
}

/// A log that reports its appends.
pub struct ObservedLog {
    log: Box<dyn LogStore>,
    outbox: Outbox,
}

impl ObservedLog {
    /// Reports the appends to `log`.
    pub fn new(log: Box<dyn LogStore>, outbox: Outbox) -> ObservedLog {
        ObservedLog { log, outbox }
    }
}

impl LogStore for ObservedLog {
    fn bounds(&self) -> Bounds {
        self.log.bounds()
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        let last = Lsn(lsns.last.0);
        let mut state = self.outbox.state();
        state.steps.push(LogStep::Appending(last));
        let due = state.during_append.take_if(|due| payload.len() >= due.bytes);
        drop(state);
        if let Some(due) = due {
            (due.act)();
        }
        self.log.append(seq, lsns, payload)?;
        let mut state = self.outbox.state();
        state.steps.push(LogStep::Appended(last));
        (state.durable, state.has_appended) = (last, true);
        state.largest_batch = state.largest_batch.max(payload.len());
        Ok(())
    }

    fn is_instant(&self) -> bool {
        self.log.is_instant()
    }

    fn is_remote(&self) -> bool {
        self.log.is_remote()
    }

    fn reserve(&mut self) -> Result<(), StoreError> {
        self.log.reserve()
    }

    fn preparation(&mut self) -> Option<Preparation> {
        self.log.preparation()
    }

    fn capacity(&self) -> LogCapacity {
        self.log.capacity()
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.log.raise_floor(floor)
    }

    fn extents(&self) -> Vec<Extent> {
        self.log.extents()
    }

    fn confirm(&mut self) -> Result<(), StoreError> {
        self.log.confirm()
    }

    fn mark_clean_stop(&mut self) -> Result<(), StoreError> {
        self.log.mark_clean_stop()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        self.log.reader()
    }
}
