//! Reads the log of a shard offline, record by record: each with its wall time, and with its outcome where the state
//! before it is known.
//!
//! **Invariant.** An outcome is that of a replay from a snapshot, or from the beginning of the log, through the kernel's
//! one entry point. Before the oldest snapshot that the log continues, outcomes are not known, and none is made up.
//!
//! **What is absent.** Writing: a server may have the store open.

use std::collections::VecDeque;

use engine::internals::record::{Record, decode_batch};
use engine::internals::recovery::{restore, snapshots};
use kernel::{Action, Kernel, Outcome, Shard, Time};
use store::disk::{LogItem, LogView, StoreView, TornTail};
use store::{Batch, BlobName, Seq};

/// A record, and when it was decided.
pub(crate) struct TimedRecord {
    /// The batch that contains it.
    pub(crate) seq: Seq,
    /// The server's wall clock; `None` if the log has no clock reading before it.
    pub(crate) unix_ms: Option<u64>,
    pub(crate) record: Record,
}

/// The next item of a log.
pub(crate) enum ReplayItem {
    /// A record, which is not applied yet.
    Record(Box<TimedRecord>),
    /// An incomplete last batch.
    Torn(TornTail),
    /// The end of the log.
    End,
}

/// A state, and the first batch that is not in it.
pub(crate) struct BaseState {
    pub(crate) kernel: Kernel,
    pub(crate) next: Seq,
}

/// Reads a log from its floor to its end.
pub(crate) struct LogReplay<'a> {
    view: &'a StoreView,
    shard: Shard,
    log: LogView,
    /// Snapshots that the log continues, oldest first.
    bases: VecDeque<(BlobName, Seq)>,
    /// The state, where it is known.
    kernel: Option<Kernel>,
    pending: VecDeque<TimedRecord>,
    wall: WallTimes,
}

impl<'a> LogReplay<'a> {
    pub(crate) fn open(view: &'a StoreView, shard: u32) -> Result<LogReplay<'a>, String> {
        let log = view.log(shard).map_err(|error| error.to_string())?;
        let floor = log.floor();
        let listed = snapshots(&view.blobs(), Shard(shard)).map_err(|error| error.to_string())?;
        let bases = listed.into_iter().filter(|(_, next)| *next >= floor).collect();
        let kernel = (floor == Seq(0)).then(Kernel::new);
        let (shard, wall) = (Shard(shard), WallTimes::default());
        Ok(LogReplay { view, shard, log, bases, kernel, pending: VecDeque::new(), wall })
    }

    /// The state, where it is known.
    pub(crate) fn kernel(&self) -> Option<&Kernel> {
        self.kernel.as_ref()
    }

    /// Takes the state, where it is known.
    pub(crate) fn into_kernel(self) -> Option<Kernel> {
        self.kernel
    }

    /// The newest snapshot that `is_wanted`, or the oldest one if none is. It becomes the state as soon as the log is read
    /// up to it.
    pub(crate) fn begin_at(&mut self, is_wanted: impl Fn(&Kernel) -> bool) -> Option<BaseState> {
        let mut oldest = None;
        for (name, next) in self.bases.iter().rev() {
            let Ok(Ok(kernel)) = restore(&self.view.blobs(), name, *next) else { continue };
            let found = BaseState { kernel, next: *next };
            if is_wanted(&found.kernel) {
                return Some(found);
            }
            oldest = Some(found);
        }
        oldest
    }

    /// Continues from this state: earlier records are skipped.
    pub(crate) fn continue_from(&mut self, base: BaseState) -> Result<(), String> {
        while let Some(batch) = self.read_batch()? {
            if batch.seq.next() == base.next {
                break;
            }
        }
        self.kernel = Some(base.kernel);
        Ok(())
    }

    /// The next batch, if there is one.
    fn read_batch(&mut self) -> Result<Option<Batch>, String> {
        match self.log.read_next().map_err(|error| error.to_string())? {
            LogItem::Batch(batch) => Ok(Some(batch)),
            LogItem::Torn(_) | LogItem::End => Ok(None),
        }
    }

    pub(crate) fn next(&mut self) -> Result<ReplayItem, String> {
        while self.pending.is_empty() {
            match self.log.read_next().map_err(|error| error.to_string())? {
                LogItem::Batch(batch) => self.decode(&batch)?,
                LogItem::Torn(torn) => return Ok(ReplayItem::Torn(torn)),
                LogItem::End => return Ok(ReplayItem::End),
            }
        }
        Ok(ReplayItem::Record(Box::new(self.pending.pop_front().expect("it is not empty"))))
    }

    fn decode(&mut self, batch: &Batch) -> Result<(), String> {
        let contents = decode_batch(&batch.payload, self.shard).map_err(|error| {
            let advice = "use the lockd version that wrote it";
            format!("{error}; {advice}: shard={} seq={}", self.shard.0, batch.seq.0)
        })?;
        if self.kernel.is_none() {
            self.kernel = self.base_at(batch.seq);
        }
        let last = contents.records.last().map(|record| record.now);
        let sealed = contents.clocks.zip(last).map(|(clocks, now)| (clocks.unix_ms, now));
        self.wall.reference = sealed.or(self.wall.reference);
        for record in contents.records {
            if let (Action::Open(open), None) = (&record.command.action, sealed) {
                self.wall.reference = Some((open.clocks.unix_ms, record.now));
            }
            let unix_ms = self.wall.at(record.now);
            self.pending.push_back(TimedRecord { seq: batch.seq, unix_ms, record });
        }
        Ok(())
    }

    /// The state before a batch, if a snapshot ends there.
    fn base_at(&mut self, seq: Seq) -> Option<Kernel> {
        while self.bases.front().is_some_and(|(_, next)| *next < seq) {
            self.bases.pop_front();
        }
        let (name, next) = self.bases.front().filter(|(_, next)| *next == seq)?;
        restore(&self.view.blobs(), name, *next).ok()?.ok()
    }

    /// Applies a record to the state. `None` if the state is not known, or the record does not apply to it: then it is not
    /// known from here on, until the next snapshot.
    pub(crate) fn apply(&mut self, record: &Record) -> Option<Outcome> {
        let kernel = self.kernel.as_mut()?;
        let outcome = kernel.apply(record.lsn, record.now, &record.command);
        if matches!(outcome, Outcome::Applied(..)) {
            return Some(outcome);
        }
        self.kernel = None;
        None
    }
}

/// Converts kernel time to wall time by the last clock reading in the log.
#[derive(Default)]
struct WallTimes {
    /// A moment on both clocks.
    reference: Option<(u64, Time)>,
}

impl WallTimes {
    fn at(&self, now: Time) -> Option<u64> {
        let (unix_ms, at) = self.reference.filter(|(unix_ms, _)| *unix_ms > 0)?;
        Some(unix_ms.saturating_sub(now.until(at).0).saturating_add(at.until(now).0))
    }
}
