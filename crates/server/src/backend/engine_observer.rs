//! Observes the engines: counts and logs their events, and reports a fatal failure.

use std::sync::Arc;

use engine::observe::{AuditEntry, ContentionEvent, EngineObserver, Fatal, MaintenanceEvent, Measure};
use kernel::{Event, Lsn, Shard};

use crate::backend::audit_log::AuditLog;
use crate::backend::batch_end;
use crate::backend::event_log::EventLog;
use crate::backend::metrics::Metrics;

/// Called when memory is ahead of the log: must end the process. No response may be sent after that.
pub type FatalHandler = Box<dyn Fn(&Fatal) + Send + Sync>;

/// Observes all shards of a server.
pub(crate) struct ShardObserver {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) event_log: Arc<EventLog>,
    /// `None` unless the server has an audit log.
    pub(crate) audit_log: Option<Arc<AuditLog>>,
    pub(crate) on_fatal: FatalHandler,
}

impl EngineObserver for ShardObserver {
    fn fatal(&self, why: Fatal) {
        tracing::error!("{why}");
        (self.on_fatal)(&why);
    }

    fn served(&self, _: Shard) {
        self.event_log.events.interrupt();
    }

    fn durable(&self, events: &[(Lsn, Vec<Event>)]) {
        for event in events.iter().flat_map(|(_, events)| events) {
            self.metrics.durable(event);
        }
        self.event_log.record(events);
    }

    fn audited(&self, shard: Shard, entries: Vec<AuditEntry>) {
        if let Some(audit_log) = &self.audit_log {
            audit_log.record(shard, entries);
        }
    }

    fn contended(&self, shard: Shard, contended: &[ContentionEvent]) {
        self.event_log.record_contention(shard, contended);
    }

    fn replying(&self) {
        batch_end::begin();
    }

    fn replied(&self) {
        batch_end::end();
    }

    fn maintained(&self, event: MaintenanceEvent) {
        match event {
            MaintenanceEvent::Snapshot { moved, moved_bytes } => {
                self.metrics.snapshot(moved);
                tracing::debug!(moved, moved_bytes, "snapshot taken");
            }
            MaintenanceEvent::Swept(blobs) => {
                self.metrics.blobs_deleted(blobs);
                tracing::debug!(blobs, "unreferenced blobs deleted");
            }
            MaintenanceEvent::SnapshotDamaged(snapshot) => {
                self.metrics.maintenance_failed();
                let (name, damage) = (snapshot.name.as_str(), snapshot.damage.to_string());
                tracing::warn!(
                    name,
                    damage,
                    "a snapshot is damaged; an older one and the log take its place, and the next snapshot replaces \
                     it; check the disk"
                );
            }
            MaintenanceEvent::Failed(error) => {
                self.metrics.maintenance_failed();
                tracing::warn!(%error, "store maintenance failed; it is retried");
            }
        }
    }

    fn measured(&self, shard: Shard, measure: Measure) {
        self.metrics.measured(shard, measure);
    }
}
