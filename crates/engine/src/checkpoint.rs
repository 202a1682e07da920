//! Checkpointing and log truncation: recovers the state a second time from the store, beside the live one.
//!
//! **Invariant.** Two readable snapshots are kept, and the floor is never above the end of the older one: a damaged
//! byte in either loses nothing. A snapshot was recovered from the store itself and matched the live kernel. It was
//! read back from the device, and its rows were compared with those it was written from, before an older one is
//! deleted. A batch is dropped only if both snapshots include it, and if no live document is stored in it. A damaged
//! snapshot does not count; it is deleted before its name is used again. Where the log is retained for audits, some older
//! snapshots are kept, so that states before the second newest can be recovered too; recovery does not depend on them.
//!
//! **What would break it.** Writing the live state: a corrupted kernel state would become permanent, and the
//! log that proves it would be deleted. Comparing the running hash alone: a snapshot carries it along, so one that
//! lost rows has the right one. Dropping a segment as soon as its documents were relocated: their
//! copies are in the log after the snapshot, and have to be durable first. Relocating every document at every
//! snapshot: a document that never changes would be rewritten for ever. So the log is truncated only as long
//! as the rest is at least twice as large as the live documents; then at least one new byte was written per
//! relocated byte.
//!
//! A damaged snapshot is no reason to end the process: the live state does not come from it. Only a state that the
//! log does not reproduce is, from whatever snapshot the replay begins.

use std::fmt;

use kernel::{Command, Cursor, Kernel, Location, Lsn, Namespace, Relocation, ResourceName, Shard, Version};
use store::{BlobName, BlobStore, ErrorKind, Extent, LogReader, Seq, StoreError};

