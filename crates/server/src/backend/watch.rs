//! Hears what happens in the engines: counts it, logs it, and ends what must end.

use std::sync::Arc;

use engine::decider::Contended;
use engine::engine::{Fatal, Upkeep, Watcher};
use engine::sequencer::Measure;
use kernel::{Event, Lsn, Shard};

use crate::backend::event_log::News;
use crate::backend::metrics::Metrics;

/// What is done when memory is ahead of the log. Nothing may be answered any more.
pub type OnFatal = Box<dyn Fn(&Fatal) + Send + Sync>;

pub(crate) struct Watch {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) news: Arc<News>,
    pub(crate) on_fatal: OnFatal,
}

impl Watcher for Watch {
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

    fn contended(&self, shard: Shard, contended: &[Contended]) {
        self.news.contended(shard, contended);
    }

    fn upkeep(&self, news: Upkeep) {
        match news {
            Upkeep::Snapshot { moved, moved_bytes } => {
                self.metrics.snapshot(moved);
                tracing::debug!(moved, moved_bytes, "took a snapshot");
            }
            Upkeep::Swept(blobs) => {
                self.metrics.swept(blobs);
                tracing::debug!(blobs, "swept what nobody needs");
            }
            Upkeep::Failed(error) => {
                self.metrics.upkeep_failed();
                tracing::warn!(%error, "upkeep of the store failed, and is tried again");
            }
        }
    }

    fn measured(&self, shard: Shard, measure: Measure) {
        self.metrics.measured(shard, measure);
    }
}
