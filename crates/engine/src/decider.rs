//! Applies commands to the kernel one after the other, and collects those that changed something into a batch.
//!
//! **Invariant.** A batch, replayed on the state before it, gives the state after it: it contains every command
//! that was applied, in order, and nothing else. A reply reveals the state up to the end of the current batch,
//! and may be published once that batch is durable. The same holds for refusals.
//!
//! **What would break it.** A refusal that is published at once: "held by ada", before ada's grant is on disk.
//! The power fails, the grant is lost, and the refused client learned of a lease that never existed.
//!
//! A failed append must end the process: the state is ahead of the log.
//!
//! A batch is bounded in bytes. It takes no further commands from [`BATCH_BYTES`] on, and the largest record fits
//! between that and [`BATCH_MAX`], which nothing exceeds.
//!
//! **What is absent.** Waiters: the decider only reports the resources that its commands freed.

use std::sync::Arc;

use kernel::{
    Action, Bundle, Command, Event, Identity, Kernel, Limits, Lsn, Member, Metadata, Namespace, Open,
    Outcome, Rejection, ResourceName, Shard, Slots, Span, Store, Time,
};
use store::{BATCH_MAX, LsnRange, Seq};

use crate::audit::{AuditEntry, entries_of};
use crate::clock::{Clock, Stamps, WrongClock, opening_lsn, reading};
pub use crate::decision::{Advice, Blocked, ContentionEvent, ContentionOutcome, Decision};
use crate::documents::DocumentLocation;
use crate::inline_documents::DocumentPositions;
use crate::origin::Origin;
use crate::record::{BATCH_HEADER, BATCH_RECORDS_MAX, Record, begin_batch, encode_record, seal_batch};

/// A kernel, the clock that stamps its commands, and the current batch.
pub struct Decider {
    kernel: Kernel,
    clock: Box<dyn Clock>,
    stamps: Stamps,
    next_lsn: Lsn,
    next_seq: Seq,
    batch: Vec<u8>,
    first: Option<Lsn>,
    /// The events of the current batch.
    events: Vec<(Lsn, Vec<Event>)>,
    /// Whether audit entries are collected.
    is_audited: bool,
    /// The audit entries of the current batch.
    audit: Vec<AuditEntry>,
    /// Whether freed resources are recorded: only while there are waiters.
    watches_freed: bool,
    /// Resources that were freed and not taken yet, in order.
    freed: Vec<FreedResources>,
    /// Where the positions of documents are noted.
    positions: Option<Arc<DocumentPositions>>,
}

/// The resources of a lease that ended.
#[derive(Clone, Debug)]
pub(crate) struct FreedResources {
    pub(crate) namespace: Namespace,
    pub(crate) members: Vec<Member>,
}

/// The writer of a log, and the limits in force while it writes.
#[derive(Clone, Debug)]
pub struct TenureConfig {
    /// The store that the log belongs to.
    pub store: Store,
    /// The id of the process that writes the log from here on.
    pub writer: u128,
    /// In force until the next `open`.
    pub limits: Limits,
    /// The slots that the log owns until the next.
    pub slots: Slots,
}

/// A batch to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedBatch {
    /// The number of the batch in the log.
    pub seq: Seq,
    /// The LSNs of its records.
    pub lsns: LsnRange,
    /// The records.
    pub payload: Vec<u8>,
}

/// A batch of this many bytes takes no further commands.
pub const BATCH_BYTES: usize = 1 << 20;
/// Initial capacity of a batch in bytes: one typical command.
const BATCH_USUAL: usize = 256;
/// Commands discard old history as they are applied. A tick does it only if none came for this long: a tick after every
/// batch would cost a busy shard a tenth of its records.
const GC_DELAY: Span = Span(1000);
/// How many ticks one command may take if more is due than a command may end by itself.
const CATCH_UP_STEPS: usize = 16;
/// The parts of a record besides members and documents: header, texts, hashes, counts, an `open` with its limits.
const RECORD_REST_MAX: usize =
    4096 + Metadata::MAX_BYTES + 2 * Namespace::MAX_BYTES + 2 * Identity::MAX_BYTES;
/// One member: kind, colon, name, length, predicate.
const MEMBER_MAX: usize = ResourceName::MAX_KIND_BYTES + 1 + ResourceName::MAX_NAME_BYTES + 4;
/// One renewal: lease id, epoch, TTL.
const RENEWAL_MAX: usize = 48;
/// No record is larger than this, in bytes.
pub(crate) const RECORD_MAX: usize = RECORD_REST_MAX
    + max(
        max(Bundle::MAX_MEMBERS * MEMBER_MAX, MEMBER_MAX + Record::DOCUMENT_MAX),
        Action::MAX_BATCH * RENEWAL_MAX,
    );

const _: () = assert!(
    BATCH_BYTES + RECORD_MAX + (CATCH_UP_STEPS + 1) * RECORD_REST_MAX <= BATCH_MAX,
    "a command and the ticks before it must fit into a batch that is not full"
);

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