use crate::documents::{DocumentLocation, read_inline};
use crate::recovery::{
    DamagedSnapshot, RecoveryError, SnapshotDamage, replay, restore, snapshot_name, snapshots,
};
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
    /// The new snapshot does not read back as written. It was deleted; the next mark takes another.
    Unreadable(DamagedSnapshot),
    /// The store cannot be recovered, or leads to a different state than the live one: one of the two is
    /// wrong, and neither may be trusted.
    Diverged(String),
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointError::Store(error) => write!(f, "taking a snapshot failed: {error}"),
            CheckpointError::Unreadable(snapshot) => {
                write!(f, "a new snapshot does not read back as written, and was deleted: {snapshot}")
            }
            CheckpointError::Diverged(what) => write!(
                f,
                "the log does not reproduce the state that requests were answered from; keep the store, report \
                 this, and restore a backup with `lockd restore`: {what}"
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

/// A snapshot that was taken and read back.
pub struct Checkpoint {
    /// The state at the mark, restored from the snapshot.
    pub kernel: Kernel,
    /// The end of the older of the two snapshots that were read: the floor may rise to here. `None` if only one was.
    pub older: Option<Seq>,
}

/// Recovers the state at a mark, compares it with the live kernel's, and makes a snapshot of it durable. `on_damage`
/// gets every older snapshot that had to be passed over. Of a log that retains `retain` bytes for audits, older snapshots
/// are kept as well.
pub fn take(
    blobs: &dyn BlobStore,
    reader: &mut dyn LogReader,
    shard: Shard,
    mark: &Mark,
    retain: u64,
    on_damage: &mut dyn FnMut(DamagedSnapshot),
) -> Result<Checkpoint, CheckpointError> {
    let mut damaged = Vec::new();
    let (kernel, from) = recover_to_mark(blobs, reader, shard, mark, &mut damaged)?;
    let name = snapshot_name(shard, mark.next);
    let in_use = damaged.iter().any(|found| found.name == name);
    let unusable: Vec<BlobName> = damaged.iter().map(|found| found.name.clone()).collect();
    damaged.into_iter().for_each(on_damage);
    if from == Some(mark.next) {
        return Ok(Checkpoint { kernel, older: None });
    }
    if in_use && !planted!(DamagedNameReused) {
        blobs.delete(&name)?;
    }
    if planted!(SnapshotGoesFirst) {
        snapshots(blobs, shard)?.iter().try_for_each(|(name, _)| blobs.delete(name))?;
    }
    let digest = kernel.content_digest();
    write(blobs, &name, kernel, mark.next)?;
    let kernel = read_back(blobs, name, mark.next, digest)?;
    delete_older_snapshots(blobs, shard, mark, from, retain, &unusable)?;
    Ok(Checkpoint { kernel, older: from })
}

/// The state at the mark, and the end of the snapshot that the replay began with: the newest that can be read and
/// leads to the live state. `None`: the whole log was replayed.
///
/// A snapshot from which the replay leads elsewhere counts as damaged, if an older one leads to the live state.
fn recover_to_mark(
    blobs: &dyn BlobStore,
    reader: &mut dyn LogReader,
    shard: Shard,
    mark: &Mark,
    damaged: &mut Vec<DamagedSnapshot>,
) -> Result<(Kernel, Option<Seq>), CheckpointError> {
    let mut failed = None;
    // A later snapshot is that of a writer that has taken over.
    let listed = snapshots(blobs, shard)?.into_iter().filter(|(_, next)| *next <= mark.next);
    for (name, next) in listed.rev() {
        blobs.evict(&name);
        let replayed = match restore(blobs, &name, next)? {
            Ok(kernel) => replay_to_mark(kernel, reader, next, mark),
            Err(found) => {
                damaged.push(found);
                continue;
            }
        };
        match replayed {
            Ok(kernel) => return Ok((kernel, Some(next))),
            Err(CheckpointError::Diverged(what)) => {
                damaged.push(DamagedSnapshot { name, damage: SnapshotDamage::Content });
                failed = failed.or(Some(CheckpointError::Diverged(what)));
            }
            // The log no longer continues it.
            Err(CheckpointError::Store(error)) if error.kind == ErrorKind::Gone => {}
            Err(error) => return Err(error),
        }
    }
    match replay_to_mark(Kernel::new(), reader, Seq(0), mark) {
        Ok(kernel) => Ok((kernel, None)),
        // The log begins at a later batch.
        Err(CheckpointError::Store(error)) if error.kind == ErrorKind::Gone => {
            Err(failed.unwrap_or_else(|| no_snapshot(error, damaged)))
        }
        Err(error) => Err(error),
    }
}

fn no_snapshot(gone: StoreError, damaged: &[DamagedSnapshot]) -> CheckpointError {
    if damaged.iter().all(|found| matches!(found.damage, SnapshotDamage::Device(_))) {
        return CheckpointError::Store(gone);
    }
    let names: Vec<String> = damaged.iter().map(ToString::to_string).collect();
    let what = "no snapshot can be read, and the log begins at a later batch: this server continues, but cannot be \
                restarted from its store; export its documents with its API, and have a backup for `lockd restore` ready \
                before it stops";
    CheckpointError::Store(StoreError::new(ErrorKind::Damaged, format!("{what}: {}", names.join(" "))))
}

fn replay_to_mark(
    mut kernel: Kernel,
    reader: &mut dyn LogReader,
    from: Seq,
    mark: &Mark,
) -> Result<Kernel, CheckpointError> {
    let to = if planted!(SnapshotShort) && from < mark.next { Seq(mark.next.0 - 1) } else { mark.next };
    replay(&mut kernel, reader, from, to)?;
    let state = StateDigest { lsn: kernel.last_lsn(), hash: kernel.state_hash() };
    if state == mark.state || planted!(SnapshotShort | SnapshotUncompared) {
        return Ok(kernel);
    }
    let what = format!("next={} live={:?} recovered={state:?}", mark.next.0, mark.state);
    Err(CheckpointError::Diverged(what))
}

/// Takes the kernel, so that its memory is free when the snapshot is read back.
fn write(blobs: &dyn BlobStore, name: &BlobName, kernel: Kernel, next: Seq) -> Result<(), StoreError> {
    let mut state = kernel.snapshot();
    drop(kernel);
    if planted!(SnapshotForgetsRequests) {
        state.requests.clear();
    }
    if planted!(SnapshotLosesRow) {
        state.leases.pop();
    }
    let mut writer = blobs.create(name)?;
    snapshot::write(&state, next, &mut |bytes| writer.write(bytes))?;
    match writer.finish() {
        // Written by a process that crashed later on. Reading it back decides whether it is good.
        Err(error) if error.kind == ErrorKind::Taken => Ok(()),
        other => other.map(drop),
    }
}

/// Reads a new snapshot from the device, and compares its rows with those it was written from. It is deleted if it
/// is damaged.
fn read_back(
    blobs: &dyn BlobStore,
    name: BlobName,
    next: Seq,
    digest: u64,
) -> Result<Kernel, CheckpointError> {
    if !planted!(SnapshotReadFromCache) {
        blobs.evict(&name);
    }
    let damage = match restore(blobs, &name, next)? {
        Ok(kernel) if kernel.content_digest() == digest || planted!(ContentUncompared) => return Ok(kernel),
        Ok(_) => SnapshotDamage::Content,
        Err(found) => found.damage,
    };
    blobs.delete(&name)?;
    Err(CheckpointError::Unreadable(DamagedSnapshot { name, damage }))
}

/// Deletes the snapshots that are older than the new one, damaged or not, except its base, which was read just now, and
/// those from which an audit recovers past states.
fn delete_older_snapshots(
    blobs: &dyn BlobStore,
    shard: Shard,
    mark: &Mark,
    base: Option<Seq>,
    retain: u64,
    unusable: &[BlobName],
) -> Result<(), StoreError> {
    let base = base.filter(|_| !planted!(OneSnapshot));
    let mut older = snapshots(blobs, shard)?;
    older.retain(|(_, next)| *next < mark.next && Some(*next) != base);
    let usable = older.iter().filter(|(name, _)| !unusable.contains(name)).map(|(_, next)| *next);
    let audited = audit_bases(usable, mark, retain);
    let mut deleted = older.iter().filter(|(_, next)| !audited.contains(next));
    deleted.try_for_each(|(name, _)| blobs.delete(name))
}

/// The ends of older snapshots to keep for audits: those that the log continues, at least half of `retain` bytes of log
/// apart. So at least half of the retained log begins at a known state, and their number does not grow with the log.
fn audit_bases(ends: impl Iterator<Item = Seq>, mark: &Mark, retain: u64) -> Vec<Seq> {
    let floor = mark.extents.first().map_or(mark.next, |extent| extent.first);
    let mut kept = Vec::new();
    let mut last = None;
    for end in ends.filter(|end| retain > 0 && *end >= floor) {
        let at = bytes_before(&mark.extents, end);
        if last.is_none_or(|last: u64| at - last >= retain / 2) {
            kept.push(end);
            last = Some(at);
        }
    }
    kept
}

/// The size of the extents that end before a batch, or at it.
fn bytes_before(extents: &[Extent], seq: Seq) -> u64 {
    let whole = extents.iter().zip(extents.iter().skip(1)).take_while(|(_, next)| next.first <= seq);
    whole.map(|(extent, _)| extent.bytes).sum()
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

/// Plans the truncation of a log after a checkpoint. Retains at least `retain` bytes, and every batch that is not in
/// the older snapshot.
pub fn plan(
    checkpoint: &Checkpoint,
    reader: &mut dyn LogReader,
    mark: &Mark,
    retain: u64,
) -> Result<Option<TruncationPlan>, StoreError> {
    let older = if planted!(FloorAboveOlder) { Some(mark.next) } else { checkpoint.older };
    let Some(floor_max) = older else { return Ok(None) };
    let documents = inline_documents(&checkpoint.kernel);
    let live: u64 = documents.iter().map(|document| document.bytes).sum();
    let mut left: u64 = mark.extents.iter().map(|extent| extent.bytes).sum();
    let mut floor = None;
    for (extent, next) in mark.extents.iter().zip(mark.extents.iter().skip(1)) {
        left -= extent.bytes;
        if next.first > floor_max || left < retain.max(2 * live) {
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
