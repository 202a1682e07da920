//! A simulated server: a shard, its log and its blobs. It does the work of the sequencer's threads sequentially, in
//! the same order; the sequencer itself is not simulated.

use std::path::Path;
use std::sync::Arc;

use engine::internals::checkpoint::{self, CheckpointError, Mark};
use engine::internals::decider::Decider;
use engine::internals::documents::{BlobId, Term, read_inline};
use engine::internals::recovery::{DamagedSnapshot, RecoveryError, SnapshotDamage, recover};
use engine::internals::shard::{LogSpace, Shard, StateDigest, TurnOutput};
use engine::internals::uploads::Uploads;
use engine::{DocumentLocation, Pin, Submission, TenureConfig};
use kernel::{Cursor, Document, Event, Kernel, Limits, Slots, Span, Store};
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::object::{ObjectBlobs, ObjectLog, ObjectOptions, Objects, RetryPolicy, WriterId};
use store::{BlobStore, ErrorKind, LogReader, LogStore, Seq, StoreError};

use super::client::Content;
use super::clock::Machine;
use super::ledger::Ledger;
use crate::disk::SimFs;
use crate::objects::SimHandle;

/// The number of a request in the simulation.
pub type RequestNumber = u64;

/// Where a server stores its log and its blobs.
pub enum Backend {
    /// On a disk that loses unsynced writes.
    Disk(SimFs),
    /// In an object store, as this writer.
    Objects(SimHandle, WriterId),
}

/// Why a server ended.
#[derive(Debug)]
pub enum ServerError {
    /// Its store failed: a power or network failure, or a takeover of the log.
    Store(StoreError),
    /// An invariant was violated.
    Violation(String),
}

impl From<StoreError> for ServerError {
    fn from(error: StoreError) -> ServerError {
        match error.kind {
            ErrorKind::Damaged => ServerError::Violation(error.to_string()),
            _ => ServerError::Store(error),
        }
    }
}

impl From<RecoveryError> for ServerError {
    fn from(error: RecoveryError) -> ServerError {
        match error {
            RecoveryError::Store(error) => error.into(),
            other => ServerError::Violation(other.to_string()),
        }
    }
}

/// A running server.
pub struct Server {
    /// The shard under test.
    pub shard: Shard<RequestNumber>,
    log: Box<dyn LogStore>,
    reader: Box<dyn LogReader>,
    blobs: Arc<dyn BlobStore>,
    /// Uploads of long documents.
    pub uploads: Uploads,
    /// Its clocks.
    pub machine: Machine,
    last: Option<(Seq, StateDigest)>,
}

const STORE: Store = Store { shard: kernel::Shard(0), shards: 1, hash_seed: 77 };
/// The limits of every simulated server.
pub const LIMITS: Limits = Limits {
    ttl_max: Span(60_000),
    hold_max: Span(20_000),
    leases_max: 40,
    leases_per_identity_max: 12,
    namespaces_max: 3,
    nodes_max: 100,
    documents_max: 6,
    agents_max: 6,
    agents_per_identity_max: 3,
    policies_max: 3,
    history_max: 10,
    history_members_max: 20,
    history_window: Span(3000),
    requests_max: 40,
    requests_per_identity_max: 20,
    request_window: Span(5000),
    step_max: 4,
};
/// Capacity reserved for one batch, in bytes: far more than one batch needs.
const BATCH_CAPACITY: u64 = 12_000;
const SEGMENT: u64 = 16_000;
/// Maximum tries of a request to the object store.
const TRIES: u32 = 6;

impl Server {
    /// Recovers the store and opens a tenure; the ledger checks the recovered state.
    pub fn start(
        backend: &Backend,
        machine: &Machine,
        writer: u128,
        ledger: &mut Ledger,
    ) -> Result<Server, ServerError> {
        loop {
            let (mut log, blobs) = open(backend)?;
            let mut damaged = Vec::new();
            let kernel = recover(&*log, &*blobs, STORE.shard, &mut |snapshot| damaged.push(snapshot))?;
            damaged.iter().try_for_each(damage_found)?;
            let opening = TenureConfig { store: STORE, writer, limits: LIMITS, slots: Slots::ALL };
            let found = kernel.snapshot();
            let decider = Decider::open(kernel, log.bounds().next, Box::new(machine.clone()), &opening)
                .map_err(|error| ServerError::Violation(error.to_string()))?;
            let term = decider.kernel().tenure().expect("just opened").open.term;
            let mut shard = Shard::new(decider);
            let opened: TurnOutput<RequestNumber> = shard.end_turn();
            // May fail: the rest of the last segment may suffice.
            let _ = log.reserve();
            match append(&mut *log, &opened) {
                // A delayed batch, or another server, was first: recover again.
                Err(error) if error.kind == ErrorKind::Taken => continue,
                // No response has revealed this state yet.
                Err(error) => {
                    ledger.recovered(&found).map_err(ServerError::Violation)?;
                    ledger.appending(shard.kernel().snapshot());
                    return Err(error.into());
                }
                Ok(()) => {}
            }
            ledger.recovered(&found).map_err(ServerError::Violation)?;
            ledger.appending(shard.kernel().snapshot());
            ledger.appended();
            let uploads = Uploads::new(Arc::clone(&blobs), STORE.shard, Term(term));
            let (reader, machine) = (log.reader(), machine.clone());
            return Ok(Server { shard, log, reader, blobs, uploads, machine, last: None });
        }
    }

