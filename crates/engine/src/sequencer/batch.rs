//! A batch on its way to the log, and everything to publish when it is durable.

use std::sync::Weak;

use store::{LogStore, StoreError};

use super::turn::Shared;
use super::{BatchObserver, Delivery, Measure, Publish, ReplyTo};
use crate::checkpoint::Mark;
use crate::shard::TurnOutput;
use crate::stopwatch::Stopwatch;

/// A decided batch, with the replies and the results of queries that reveal the state after it.
pub(super) struct PendingBatch {
    pub(super) turn: TurnOutput<ReplyTo>,
    pub(super) queries: Vec<Publish>,
    pub(super) mark: Option<Mark>,
    /// Started with the first command of the batch.
    pub(super) stopwatch: Stopwatch,
    pub(super) measure: Option<Measure>,
}

impl PendingBatch {
    /// Makes it durable. A batch without records reveals a state too: the log must still be this writer's.
    pub(super) fn append(&mut self, log: &mut dyn LogStore) -> Result<(), StoreError> {
        let Some(sealed) = &self.turn.sealed else {
            return if planted!(QueryUnconfirmed) { Ok(()) } else { log.confirm() };
        };
        let stopwatch = Stopwatch::start();
        log.append(sealed.seq, sealed.lsns, &sealed.payload)?;
        let (took, bytes) = (stopwatch.elapsed(), sealed.payload.len());
        self.measure = Some(Measure::Append { took, bytes, bounds: log.bounds() });
        Ok(())
    }

    /// Publishes it: events first, then replies in the order in which they were decided, then the results of queries.
    pub(super) fn publish(self, observer: &mut dyn BatchObserver, shared: &Weak<Shared>) {
        if !self.turn.events.is_empty() {
            observer.durable(&self.turn.events);
        }
        if !self.turn.audit.is_empty() {
            observer.audited(self.turn.audit);
        }
        if !self.turn.contended.is_empty() {
            observer.contended(&self.turn.contended);
        }
        if let Some(mark) = self.mark {
            observer.marked(mark);
        }
        if let Some(measure) = self.measure {
            observer.measured(measure);
        }
        observer.replying();
        for (to, reply, lease) in self.turn.replies {
            to(reply, Delivery::new(lease, shared));
        }
        for publish in self.queries {
            publish();
        }
        observer.replied();
        let waiters = self.turn.served;
        if waiters > 0 {
            observer.measured(Measure::HandOff { took: self.stopwatch.elapsed(), waiters });
        }
    }
}
