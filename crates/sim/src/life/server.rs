//! A server: a shard, its log and its blobs, driven by hand. What the sequencer's threads do side by side is done
//! one after the other here, in the same order.

use std::path::Path;
use std::sync::Arc;

use engine::checkpoint::{self, CheckpointError, Mark};
use engine::decider::{Decider, Opening};
use engine::documents::{BlobId, Place, Term, read_inline};
use engine::recovery::{RecoveryError, recover};
use engine::shard::{Shard, Space, State, Submission, Turn};
use engine::uploads::{Pin, Uploads};
use kernel::{Cursor, Document, Event, Kernel, Limits, Span, Store};
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::object::{ObjectBlobs, ObjectLog, ObjectOptions, Objects, Patience, WriterId};
use store::{BlobStore, ErrorKind, LogReader, LogStore, Seq, StoreError};

use super::clock::Machine;
use super::ledger::Ledger;
use crate::disk::SimFs;
use crate::objects::SimHandle;

/// A command's number in the world.
pub type Number = u64;

/// Where a server keeps its log.
pub enum Site {
    /// On a disk that forgets.
    Disk(SimFs),
    /// In an object store, as this writer.
    Objects(SimHandle, WriterId),
}

/// How a server ends.
#[derive(Debug)]
pub enum End {
    /// Its store failed: the power, the network, or somebody else has the log.
    Died(StoreError),
    /// Something that must never be.
    Wrong(String),
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> End {
        match error.kind {
            ErrorKind::Damaged => End::Wrong(error.to_string()),
            _ => End::Died(error),
        }
    }
}

impl From<RecoveryError> for End {
    fn from(error: RecoveryError) -> End {
        match error {
            RecoveryError::Store(error) => error.into(),
            other => End::Wrong(other.to_string()),
        }
    }
}

/// A running server.
pub struct Server {
    /// What decides.
    pub shard: Shard<Number>,
    log: Box<dyn LogStore>,
    reader: Box<dyn LogReader>,
    blobs: Arc<dyn BlobStore>,
    /// Where long documents go.
    pub uploads: Uploads,
    /// Its clocks.
    pub machine: Machine,
    last: Option<(Seq, State)>,
}

