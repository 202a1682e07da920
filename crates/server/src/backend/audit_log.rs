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

use self::file::PreviousRun;
pub(crate) use self::file::{AuditFile, AuditFileError, AuditFileOptions};
pub(crate) use self::line::RefusedAct;
use self::line::{AuditItem, ServerEvent};
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
    previous: PreviousRun,
}

impl AuditLog {
    /// Starts the thread that writes to this file.
    pub(crate) fn start(file: AuditFile, metrics: &Arc<Metrics>, wall: WallClock) -> AuditLog {
        let queue = Arc::new(AuditQueue::new(QUEUE_BYTES, Arc::clone(metrics)));
        let previous = file.previous();
        writer::spawn(Box::new(file), Arc::clone(&queue), Arc::clone(metrics), Arc::clone(&wall));
        AuditLog { queue, wall, previous }
    }

    /// Records durable entries of a shard. Does not block.
    pub(crate) fn record(&self, shard: Shard, entries: Vec<AuditEntry>) {
        self.queue.push(entries.into_iter().map(|entry| AuditItem::Entry(shard, entry)));
    }

    /// Records an act that was refused, or that changes nothing in the store.
    pub(crate) fn record_act(&self, act: RefusedAct) {
        self.queue.push(std::iter::once(AuditItem::Act(unix_ms(&self.wall), Box::new(act))));
    }

    /// Records that the server started. `store_was_clean`: whether the store was closed by the server before; `None` if
    /// that is not known, because other servers may have had the store since.
    pub(crate) fn record_start(&self, store: String, store_was_clean: Option<bool>) {
        let clean_stop = is_clean(store_was_clean, self.previous);
        self.record_server(ServerEvent::Started { store, clean_stop });
    }

    /// Records that the server is about to end.
    pub(crate) fn record_stop(&self) {
        self.record_server(ServerEvent::Stopped);
    }

    fn record_server(&self, event: ServerEvent) {
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

/// Whether nothing of the run before is missing. A store that was closed does not show it: the audit log may have been given
/// up at that stop, because its disk was full.
fn is_clean(store_was_clean: Option<bool>, previous: PreviousRun) -> Option<bool> {
    match (store_was_clean, previous) {
        (Some(false), _) | (_, PreviousRun::Interrupted) => Some(false),
        (Some(true), _) | (_, PreviousRun::Stopped) => Some(true),
        (None, PreviousRun::Unknown) => None,
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_clean_if_nothing_speaks_against_it() {
        use PreviousRun::{Interrupted, Stopped, Unknown};
        let cases = [
            (Some(true), [Some(true), Some(false), Some(true)]),
            (Some(false), [Some(false); 3]),
            (None, [Some(true), Some(false), None]),
        ];
        for (store, expected) in cases {
            assert_eq!([Stopped, Interrupted, Unknown].map(|previous| is_clean(store, previous)), expected);
        }
    }
}
