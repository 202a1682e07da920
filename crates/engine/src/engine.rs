//! A running shard: recovered from its store, with its sequencer and its maintenance.
//!
//! Maintenance takes snapshots where the sequencer sets marks, relocates documents so that the log can be truncated, and
//! garbage-collects blobs. Both run on the threads of the executor: an idle shard owns none.

mod maintenance;
mod tasks;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kernel::{Document, Event, Location, Lsn, Shard, Span};
use store::{BlobReader, BlobStore, LogStore, Seq, StoreError};

use self::maintenance::Maintenance;
use self::tasks::{Task, TaskQueue};
use crate::audit::AuditEntry;
use crate::checkpoint::Mark;
use crate::clock::{Clock, WrongClock};
use crate::decider::{Decider, TenureConfig};
use crate::decision::ContentionEvent;
use crate::documents::{BlobId, DocumentLocation, Term};
use crate::executor::Executor;
use crate::follower::Follower;
use crate::inline_documents::InlineReaders;
use crate::memory::MemoryBudget;
use crate::recovery::{DamagedSnapshot, Recovered, RecoveryError, unsaved};
use crate::sequencer::{
    BatchObserver, Ended, LoggedSince, MarkInterval, Measure, Sequencer, SequencerOptions,
};
use crate::stopwatch::Stopwatch;
use crate::uploads::{ReadHold, Uploads};
use crate::waiting::Attempt;

/// Maintenance settings of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of log between two snapshots.
    pub snapshot_every: u64,
    /// Batches between two snapshots. In an object store each batch is an object, and a recovery reads them all.
    pub snapshot_batches: u64,
    /// Minimum interval between two appends. Longer ones cost fewer requests to an object store, and latency.
    pub commit_interval: Span,
    /// Minimum number of bytes of log to retain as an audit trail, needed for recovery or not.
    pub retain: u64,
    /// Interval between two garbage collections of blobs.
    pub sweep_every: Duration,
    /// Maximum delay before the expiry of an uncontended lease is logged.
    pub sweeper: Span,
    /// How long after its last reply a blocked request may be retried and keeps its place.
    pub attempt_idle_max: Span,
    /// Whether audit entries are collected, for [`EngineObserver::audited`].
    pub audit: bool,
    /// Limits in bytes, shared by the shards of a server.
    pub memory: MemoryBudget,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            snapshot_every: 64 << 20,
            snapshot_batches: u64::MAX,
            commit_interval: Span(0),
            retain: 256 << 20,
            sweep_every: Duration::from_secs(300),
            sweeper: Span(0),
            attempt_idle_max: Attempt::IDLE_MAX,
            audit: false,
            memory: MemoryBudget::default(),
        }
    }
}

/// The reason why an engine does not start.
#[derive(Debug)]
pub enum OpenError {
    /// The state cannot be recovered.
    Recovery(RecoveryError),
    /// The wall clock is wrong.
    Clock(WrongClock),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Recovery(error) => error.fmt(f),
            OpenError::Clock(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// A failure that must end the process.
#[derive(Debug)]
pub enum Fatal {
    /// An append failed, or a turn panicked: the state in memory is ahead of the log.
    Append(StoreError),
    /// Another server owns the log.
    Deposed(StoreError),
    /// A second recovery led to a different state than the live one.
    Diverged(String),
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fatal::Append(error) => {
                write!(
                    f,
                    "the state in memory is ahead of the log, so no request can be answered; restart the server: {error}"
                )
            }
            Fatal::Deposed(error) => {
                write!(f, "another server has taken over the log; restart this one to follow it: {error}")
            }
            Fatal::Diverged(what) => f.write_str(what),
        }
    }
}

/// Observes an engine's background activity.
pub trait EngineObserver: Send + Sync {
    /// The process must end. Called at most once for each cause, from any thread.
    fn fatal(&self, why: Fatal);

    /// Another server owns the log of this shard: its engine has ended, and its state is to be discarded. For a process
    /// that cannot follow, that is fatal.
    fn deposed(&self, shard: Shard, why: StoreError) {
        let _ = shard;
        self.fatal(Fatal::Deposed(why));
    }

    /// This process begins to serve the shard, or ends to: events of other owners are not reported here. Only for shards that
    /// have other owners.
    fn served(&self, shard: Shard) {
        let _ = shard;
    }

    /// These events are durable. Must not block.
    fn durable(&self, events: &[(Lsn, Vec<Event>)]) {
        let _ = events;
    }

    /// These audit entries are of durable records, in order. Only with [`Options::audit`]. Must not block.
    fn audited(&self, shard: Shard, entries: Vec<AuditEntry>) {
        let _ = (shard, entries);
    }

    /// These requests met conflicting leases. Must not block.
    fn contended(&self, shard: Shard, contended: &[ContentionEvent]) {
        let _ = (shard, contended);
    }

    /// The replies of a batch follow, on this thread, until [`EngineObserver::replied`]. Must not block.
    fn replying(&self) {}

    /// The replies of the batch are published. Must not block.
    fn replied(&self) {}

