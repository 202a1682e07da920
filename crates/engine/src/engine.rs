//! A shard, opened from its store and running: what a server holds.
//!
//! Beside the sequencer's threads there is one for upkeep: snapshots of what the sequencer marks, documents
//! carried forward, blobs that nobody needs any more.

mod maintenance;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kernel::{Event, Location, Lsn, Shard, Span};
use store::{BlobStore, LogReader, LogStore, StoreError};

use self::maintenance::Maintenance;
use crate::checkpoint::Mark;
use crate::clock::{Clock, WrongClock};
use crate::decider::{Contended, Decider, Opening};
use crate::documents::{BlobId, Place, read_inline};
use crate::recovery::{RecoveryError, recover};
use crate::sequencer::{Follower, Measure, Sequencer};
use crate::uploads::{Hold, Uploads};

/// How an engine looks after its store.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A snapshot after so many bytes of log.
    pub snapshot_every: u64,
    /// So many bytes of log stay, needed or not: the audit trail.
    pub retain: u64,
    /// How often blobs are swept.
    pub sweep_every: Duration,
    /// How late what is due and nobody waits for may be written down.
    pub sweeper: Span,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            snapshot_every: 64 << 20,
            retain: 256 << 20,
            sweep_every: Duration::from_secs(300),
            sweeper: Span(0),
        }
    }
}

/// Why an engine does not start.
#[derive(Debug)]
pub enum OpenError {
    /// The state cannot be recovered.
    Recovery(RecoveryError),
    /// The machine's clock is wrong.
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

/// What must end the process.
#[derive(Debug)]
pub enum Fatal {
    /// An append failed, or a turn was left halfway: memory is ahead of the log.
    Append(StoreError),
    /// A second recovery came to another state than the live one.
    Diverged(String),
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fatal::Append(error) => {
                write!(
                    f,
                    "the state is ahead of the log, so nothing may be answered any more; start again: {error}"
                )
            }
            Fatal::Diverged(what) => f.write_str(what),
        }
    }
}

/// Is told what happens in the background.
pub trait Watcher: Send + Sync {
    /// The process must end. Called at most once for each cause, from any thread.
    fn fatal(&self, why: Fatal);

    /// This happened, and is durable. Must not block.
    fn happened(&self, events: &[(Lsn, Vec<Event>)]) {
        let _ = events;
    }

    /// These met others in their way. Must not block.
    fn contended(&self, shard: Shard, contended: &[Contended]) {
        let _ = (shard, contended);
    }

    /// A snapshot was taken, or could not be; upkeep goes on.
    fn upkeep(&self, news: Upkeep);

    /// So long it took. Must not block.
    fn measured(&self, shard: Shard, measure: Measure) {
        let _ = (shard, measure);
    }
}

/// Panics at any trouble: for tests and benchmarks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strict;

impl Watcher for Strict {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn upkeep(&self, news: Upkeep) {
        if let Upkeep::Failed(error) = news {
            panic!("{error}");
        }
    }
}

/// What upkeep did.
#[derive(Debug)]
pub enum Upkeep {
    /// A snapshot is durable; so many documents were carried forward, and so many bytes of log have gone.
    Snapshot {
        /// How many documents.
        moved: usize,
        /// How many of their bytes.
        moved_bytes: u64,
    },
    /// So many blobs that nobody needed are gone.
    Swept(usize),
    /// It did not work this time.
    Failed(StoreError),
}

