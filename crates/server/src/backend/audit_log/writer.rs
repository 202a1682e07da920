//! The thread that writes entries to the file.
//!
//! **Invariant.** A line is written whole or not at all, and in the order of the queue. If the file takes nothing, the same
//! lines are retried every second: a disk that is full for a while costs no entry as long as the queue has capacity.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::line::lost_line;
use super::queue::{AuditQueue, QueuedChunk};
use crate::backend::metrics::Metrics;
use crate::backend::moment::{WallClock, unix_ms};

/// The size of the entries that are written at once, in bytes of memory.
const CHUNK_BYTES: usize = 256 << 10;
/// How often a failed write is retried, and how long a line may stay unsynced, also while lines are written all the time.
const INTERVAL: Duration = Duration::from_secs(1);

/// Where lines go: the file, or a test's.
pub(super) trait AuditSink: Send {
    /// Appends whole lines, all or none.
    fn append(&mut self, lines: &[u8]) -> io::Result<()>;

    /// Makes the lines durable.
    fn sync(&mut self) -> io::Result<()>;

    /// The file, for messages.
    fn name(&self) -> String;
}

/// Starts the thread.
pub(super) fn spawn(
    sink: Box<dyn AuditSink>,
    queue: Arc<AuditQueue>,
    metrics: Arc<Metrics>,
    wall: WallClock,
) {
    let mut writer = Writer::new(sink, queue, metrics, wall, INTERVAL);
    let thread = std::thread::Builder::new().name("audit".into());
    // A process without threads cannot serve either.
    drop(thread.spawn(move || writer.run()).expect("a thread for the audit log"));
}

pub(super) struct Writer {
    sink: Box<dyn AuditSink>,
    queue: Arc<AuditQueue>,
    metrics: Arc<Metrics>,
    wall: WallClock,
    interval: Duration,
    /// The last write failed, and that was logged.
    is_failing: bool,
    /// When the first line was written that is not synced, by the wall clock in milliseconds.
    unsynced_since: Option<u64>,
}

impl Writer {
    pub(super) fn new(
        sink: Box<dyn AuditSink>,
        queue: Arc<AuditQueue>,
        metrics: Arc<Metrics>,
        wall: WallClock,
        interval: Duration,
    ) -> Writer {
        Writer { sink, queue, metrics, wall, interval, is_failing: false, unsynced_since: None }
    }

    pub(super) fn run(&mut self) {
        loop {
            let taken = self.queue.take(CHUNK_BYTES, self.interval);
            let is_idle = taken.items.is_empty() && taken.lost == 0;
            if !is_idle && !self.write(&taken) {
                break;
            }
            if is_idle || self.is_sync_due() {
                self.sync();
            }
            if is_idle && taken.is_closed {
                break;
            }
        }
        let left = self.queue.note_ended();
        if left > 0 {
            self.give_up(left);
        }
    }

    /// Writes lines, retried until the file takes them. False if the queue was closed before it did.
    fn write(&mut self, taken: &QueuedChunk) -> bool {
        let mut lines = String::new();
        for item in &taken.items {
            item.line(&mut lines);
        }
        if taken.lost > 0 {
            lost_line(&mut lines, unix_ms(&self.wall), taken.lost);
        }
        let entries = taken.items.len() as u64;
        while let Err(error) = self.sink.append(lines.as_bytes()) {
            self.note_failure(&error);
            if self.queue.wait_until_closed(self.interval) {
                let retried = self.sink.append(lines.as_bytes()).is_ok();
                if !retried {
                    self.give_up(entries);
                    return false;
                }
                break;
            }
        }
        self.note_success(entries);
        true
    }

    fn note_success(&mut self, entries: u64) {
        self.queue.note_written();
        self.metrics.audit_written(entries);
        let now = unix_ms(&self.wall);
        self.unsynced_since.get_or_insert(now);
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(file = self.sink.name(), "the audit log is written again");
        }
    }

    fn note_failure(&mut self, error: &io::Error) {
        self.metrics.audit_failed();
        if !std::mem::replace(&mut self.is_failing, true) {
            let file = self.sink.name();
            tracing::error!(%error, file, "the audit log cannot be written; entries are queued, then lost; free the disk");
        }
    }

    fn give_up(&self, entries: u64) {
        self.metrics.audit_lost(entries);
        let file = self.sink.name();
        tracing::error!(
            entries,
            file,
            "entries of the audit log are lost; `lockd store dump` has their records"
        );
    }

    /// A server that is never idle has lines to sync as well. A wall clock that jumps makes a sync early at most.
    fn is_sync_due(&self) -> bool {
        let now = unix_ms(&self.wall);
        let interval_ms = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        self.unsynced_since.is_some_and(|since| now.abs_diff(since) >= interval_ms)
    }

    fn sync(&mut self) {
        if self.unsynced_since.take().is_none() {
            return;
        }
        if let Err(error) = self.sink.sync() {
            self.unsynced_since = Some(unix_ms(&self.wall));
            self.note_failure(&error);
        }
    }
}

#[cfg(test)]
mod tests;