    /// A maintenance step succeeded or failed; maintenance continues in both cases.
    fn maintained(&self, news: MaintenanceEvent);

    /// A duration for the metrics. Must not block.
    fn measured(&self, shard: Shard, measure: Measure) {
        let _ = (shard, measure);
    }
}

/// A [`EngineObserver`] that panics on any failure, for tests and benchmarks.
#[derive(Clone, Copy, Debug, Default)]
pub struct PanicOnFailure;

impl EngineObserver for PanicOnFailure {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn maintained(&self, news: MaintenanceEvent) {
        match news {
            MaintenanceEvent::Failed(error) => panic!("{error}"),
            MaintenanceEvent::SnapshotDamaged(snapshot) => panic!("a damaged snapshot: {snapshot}"),
            MaintenanceEvent::Snapshot { .. } | MaintenanceEvent::Swept(_) => {}
        }
    }
}

/// The result of one maintenance step.
#[derive(Debug)]
pub enum MaintenanceEvent {
    /// A snapshot is durable, and documents were relocated so that the log could be truncated.
    Snapshot {
        /// The number of relocated documents.
        moved: usize,
        /// Their size in bytes.
        moved_bytes: u64,
    },
    /// This many unreferenced blobs were deleted.
    Swept(usize),
    /// A snapshot cannot be used. An older one or the log takes its place, and the next checkpoint replaces it.
    SnapshotDamaged(DamagedSnapshot),
    /// The step failed, and will be retried.
    Failed(StoreError),
}

/// What a start has recovered, for the operator.
#[derive(Clone, Debug)]
pub struct RecoverySummary {
    /// The first batch that the snapshot does not have; `None` if no snapshot was used.
    pub snapshot: Option<Seq>,
    /// The number of records that were replayed after it.
    pub records: u64,
    /// The number of leases that cover resources.
    pub leases: usize,
    /// The number of documents.
    pub documents: usize,
    /// Whether the log was new or its last writer has stopped cleanly.
    pub was_clean: bool,
    /// How long it took.
    pub took: Duration,
}

impl RecoverySummary {
    pub(crate) fn of(recovered: &Recovered, log: &dyn LogStore, stopwatch: &Stopwatch) -> RecoverySummary {
        let counts = recovered.kernel.counts();
        RecoverySummary {
            snapshot: recovered.snapshot,
            records: recovered.records,
            leases: counts.leases,
            documents: counts.documents,
            was_clean: log.was_clean(),
            took: stopwatch.elapsed(),
        }
    }
}

/// A running shard. Dropping it stops it, after all accepted requests are answered.
pub struct Engine {
    recovery: RecoverySummary,
    sequencer: Arc<Sequencer>,
    readers: InlineReaders,
    blobs: Arc<dyn BlobStore>,
    uploads: Uploads,
    tasks: TaskQueue,
}

impl Engine {
    /// Recovers the state, opens a tenure, and starts the sequencer and maintenance.
    pub fn open(
        log: Box<dyn LogStore>,
        blobs: Arc<dyn BlobStore>,
        clock: Box<dyn Clock>,
        opening: &TenureConfig,
        options: Options,
        watcher: Arc<dyn EngineObserver>,
        executor: &Arc<dyn Executor>,
    ) -> Result<Engine, OpenError> {
        let shard = opening.store.shard;
        let follower = Follower::open(log, blobs, clock, shard, &*watcher).map_err(OpenError::Recovery)?;
        Engine::start(follower, opening, options, watcher, executor)
    }

    /// Opens a tenure behind what a follower has read, and starts the sequencer and maintenance.
    pub(crate) fn start(
        follower: Follower,
        opening: &TenureConfig,
        options: Options,
        watcher: Arc<dyn EngineObserver>,
        executor: &Arc<dyn Executor>,
    ) -> Result<Engine, OpenError> {
        let Follower { log, blobs, clock, shard, kernel, read_at, recovery } = follower;
        // The parameters fixed at creation are in the log.
        let store = kernel.tenure().map_or(opening.store, |tenure| tenure.open.store);
        let opening = TenureConfig { store, ..opening.clone() };
        let next = log.bounds().next;
        let decider =
            Decider::open_after(kernel, next, read_at, clock, &opening).map_err(OpenError::Clock)?;
        let term = decider.kernel().tenure().expect("it has just been opened").open.term;
        let uploads = Uploads::new(Arc::clone(&blobs), shard, Term(term));
        let tasks = TaskQueue::new(executor, options.sweep_every);
        let (readers, reader) = (InlineReaders::new(&*log), log.reader());
        let follower = Box::new(EventRelay { shard, tasks: tasks.clone(), watcher: Arc::clone(&watcher) });
        let on_fatal = Arc::clone(&watcher);
        let on_end = Box::new(move |why| match why {
            Ended::Failed(error) => on_fatal.fatal(Fatal::Append(error)),
            Ended::Deposed(error) => on_fatal.deposed(shard, error),
        });
        let since = if planted!(MarksForgotten) {
            LoggedSince::default()
        } else {
            unsaved(&*log, &*blobs, shard).map_err(|error| OpenError::Recovery(error.into()))?
        };
        let (bytes, batches) = (options.snapshot_every, options.snapshot_batches);
        let marks = MarkInterval { bytes, batches, since };
        let sequencing = SequencerOptions { marks, commit_interval: options.commit_interval };
        let mut served = crate::shard::Shard::new(decider);
        served.set_sweeper(options.sweeper);
        served.set_attempt_idle_max(options.attempt_idle_max);
        served.set_memory(options.memory.clone());
        if options.audit {
            served.set_audited();
        }
        if let Some(positions) = readers.positions() {
            served.set_positions(positions);
        }
        let sequencer = Sequencer::start(served, log, follower, sequencing, on_end, executor);
        let sequencer = Arc::new(sequencer);
        let maintenance = Maintenance {
            sequencer: Arc::clone(&sequencer),
            reader,
            blobs: Arc::clone(&blobs),
            uploads: uploads.clone(),
            shard,
            options,
            watcher,
            collections: 0,
        };
        tasks.start(Box::new(maintenance));
        Ok(Engine { recovery, sequencer, readers, blobs, uploads, tasks })
    }

