//! The thread that looks after the store: snapshots, documents carried forward, blobs swept.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

use kernel::{Cursor, Document};
use store::{BlobStore, ErrorKind, LogReader, StoreError};

use super::{Fatal, Options, Upkeep, Watcher, Work};
use crate::checkpoint::{self, CheckpointError, Mark, Plan};
use crate::documents::{BlobId, Place};
use crate::sequencer::{ReplyTo, Sequencer};
use crate::shard::{Submission, Unavailable};
use crate::uploads::Uploads;

/// How much is carried forward at a time: so many documents, so many bytes.
const MOVES_MAX: usize = 128;
const MOVES_BYTES: u64 = 1 << 20;
/// How many documents are looked at in one turn of the sequencer.
const PAGE: usize = 1000;

pub(super) struct Maintenance {
    pub(super) sequencer: Arc<Sequencer>,
    pub(super) reader: Box<dyn LogReader>,
    pub(super) blobs: Arc<dyn BlobStore>,
    pub(super) uploads: Uploads,
    pub(super) shard: kernel::Shard,
    pub(super) options: Options,
    pub(super) watcher: Arc<dyn Watcher>,
    pub(super) queue: Receiver<Work>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Maintenance {
    pub(super) fn run(mut self) {
        step_back();
        self.sweep();
        while !self.is_stopped() {
            match self.queue.recv_timeout(self.options.sweep_every) {
                Ok(Work::Mark(mark)) => self.checkpoint(&mark),
                Ok(Work::Superseded(blob)) => self.report(self.uploads.delete(blob)),
                Err(RecvTimeoutError::Timeout) => self.sweep(),
                Ok(Work::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn report(&self, result: Result<(), StoreError>) {
        if let Err(error) = result {
            self.watcher.upkeep(Upkeep::Failed(error));
        }
    }

    fn checkpoint(&mut self, mark: &Mark) {
        match self.take(mark) {
            Ok((moved, moved_bytes)) => self.watcher.upkeep(Upkeep::Snapshot { moved, moved_bytes }),
            Err(CheckpointError::Store(error)) => self.watcher.upkeep(Upkeep::Failed(error)),
            Err(error @ CheckpointError::Diverged(_)) => {
                self.watcher.fatal(Fatal::Diverged(error.to_string()));
            }
        }
    }

    fn take(&mut self, mark: &Mark) -> Result<(usize, u64), CheckpointError> {
        let kernel = checkpoint::take(&*self.blobs, &mut *self.reader, self.shard, mark)?;
        let plan = checkpoint::plan(&kernel, &mut *self.reader, mark, self.options.retain)?;
        drop(kernel);
        let Some(plan) = plan else { return Ok((0, 0)) };
        if planted!(FloorBeforeMoves) {
            self.sequencer.raise_floor(plan.floor);
        }
        let carried = self.carry_forward(&plan)?;
        if !self.is_stopped() {
            self.sequencer.raise_floor(plan.floor);
        }
        Ok(carried)
    }

    /// Every document that is below the plan's floor is durably above it when this returns, unless it was stopped.
    fn carry_forward(&mut self, plan: &Plan) -> Result<(usize, u64), StoreError> {
        let (mut moved, mut bytes, mut in_flight_bytes) = (0, 0, 0);
        let mut in_flight = Vec::new();
        for step in &plan.moves {
            if self.is_stopped() {
                return Err(StoreError::new(
                    ErrorKind::Io,
                    "stopped before all documents were carried forward",
                ));
            }
            let document = match step.read(&mut *self.reader) {
                // An earlier plan carried it forward.
                Err(error) if error.kind == ErrorKind::Gone => continue,
                other => other?,
            };
            (moved, bytes) = (moved + 1, bytes + document.len() as u64);
            in_flight_bytes += document.len() as u64;
            let (send, done) = sync_channel(1);
            in_flight.push(done);
            let to: ReplyTo = Box::new(move |reply| send.send(reply.map(drop)).is_ok());
            let (command, document) = (step.command(), Some(document));
            self.sequencer.submit(Submission {
                command,
                correlation: 0,
                document,
                wait: None,
                peek: None,
                to,
            });
            if in_flight.len() >= MOVES_MAX || in_flight_bytes >= MOVES_BYTES {
                settle(&mut in_flight)?;
                in_flight_bytes = 0;
            }
        }
        settle(&mut in_flight)?;
        Ok((moved, bytes))
    }

    fn sweep(&self) {
        match self.uploads.sweep(|| self.referred_blobs()) {
            Ok(0) => {}
            Ok(gone) => self.watcher.upkeep(Upkeep::Swept(gone)),
            Err(error) => self.watcher.upkeep(Upkeep::Failed(error)),
        }
    }

    /// Page by page, so that no turn of the sequencer takes long. Nothing if the sequencer has ended.
    fn referred_blobs(&self) -> Option<BTreeSet<BlobId>> {
        let mut referred = BTreeSet::new();
        let mut cursor = Cursor::default();
        loop {
            let page = self.page(cursor)?;
            let Some((last, _)) = page.last() else { return Some(referred) };
            cursor = *last;
            referred.extend(page.iter().filter_map(|(_, document)| match Place::of(document.location) {
                Place::Blob(blob) => Some(blob),
                Place::Inline(_) => None,
            }));
        }
    }

    fn page(&self, cursor: Cursor) -> Option<Vec<(Cursor, Document)>> {
        let (send, receive) = sync_channel(1);
        let look = self.sequencer.look(Box::new(move |shard| {
            let documents = shard.kernel().documents_from(cursor).take(PAGE);
            let page: Vec<(Cursor, Document)> =
                documents.filter_map(|(cursor, _, _, view)| Some((cursor, view.document?))).collect();
            Box::new(move || drop(send.send(page)))
        }));
        look.ok()?;
        receive.recv().ok()
    }
}

/// Whoever grants leases goes first: this thread takes what they leave of the processor. On Linux a thread has a
/// priority of its own. If it cannot be had, upkeep is in the way a little more.
fn step_back() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
}

/// Waits until these are durable. One that nobody will answer any more is let go by whoever had it.
fn settle(in_flight: &mut Vec<Receiver<Result<(), Unavailable>>>) -> Result<(), StoreError> {
    for done in in_flight.drain(..) {
        let failed = |why: String| StoreError::new(ErrorKind::NoSpace, why);
        let reply = done.recv().map_err(|_| failed("the sequencer has ended".into()))?;
        reply.map_err(|why| failed(format!("a document could not be carried forward: {why:?}")))?;
    }
    Ok(())
}