const STORE: Store = Store { shard: kernel::Shard(0), shards: 1, hash_seed: 77 };
const LIMITS: Limits = Limits {
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
/// Room for a batch: what one turn writes stays far below.
const BATCH_ROOM: u64 = 12_000;
const SEGMENT: u64 = 16_000;
/// How often a request to an object store is tried.
const TRIES: u32 = 6;

impl Server {
    /// Recovers what is there, and opens a tenure; the ledger checks what was recovered.
    pub fn start(site: &Site, machine: &Machine, writer: u128, ledger: &mut Ledger) -> Result<Server, End> {
        loop {
            let (mut log, blobs) = open(site)?;
            let kernel = recover(&*log, &*blobs, STORE.shard)?;
            let opening = Opening { store: STORE, writer, limits: LIMITS };
            let found = kernel.snapshot();
            let decider = Decider::open(kernel, log.bounds().next, Box::new(machine.clone()), &opening)
                .map_err(|error| End::Wrong(error.to_string()))?;
            let term = decider.kernel().tenure().expect("just opened").open.term;
            let mut shard = Shard::new(decider);
            let opened: Turn<Number> = shard.end_turn();
            // What is left of the log's last piece may do.
            let _ = log.reserve();
            match append(&mut *log, &opened) {
                // Somebody's late batch, or another server: what is there now counts.
                Err(error) if error.kind == ErrorKind::Taken => continue,
                // Nobody has been told anything of this state.
                Err(error) => {
                    ledger.recovered(&found).map_err(End::Wrong)?;
                    ledger.may_become(shard.kernel().snapshot());
                    return Err(error.into());
                }
                Ok(()) => {}
            }
            ledger.recovered(&found).map_err(End::Wrong)?;
            ledger.may_become(shard.kernel().snapshot());
            ledger.became();
            let uploads = Uploads::new(Arc::clone(&blobs), STORE.shard, Term(term));
            let (reader, machine) = (log.reader(), machine.clone());
            return Ok(Server { shard, log, reader, blobs, uploads, machine, last: None });
        }
    }

    /// One turn. What it returns may be told.
    pub fn turn(
        &mut self,
        submissions: Vec<Submission<Number>>,
        ledger: &mut Ledger,
    ) -> Result<Turn<Number>, End> {
        self.shard.housekeep();
        for submission in submissions {
            self.shard.submit(submission);
        }
        let turn = self.shard.end_turn();
        ledger.may_become(self.shard.kernel().snapshot());
        append(&mut *self.log, &turn)?;
        ledger.became();
        if let Some(sealed) = &turn.sealed {
            self.last = Some((sealed.seq.next(), turn.state));
        }
        self.collect(&turn)?;
        self.make_room();
        Ok(turn)
    }

    fn make_room(&mut self) {
        let space = match self.log.reserve() {
            Ok(()) => Space::Plenty,
            Err(_) if self.log.room().bytes >= BATCH_ROOM => Space::Reserve,
            Err(_) => Space::Nothing,
        };
        self.shard.set_space(space);
    }

    /// Blobs that a durable record has superseded go.
    fn collect(&self, turn: &Turn<Number>) -> Result<(), End> {
        for event in turn.events.iter().flat_map(|(_, events)| events) {
            let location = match event {
                Event::Committed { superseded, .. } => *superseded,
                Event::Removed { superseded, .. } | Event::Dropped { superseded, .. } => Some(*superseded),
                _ => None,
            };
            if let Some(Place::Blob(blob)) = location.map(Place::of) {
                self.uploads.delete(blob)?;
            }
        }
        Ok(())
    }

    /// Puts a long document where it can be committed from.
    pub fn upload(&self, bytes: &[u8]) -> Result<Pin, End> {
        let mut upload = self.uploads.begin()?;
        for part in bytes.chunks(700) {
            upload.write(part)?;
        }
        Ok(upload.finish()?)
    }

    /// A snapshot of the state after the last turn, and then the log is let go as far as it may. What it carries
    /// forward takes turns, and in those others may be answered: `turns` are to be told like any other.
    pub fn checkpoint(
        &mut self,
        ledger: &mut Ledger,
        retain: u64,
        turns: &mut Vec<Turn<Number>>,
    ) -> Result<usize, End> {
        let Some((next, state)) = self.last else { return Ok(0) };
        let mark = Mark { next, state, extents: self.log.extents() };
        let kernel = checkpoint::take(&*self.blobs, &mut *self.reader, STORE.shard, &mark).map_err(ended)?;
        let Some(plan) = checkpoint::plan(&kernel, &mut *self.reader, &mark, retain)? else { return Ok(0) };
        for step in &plan.moves {
            let document = step.read(&mut *self.reader)?;
            let (command, document) = (step.command(), Some(document));
            let relocate =
                Submission { command, correlation: 0, document, wait: None, peek: None, to: Number::MAX };
            let turn = self.turn(vec![relocate], ledger)?;
            let no_room = turn.replies.iter().any(|(to, reply, _)| *to == Number::MAX && reply.is_err());
            turns.push(turn);
            if no_room {
                return Ok(0);
            }
        }
        self.log.raise_floor(plan.floor)?;
        Ok(plan.moves.len())
    }

    /// Blobs that nobody refers to go.
    pub fn sweep(&self) -> Result<usize, End> {
        let referred = || {
            let documents = self.documents().into_iter();
            let blobs = documents.filter_map(|(_, document)| match Place::of(document.location) {
                Place::Blob(blob) => Some(blob),
                Place::Inline(_) => None,
            });
            Some(blobs.collect())
        };
        Ok(self.uploads.sweep(referred)?)
    }

    /// Every document, with its key.
    pub fn documents(&self) -> Vec<(String, Document)> {
        documents(self.shard.kernel())
    }

    /// A document's bytes.
    pub fn read(&mut self, document: &Document) -> Result<Vec<u8>, StoreError> {
        match Place::of(document.location) {
            Place::Inline(lsn) => read_inline(&mut *self.reader, lsn),
            Place::Blob(blob) => self.blobs.read(&blob.name(STORE.shard), 0, 1 << 20),
        }
    }

    /// Blobs of documents that there are, finished or not referred to.
    pub fn blobs(&self) -> Result<usize, StoreError> {
        Ok(self.blobs.list(&BlobId::prefix(STORE.shard))?.len())
    }

    /// Is the log still this server's?
    pub fn confirm(&mut self) -> Result<(), End> {
        Ok(self.log.confirm()?)
    }
}

fn documents(kernel: &Kernel) -> Vec<(String, Document)> {
    let all = kernel.documents_from(Cursor::default());
    all.filter_map(|(_, _, key, view)| Some((key.as_str().to_string(), view.document?))).collect()
}

fn ended(error: CheckpointError) -> End {
    match error {
        CheckpointError::Store(error) => error.into(),
        CheckpointError::Diverged(what) => End::Wrong(what),
    }
}

/// An append that nobody knows the end of is tried again with the same bytes, where that may decide it.
fn append(log: &mut dyn LogStore, turn: &Turn<Number>) -> Result<(), StoreError> {
    match &turn.sealed {
        Some(sealed) => log.append(sealed.seq, sealed.lsns, &sealed.payload),
        None => log.confirm(),
    }
}

type Opened = (Box<dyn LogStore>, Arc<dyn BlobStore>);

fn open(site: &Site) -> Result<Opened, StoreError> {
    match site {
        Site::Disk(fs) => {
            let options = LogOptions { shard: 0, store_id: 9, segment_bytes: SEGMENT };
            let (log, _) = DiskLog::open(fs.clone(), Path::new("/store/log"), options)?;
            let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob"))?;
            Ok((Box::new(log), Arc::new(blobs)))
        }
        Site::Objects(handle, writer) => {
            let objects: Arc<dyn Objects> = Arc::new(handle.clone());
            let options = ObjectOptions { shard: 0, store_id: 9, writer: *writer };
            let log = ObjectLog::open(Arc::clone(&objects), options, Patience::without_pause(TRIES))?;
            let blobs = ObjectBlobs::new(objects, Patience::without_pause(TRIES), 1 << 20);
            Ok((Box::new(log), Arc::new(blobs)))
        }
    }
}
