//! The maintenance thread: snapshots, relocation of documents, log truncation, garbage collection of blobs.
//!
//! **Invariant.** Blobs are collected once per period, however many tasks arrive.
//!
//! **What would break it.** Waiting a whole period for the next task: a store with steady traffic would never be
//! collected. So the end of the period is fixed when it begins.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use kernel::{Cursor, KeyView, Namespace, Page, ResourceName};
use store::{BlobStore, ErrorKind, LogReader, StoreError};

use super::{EngineObserver, Fatal, MaintenanceEvent, Options, Task};
use crate::checkpoint::{self, CheckpointError, Mark, TruncationPlan};
use crate::documents::{BlobId, DocumentLocation};
use crate::sequencer::{ReplyTo, Sequencer};
use crate::shard::{Submission, Unavailable};
use crate::stopwatch::Stopwatch;
use crate::uploads::Uploads;

/// Maximum number of relocations in flight.
const MOVES_MAX: usize = 128;
/// Maximum number of document bytes in flight.
const MOVES_BYTES: u64 = 1 << 20;

/// Documents read in one query.
type DocumentPage = Page<(Namespace, ResourceName, KeyView), Cursor>;

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
        let uptime = Stopwatch::start();
        let mut collection = CollectionSchedule::new(self.options.sweep_every, uptime.elapsed());
        while !self.is_stopped() {
            match next_step(&self.queue, &mut collection, uptime.elapsed()) {
                Step::Task(Task::Mark(mark)) => self.checkpoint(&mark),
                Step::Task(Task::Superseded(blob)) => self.report(self.uploads.delete(blob)),
                Step::CollectBlobs => {
                    self.collect_blobs();
                    collection.restart(uptime.elapsed());
                }
                Step::Task(Task::Stop) | Step::Stop => return,
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
            Err(CheckpointError::Unreadable(snapshot)) => {
                self.watcher.upkeep(MaintenanceEvent::SnapshotDamaged(snapshot));
            }
            Err(error @ CheckpointError::Diverged(_)) => {
                self.watcher.fatal(Fatal::Diverged(error.to_string()));
            }
        }
    }

    fn snapshot_and_truncate(&mut self, mark: &Mark) -> Result<(usize, u64), CheckpointError> {
        let mut on_damage = |snapshot| self.watcher.upkeep(MaintenanceEvent::SnapshotDamaged(snapshot));
        let taken = checkpoint::take(&*self.blobs, &mut *self.reader, self.shard, mark, &mut on_damage)?;
        let plan = checkpoint::plan(&taken, &mut *self.reader, mark, self.options.retain)?;
        drop(taken);
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
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = self.page(from)?;
            cursor = page.next;
            let locations = page.rows.iter().filter_map(|(_, _, view)| view.document);
            referenced.extend(locations.filter_map(|document| {
                match DocumentLocation::of(document.location) {
                    DocumentLocation::Blob(blob) => Some(blob),
                    DocumentLocation::Inline(_) => None,
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

/// What the thread does next.
enum Step {
    Task(Task),
    CollectBlobs,
    Stop,
}

/// Waits for the next task, at most until the end of the period.
fn next_step(queue: &Receiver<Task>, collection: &mut CollectionSchedule, now: Duration) -> Step {
    if planted!(CollectionStarves) {
        collection.restart(now);
    }
    let wait = collection.wait(now);
    if wait.is_zero() {
        return Step::CollectBlobs;
    }
    match queue.recv_timeout(wait) {
        Ok(task) => Step::Task(task),
        Err(RecvTimeoutError::Timeout) => Step::CollectBlobs,
        Err(RecvTimeoutError::Disconnected) => Step::Stop,
    }
}

/// When blobs are next collected. Times are since the start of the thread.
struct CollectionSchedule {
    every: Duration,
    due: Duration,
}

impl CollectionSchedule {
    fn new(every: Duration, now: Duration) -> CollectionSchedule {
        CollectionSchedule { every, due: now.saturating_add(every) }
    }

    /// The time left until the collection; zero if it is due.
    fn wait(&self, now: Duration) -> Duration {
        self.due.saturating_sub(now)
    }

    /// Begins a new period.
    fn restart(&mut self, now: Duration) {
        self.due = now.saturating_add(self.every);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each task began the period anew. Under steady traffic, a superseded blob every few seconds, blobs without a
    /// reference were never collected and the disk filled up.
    #[test]
    fn steady_tasks_do_not_postpone_the_collection_of_blobs() {
        let (send, queue) = sync_channel(1);
        let period = Duration::from_secs(300);
        let mut collection = CollectionSchedule::new(period, Duration::ZERO);
        let mut collected = Vec::new();
        for second in 0..1000 {
            let now = Duration::from_secs(second);
            let blob = BlobId { term: crate::documents::Term(1), number: second };
            send.try_send(Task::Superseded(blob)).expect("capacity for one");
            loop {
                match next_step(&queue, &mut collection, now) {
                    Step::CollectBlobs => {
                        collected.push(second);
                        collection.restart(now);
                    }
                    Step::Task(_) => break,
                    Step::Stop => panic!("the queue is open"),
                }
            }
        }
        assert_eq!(collected, [300, 600, 900]);
    }
}
