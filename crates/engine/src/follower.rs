//! A follower: a shard's state, recovered from a log that another process may write, and kept up with it.
//!
//! **Invariant.** The state is that of a prefix of the log: batches are applied in order, and only as they were read from
//! the store. It decides nothing. [`Follower::take_over`] opens a tenure behind the last batch that was applied; the store
//! then decides whether the log is this process's.
//!
//! **What would break it.** To keep the state of a process that has lost its log: that state may be ahead of the log. So a
//! deposed engine is dropped, and a new follower recovers.

use std::sync::Arc;

use kernel::{Close, Kernel, Shard, Span, Tenure};
use store::{BlobStore, ErrorKind, LogStore, Seq};

use crate::clock::Clock;
use crate::decider::TenureConfig;
use crate::engine::{Engine, EngineObserver, MaintenanceEvent, OpenError, Options, RecoverySummary};
use crate::executor::Executor;
use crate::recovery::{RecoveryError, SnapshotDamage, recover_from, replay};
use crate::stopwatch::Stopwatch;

/// The state of a shard, and the log that it follows.
pub struct Follower {
    pub(crate) log: Box<dyn LogStore>,
    pub(crate) blobs: Arc<dyn BlobStore>,
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) shard: Shard,
    pub(crate) kernel: Kernel,
    /// When the last batch was read, on the boot clock.
    pub(crate) read_at: Span,
    pub(crate) recovery: RecoverySummary,
}

impl Follower {
    /// Recovers the state at the end of the log.
    pub fn open(
        log: Box<dyn LogStore>,
        blobs: Arc<dyn BlobStore>,
        clock: Box<dyn Clock>,
        shard: Shard,
        watcher: &dyn EngineObserver,
    ) -> Result<Follower, RecoveryError> {
        let mut on_damage = |snapshot| watcher.maintained(MaintenanceEvent::SnapshotDamaged(snapshot));
        let stopwatch = Stopwatch::start();
        let recovered = recover_from(&*log, &*blobs, shard, &mut on_damage)?;
        let recovery = RecoverySummary::of(&recovered, &*log, &stopwatch);
        let read_at = clock.boot_clock();
        Ok(Follower { log, blobs, clock, shard, kernel: recovered.kernel, read_at, recovery })
    }

    /// Recovers the state at the end of a log that an engine of this process has lost. The engine's own state is discarded: it
    /// may be ahead of the log, and may lack what others have appended.
    pub fn open_after(
        lost: Arc<Engine>,
        log: Box<dyn LogStore>,
        blobs: Arc<dyn BlobStore>,
        clock: Box<dyn Clock>,
        shard: Shard,
        watcher: &dyn EngineObserver,
    ) -> Result<Follower, RecoveryError> {
        let kept =
            planted!(FollowsUnrecovered).then(|| lost.sequencer().inspect(|shard| shard.kernel().snapshot()));
        drop(lost);
        let mut follower = Follower::open(log, blobs, clock, shard, watcher)?;
        if let Some(state) = kept {
            follower.kernel = Kernel::restore(&state).expect("the state of a kernel");
        }
        Ok(follower)
    }

    /// Applies what was appended since. Whether there was anything. With `thorough`, a log that was truncated past the
    /// known end is noticed too, at the cost of two more requests.
    ///
    /// An error leaves a state that must not be used any more.
    pub fn poll(&mut self, thorough: bool) -> Result<bool, RecoveryError> {
        if !thorough && !self.log.has_grown()? {
            return Ok(false);
        }
        let from = self.log.bounds().next;
        let next = self.log.catch_up()?.next;
        if next == from {
            return Ok(false);
        }
        if planted!(FollowerNotCaughtUp) {
            return Ok(true);
        }
        replay(&mut self.kernel, &mut *self.log.reader(), from, next)?;
        self.read_at = self.clock.boot_clock();
        Ok(true)
    }

    /// The number of the batch after the last that was applied.
    pub fn next(&self) -> Seq {
        self.log.bounds().next
    }

    /// The state, up to the last batch that was applied.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The log, the state, and when the last batch was read, for a program that runs the sequencer itself.
    pub fn into_parts(self) -> (Box<dyn LogStore>, Kernel, Span) {
        (self.log, self.kernel, self.read_at)
    }

    /// The tenure that the log is in; `None` for a new log.
    pub fn tenure(&self) -> Option<&Tenure> {
        self.kernel.tenure()
    }

    /// The record that handed the log over, if it is the last.
    pub fn closed(&self) -> Option<Close> {
        self.tenure()?.closed
    }

    /// Opens a tenure, and starts the sequencer and maintenance. The log is this process's once the first batch is durable.
    pub fn take_over(
        self,
        opening: &TenureConfig,
        options: Options,
        watcher: Arc<dyn EngineObserver>,
        executor: &Arc<dyn Executor>,
    ) -> Result<Engine, OpenError> {
        Engine::start(self, opening, options, watcher, executor)
    }
}

impl RecoveryError {
    /// Whether opening the log again may succeed: it has changed while it was read, or the store did not let it be read.
    pub fn is_transient(&self) -> bool {
        match self {
            RecoveryError::Store(error) => {
                let kinds = [ErrorKind::Gone, ErrorKind::Io, ErrorKind::Undecided];
                kinds.contains(&error.kind) || self.is_denied()
            }
            RecoveryError::Gap { .. } => true,
            // A read that failed, as one of a bucket does for a moment, says nothing about the snapshot.
            RecoveryError::NoSnapshot { damaged, .. } => {
                damaged.iter().any(|snapshot| matches!(snapshot.damage, SnapshotDamage::Device(_)))
            }
            RecoveryError::Decode(..) | RecoveryError::Diverged { .. } => false,
        }
    }

    /// Whether the store denied access to the log. An operator can allow it again.
    pub fn is_denied(&self) -> bool {
        matches!(self, RecoveryError::Store(error) if error.kind == ErrorKind::Refused)
    }
}
