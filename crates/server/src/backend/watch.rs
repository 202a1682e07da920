//! Observes the engines: counts and logs their events, and reports a fatal failure.

use std::sync::Arc;

use engine::{ContentionEvent, EngineObserver, Fatal, MaintenanceEvent, Measure};
use kernel::{Event, Lsn, Shard};

use crate::backend::event_log::News;
use crate::backend::metrics::Metrics;

/// Called when memory is ahead of the log. No response may be sent after that.
pub type OnFatal = Box<dyn Fn(&Fatal) + Send + Sync>;

pub(crate) struct Watch {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) news: Arc<News>,
    pub(crate) on_fatal: OnFatal,
}

impl EngineObserver for Watch {
    fn fatal(&self, why: Fatal) {
        tracing::error!("{why}");
        (self.on_fatal)(&why);
    }

    fn happened(&self, events: &[(Lsn, Vec<Event>)]) {
        for event in events.iter().flat_map(|(_, events)| events) {
            self.metrics.happened(event);
        }
        self.news.happened(events);
    }

    fn contended(&self, shard: Shard, contended: &[ContentionEvent]) {
        self.news.contended(shard, contended);
    }

    fn upkeep(&self, news: MaintenanceEvent) {
        match news {
            MaintenanceEvent::Snapshot { moved, moved_bytes } => {
                self.metrics.snapshot(moved);
                tracing::debug!(moved, moved_bytes, "snapshot taken");
            }
            MaintenanceEvent::Swept(blobs) => {
                self.metrics.blobs_deleted(blobs);
                tracing::debug!(blobs, "unreferenced blobs deleted");
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
