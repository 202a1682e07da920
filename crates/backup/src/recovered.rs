//! Recovers a shard without opening its store, and checks the documents that its state refers to.
//!
//! **Invariant.** The same snapshot is chosen as at a start of the server, and the same batches are applied by the same
//! code. Nothing is changed: the store may be in use, or be the only copy.

use std::collections::BTreeMap;

use engine::internals::documents::{BlobId, DocumentLocation};
use engine::internals::record::document_in;
use engine::internals::recovery::{RecoveryError, apply_batch, restore, snapshots};
use engine::observe::DamagedSnapshot;
use kernel::{Cursor, Document, Kernel, Lsn, Namespace, ResourceName, Shard, Version};
use store::disk::{LogItem, StoreView};
use store::frame::frame_len;
use store::{Batch, BlobName, BlobStore, ErrorKind, Seq, StoreError};

use crate::error::BackupError;
use crate::pace::Pace;

/// The state of a shard at the end of its log.
pub struct RecoveredShard {
    /// The state.
    pub kernel: Kernel,
    /// The first batch of the log.
    pub floor: Seq,
    /// The batch after the last.
    pub next: Seq,
    /// Snapshots, newest first. The first was read; the older ones were not.
    pub snapshots: Vec<BlobName>,
    /// Snapshots that cannot be read. The server starts without them.
    pub damaged: Vec<DamagedSnapshot>,
}

/// A state to which batches are applied: the newest readable snapshot at first.
pub(crate) struct Replay {
    pub(crate) recovered: RecoveredShard,
    shard: u32,
    /// The end of the newest snapshot, readable or not.
    newest: Seq,
}

impl Replay {
    /// Restores the newest readable snapshot. `floor` was read before, and the log is read afterwards: then a server may
    /// use the store meanwhile.
    pub(crate) fn begin(blobs: &dyn BlobStore, shard: u32, floor: Seq) -> Result<Replay, BackupError> {
        let (mut base, mut usable, mut damaged, mut newest) = (None, Vec::new(), Vec::new(), Seq(0));
        for (name, next) in snapshots(blobs, Shard(shard))?.into_iter().rev() {
            newest = newest.max(next);
            if base.is_none() {
                match restore(blobs, &name, next)? {
                    Ok(kernel) => base = Some((kernel, next)),
                    Err(found) => {
                        damaged.push(found);
                        continue;
                    }
                }
            }
            usable.push(name);
        }
        let (kernel, from) = match base {
            Some((kernel, from)) if from >= floor => (kernel, from),
            _ if floor == Seq(0) => (Kernel::new(), Seq(0)),
            _ => return Err(BackupError::recovery(shard, RecoveryError::NoSnapshot { floor, damaged })),
        };
        let recovered = RecoveredShard { kernel, floor, next: from, snapshots: usable, damaged };
        Ok(Replay { recovered, shard, newest })
    }

    /// Applies a batch, unless the snapshot contains it.
    pub(crate) fn apply(&mut self, batch: &Batch) -> Result<(), BackupError> {
        if batch.seq < self.recovered.next {
            return Ok(());
        }
        if batch.seq > self.recovered.next {
            let what = format!("batches before this one are not in the log any more: seq={}", batch.seq.0);
            return Err(StoreError::new(ErrorKind::Gone, what).into());
        }
        let applied = apply_batch(&mut self.recovered.kernel, batch);
        applied.map_err(|error| BackupError::recovery(self.shard, error))?;
        self.recovered.next = batch.seq.next();
        Ok(())
    }

    /// Fails if the log ends before the newest snapshot does.
    pub(crate) fn finish(self, log_next: Seq) -> Result<RecoveredShard, BackupError> {
        if log_next < self.newest {
            let (floor, next, snapshot) = (self.recovered.floor, log_next, Some(self.newest));
            return Err(BackupError::recovery(self.shard, RecoveryError::Gap { floor, next, snapshot }));
        }
        Ok(self.recovered)
    }
}

/// Recovers a shard from a store that may be in use. [`ErrorKind::Gone`]: a running server has changed it; try again.
pub fn recover_shard(view: &StoreView, shard: u32, pace: &Pace<'_>) -> Result<RecoveredShard, BackupError> {
    let mut log = view.log(shard)?;
    let mut replay = Replay::begin(&view.blobs(), shard, log.floor())?;
    let mut next = log.floor();
    while let LogItem::Batch(batch) = log.read_next()? {
        pace.advance(frame_len(batch.payload.len()) as u64)?;
        replay.apply(&batch)?;
        next = batch.seq.next();
    }
    replay.finish(next)
}

/// A document that cannot be read as it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentDamage {
    /// The key's namespace.
    pub namespace: Namespace,
    /// The key.
    pub key: ResourceName,
    /// The document's version.
    pub version: Version,
    /// Its blob; `None` if it is in the log.
    pub blob: Option<BlobName>,
    /// The record that should have it, if it is in the log.
    pub lsn: Option<Lsn>,
    /// A description of the damage.
    pub what: String,
}

/// A document that a state refers to.
#[derive(Clone)]
pub(crate) struct DocumentEntry {
    pub(crate) namespace: Namespace,
    pub(crate) key: ResourceName,
    pub(crate) version: Version,
    pub(crate) document: Document,
}

/// All documents of a state.
pub(crate) fn documents(kernel: &Kernel) -> impl Iterator<Item = DocumentEntry> {
    kernel.documents_from(Cursor::default()).filter_map(|(_, namespace, key, view)| {
        Some(DocumentEntry { namespace, key, version: view.version, document: view.document? })
    })
}