    /// Decides and appends one batch. Its responses may be sent.
    pub fn turn(
        &mut self,
        submissions: Vec<Submission<RequestNumber>>,
        ledger: &mut Ledger,
    ) -> Result<TurnOutput<RequestNumber>, ServerError> {
        self.shard.housekeep();
        for submission in submissions {
            self.shard.submit(submission);
        }
        let turn = self.shard.end_turn();
        ledger.appending(self.shard.kernel().snapshot());
        append(&mut *self.log, &turn)?;
        ledger.appended();
        if let Some(sealed) = &turn.sealed {
            self.last = Some((sealed.seq.next(), turn.state));
        }
        self.collect(&turn)?;
        self.reserve_capacity();
        Ok(turn)
    }

    fn reserve_capacity(&mut self) {
        let space = match self.log.reserve() {
            Ok(()) => LogSpace::Plenty,
            Err(_) if self.log.capacity().bytes >= BATCH_CAPACITY => LogSpace::Reserve,
            Err(_) => LogSpace::Nothing,
        };
        self.shard.set_space(space);
    }

    /// Deletes blobs that a durable record has superseded.
    fn collect(&self, turn: &TurnOutput<RequestNumber>) -> Result<(), ServerError> {
        for event in turn.events.iter().flat_map(|(_, events)| events) {
            let location = match event {
                Event::Committed { superseded, .. } => *superseded,
                Event::Removed { superseded, .. } | Event::Dropped { superseded, .. } => Some(*superseded),
                _ => None,
            };
            if let Some(DocumentLocation::Blob(blob)) = location.map(DocumentLocation::of) {
                self.uploads.delete(blob)?;
            }
        }
        Ok(())
    }

    /// Uploads a long document as a blob.
    pub fn upload(&self, bytes: &[u8]) -> Result<Pin, ServerError> {
        let mut upload = self.uploads.begin(7)?;
        for part in bytes.chunks(700) {
            upload.write(part)?;
        }
        Ok(upload.finish()?)
    }

    /// Takes a snapshot of the state after the last batch, relocates documents, and raises the floor. Relocation
    /// decides batches of its own, which may contain responses to others: `turns` must be published.
    pub fn checkpoint(
        &mut self,
        ledger: &mut Ledger,
        retain: u64,
        turns: &mut Vec<TurnOutput<RequestNumber>>,
    ) -> Result<usize, ServerError> {
        let Some((next, state)) = self.last else { return Ok(0) };
        let mark = Mark { next, state, extents: self.log.extents() };
        let mut damaged = Vec::new();
        let mut on_damage = |snapshot| damaged.push(snapshot);
        let taken = checkpoint::take(&*self.blobs, &mut *self.reader, STORE.shard, &mark, &mut on_damage);
        damaged.iter().try_for_each(damage_found)?;
        let taken = taken.map_err(checkpoint_failed)?;
        let Some(plan) = checkpoint::plan(&taken, &mut *self.reader, &mark, retain)? else { return Ok(0) };
        for step in &plan.moves {
            let document = step.read(&mut *self.reader)?;
            let (command, document) = (step.command(), Some(document));
            let relocate = Submission {
                command,
                correlation: 0,
                document,
                wait: None,
                on_decided: None,
                to: RequestNumber::MAX,
            };
            let turn = self.turn(vec![relocate], ledger)?;
            let no_space =
                turn.replies.iter().any(|(to, reply, _)| *to == RequestNumber::MAX && reply.is_err());
            turns.push(turn);
            if no_space {
                return Ok(0);
            }
        }
        self.log.raise_floor(plan.floor)?;
        Ok(plan.moves.len())
    }

