//! Recovery: restores a snapshot, then replays the log through the kernel's one entry point.
//!
//! **Invariant.** The newest snapshot that can be read is used. A damaged one is passed over and reported: the next
//! older one and more of the log lead to the same state. Without any, the log alone does, if it begins at batch 0.
//!
//! **What would break it.** Using an older snapshot although the log ends before the newest one does: durable
//! batches are missing then, and their leases would be granted again. So the end of every snapshot, readable or
//! not, is compared with the end of the log.
//!
//! If a logged record is not applied at replay, the log was written under other rules than this build's, and
//! the result must not be used.

use std::fmt;

use kernel::{Kernel, Lsn, Outcome, RestoreError, Shard};
use store::{Batch, BlobName, BlobStore, ErrorKind, LogReader, LogStore, Seq, StoreError};

use crate::record::{DecodeError, decode_batch};
use crate::sequencer::LoggedSince;
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
    /// No snapshot that the log continues can be read, and the log does not begin at batch 0.
    NoSnapshot {
        /// The first batch of the log.
        floor: Seq,
        /// The damaged snapshots, newest first.
        damaged: Vec<DamagedSnapshot>,
    },
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

/// A snapshot that cannot be used.
#[derive(Debug)]
pub struct DamagedSnapshot {
    /// The name of its blob.
    pub name: BlobName,
    /// The damage.
    pub damage: SnapshotDamage,
}

/// A defect of a snapshot.
#[derive(Debug)]
pub enum SnapshotDamage {
    /// The device fails to read it.
    Device(StoreError),
    /// It cannot be decoded.
    Format(SnapshotError),
    /// It decodes to an invalid kernel state.
    State(RestoreError),
    /// It ends at another batch than its name says.
    Misnamed(Seq),
    /// It decodes to other rows than it was written from.
    Content,
}

impl fmt::Display for SnapshotDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotDamage::Device(error) => error.fmt(f),
            SnapshotDamage::Format(error) => error.fmt(f),
            SnapshotDamage::State(error) => error.fmt(f),
            SnapshotDamage::Misnamed(next) => {
                write!(f, "it ends at another batch than its name: next={}", next.0)
            }
            SnapshotDamage::Content => f.write_str("it has other rows than it was written from"),
        }
    }
}

