//! The audit log: a file with one line of JSON for every grant, end, commit and operator's act.
//!
//! **Invariant.** Nothing is written that is not durable in the store, and nothing waits for the file: entries go into a
//! queue of bounded size, and a thread of their own writes them. An entry that does not fit is lost; it is counted, and a
//! line at its place in the file says how many are missing.
//!
//! **What would break it.** Writing where events are published: a full or slow disk would stop every shard. Leaving out
//! entries without a trace: an auditor would take the file for complete.
//!
//! **What is absent.** Credentials and the content of documents. Entries that were queued when the process was killed: the
//! log of the store has them (`lockd store dump`).

mod file;
mod line;
mod queue;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use engine::observe::AuditEntry;
use kernel::Shard;

pub(crate) use self::file::{AuditFile, AuditFileError, AuditFileOptions};
use self::line::AuditItem;
pub(crate) use self::line::{RefusedAct, ServerEvent};
use self::queue::AuditQueue;
use crate::backend::metrics::Metrics;
use crate::backend::moment::{WallClock, unix_ms};

/// Memory of entries that are not written yet, in bytes.
const QUEUE_BYTES: usize = 8 << 20;
/// How long a server that stops waits for the file.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(800);

/// The audit log of a server.
pub(crate) struct AuditLog {
    queue: Arc<AuditQueue>,
    wall: WallClock,
}

impl AuditLog {
    /// Starts the thread that writes to this file.
    pub(crate) fn start(file: AuditFile, metrics: &Arc<Metrics>, wall: WallClock) -> AuditLog {
        let queue = Arc::new(AuditQueue::new(QUEUE_BYTES, Arc::clone(metrics)));
        writer::spawn(Box::new(file), Arc::clone(&queue), Arc::clone(metrics), Arc::clone(&wall));
        AuditLog { queue, wall }
    }

    /// Records durable entries of a shard. Does not block.
    pub(crate) fn record(&self, shard: Shard, entries: Vec<AuditEntry>) {
        self.queue.push(entries.into_iter().map(|entry| AuditItem::Entry(shard, entry)));
    }

    /// Records an act that was refused, or that changes nothing in the store.
    pub(crate) fn record_act(&self, act: RefusedAct) {
        self.queue.push(std::iter::once(AuditItem::Act(unix_ms(&self.wall), Box::new(act))));
    }

    /// Records that the server started or stopped.
    pub(crate) fn record_server(&self, event: ServerEvent) {
        self.queue.push(std::iter::once(AuditItem::Server(unix_ms(&self.wall), event)));
    }

    /// Writes what is queued, and ends the thread. Does not wait longer for a disk that takes nothing: what is left is
    /// counted as lost.
    pub(crate) fn close(&self) {
        self.queue.close();
        if !self.queue.wait_until_ended(CLOSE_TIMEOUT) {
            tracing::warn!("the audit log was not written to its end; the log of the store has the rest");
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.close();
    }
}