    /// Deletes blobs without a reference.
    pub fn sweep(&self) -> Result<usize, ServerError> {
        let referenced = || {
            let documents = self.documents().into_iter();
            let blobs = documents.filter_map(|(_, document)| match DocumentLocation::of(document.location) {
                DocumentLocation::Blob(blob) => Some(blob),
                DocumentLocation::Inline { .. } => None,
            });
            Some(blobs.collect())
        };
        Ok(self.uploads.sweep(referenced)?)
    }

    /// Every document, with its key.
    pub fn documents(&self) -> Vec<(String, Document)> {
        documents(self.shard.kernel())
    }

    /// A document's bytes.
    pub fn read(&mut self, document: &Document) -> Result<Vec<u8>, StoreError> {
        match DocumentLocation::of(document.location) {
            DocumentLocation::Inline { lsn, .. } => read_inline(&mut *self.reader, lsn),
            DocumentLocation::Blob(blob) => self.blobs.read(&blob.name(), 0, 1 << 20),
        }
    }

    /// Every document reads back as committed.
    pub fn check_documents(&mut self) -> Result<(), ServerError> {
        for (key, document) in self.documents() {
            let content = Content::of(document.etag);
            match self.read(&document) {
                Ok(bytes) if bytes == content.bytes() => {}
                Ok(bytes) => {
                    return Err(ServerError::Violation(format!(
                        "{key} has other contents than committed: {} bytes, {content:?}",
                        bytes.len()
                    )));
                }
                Err(error) if error.kind == ErrorKind::Gone && self.confirm().is_ok() => {
                    return Err(ServerError::Violation(format!(
                        "the document of {key} is missing: {document:?}: {error}"
                    )));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The number of document blobs in the store, referenced or not.
    pub fn blobs(&self) -> Result<usize, StoreError> {
        Ok(self.blobs.list(&BlobId::prefix(STORE.shard))?.len())
    }

    /// Fails if the log has been taken over.
    pub fn confirm(&mut self) -> Result<(), ServerError> {
        Ok(self.log.confirm()?)
    }
}

fn documents(kernel: &Kernel) -> Vec<(String, Document)> {
    let all = kernel.documents_from(Cursor::default());
    all.filter_map(|(_, _, key, view)| Some((key.as_str().to_string(), view.document?))).collect()
}

fn checkpoint_failed(error: CheckpointError) -> ServerError {
    match error {
        CheckpointError::Store(error) => error.into(),
        CheckpointError::Unreadable(snapshot) => match damage_found(&snapshot) {
            Ok(()) => StoreError::new(ErrorKind::Io, "reading back a snapshot failed").into(),
            Err(violation) => violation,
        },
        CheckpointError::Diverged(what) => ServerError::Violation(what),
    }
}

/// Simulated devices fail to read, but damage nothing.
fn damage_found(snapshot: &DamagedSnapshot) -> Result<(), ServerError> {
    match snapshot.damage {
        SnapshotDamage::Device(_) => Ok(()),
        _ => Err(ServerError::Violation(format!("a damaged snapshot: {snapshot}"))),
    }
}

/// Appends the batch, or confirms the ownership of the log if there is none.
fn append(log: &mut dyn LogStore, turn: &TurnOutput<RequestNumber>) -> Result<(), StoreError> {
    match &turn.sealed {
        Some(sealed) => log.append(sealed.seq, sealed.lsns, &sealed.payload),
        None => log.confirm(),
    }
}

type OpenedStore = (Box<dyn LogStore>, Arc<dyn BlobStore>);

fn open(backend: &Backend) -> Result<OpenedStore, StoreError> {
    match backend {
        Backend::Disk(fs) => {
            let options = LogOptions { shard: 0, store_id: 9, segment_bytes: SEGMENT };
            let (log, _) = DiskLog::open(fs.clone(), Path::new("/store/log"), options)?;
            let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob"))?;
            Ok((Box::new(log), Arc::new(blobs)))
        }
        Backend::Objects(handle, writer) => {
            let objects: Arc<dyn Objects> = Arc::new(handle.clone());
            let options = ObjectOptions { shard: 0, store_id: 9, writer: *writer };
            let log = ObjectLog::open(Arc::clone(&objects), options, RetryPolicy::without_pause(TRIES))?;
            let blobs = ObjectBlobs::new(objects, RetryPolicy::without_pause(TRIES), 1 << 20);
            Ok((Box::new(log), Arc::new(blobs)))
        }
    }
}
