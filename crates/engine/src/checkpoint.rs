//! Checkpointing and log truncation: recovers the state a second time from the store, beside the live one.
//!
//! **Invariant.** A batch is dropped only if a durable snapshot includes it, if that snapshot was recovered
//! from the store itself and matched the live kernel, and if no live document is stored in the batch.
//!
//! **What would break it.** Writing the live state: a corrupted kernel state would become permanent, and the
//! log that proves it would be deleted. Dropping a segment as soon as its documents were relocated: their
//! copies are in the log after the snapshot, and have to be durable first. Relocating every document at every
//! snapshot: a document that never changes would be rewritten for ever. So the log is truncated only as long
//! as the rest is at least twice as large as the live documents; then at least one new byte was written per
//! relocated byte.

use std::fmt;

use kernel::{Command, Cursor, Kernel, Location, Lsn, Namespace, Relocation, ResourceName, Shard, Version};
use store::{BlobStore, ErrorKind, Extent, LogReader, Seq, StoreError};

use crate::documents::{DocumentLocation, read_inline};
use crate::recovery::{RecoveryError, last_snapshot, replay, snapshot_name, snapshots};
use crate::shard::StateDigest;
use crate::snapshot;

/// A position in the live log, with the state that a recovery up to it must reproduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The mark is before this batch.
    pub next: Seq,
    /// The live kernel's state at the mark.
    pub state: StateDigest,
    /// The log's extents at the mark.
    pub extents: Vec<Extent>,
}

/// The reason why no snapshot was taken.
#[derive(Debug)]
pub enum CheckpointError {
    /// The store could not read or write. May be retried.
    Store(StoreError),
    /// The store cannot be recovered, or leads to a different state than the live one: one of the two is
    /// wrong, and neither may be trusted.
    Diverged(String),
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointError::Store(error) => write!(f, "taking a snapshot failed: {error}"),
            CheckpointError::Diverged(what) => write!(
                f,
                "the log does not reproduce the state that requests were answered from; keep the store, report \
                 this, and restore from a backup: {what}"
            ),
        }
    }
}

impl std::error::Error for CheckpointError {}

impl From<StoreError> for CheckpointError {
    fn from(error: StoreError) -> CheckpointError {
        CheckpointError::Store(error)
    }
}

impl From<RecoveryError> for CheckpointError {
    fn from(error: RecoveryError) -> CheckpointError {
        match error {
            RecoveryError::Store(error) => CheckpointError::Store(error),
            other => CheckpointError::Diverged(other.to_string()),
        }
    }
}

/// Recovers the state at a mark, compares it with the live kernel's, and makes a snapshot of it durable.
pub fn take(
    blobs: &dyn BlobStore,
    reader: &mut dyn LogReader,
    shard: Shard,
    mark: &Mark,
) -> Result<Kernel, CheckpointError> {
    let (mut kernel, from) = last_snapshot(blobs, shard)?;
    if from < mark.next {
        let to = if planted!(SnapshotShort) { Seq(mark.next.0 - 1) } else { mark.next };
        replay(&mut kernel, reader, from, to)?;
        let state = StateDigest { lsn: kernel.last_lsn(), hash: kernel.state_hash() };
        if state != mark.state && !planted!(SnapshotShort | SnapshotUncompared) {
            let what = format!("next={} live={:?} recovered={state:?}", mark.next.0, mark.state);
            return Err(CheckpointError::Diverged(what));
        }
        if planted!(SnapshotGoesFirst) {
            snapshots(blobs, shard)?.iter().try_for_each(|(name, _)| blobs.delete(name))?;
        }
        write(blobs, shard, &kernel, mark.next)?;
    }
    delete_older_snapshots(blobs, shard)?;
    Ok(kernel)
}

fn write(blobs: &dyn BlobStore, shard: Shard, kernel: &Kernel, next: Seq) -> Result<(), StoreError> {
    let mut writer = blobs.create(&snapshot_name(shard, next))?;
    let mut state = kernel.snapshot();
    if planted!(SnapshotForgetsRequests) {
        state.requests.clear();
    }
    snapshot::write(&state, next, &mut |bytes| writer.write(bytes))?;
    match writer.finish() {
        // Written by a process that crashed later on: the same batches, the same bytes.
        Err(error) if error.kind == ErrorKind::Taken => Ok(()),
        other => other.map(drop),
    }
}

/// The last snapshot is enough: it was read back already, or the next checkpoint will read it back.
fn delete_older_snapshots(blobs: &dyn BlobStore, shard: Shard) -> Result<(), StoreError> {
    let mut all = snapshots(blobs, shard)?;
    all.pop();
    all.iter().try_for_each(|(name, _)| blobs.delete(name))
}

/// How far the log can be truncated, and the documents to relocate before that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TruncationPlan {
    /// The new floor, once all moves are durable.
    pub floor: Seq,
    /// The live documents below the floor.
    pub moves: Vec<DocumentMove>,
}

/// An inline document to relocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentMove {
    /// The key's namespace.
    pub namespace: Namespace,
    /// The document's key.
    pub key: ResourceName,
    /// The document's version.
    pub version: Version,
    /// The record that contains the document.
    pub lsn: Lsn,
    /// The document's size.
    pub bytes: u64,
}

impl DocumentMove {
    /// The command that relocates the document; the document is passed along with it.
    pub fn command(&self) -> Command {
        let (namespace, key, version) = (self.namespace.clone(), self.key.clone(), self.version);
        // The sequencer sets the location: the record with which it logs the command.
        let location = Location::default();
        Command::internal(kernel::Action::Relocate(Relocation { namespace, key, version, location }))
    }

    /// Reads the document from the log.
    pub fn read(&self, reader: &mut dyn LogReader) -> Result<Vec<u8>, StoreError> {
        read_inline(reader, self.lsn)
    }
}

/// Plans the truncation of a log, given the state in its last snapshot. Retains at least `retain` bytes.
pub fn plan(
    kernel: &Kernel,
    reader: &mut dyn LogReader,
    mark: &Mark,
    retain: u64,
) -> Result<Option<TruncationPlan>, StoreError> {
    let documents = inline_documents(kernel);
    let live: u64 = documents.iter().map(|document| document.bytes).sum();
    let mut left: u64 = mark.extents.iter().map(|extent| extent.bytes).sum();
    let mut floor = None;
    for (extent, next) in mark.extents.iter().zip(mark.extents.iter().skip(1)) {
        left -= extent.bytes;
        if next.first > mark.next || left < retain.max(2 * live) {
            break;
        }
        floor = Some(next.first);
    }
    let Some(floor) = floor else { return Ok(None) };
    let first = match reader.read(floor) {
        // The floor has been raised past it since the mark.
        Err(error) if error.kind == ErrorKind::Gone => return Ok(None),
        other => Lsn(other?.lsns.first.0),
    };
    let moves = documents
        .into_iter()
        .filter(|document| document.lsn < first && !planted!(FloorWithoutMoves))
        .collect();
    Ok(Some(TruncationPlan { floor, moves }))
}

fn inline_documents(kernel: &Kernel) -> Vec<DocumentMove> {
    let documents = kernel.documents_from(Cursor::default());
    let inline = documents.filter_map(|(_, namespace, key, view)| {
        let document = view.document?;
        match DocumentLocation::of(document.location) {
            DocumentLocation::Inline { lsn, .. } => {
                Some(DocumentMove { namespace, key, version: view.version, lsn, bytes: document.bytes })
            }
            DocumentLocation::Blob(_) => None,
        }
    });
    inline.collect()
}