    /// What was recovered when it was opened.
    pub fn recovery(&self) -> &RecoverySummary {
        &self.recovery
    }

    /// The sequencer, which takes commands and queries.
    pub fn sequencer(&self) -> &Sequencer {
        &self.sequencer
    }

    /// Returns when the turn that runs now has ended: every command decided from here on sees what this thread has done
    /// before. An [`Authorization`](crate::Authorization) that it has withdrawn counts in every decision after this.
    /// Blocks for as long as a turn takes, which appends nothing.
    pub fn pass_turn(&self) {
        self.sequencer.inspect(|_| ());
    }

    /// Uploads of documents that are too long for the log.
    pub fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    /// Prevents the deletion of a document's blob while it is read in parts. `None` if the document is
    /// inline: it is read in one call.
    pub fn hold(&self, location: Location) -> Option<ReadHold> {
        match DocumentLocation::of(location) {
            DocumentLocation::Blob(blob) => Some(self.uploads.hold(blob)),
            DocumentLocation::Inline { .. } => None,
        }
    }

    /// Prepares to read a range of a document from its beginning to its end; `None` if [`Engine::read_document`] does that as
    /// well, as it does for short documents and on disk.
    pub fn open_document(&self, document: &Document, range: Range<u64>) -> Option<Box<dyn BlobReader>> {
        match DocumentLocation::of(document.location) {
            DocumentLocation::Blob(blob) => self.blobs.open_range(&blob.name(), range),
            DocumentLocation::Inline { .. } => None,
        }
    }

    /// Reads at most `length` bytes of a document from `offset`; fewer only at its end.
    /// [`Gone`](store::ErrorKind::Gone) if the document was relocated since: look up its location again.
    pub fn read_document(
        &self,
        document: &Document,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, StoreError> {
        match DocumentLocation::of(document.location) {
            DocumentLocation::Blob(blob) => self.blobs.read(&blob.name(), offset, length),
            DocumentLocation::Inline { lsn, .. } => {
                let mut content = self.readers.read(lsn, document)?;
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
                let to = from.saturating_add(length).min(content.len());
                content.truncate(to);
                Ok(content.split_off(from))
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Maintenance uses the sequencer, which ends with its last user.
        self.tasks.stop();
    }
}

/// Passes the sequencer's notifications on to the watcher and to maintenance.
struct EventRelay {
    shard: Shard,
    tasks: TaskQueue,
    watcher: Arc<dyn EngineObserver>,
}

impl BatchObserver for EventRelay {
    fn durable(&mut self, events: &[(Lsn, Vec<Event>)]) {
        let all = events.iter().flat_map(|(_, events)| events);
        for blob in all.filter_map(superseded_blob) {
            self.tasks.push(Task::Delete(blob));
        }
        self.watcher.durable(events);
    }

    fn audited(&mut self, entries: Vec<AuditEntry>) {
        self.watcher.audited(self.shard, entries);
    }

    fn contended(&mut self, contended: &[ContentionEvent]) {
        self.watcher.contended(self.shard, contended);
    }

    fn replying(&mut self) {
        self.watcher.replying();
    }

    fn replied(&mut self) {
        self.watcher.replied();
    }

    fn marked(&mut self, mark: Mark) {
        self.tasks.push(Task::Checkpoint(mark));
    }

    fn measured(&mut self, measure: Measure) {
        self.watcher.measured(self.shard, measure);
    }
}

/// The blob that is unreferenced after this event.
fn superseded_blob(event: &Event) -> Option<BlobId> {
    let location = match event {
        Event::Committed { superseded, .. } => (*superseded)?,
        Event::Removed { superseded, .. } | Event::Dropped { superseded, .. } => *superseded,
        _ => return None,
    };
    match DocumentLocation::of(location) {
        DocumentLocation::Blob(blob) => Some(blob),
        DocumentLocation::Inline { .. } => None,
    }
}
