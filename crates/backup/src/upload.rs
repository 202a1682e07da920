//! Copies a store from a directory to an empty bucket, and verifies the copy.
//!
//! **Invariant.** The parameters of the store are created last, after the copy was recovered from the bucket to the state
//! of the original, and every document was read back. Until then no server opens it: the object `copying` says that
//! the copy is incomplete.
//!
//! **What would break it.** A store that changes meanwhile: so no server may have it open. Verifying what was sent instead
//! of what can be read.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use engine::internals::recovery::recover_from;
use kernel::Shard;
use store::disk::{LogItem, LogView, StoreView, UnusedStore};
use store::frame::frame_len;
use store::object::{ObjectImport, ObjectOptions, ObjectStoreRoot, WriterId};
use store::{Batch, BlobName, BlobStore, ErrorKind, Key, LogStore as _, Lsn, Seq, StoreError};

use crate::bucket_store::{BucketStore, writer};
use crate::copy::CopyReport;
use crate::error::BackupError;
use crate::manifest::ShardEntry;
use crate::pace::{Pace, Progress};
use crate::recovered::{RecoveredShard, Replay, blobs, check_blobs, check_inline, inline_documents};

const PART: usize = 1 << 20;

/// Where the key of the copy is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLocation {
    /// In the store, as `store.key`.
    Store,
    /// In a file outside of it, which the caller keeps.
    Outside,
}

/// Copies the store in a directory, which no server may have open, to a bucket without objects. `key` is the store's, if it
/// is not in the directory.
pub fn upload(
    store: &Path,
    key: Option<&Key>,
    to: &BucketStore,
    key_location: KeyLocation,
    progress: &dyn Progress,
) -> Result<CopyReport, BackupError> {
    let view = StoreView::open(store)?;
    let _unused = UnusedStore::lock(store)?;
    let key = match key {
        Some(key) => *key,
        None => read_key(store)?,
    };
    view.check_key(&key)?;
    let root = ObjectStoreRoot { key, file: view.file(), map: view.map()? };
    let pace = Pace::unlimited(progress);
    let writer = writer();
    let begun = ObjectStoreRoot::begin_copy(&to.objects, &to.policy, writer);
    begun.map_err(|error| to.refused(error))?;
    copy_and_verify(&view, &root, to, writer, &pace, key_location).map_err(|error| {
        error.noted(&format!(
            "the target is incomplete: delete all objects below its prefix: store={}",
            to.url
        ))
    })
}

/// Copies everything, verifies it, and makes a store of it.
fn copy_and_verify(
    view: &StoreView,
    root: &ObjectStoreRoot,
    to: &BucketStore,
    writer: WriterId,
    pace: &Pace<'_>,
    key_location: KeyLocation,
) -> Result<CopyReport, BackupError> {
    let report = CopyReport::new(root.file.store_id);
    let mut upload = Upload { view, to, root, writer, pace, report };
    pace.begin("copying", upload.size()?);
    for shard in 0..root.file.shards {
        upload.shard(shard)?;
    }
    let report = upload.report;
    pace.begin("verifying", report.bytes);
    for expected in &report.shards {
        verify_shard(to, root, expected, pace)?;
    }
    root.finish_copy(&to.objects, &to.policy, key_location == KeyLocation::Outside)?;
    Ok(report)
}

/// The key of a store in a directory.
pub(crate) fn read_key(store: &Path) -> Result<Key, BackupError> {
    let path = store.join("store.key");
    let bytes = fs::read(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => BackupError::Refused(format!(
            "the store key is not in the directory; name its file with --from-key-file: file={}",
            path.display()
        )),
        _ => BackupError::io(&error, "reading a file", &path),
    })?;
    bytes.try_into().map_err(|_| {
        BackupError::Damaged(format!("not a store key, which has 32 bytes: file={}", path.display()))
    })
}

struct Upload<'a> {
    view: &'a StoreView,
    to: &'a BucketStore,
    root: &'a ObjectStoreRoot,
    writer: WriterId,
    pace: &'a Pace<'a>,
    report: CopyReport,
}

