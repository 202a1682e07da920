//! The maintenance thread: snapshots, relocation of documents, log truncation, garbage collection of blobs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

use kernel::{Cursor, Document};
use store::{BlobStore, ErrorKind, LogReader, StoreError};

use super::{EngineObserver, Fatal, MaintenanceEvent, Options, Task};
use crate::checkpoint::{self, CheckpointError, Mark, TruncationPlan};
use crate::documents::{BlobId, DocumentLocation};
use crate::sequencer::{ReplyTo, Sequencer};
use crate::shard::{Submission, Unavailable};
use crate::uploads::Uploads;

/// Maximum number of relocations in flight.
const MOVES_MAX: usize = 128;
/// Maximum number of document bytes in flight.
const MOVES_BYTES: u64 = 1 << 20;
/// Documents per query of the sequencer.
const PAGE: usize = 1000;

/// The state of the maintenance thread.
pub(super) struct Maintenance {
    pub(super) sequencer: Arc<Sequencer>,
    pub(super) reader: Box<dyn LogReader>,
    pub(super) blobs: Arc<dyn BlobStore>,
    pub(super) uploads: Uploads,
    pub(super) shard: kernel::Shard,
    pub(super) options: Options,
    pub(super) watcher: Arc<dyn EngineObserver>,
    pub(super) queue: Receiver<Task>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Maintenance {
    pub(super) fn run(mut self) {
        lower_priority();
        self.collect_blobs();
        while !self.is_stopped() {
            match self.queue.recv_timeout(self.options.sweep_every) {
                Ok(Task::Mark(mark)) => self.checkpoint(&mark),
                Ok(Task::Superseded(blob)) => self.report(self.uploads.delete(blob)),
                Err(RecvTimeoutError::Timeout) => self.collect_blobs(),
                Ok(Task::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn report(&self, result: Result<(), StoreError>) {
        if let Err(error) = result {
            self.watcher.upkeep(MaintenanceEvent::Failed(error));
        }
    }

    fn checkpoint(&mut self, mark: &Mark) {
        match self.snapshot_and_truncate(mark) {
            Ok((moved, moved_bytes)) => {
                self.watcher.upkeep(MaintenanceEvent::Snapshot { moved, moved_bytes });
            }
            Err(CheckpointError::Store(error)) => self.watcher.upkeep(MaintenanceEvent::Failed(error)),
            Err(error @ CheckpointError::Diverged(_)) => {
                self.watcher.fatal(Fatal::Diverged(error.to_string()));
            }
        }
    }

    fn snapshot_and_truncate(&mut self, mark: &Mark) -> Result<(usize, u64), CheckpointError> {
        let kernel = checkpoint::take(&*self.blobs, &mut *self.reader, self.shard, mark)?;
        let plan = checkpoint::plan(&kernel, &mut *self.reader, mark, self.options.retain)?;
        drop(kernel);
        let Some(plan) = plan else { return Ok((0, 0)) };
        if planted!(FloorBeforeMoves) {
            self.sequencer.raise_floor(plan.floor);
        }
        let relocated = self.relocate_documents(&plan)?;
        if !self.is_stopped() {
            self.sequencer.raise_floor(plan.floor);
        }
        Ok(relocated)
    }

    /// On success, every live document below the plan's floor is durable above it.
    fn relocate_documents(&mut self, plan: &TruncationPlan) -> Result<(usize, u64), StoreError> {
        let (mut moved, mut bytes, mut in_flight_bytes) = (0, 0, 0);
        let mut in_flight = Vec::new();
        for step in &plan.moves {
            if self.is_stopped() {
                return Err(StoreError::new(ErrorKind::Io, "stopped before all documents were relocated"));
            }
            let document = match step.read(&mut *self.reader) {
                // An earlier plan relocated it.
                Err(error) if error.kind == ErrorKind::Gone => continue,
                other => other?,
            };
            (moved, bytes) = (moved + 1, bytes + document.len() as u64);
            in_flight_bytes += document.len() as u64;
            let (send, done) = sync_channel(1);
            in_flight.push(done);
            let to: ReplyTo = Box::new(move |reply, _| {
                let _ = send.send(reply.map(drop));
            });
            let (command, document) = (step.command(), Some(document));
            self.sequencer.submit(Submission {
                command,
                correlation: 0,
                document,
                wait: None,
                on_decided: None,
                to,
            });
            if in_flight.len() >= MOVES_MAX || in_flight_bytes >= MOVES_BYTES {
                wait_until_durable(&mut in_flight)?;
                in_flight_bytes = 0;
            }
        }
        wait_until_durable(&mut in_flight)?;
        Ok((moved, bytes))
    }

    fn collect_blobs(&self) {
        match self.uploads.sweep(|| self.referenced_blobs()) {
            Ok(0) => {}
            Ok(deleted) => self.watcher.upkeep(MaintenanceEvent::Swept(deleted)),
            Err(error) => self.watcher.upkeep(MaintenanceEvent::Failed(error)),
        }
    }

    /// Queries page by page, so that no turn of the sequencer takes long. `None` if the sequencer has ended.
    fn referenced_blobs(&self) -> Option<BTreeSet<BlobId>> {
        let mut referenced = BTreeSet::new();
        let mut cursor = Cursor::default();
        loop {
            let page = self.page(cursor)?;
            let Some((last, _)) = page.last() else { return Some(referenced) };
            cursor = *last;
            referenced.extend(page.iter().filter_map(|(_, document)| {
                match DocumentLocation::of(document.location) {
                    DocumentLocation::Blob(blob) => Some(blob),
                    DocumentLocation::Inline { .. } => None,
                }
            }));
        }
    }

    fn page(&self, cursor: Cursor) -> Option<Vec<(Cursor, Document)>> {
        let (send, receive) = sync_channel(1);
        let query = self.sequencer.query(Box::new(move |shard| {
            let documents = shard.kernel().documents_from(cursor).take(PAGE);
            let page: Vec<(Cursor, Document)> =
                documents.filter_map(|(cursor, _, _, view)| Some((cursor, view.document?))).collect();
            Box::new(move || drop(send.send(page)))
        }));
        query.ok()?;
        receive.recv().ok()
    }
}

/// Requests go first: this thread runs at the lowest priority. On Linux each thread has its own. If that
/// fails, maintenance competes with requests for the processor.
fn lower_priority() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
}

/// Waits for all replies. The sequencer drops the sender of a request that it will never answer.
fn wait_until_durable(in_flight: &mut Vec<Receiver<Result<(), Unavailable>>>) -> Result<(), StoreError> {
    for done in in_flight.drain(..) {
        let failed = |why: String| StoreError::new(ErrorKind::NoSpace, why);
        let reply = done.recv().map_err(|_| failed("the sequencer has ended".into()))?;
        reply.map_err(|why| failed(format!("a document could not be relocated: reason={why:?}")))?;
    }
    Ok(())
}