impl fmt::Display for DamagedSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name={} damage=\"{}\"", self.name, self.damage)
    }
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryError::Store(error) => error.fmt(f),
            RecoveryError::Decode(seq, error) => {
                write!(
                    f,
                    "a batch of the log cannot be decoded; start the lockd version that wrote it, or restore the store from a backup \
                     with `lockd restore`: {error} seq={}",
                    seq.0
                )
            }
            RecoveryError::Diverged { lsn, outcome } => write!(
                f,
                "a logged command is not applied at replay, so the log was written under other rules; start the \
                 version that wrote it, or restore the store from a backup with `lockd restore`: lsn={} outcome={outcome:?}",
                lsn.0
            ),
            RecoveryError::NoSnapshot { floor, damaged } => {
                write!(
                    f,
                    "no snapshot can be read, and the log alone is not enough, because it begins at a later batch; \
                     keep a copy of the store, and restore it from a backup with `lockd restore`: floor={}",
                    floor.0
                )?;
                damaged.iter().try_for_each(|snapshot| write!(f, " {snapshot}"))
            }
            RecoveryError::Gap { floor, next, snapshot } => write!(
                f,
                "batches between the last snapshot and the log are missing; restore the store from a backup with `lockd restore`: \
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

/// A recovered state, and where it came from.
pub struct Recovered {
    /// The state.
    pub kernel: Kernel,
    /// The end of the snapshot that the replay began with; `None`: the log was replayed from its beginning.
    pub snapshot: Option<Seq>,
    /// The number of records that were replayed.
    pub records: u64,
}

/// The state after all batches of a log: see [`recover_from`].
pub fn recover(
    log: &dyn LogStore,
    blobs: &dyn BlobStore,
    shard: Shard,
    on_damage: &mut dyn FnMut(DamagedSnapshot),
) -> Result<Kernel, RecoveryError> {
    recover_from(log, blobs, shard, on_damage).map(|recovered| recovered.kernel)
}

/// Recovers the state after all batches of a log. `on_damage` gets every snapshot that had to be passed over.
pub fn recover_from(
    log: &dyn LogStore,
    blobs: &dyn BlobStore,
    shard: Shard,
    on_damage: &mut dyn FnMut(DamagedSnapshot),
) -> Result<Recovered, RecoveryError> {
    let bounds = log.bounds();
    let (mut damaged, mut base) = (Vec::new(), None);
    for (name, next) in snapshots(blobs, shard)?.into_iter().rev() {
        if next > bounds.next {
            let snapshot = Some(next);
            return Err(RecoveryError::Gap { floor: bounds.floor, next: bounds.next, snapshot });
        }
        match restore(blobs, &name, next)? {
            Ok(kernel) => {
                base = Some((kernel, next));
                break;
            }
            Err(found) => damaged.push(found),
        }
        if planted!(NewestSnapshotOnly) {
            break;
        }
    }
    let (mut kernel, snapshot) = match base {
        Some((kernel, from)) if from >= bounds.floor => (kernel, Some(from)),
        None if bounds.floor == Seq(0) && !planted!(NewestSnapshotOnly) => (Kernel::new(), None),
        older => return Err(no_base(bounds.floor, bounds.next, older.map(|(_, from)| from), damaged)),
    };
    damaged.into_iter().for_each(on_damage);
    let from = snapshot.unwrap_or(Seq(0));
    let records = replay(&mut kernel, &mut *log.reader(), from, bounds.next)?;
    Ok(Recovered { kernel, snapshot, records })
}

/// The error if neither a snapshot nor the log alone leads to the state.
fn no_base(floor: Seq, next: Seq, snapshot: Option<Seq>, mut damaged: Vec<DamagedSnapshot>) -> RecoveryError {
    // A device that failed may succeed at the next start.
    let device = damaged.iter().position(|found| matches!(found.damage, SnapshotDamage::Device(_)));
    match device.map(|at| damaged.swap_remove(at).damage) {
        Some(SnapshotDamage::Device(error)) => RecoveryError::Store(error),
        _ if damaged.is_empty() => RecoveryError::Gap { floor, next, snapshot },
        _ => RecoveryError::NoSnapshot { floor, damaged },
    }
}

/// Restores a snapshot of all batches before `next`. The outer error says nothing about the snapshot: the read may
/// be retried.
pub fn restore(
    blobs: &dyn BlobStore,
    name: &BlobName,
    next: Seq,
) -> Result<Result<Kernel, DamagedSnapshot>, StoreError> {
    let mut input = |offset, length| blobs.read(name, offset, length);
    let damage = match snapshot::read(&mut input) {
        Ok((_, found)) if found != next => SnapshotDamage::Misnamed(found),
        Ok((state, _)) => match Kernel::restore(&state) {
            Ok(kernel) => return Ok(Ok(kernel)),
            Err(error) => SnapshotDamage::State(error),
        },
        // A bad sector fails like this, and does so every time.
        Err(SnapshotError::Store(error)) if matches!(error.kind, ErrorKind::Io | ErrorKind::Damaged) => {
            SnapshotDamage::Device(error)
        }
        Err(SnapshotError::Store(error)) => return Err(error),
        Err(error) => SnapshotDamage::Format(error),
    };
    Ok(Err(DamagedSnapshot { name: name.clone(), damage }))
}

/// The part of the log after the newest snapshot: what a recovery has to replay. Its bytes are counted to the next extent.
pub fn unsaved(log: &dyn LogStore, blobs: &dyn BlobStore, shard: Shard) -> Result<LoggedSince, StoreError> {
    let saved = snapshots(blobs, shard)?.last().map_or(Seq(0), |(_, next)| *next);
    let extents = log.extents();
    let ends = extents.iter().skip(1).map(|next| next.first).chain([log.bounds().next]);
    let unsaved = extents.iter().zip(ends).filter(|(_, end)| *end > saved);
    let bytes = unsaved.map(|(extent, _)| extent.bytes).sum();
    Ok(LoggedSince { bytes, batches: log.bounds().next.0.saturating_sub(saved.0) })
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

/// Applies the batches from `from` up to but not including `to`. Returns the number of their records.
pub fn replay(
    kernel: &mut Kernel,
    log: &mut dyn LogReader,
    from: Seq,
    to: Seq,
) -> Result<u64, RecoveryError> {
    let (mut seq, mut records) = (from, 0);
    while seq < to {
        records += apply_batch(kernel, &log.read(seq)?)?;
        seq = seq.next();
    }
    Ok(records)
}

/// Applies the records of one batch. Returns their number.
pub fn apply_batch(kernel: &mut Kernel, batch: &Batch) -> Result<u64, RecoveryError> {
    let shard = kernel.tenure().map(|tenure| tenure.open.store.shard).unwrap_or_default();
    let contents =
        decode_batch(&batch.payload, shard).map_err(|error| RecoveryError::Decode(batch.seq, error))?;
    for record in &contents.records {
        let outcome = kernel.apply(record.lsn, record.now, &record.command);
        if !matches!(outcome, Outcome::Applied(..)) {
            return Err(RecoveryError::Diverged { lsn: record.lsn, outcome: Box::new(outcome) });
        }
    }
    kernel.set_clocks(contents.clocks);
    Ok(contents.records.len() as u64)
}