/// The blobs of a state, with their documents.
pub(crate) fn blobs(kernel: &Kernel) -> impl Iterator<Item = (BlobId, DocumentEntry)> {
    documents(kernel).filter_map(|entry| match DocumentLocation::of(entry.document.location) {
        DocumentLocation::Blob(blob) => Some((blob, entry)),
        DocumentLocation::Inline { .. } => None,
    })
}

impl DocumentEntry {
    pub(crate) fn damage(&self, what: impl Into<String>) -> DocumentDamage {
        let (blob, lsn) = match DocumentLocation::of(self.document.location) {
            DocumentLocation::Blob(blob) => (Some(blob.name()), None),
            DocumentLocation::Inline { lsn, .. } => (None, Some(lsn)),
        };
        let (namespace, key) = (self.namespace.clone(), self.key.clone());
        DocumentDamage { namespace, key, version: self.version, blob, lsn, what: what.into() }
    }

    /// The damage, if this is not the content that was committed.
    pub(crate) fn check(&self, bytes: u64, hash: [u8; 32]) -> Option<DocumentDamage> {
        if bytes != self.document.bytes {
            return Some(self.damage(format!("it has {bytes} bytes instead of {}", self.document.bytes)));
        }
        (hash != self.document.etag.0).then(|| self.damage("it does not match its hash"))
    }
}

/// Reads every document of a state and compares it with its hash: blobs, and documents in the log.
pub fn check_documents(
    view: &StoreView,
    shard: u32,
    kernel: &Kernel,
    pace: &Pace<'_>,
) -> Result<Vec<DocumentDamage>, BackupError> {
    let mut damaged = check_blobs(&view.blobs(), kernel, pace)?;
    let mut log = view.log(shard)?;
    let mut next = || match log.read_next()? {
        LogItem::Batch(batch) => Ok(Some(batch)),
        LogItem::Torn(_) | LogItem::End => Ok(None),
    };
    damaged.extend(check_inline(&mut next, inline_documents(kernel), pace)?);
    Ok(damaged)
}

/// Reads the blobs of a state and compares them with their hashes.
pub(crate) fn check_blobs(
    store: &dyn BlobStore,
    kernel: &Kernel,
    pace: &Pace<'_>,
) -> Result<Vec<DocumentDamage>, BackupError> {
    let mut damaged = Vec::new();
    for (blob, entry) in blobs(kernel) {
        damaged.extend(check_blob(store, &blob.name(), &entry, pace)?);
    }
    Ok(damaged)
}

/// The documents in the log, by their records.
pub(crate) fn inline_documents(kernel: &Kernel) -> BTreeMap<Lsn, DocumentEntry> {
    let inline = documents(kernel).filter_map(|entry| match DocumentLocation::of(entry.document.location) {
        DocumentLocation::Inline { lsn, .. } => Some((lsn, entry)),
        DocumentLocation::Blob(_) => None,
    });
    inline.collect()
}

/// Reads a blob in parts.
const PART: usize = 1 << 20;

fn check_blob(
    store: &dyn BlobStore,
    name: &BlobName,
    entry: &DocumentEntry,
    pace: &Pace<'_>,
) -> Result<Option<DocumentDamage>, BackupError> {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = 0;
    loop {
        let part = match store.read(name, bytes, PART) {
            Ok(part) => part,
            Err(error) if error.kind == ErrorKind::Gone => {
                return Ok(Some(entry.damage("its blob is missing")));
            }
            Err(error) if error.kind == ErrorKind::Io => return Ok(Some(entry.damage(error.to_string()))),
            Err(error) => return Err(error.into()),
        };
        pace.advance(part.len() as u64)?;
        hasher.update(&part);
        bytes += part.len() as u64;
        if part.len() < PART {
            return Ok(entry.check(bytes, *hasher.finalize().as_bytes()));
        }
    }
}

/// Compares documents in the log with their hashes. `next` reads the log, batch by batch.
pub(crate) fn check_inline(
    next: &mut dyn FnMut() -> Result<Option<Batch>, StoreError>,
    mut wanted: BTreeMap<Lsn, DocumentEntry>,
    pace: &Pace<'_>,
) -> Result<Vec<DocumentDamage>, BackupError> {
    let mut damaged = Vec::new();
    while !wanted.is_empty() {
        let Some(batch) = next()? else { break };
        pace.advance(frame_len(batch.payload.len()) as u64)?;
        let range = Lsn(batch.lsns.first.0)..=Lsn(batch.lsns.last.0);
        let lsns: Vec<Lsn> = wanted.range(range).map(|(lsn, _)| *lsn).collect();
        for lsn in lsns {
            let Some(document) = inline_document(&batch, lsn)? else { continue };
            let entry = wanted.remove(&lsn).expect("it was just listed");
            damaged.extend(entry.check(document.len() as u64, *blake3::hash(&document).as_bytes()));
        }
    }
    damaged.extend(wanted.values().map(|entry| entry.damage("the log has no such record")));
    Ok(damaged)
}

/// The document of a record.
pub(crate) fn inline_document(batch: &Batch, lsn: Lsn) -> Result<Option<Vec<u8>>, StoreError> {
    document_in(&batch.payload, lsn).map_err(|error| {
        let what = format!("a batch of the log cannot be decoded: {error} seq={}", batch.seq.0);
        StoreError::new(ErrorKind::Damaged, what)
    })
}
