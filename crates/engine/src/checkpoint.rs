//! Snapshots, and what they let go: a second recovery beside the live one.
//!
//! **Invariant.** A batch is dropped only when a snapshot holds it that was recovered from the store itself,
//! came out as the live kernel said, and is durable; and when no document has its bytes there.
//!
//! **What would break it.** To write down the live state: a kernel that went wrong would be made permanent, and
//! the log that proves it deleted. To drop a segment once its documents were copied into the snapshot's state:
//! the copies are in the log behind the snapshot, and have to be durable first. To carry every document
//! forward with every snapshot: one that never changes would be written for ever. So a part of the log goes
//! only while what stays is at least twice what is alive in it; then, for each byte that is carried forward, a
//! new one was written.

use std::fmt;

use kernel::{Command, Cursor, Kernel, Lsn, Namespace, Relocation, ResourceName, Shard, Version};
use store::{BlobStore, ErrorKind, Extent, LogReader, Seq, StoreError};

use crate::documents::{Place, read_inline};
use crate::recovery::{RecoveryError, last_snapshot, replay, snapshot_name, snapshots};
use crate::shard::State;
use crate::snapshot;

/// A moment of the live log: what a snapshot of it must come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// All batches before this one.
    pub next: Seq,
    /// The live kernel then.
    pub state: State,
    /// The pieces of the log then.
    pub extents: Vec<Extent>,
}

/// Why there is no snapshot.
#[derive(Debug)]
pub enum CheckpointError {
    /// The store could not read or write. It may be tried again.
    Store(StoreError),
    /// What is in the store cannot be recovered, or comes to another state than the live one: one of both is
    /// wrong, and nothing may be built on either.
    Diverged(String),
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointError::Store(error) => write!(f, "no snapshot could be taken: {error}"),
            CheckpointError::Diverged(what) => write!(
                f,
                "the log does not come to the state that was answered from; stop, keep the store, restore a backup \
                 or report this: {what}"
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

/// Recovers the state at a mark, compares it with what the live kernel was, and makes a snapshot of it durable.
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
        let state = State { lsn: kernel.last_lsn(), hash: kernel.state_hash() };
        if state != mark.state && !planted!(SnapshotShort | SnapshotUncompared) {
            let what = format!("next={} live={:?} recovered={state:?}", mark.next.0, mark.state);
            return Err(CheckpointError::Diverged(what));
        }
        if planted!(SnapshotGoesFirst) {
            snapshots(blobs, shard)?.iter().try_for_each(|(name, _)| blobs.delete(name))?;
        }
        write(blobs, shard, &kernel, mark.next)?;
    }
    drop_older(blobs, shard)?;
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
        // Made by a process that died before it got further: the same batches, the same bytes.
        Err(error) if error.kind == ErrorKind::Taken => Ok(()),
        other => other.map(drop),
    }
}

/// The last one is enough: it was read back, or will be by the next.
fn drop_older(blobs: &dyn BlobStore, shard: Shard) -> Result<(), StoreError> {
    let mut all = snapshots(blobs, shard)?;
    all.pop();
    all.iter().try_for_each(|(name, _)| blobs.delete(name))
}

/// What may go of a log, and what has to be carried forward before that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Everything below may go then.
    pub floor: Seq,
    /// Documents whose bytes are below it.
    pub moves: Vec<Move>,
}

/// A document to carry forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where the key is.
    pub namespace: Namespace,
    /// Whose document.
    pub key: ResourceName,
    /// Which version of it.
    pub version: Version,
    /// The record that has its bytes.
    pub lsn: Lsn,
    /// How many.
    pub bytes: u64,
}

impl Move {
    /// The record that carries it; the bytes go beside it.
    pub fn command(&self) -> Command {
        let (namespace, key, version) = (self.namespace.clone(), self.key.clone(), self.version);
        let location = Place::Inline(self.lsn).location();
        Command::internal(kernel::Action::Relocate(Relocation { namespace, key, version, location }))
    }

    /// The bytes, as they are in the log.
    pub fn read(&self, reader: &mut dyn LogReader) -> Result<Vec<u8>, StoreError> {
        read_inline(reader, self.lsn)
    }
}

/// What may go of a log of which `kernel` is the state in the last snapshot, so that at least `retain` bytes stay.
pub fn plan(
    kernel: &Kernel,
    reader: &mut dyn LogReader,
    mark: &Mark,
    retain: u64,
) -> Result<Option<Plan>, StoreError> {
    let documents = inline_documents(kernel);
    let alive: u64 = documents.iter().map(|document| document.bytes).sum();
    let mut left: u64 = mark.extents.iter().map(|extent| extent.bytes).sum();
    let mut floor = None;
    for (extent, next) in mark.extents.iter().zip(mark.extents.iter().skip(1)) {
        left -= extent.bytes;
        if next.first > mark.next || left < retain.max(2 * alive) {
            break;
        }
        floor = Some(next.first);
    }
    let Some(floor) = floor else { return Ok(None) };
    let first = match reader.read(floor) {
        // The floor has been raised past it since the mark.
        Err(error) if error.kind == ErrorKind::Gone => return Ok(None),
        other => Lsn(other?.lsns.first),
    };
    let moves = documents
        .into_iter()
        .filter(|document| document.lsn < first && !planted!(FloorWithoutMoves))
        .collect();
    Ok(Some(Plan { floor, moves }))
}

fn inline_documents(kernel: &Kernel) -> Vec<Move> {
    let documents = kernel.documents_from(Cursor::default());
    let inline = documents.filter_map(|(_, namespace, key, view)| {
        let document = view.document?;
        match Place::of(document.location) {
            Place::Inline(lsn) => {
                Some(Move { namespace, key, version: view.version, lsn, bytes: document.bytes })
            }
            Place::Blob(_) => None,
        }
    });
    inline.collect()
}
