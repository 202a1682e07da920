//! Recovery: restores the last snapshot, then replays the log through the kernel's one entry point.
//!
//! If a logged record is not applied at replay, the log was written under other rules than this build's, and
//! the result must not be used.

use std::fmt;

use kernel::{Kernel, Lsn, Outcome, RestoreError, Shard};
use store::{BlobName, BlobStore, LogReader, LogStore, Seq, StoreError};

use crate::record::{DecodeError, decode_batch};
use crate::snapshot::{self, SnapshotError};

/// The reason why a state cannot be recovered.
#[derive(Debug)]
pub enum RecoveryError {
    /// The store failed to read.
    Store(StoreError),
    /// A batch cannot be decoded into records.
    Decode(Seq, DecodeError),
    /// A logged record was not applied at replay.
    Diverged {
        /// The record's LSN.
        lsn: Lsn,
        /// The outcome at replay.
        outcome: Box<Outcome>,
    },
    /// The last snapshot cannot be decoded.
    Snapshot(BlobName, SnapshotError),
    /// The last snapshot decodes to an invalid kernel state.
    Restore(BlobName, RestoreError),
    /// The log does not continue the last snapshot: the batches in between are missing.
    Gap {
        /// The first batch of the log.
        floor: Seq,
        /// The batch after the end of the log.
        next: Seq,
        /// The first batch that is not in the last snapshot; `None` if there is no snapshot.
        snapshot: Option<Seq>,
    },
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryError::Store(error) => error.fmt(f),
            RecoveryError::Decode(seq, error) => {
                write!(f, "a batch of the log cannot be decoded: {error} seq={}", seq.0)
            }
            RecoveryError::Diverged { lsn, outcome } => write!(
                f,
                "a logged command is not applied at replay, so the log was written under other rules; start the \
                 build that wrote it: lsn={} outcome={outcome:?}",
                lsn.0
            ),
            RecoveryError::Snapshot(name, error) => write!(f, "{error} name={name}"),
            RecoveryError::Restore(name, error) => {
                write!(f, "{error}; restore the store from a backup: name={name}")
            }
            RecoveryError::Gap { floor, next, snapshot } => write!(
                f,
                "batches between the last snapshot and the log are missing; restore the store from a backup: \
                 floor={} next={} snapshot={:?}",
                floor.0,
                next.0,
                snapshot.map(|seq| seq.0)
            ),
        }
    }
}

impl std::error::Error for RecoveryError {}

impl From<StoreError> for RecoveryError {
    fn from(error: StoreError) -> RecoveryError {
        RecoveryError::Store(error)
    }
}

/// Recovers the state after all batches of a log.
pub fn recover(log: &dyn LogStore, blobs: &dyn BlobStore, shard: Shard) -> Result<Kernel, RecoveryError> {
    let bounds = log.bounds();
    let (mut kernel, from) = last_snapshot(blobs, shard)?;
    if from < bounds.floor || from > bounds.next {
        let snapshot = (from > Seq(0)).then_some(from);
        return Err(RecoveryError::Gap { floor: bounds.floor, next: bounds.next, snapshot });
    }
    replay(&mut kernel, &mut *log.reader(), from, bounds.next)?;
    Ok(kernel)
}

/// Restores the last snapshot; returns its state and the first batch that is not in it. An empty state if
/// there is no snapshot.
pub fn last_snapshot(blobs: &dyn BlobStore, shard: Shard) -> Result<(Kernel, Seq), RecoveryError> {
    let Some((name, _)) = snapshots(blobs, shard)?.pop() else { return Ok((Kernel::new(), Seq(0))) };
    let mut input = |offset, length| blobs.read(&name, offset, length);
    match snapshot::read(&mut input) {
        Ok((state, next)) => {
            let kernel = Kernel::restore(&state).map_err(|error| RecoveryError::Restore(name, error))?;
            Ok((kernel, next))
        }
        // A failure of the store says nothing about the snapshot.
        Err(SnapshotError::Store(error)) => Err(RecoveryError::Store(error)),
        Err(error) => Err(RecoveryError::Snapshot(name, error)),
    }
}

/// A shard's snapshots, oldest first, each with the first batch that is not in it.
pub fn snapshots(blobs: &dyn BlobStore, shard: Shard) -> Result<Vec<(BlobName, Seq)>, StoreError> {
    let prefix = snapshot_prefix(shard);
    let seq = |name: &BlobName| u64::from_str_radix(name.as_str().strip_prefix(&prefix)?, 16).ok().map(Seq);
    let listed = blobs.list(&prefix)?.into_iter();
    Ok(listed.filter_map(|name| seq(&name).map(|seq| (name, seq))).collect())
}

/// The name of the snapshot of all batches before `next`.
pub fn snapshot_name(shard: Shard, next: Seq) -> BlobName {
    BlobName::new(&format!("{}{:016x}", snapshot_prefix(shard), next.0)).expect("digits")
}

fn snapshot_prefix(shard: Shard) -> String {
    format!("snapshot/{}/", shard.0)
}

/// Applies the batches from `from` up to but not including `to`.
pub fn replay(kernel: &mut Kernel, log: &mut dyn LogReader, from: Seq, to: Seq) -> Result<(), RecoveryError> {
    let mut seq = from;
    while seq < to {
        let batch = log.read(seq)?;
        let shard = kernel.tenure().map(|tenure| tenure.open.store.shard).unwrap_or_default();
        let contents =
            decode_batch(&batch.payload, shard).map_err(|error| RecoveryError::Decode(seq, error))?;
        for record in &contents.records {
            let outcome = kernel.apply(record.lsn, record.now, &record.command);
            if !matches!(outcome, Outcome::Applied(..)) {
                return Err(RecoveryError::Diverged { lsn: record.lsn, outcome: Box::new(outcome) });
            }
        }
        kernel.set_clocks(contents.clocks);
        seq = seq.next();
    }
    Ok(())
}