impl Decider {
    /// Takes over a kernel with the state of a log up to `next_seq`, and opens a tenure: the first record of the
    /// first batch. Nothing may be published before that is durable.
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
            is_audited: false,
            audit: Vec::new(),
            watches_freed: false,
            freed: Vec::new(),
            positions: None,
        };
        let command = Command::internal(Action::Open(open));
        let outcome = decider.apply(stamps.opened_at(), &command, &Origin::default(), None);
        assert!(matches!(outcome, Outcome::Applied(..)), "the limits or the store are wrong: {outcome:?}");
        Ok(decider)
    }

    /// Decides one command now, after a step of the expiries that are due.
    ///
    /// `document` is the content of a commit or relocation that is stored in the log; its location becomes this
    /// record.
    pub fn decide(&mut self, command: &Command, origin: &Origin, document: Option<&[u8]>) -> Outcome {
        let now = self.now();
        self.end_due(now);
        self.execute(now, command, origin, document)
    }

    /// Applies a command. If more is due than the command may end by itself, some ticks come first.
    pub(crate) fn execute(
        &mut self,
        now: Time,
        command: &Command,
        origin: &Origin,
        document: Option<&[u8]>,
    ) -> Outcome {
        for _ in 0..CATCH_UP_STEPS {
            let outcome = self.apply(now, command, origin, document);
            if !self.is_only_behind(now, &outcome) {
                return outcome;
            }
            self.apply(now, &Command::internal(Action::Tick), &Origin::default(), None);
        }
        self.apply(now, command, origin, document)
    }

    /// Whether nothing but expired leases that have not been ended yet block a command: it may succeed after a tick.
    /// A conflict without a holder is one with more of them than one command may end.
    fn is_only_behind(&self, now: Time, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Rejected(Rejection::Behind) => true,
            Outcome::Rejected(Rejection::Conflict(conflict)) => {
                let is_due = self.kernel.next_due().is_some_and(|due| due <= now);
                conflict.holders.is_empty() && is_due && !planted!(ExpiredHoldersBlock)
            }
            _ => false,
        }
    }

    /// Ends leases that are due, one step of them, and drops rows that may be forgotten.
    pub fn tick(&mut self) {
        let now = self.now();
        self.apply(now, &Command::internal(Action::Tick), &Origin::default(), None);
    }

    /// A tick, if anything is due.
    pub(crate) fn end_due(&mut self, now: Time) {
        if self.kernel.next_due().is_some_and(|due| due <= now) {
            self.apply(now, &Command::internal(Action::Tick), &Origin::default(), None);
        }
    }

    /// The time until something has been due for `late`, a lease to end or history to retire; `None` if nothing ever is.
    pub fn until_due(&self, late: Span) -> Option<Span> {
        if self.kernel.tenure().is_some_and(|tenure| tenure.closed.is_some()) {
            return None;
        }
        let gc = self.kernel.next_gc().filter(|_| !planted!(IdleHistoryKept)).map(|at| at.after(GC_DELAY));
        let due = self.kernel.next_due().into_iter().chain(gc).min()?;
        Some(self.now().until(due.after(late)))
    }

    /// The current batch, to be appended; `None` if nothing changed since the last.
    pub fn seal(&mut self) -> Option<SealedBatch> {
        let first = self.first.take()?;
        let last = self.kernel.last_lsn();
        assert!(last.0 - first.0 < BATCH_RECORDS_MAX, "a batch has fewer records than an opening skips");
        let mut payload = std::mem::replace(&mut self.batch, empty_batch());
        assert!(payload.len() <= BATCH_MAX, "a batch exceeds its bound: bytes={}", payload.len());
        let clocks = reading(&*self.clock);
        seal_batch(&mut payload, clocks);
        self.kernel.set_clocks(Some(clocks));
        let seq = self.next_seq;
        self.next_seq = seq.next();
        Some(SealedBatch { seq, lsns: LsnRange::new(first.0, last.0), payload })
    }

    /// The events of the current batch, to be published when it is durable.
    pub fn take_events(&mut self) -> Vec<(Lsn, Vec<Event>)> {
        std::mem::take(&mut self.events)
    }

    /// Collects audit entries from here on. Reading the lease of every event has a cost, so it is off by default.
    pub(crate) fn set_audited(&mut self) {
        self.is_audited = true;
    }

    /// Notes from here on where the documents of records are in their batches.
    pub(crate) fn set_positions(&mut self, positions: Arc<DocumentPositions>) {
        self.positions = Some(positions);
    }

    /// The audit entries of the current batch, to be published when it is durable.
    pub(crate) fn take_audit(&mut self) -> Vec<AuditEntry> {
        std::mem::take(&mut self.audit)
    }

    /// Sets whether freed resources are recorded. Reading the members of every lease that ends has a cost, so it is
    /// off while there are no waiters.
    pub(crate) fn watch_freed(&mut self, on: bool) {
        self.watches_freed = on;
    }

    /// The resources that were freed since the last call, in order.
    pub(crate) fn take_freed(&mut self) -> Vec<FreedResources> {
        std::mem::take(&mut self.freed)
    }

    /// The size of the current batch in bytes; 0 if nothing changed since the last.
    pub fn batch_bytes(&self) -> usize {
        if self.first.is_some() { self.batch.len() } else { 0 }
    }

    /// Whether the batch takes no further commands.
    pub fn is_full(&self) -> bool {
        self.batch.len() >= BATCH_BYTES
    }

    /// The kernel, to read. Showing it reveals everything up to its last LSN.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Kernel time now.
    pub fn now(&self) -> Time {
        self.stamps.now(&*self.clock).max(self.kernel.now())
    }

    fn apply(&mut self, now: Time, command: &Command, origin: &Origin, document: Option<&[u8]>) -> Outcome {
        let lsn = self.next_lsn;
        let located = document.map(|_| located(command, self.shard(), lsn));
        let command = located.as_ref().unwrap_or(command);
        let outcome = self.kernel.apply(lsn, now, command);
        if let Outcome::Applied(response, events) = &outcome {
            if self.is_audited {
                let unix_ms = self.clock.unix_micros() / 1000;
                self.audit.extend(entries_of(&self.kernel, unix_ms, command, origin, (response, events)));
            }
            if self.watches_freed {
                self.note_freed(now, events);
            }
            if !(planted!(TickUnlogged) && matches!(command.action, Action::Tick)) {
                encode_record(&mut self.batch, lsn, now, origin.correlation, command, document);
            }
            if let (Some(positions), Some(_)) = (&self.positions, document) {
                positions.note(lsn, self.batch.len());
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

    /// An ended lease can be read until the next command is applied.
    fn note_freed(&mut self, now: Time, events: &[Event]) {
        let noted =
            |event: &&Event| !(planted!(ExpiryWithoutWakeup) && matches!(event, Event::Expired { .. }));
        for lease in events.iter().filter(noted).filter_map(Event::freed) {
            if let Ok(view) = self.kernel.lease(lease, now) {
                self.freed.push(FreedResources { namespace: view.namespace, members: view.members });
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
        Action::Relocate(_) if planted!(RelocationUnrecorded) => {}
        Action::Relocate(relocation) => relocation.location = location,
        _ => {}
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{
        Age, AgentName, Credential, Epoch, IdempotencyKey, LeaseId, LeaseRequest, OnExpiry, Owner, Predicate,
        Reason, Renewal, RequestKey, SessionName,
    };

    fn record_bytes(action: Action, document: Option<&[u8]>) -> usize {
        let identity = Identity::new(&"i".repeat(Identity::MAX_BYTES)).expect("the longest name");
        let request = IdempotencyKey { key: RequestKey([1; 16]), fingerprint: [1; 16] };
        let command = Command::by(&identity, action).with_request(request);
        let mut batch = Vec::new();
        encode_record(&mut batch, Lsn(u64::MAX), Time(u64::MAX), u128::MAX, &command, document);
        batch.len()
    }

    fn longest<T>(new: impl Fn(&str) -> Option<T>) -> Option<T> {
        (1..2000).rev().find_map(|length| new(&"x".repeat(length)))
    }

    /// The bound of a batch rests on this: a record above `RECORD_MAX` in a batch that is almost full would exceed it.
    #[test]
    fn the_largest_commands_fit_the_bound_of_a_record() {
        let member = |n: usize| {
            let name = format!("{n:0>width$}", width = ResourceName::MAX_NAME_BYTES);
            let kind = "K".repeat(ResourceName::MAX_KIND_BYTES);
            let resource = ResourceName::new(&kind, &name).expect("the longest name");
            Member { resource, predicate: Predicate::Mutates }
        };
        let request = LeaseRequest {
            namespace: Namespace::new(&"n".repeat(Namespace::MAX_BYTES)).expect("the longest name"),
            bundle: Bundle::new((0..Bundle::MAX_MEMBERS).map(member).collect()).expect("the largest bundle"),
            ttl: Span(u64::MAX),
            on_expiry: OnExpiry::Hold(Span(u64::MAX)),
            owner: longest(|text| Owner::new(text).ok()),
            agent: longest(|text| AgentName::new(text).ok()),
            session: longest(|text| SessionName::new(text).ok()),
            attempt: Some(Age { at: Time(u64::MAX), tie: u64::MAX }),
            reason: longest(|text| Reason::new(text).ok()),
            metadata: Metadata::new(&[b'm'; Metadata::MAX_BYTES]).ok(),
        };
        let lease = LeaseId::from_u128((7 << 64) | u128::from(Lsn::MAX.0)).expect("a valid id");
        let held = Credential { lease, epoch: Epoch(u32::MAX.into()) };
        let renewal = Renewal { held, ttl: Some(Span(u64::MAX)) };
        let acquire = record_bytes(Action::Acquire(request), None);
        let renew = record_bytes(Action::Renew(vec![renewal; Action::MAX_BATCH]), None);
        let document = vec![b'd'; Record::DOCUMENT_MAX];
        let tick = record_bytes(Action::Tick, Some(&document));
        assert!(acquire <= RECORD_MAX && acquire > RECORD_MAX / 2, "{acquire} of {RECORD_MAX}");
        assert!(renew <= RECORD_MAX, "{renew}");
        assert!(tick + MEMBER_MAX + 2048 <= RECORD_MAX, "{tick}");
    }
}