impl Upload<'_> {
    /// About the number of bytes to copy: blobs are not counted.
    fn size(&self) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for shard in 0..self.root.file.shards {
            bytes += self.view.extents(shard)?.iter().map(|extent| extent.bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    fn shard(&mut self, shard: u32) -> Result<(), BackupError> {
        let mut log = self.view.log(shard)?;
        let mut replay = Replay::begin(&self.view.blobs(), shard, log.floor())?;
        for name in replay.recovered.snapshots.clone() {
            self.blob(&name)?;
        }
        let next = self.batches(shard, &mut log, &mut replay)?;
        let recovered = replay.finish(next)?;
        self.documents(&recovered)?;
        self.report.shards.push(ShardEntry::of(shard, &recovered));
        Ok(())
    }

    /// Copies the log. A torn last batch was never acknowledged, and ends it.
    fn batches(&mut self, shard: u32, log: &mut LogView, replay: &mut Replay) -> Result<Seq, BackupError> {
        let mut import = None;
        let mut next = log.floor();
        while let LogItem::Batch(batch) = log.read_next()? {
            let (chain, crc) = log.checksums().expect("a batch was just read");
            let import = match &mut import {
                Some(import) => import,
                none => none.insert(self.begin_log(shard, log.floor(), chain)?),
            };
            import.append(&batch)?;
            if import.last_checksum() != crc {
                let what = format!("a copied batch differs from its original: seq={}", batch.seq.0);
                return Err(StoreError::new(ErrorKind::Damaged, what).into());
            }
            replay.apply(&batch)?;
            next = batch.seq.next();
            self.report.count_batch(frame_len(batch.payload.len()) as u64);
            self.pace.advance(frame_len(batch.payload.len()) as u64)?;
        }
        let import = match import {
            Some(import) => import,
            None => self.begin_log(shard, next, log.checksums().map_or(0, |(_, crc)| crc))?,
        };
        import.finish()?;
        Ok(next)
    }

    fn begin_log(&self, shard: u32, floor: Seq, chain: u32) -> Result<ObjectImport, StoreError> {
        let options = ObjectOptions::new(shard, self.root.file.store_id, self.writer);
        ObjectImport::begin(Arc::clone(&self.to.objects), options, self.to.policy.clone(), floor, chain)
    }

    fn documents(&mut self, recovered: &RecoveredShard) -> Result<(), BackupError> {
        for (blob, entry) in blobs(&recovered.kernel) {
            let damage = match self.blob(&blob.name()) {
                Ok((bytes, hash)) => entry.check(bytes, hash),
                Err(BackupError::Store(error)) if error.kind == ErrorKind::Gone => {
                    Some(entry.damage("its blob is missing"))
                }
                Err(error) => return Err(error),
            };
            if let Some(damage) = damage {
                return Err(BackupError::Damaged(format!(
                    "a document cannot be read: {}; `lockd store check` lists all of them: key={} namespace={}",
                    damage.what, damage.key, damage.namespace
                )));
            }
        }
        Ok(())
    }

    /// Copies a blob, and returns its length and its hash.
    fn blob(&mut self, name: &BlobName) -> Result<(u64, [u8; 32]), BackupError> {
        let (from, mut to) = (self.view.blobs(), self.to.blobs().create(name)?);
        let (mut hasher, mut offset) = (blake3::Hasher::new(), 0);
        loop {
            let part = from.read(name, offset, PART)?;
            hasher.update(&part);
            to.write(&part)?;
            self.pace.advance(part.len() as u64)?;
            offset += part.len() as u64;
            if part.len() < PART {
                to.finish()?;
                self.report.count_blob(offset);
                return Ok((offset, *hasher.finalize().as_bytes()));
            }
        }
    }
}

/// Recovers a shard of the copy, compares it with the original, and reads every document.
fn verify_shard(
    to: &BucketStore,
    root: &ObjectStoreRoot,
    expected: &ShardEntry,
    pace: &Pace<'_>,
) -> Result<(), BackupError> {
    let (log, store) = (to.log(expected.shard, root.file.store_id)?, to.blobs());
    let recovered = recover_from(&log, &store, Shard(expected.shard), &mut |_| {});
    let kernel = recovered.map_err(|error| BackupError::recovery(expected.shard, error))?.kernel;
    let bounds = log.bounds();
    let (floor, next, snapshots) = (bounds.floor, bounds.next, Vec::new());
    let recovered = RecoveredShard { kernel, floor, next, snapshots, damaged: Vec::new() };
    let found = ShardEntry::of(expected.shard, &recovered);
    if found != *expected {
        return Err(BackupError::Damaged(format!(
            "the copy leads to another state than its original; do not use it, and report this: expected={expected:?} \
             found={found:?}"
        )));
    }
    let mut damaged = check_blobs(&store, &recovered.kernel, pace)?;
    damaged.extend(check_inline_documents(&log, &recovered, pace)?);
    match damaged.first() {
        None => Ok(()),
        Some(damage) => Err(BackupError::Damaged(format!(
            "a document of the copy cannot be read: {}; do not use it, and copy again: key={} namespace={}",
            damage.what, damage.key, damage.namespace
        ))),
    }
}

/// Reads the log from the oldest batch that has a document.
fn check_inline_documents(
    log: &store::object::ObjectLog,
    recovered: &RecoveredShard,
    pace: &Pace<'_>,
) -> Result<Vec<crate::recovered::DocumentDamage>, BackupError> {
    let wanted = inline_documents(&recovered.kernel);
    let Some(first) = wanted.keys().next().copied() else { return Ok(Vec::new()) };
    let mut reader = log.reader();
    let mut next = match reader.read_lsn(Lsn(first.0)) {
        Ok(batch) => batch.seq,
        Err(error) if error.kind == ErrorKind::Gone => recovered.floor,
        Err(error) => return Err(error.into()),
    };
    let mut read = || -> Result<Option<Batch>, StoreError> {
        if next >= recovered.next {
            return Ok(None);
        }
        let batch = reader.read(next)?;
        next = batch.seq.next();
        Ok(Some(batch))
    };
    check_inline(&mut read, wanted, pace)
}