/// A running shard. Ends when it is dropped, after all that was taken is answered.
pub struct Engine {
    sequencer: Arc<Sequencer>,
    readers: Readers,
    blobs: Arc<dyn BlobStore>,
    uploads: Uploads,
    work: SyncSender<Work>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Work {
    Mark(Mark),
    Superseded(BlobId),
    Stop,
}

/// How many superseded blobs may wait to be deleted; a sweep finds the rest.
const WORK_MAX: usize = 10_000;

impl Engine {
    /// Recovers the state, opens a tenure, and starts.
    pub fn open(
        log: Box<dyn LogStore>,
        blobs: Arc<dyn BlobStore>,
        clock: Box<dyn Clock>,
        opening: &Opening,
        options: Options,
        watcher: Arc<dyn Watcher>,
    ) -> Result<Engine, OpenError> {
        let shard = opening.store.shard;
        let kernel = recover(&*log, &*blobs, shard).map_err(OpenError::Recovery)?;
        // What was fixed when the store was made is in its log.
        let store = kernel.tenure().map_or(opening.store, |tenure| tenure.open.store);
        let opening = Opening { store, ..opening.clone() };
        let decider = Decider::open(kernel, log.bounds().next, clock, &opening).map_err(OpenError::Clock)?;
        let term = decider.kernel().tenure().expect("it has just been opened").open.term;
        let uploads = Uploads::new(Arc::clone(&blobs), shard, term);
        let (work, queue) = sync_channel(WORK_MAX);
        let (readers, reader) = (Readers::new(&*log), log.reader());
        let follower = Box::new(Following { shard, work: work.clone(), watcher: Arc::clone(&watcher) });
        let dying = Arc::clone(&watcher);
        let fatal = Box::new(move |error| dying.fatal(Fatal::Append(error)));
        let mut served = crate::shard::Shard::new(decider);
        served.set_sweeper(options.sweeper);
        let sequencer = Sequencer::start(served, log, follower, options.snapshot_every, fatal);
        let sequencer = Arc::new(sequencer);
        let stop = Arc::new(AtomicBool::new(false));
        let maintenance = Maintenance {
            sequencer: Arc::clone(&sequencer),
            reader,
            blobs: Arc::clone(&blobs),
            uploads: uploads.clone(),
            shard,
            options,
            watcher,
            queue,
            stop: Arc::clone(&stop),
        };
        let thread = Some(std::thread::spawn(move || maintenance.run()));
        Ok(Engine { sequencer, readers, blobs, uploads, work, stop, thread })
    }

    /// Where commands go.
    pub fn sequencer(&self) -> &Sequencer {
        &self.sequencer
    }

    /// Where documents go that are too long for the log.
    pub fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    /// Keeps a document's bytes where they are, while they are read part by part. `None`: it is in the log, and read at once.
    pub fn hold(&self, location: Location) -> Option<Hold> {
        match Place::of(location) {
            Place::Blob(blob) => Some(self.uploads.hold(blob)),
            Place::Inline(_) => None,
        }
    }

    /// At most `length` bytes of a document from `offset` on; fewer only at its end. [`Gone`](store::ErrorKind::Gone) if the
    /// bytes have moved since the location was looked up: look again.
    pub fn read_document(
        &self,
        shard: Shard,
        location: Location,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, StoreError> {
        match Place::of(location) {
            Place::Blob(blob) => self.blobs.read(&blob.name(shard), offset, length),
            Place::Inline(lsn) => {
                let mut document = self.readers.read(lsn)?;
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(document.len());
                let to = from.saturating_add(length).min(document.len());
                document.truncate(to);
                Ok(document.split_off(from))
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // If the queue is full, the flag is seen after the work under way.
        let _ = self.work.try_send(Work::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A few readers of the log, for those who read documents.
struct Readers {
    readers: Vec<Mutex<Box<dyn LogReader>>>,
    next: AtomicUsize,
}

impl Readers {
    fn new(log: &dyn LogStore) -> Readers {
        Readers { readers: (0..4).map(|_| Mutex::new(log.reader())).collect(), next: AtomicUsize::new(0) }
    }

    fn read(&self, lsn: Lsn) -> Result<Vec<u8>, StoreError> {
        let one = self.next.fetch_add(1, Ordering::Relaxed) % self.readers.len();
        let mut reader = self.readers[one].lock().unwrap_or_else(PoisonError::into_inner);
        read_inline(&mut **reader, lsn)
    }
}

struct Following {
    shard: Shard,
    work: SyncSender<Work>,
    watcher: Arc<dyn Watcher>,
}

impl Follower for Following {
    fn landed(&mut self, events: &[(Lsn, Vec<Event>)]) {
        let all = events.iter().flat_map(|(_, events)| events);
        for blob in all.filter_map(superseded_blob) {
            // A sweep finds what does not fit.
            let _ = self.work.try_send(Work::Superseded(blob));
        }
        self.watcher.happened(events);
    }

    fn contended(&mut self, contended: &[Contended]) {
        self.watcher.contended(self.shard, contended);
    }

    fn marked(&mut self, mark: Mark) {
        let _ = self.work.try_send(Work::Mark(mark));
    }

    fn measured(&mut self, measure: Measure) {
        self.watcher.measured(self.shard, measure);
    }
}

/// The blob that nobody needs once this has happened.
fn superseded_blob(event: &Event) -> Option<BlobId> {
    let location = match event {
        Event::Committed { superseded, .. } => (*superseded)?,
        Event::Removed { superseded, .. } | Event::Dropped { superseded, .. } => *superseded,
        _ => return None,
    };
    match Place::of(location) {
        Place::Blob(blob) => Some(blob),
        Place::Inline(_) => None,
    }
}
