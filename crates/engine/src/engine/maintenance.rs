//! The tasks of maintenance: snapshots, relocation of documents, log truncation, garbage collection of blobs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use kernel::{Cursor, KeyView, Namespace, Page, ResourceName};
use store::{BlobStore, ErrorKind, LogReader, StoreError};

use super::tasks::{Task, Worker};
use super::{EngineObserver, Fatal, MaintenanceEvent, Options};
use crate::checkpoint::{self, CheckpointError, Mark, TruncationPlan};
use crate::decision::Unavailable;
use crate::documents::{BlobId, DocumentLocation};
use crate::sequencer::{ReplyTo, Sequencer};
use crate::shard::Submission;
use crate::uploads::Uploads;

/// Maximum number of relocations in flight.
const MOVES_MAX: usize = 128;
/// Maximum number of document bytes in flight.
const MOVES_BYTES: u64 = 1 << 20;

/// Old uploads are aborted at the first of every 100 garbage collections.
const UPLOADS_EVERY: u64 = 100;

/// Documents read in one query.
type DocumentPage = Page<(Namespace, ResourceName, KeyView), Cursor>;

/// The shared state of the tasks.
pub(super) struct Maintenance {
    pub(super) sequencer: Arc<Sequencer>,
    pub(super) reader: Box<dyn LogReader>,
    pub(super) blobs: Arc<dyn BlobStore>,
    pub(super) uploads: Uploads,
    pub(super) shard: kernel::Shard,
    pub(super) options: Options,
    pub(super) watcher: Arc<dyn EngineObserver>,
    /// The number of garbage collections so far.
    pub(super) collections: u64,
}

impl Worker for Maintenance {
    fn work(&mut self, task: Task, stopped: &AtomicBool) {
        match task {
            Task::Checkpoint(mark) => self.checkpoint(&mark, stopped),
            Task::Delete(blob) => self.report(self.uploads.delete(blob)),
            Task::CollectBlobs => self.collect_blobs(),
        }
    }
}

impl Maintenance {
    fn report(&self, result: Result<(), StoreError>) {
        if let Err(error) = result {
            self.watcher.maintained(MaintenanceEvent::Failed(error));
        }
    }

    fn checkpoint(&mut self, mark: &Mark, stopped: &AtomicBool) {
        match self.snapshot_and_truncate(mark, stopped) {
            Ok((moved, moved_bytes)) => {
                self.watcher.maintained(MaintenanceEvent::Snapshot { moved, moved_bytes });
            }
            Err(CheckpointError::Store(error)) => self.watcher.maintained(MaintenanceEvent::Failed(error)),
            Err(CheckpointError::Unreadable(snapshot)) => {
                self.watcher.maintained(MaintenanceEvent::SnapshotDamaged(snapshot));
            }
            Err(error @ CheckpointError::Diverged(_)) => {
                self.watcher.fatal(Fatal::Diverged(error.to_string()));
            }
        }
    }

    fn snapshot_and_truncate(
        &mut self,
        mark: &Mark,
        stopped: &AtomicBool,
    ) -> Result<(usize, u64), CheckpointError> {
        let mut on_damage = |snapshot| self.watcher.maintained(MaintenanceEvent::SnapshotDamaged(snapshot));
        let (shard, retain) = (self.shard, self.options.retain);
        let taken = checkpoint::take(&*self.blobs, &mut *self.reader, shard, mark, retain, &mut on_damage)?;
        let plan = checkpoint::plan(&taken, &mut *self.reader, mark, retain)?;
        drop(taken);
        let Some(plan) = plan else { return Ok((0, 0)) };
        if planted!(FloorBeforeMoves) {
            self.sequencer.raise_floor(plan.floor);
        }
        let relocated = self.relocate_documents(&plan, stopped)?;
        if !stopped.load(Ordering::Acquire) {
            self.sequencer.raise_floor(plan.floor);
        }
        Ok(relocated)
    }

    /// On success, every live document below the plan's floor is durable above it.
    fn relocate_documents(
        &mut self,
        plan: &TruncationPlan,
        stopped: &AtomicBool,
    ) -> Result<(usize, u64), StoreError> {
        let (mut moved, mut bytes, mut in_flight_bytes) = (0, 0, 0);
        let mut in_flight = Vec::new();
        for step in &plan.moves {
            if stopped.load(Ordering::Acquire) {
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
            self.sequencer.submit(Submission { document, ..Submission::new(command, to) });
            if in_flight.len() >= MOVES_MAX || in_flight_bytes >= MOVES_BYTES {
                wait_until_durable(&mut in_flight)?;
                in_flight_bytes = 0;
            }
        }
        wait_until_durable(&mut in_flight)?;
        Ok((moved, bytes))
    }

    fn collect_blobs(&mut self) {
        // Uploads of all shards are found at once.
        if self.shard == kernel::Shard(0) && self.collections.is_multiple_of(UPLOADS_EVERY) {
            self.report(self.blobs.abort_old_uploads().map(drop));
        }
        self.collections += 1;
        match self.uploads.sweep(|| self.referenced_blobs()) {
            Ok(0) => {}
            Ok(deleted) => self.watcher.maintained(MaintenanceEvent::Swept(deleted)),
            Err(error) => self.watcher.maintained(MaintenanceEvent::Failed(error)),
        }
    }

    /// Queries page by page, so that no turn of the sequencer takes long. `None` if the sequencer has ended.
    fn referenced_blobs(&self) -> Option<BTreeSet<BlobId>> {
        let mut referenced = BTreeSet::new();
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = self.page(from)?;
            cursor = page.next;
            let locations = page.rows.iter().filter_map(|(_, _, view)| view.document);
            referenced.extend(locations.filter_map(|document| {
                match DocumentLocation::of(document.location) {
                    DocumentLocation::Blob(blob) => Some(blob),
                    DocumentLocation::Inline { .. } => None,
                }
            }));
        }
        Some(referenced)
    }

    fn page(&self, cursor: Cursor) -> Option<DocumentPage> {
        let (send, receive) = sync_channel(1);
        let query = self.sequencer.query(Box::new(move |shard| {
            let page = shard.kernel().documents_page(cursor);
            Box::new(move || drop(send.send(page)))
        }));
        query.ok()?;
        receive.recv().ok()
    }
}

/// Waits for all replies. The sequencer drops the sender of a request that it will never answer.
fn wait_until_durable(in_flight: &mut Vec<Receiver<Result<(), Unavailable>>>) -> Result<(), StoreError> {
    for done in in_flight.drain(..) {
        let reply = done.recv().map_err(|_| StoreError::new(ErrorKind::Io, "the sequencer has ended"))?;
        reply.map_err(|why| {
            let kind = if why == Unavailable::NoSpace { ErrorKind::NoSpace } else { ErrorKind::Io };
            StoreError::new(kind, format!("a document could not be relocated: reason={why:?}"))
        })?;
    }
    Ok(())
}
