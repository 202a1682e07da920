//! From a store back to a kernel: the last snapshot, then the log's batches through the same entry point.
//!
//! A record that is not applied at replay was not written by these rules: log and build do not belong
//! together, and nothing may be built on the result.

use std::fmt;

use kernel::{Kernel, Lsn, Outcome, RestoreError, Shard};
use store::{BlobName, BlobStore, LogReader, LogStore, Seq, StoreError};

use crate::record::{DecodeError, Record};
use crate::snapshot::{self, SnapshotError};

/// Why a state cannot be recovered.
#[derive(Debug)]
pub enum RecoveryError {
    /// The store cannot read it.
    Store(StoreError),
    /// A batch does not hold records.
    Decode(Seq, DecodeError),
    /// A record is not applied, though it was when it was written.
    Diverged {
        /// Which one.
        lsn: Lsn,
        /// What came of it this time.
        outcome: Box<Outcome>,
    },
    /// The last snapshot cannot be read.
    Snapshot(BlobName, SnapshotError),
    /// The last snapshot is of a state that no kernel can have been in.
    Restore(BlobName, RestoreError),
    /// Log and snapshots do not meet: what is between them is gone.
    Gap {
        /// Where the log begins.
        floor: Seq,
        /// Where it ends.
        next: Seq,
        /// Where the last snapshot ends, if there is one.
        snapshot: Option<Seq>,
    },
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryError::Store(error) => error.fmt(f),
            RecoveryError::Decode(seq, error) => write!(f, "batch {} of the log: {error}", seq.0),
            RecoveryError::Diverged { lsn, outcome } => write!(
                f,
                "a logged command is not applied at replay; the log was written by other rules, start the build \
                 that wrote it: lsn={} outcome={outcome:?}",
                lsn.0
            ),
            RecoveryError::Snapshot(name, error) => write!(f, "{error} name={name}"),
            RecoveryError::Restore(name, error) => write!(f, "{error}: name={name}"),
            RecoveryError::Gap { floor, next, snapshot } => write!(
                f,
                "log and snapshots do not meet; restore the store from a backup: floor={} next={} snapshot={:?}",
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

/// The state after all batches of a log.
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

/// The state in the last snapshot, and the number of the first batch that is not in it; an empty one if there
/// is none.
pub fn last_snapshot(blobs: &dyn BlobStore, shard: Shard) -> Result<(Kernel, Seq), RecoveryError> {
    let Some((name, _)) = snapshots(blobs, shard)?.pop() else { return Ok((Kernel::new(), Seq(0))) };
    let mut input = |offset, length| blobs.read(&name, offset, length);
    match snapshot::read(&mut input) {
        Ok((state, next)) => {
            let kernel = Kernel::restore(&state).map_err(|error| RecoveryError::Restore(name, error))?;
            Ok((kernel, next))
        }
        // The store's trouble, and no word about the snapshot.
        Err(SnapshotError::Store(error)) => Err(RecoveryError::Store(error)),
        Err(error) => Err(RecoveryError::Snapshot(name, error)),
    }
}

/// A shard's snapshots, in order, each with the number of the first batch that is not in it.
pub fn snapshots(blobs: &dyn BlobStore, shard: Shard) -> Result<Vec<(BlobName, Seq)>, StoreError> {
    let prefix = snapshot_prefix(shard);
    let seq = |name: &BlobName| u64::from_str_radix(name.as_str().strip_prefix(&prefix)?, 16).ok().map(Seq);
    let listed = blobs.list(&prefix)?.into_iter();
    Ok(listed.filter_map(|name| seq(&name).map(|seq| (name, seq))).collect())
}

/// The name of a snapshot that holds all batches before `next`.
pub fn snapshot_name(shard: Shard, next: Seq) -> BlobName {
    BlobName::new(&format!("{}{:016x}", snapshot_prefix(shard), next.0)).expect("digits")
}

fn snapshot_prefix(shard: Shard) -> String {
    format!("snapshot/{}/", shard.0)
}

/// Applies the batches from `from` up to, not including, `to`.
pub fn replay(kernel: &mut Kernel, log: &mut dyn LogReader, from: Seq, to: Seq) -> Result<(), RecoveryError> {
    let mut seq = from;
    while seq < to {
        let batch = log.read(seq)?;
        let records =
            Record::decode_all(&batch.payload).map_err(|error| RecoveryError::Decode(seq, error))?;
        for record in &records {
            let outcome = kernel.apply(record.lsn, record.now, &record.command);
            if !matches!(outcome, Outcome::Applied(..)) {
                return Err(RecoveryError::Diverged { lsn: record.lsn, outcome: Box::new(outcome) });
            }
        }
        seq = seq.next();
    }
    Ok(())
}
