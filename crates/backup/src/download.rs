//! Copies a store from a bucket to a directory, as it is at one moment, while a server may use it.
//!
//! **Invariant.** For each shard the copy has the log from its floor to an end that it had during the copy, a snapshot that
//! the log continues, and every document that the state at that end refers to. Nothing is written to the bucket.
//!
//! **What would break it.** A server deletes what its floor has passed, old snapshots and replaced documents, and nothing
//! can hold it back as on a disk. So an object that is missing begins the copy again, a bounded number of times, unless the
//! log shows that no server has changed it: then it is damage. Listing the snapshots after the end of the log was
//! found: a new one could end after it, and the log would look truncated. So the log is read to its end once more.

use std::fs;
use std::path::Path;

use engine::internals::recovery::snapshots;
use kernel::Shard;
use store::disk::{CopiedFile, FileDigest, LogImport, create_store};
use store::frame::frame_len;
use store::object::{ObjectLog, ObjectStoreRoot};
use store::{BlobName, BlobStore, ErrorKind, Key, LogStore, Seq, StoreError};

use crate::bucket_store::BucketStore;
use crate::copy::CopyReport;
use crate::error::BackupError;
use crate::manifest::ShardEntry;
use crate::pace::{Pace, Progress};
use crate::recovered::{DocumentEntry, RecoveredShard, Replay, blobs};
use crate::staging::sync_directories;

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub struct DownloadOptions<'a> {
    /// The store key, if the bucket has none.
    pub key: Option<&'a Key>,
    /// The highest rate in bytes per second; `None` is unlimited.
    pub rate: Option<u64>,
    /// Copies damaged snapshots and documents as they are, and leaves out missing ones: for a check. Otherwise a document
    /// that cannot be read ends the copy.
    pub keeps_damage: bool,
}

/// How often the copy is begun again because a server has changed the store meanwhile.
const ATTEMPTS: u32 = 5;
const PART: usize = 1 << 20;

/// Copies a store to a directory that does not exist. `on_damage` gets a description of damage that does not prevent a
/// copy.
pub fn download(
    from: &BucketStore,
    to: &Path,
    options: &DownloadOptions<'_>,
    progress: &dyn Progress,
    on_damage: &mut dyn FnMut(String),
) -> Result<CopyReport, BackupError> {
    let pace = Pace::start(progress, options.rate, std::time::Duration::MAX);
    for attempt in 1.. {
        match attempt_download(from, to, options, &pace, on_damage) {
            Err(BackupError::Store(error)) if error.kind == ErrorKind::Gone && attempt < ATTEMPTS => {
                remove(to)?;
            }
            Err(BackupError::Store(error)) if error.kind == ErrorKind::Gone && to.exists() => {
                let what = "a server changes the store faster than it can be copied; stop it, or copy again when it has less \
                            to do";
                return Err(BackupError::Refused(format!("{what}: {error}")));
            }
            done => return done,
        }
    }
    unreachable!("the last attempt returns")
}

fn remove(dir: &Path) -> Result<(), BackupError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(BackupError::io(&error, "removing", dir))
        }
        _ => Ok(()),
    }
}

fn attempt_download(
    from: &BucketStore,
    to: &Path,
    options: &DownloadOptions<'_>,
    pace: &Pace<'_>,
    on_damage: &mut dyn FnMut(String),
) -> Result<CopyReport, BackupError> {
    let root = from.root(options.key)?;
    let logs = (0..root.file.shards).map(|shard| from.log(shard, root.file.store_id));
    let logs = logs.collect::<Result<Vec<_>, _>>()?;
    store::private::create_dir(to).map_err(|error| BackupError::io(&error, "creating", to))?;
    pace.begin("copying", logs.iter().map(log_bytes).sum());
    let report = CopyReport::new(root.file.store_id);
    let mut copy = Download { from, root: &root, to, options, pace, report };
    for (shard, log) in (0..).zip(logs) {
        copy.shard(shard, log, on_damage)?;
    }
    create_store(to, root.file, &root.map, &root.key)?;
    sync_directories(to).map_err(|error| BackupError::io(&error, "syncing", to))?;
    Ok(copy.report)
}

pub(crate) fn log_bytes(log: &ObjectLog) -> u64 {
    log.extents().iter().map(|extent| extent.bytes).sum()
}

struct Download<'a> {
    from: &'a BucketStore,
    root: &'a ObjectStoreRoot,
    to: &'a Path,
    options: &'a DownloadOptions<'a>,
    pace: &'a Pace<'a>,
    report: CopyReport,
}

impl Download<'_> {
    fn shard(
        &mut self,
        shard: u32,
        mut log: ObjectLog,
        on_damage: &mut dyn FnMut(String),
    ) -> Result<(), BackupError> {
        let (blobs, floor) = (self.from.blobs(), log.bounds().floor);
        let mut replay = Replay::begin(&blobs, shard, floor)?;
        if log.catch_up()?.floor != floor {
            return Err(truncated());
        }
        for damaged in &replay.recovered.damaged {
            on_damage(format!("a damaged snapshot was left out: {damaged}"));
        }
        for name in self.snapshots(shard, &replay.recovered)? {
            self.blob(&name)?;
        }
        self.batches(shard, &log, &mut replay)?;
        let recovered = replay.finish(log.bounds().next)?;
        for (blob, entry) in blobs_of(&recovered) {
            self.document(&blob, &entry, &mut log)?;
        }
        self.report.shards.push(ShardEntry::of(shard, &recovered));
        Ok(())
    }

    /// The snapshots to copy: a check also wants the damaged ones.
    fn snapshots(&self, shard: u32, recovered: &RecoveredShard) -> Result<Vec<BlobName>, BackupError> {
        if !self.options.keeps_damage {
            return Ok(recovered.snapshots.clone());
        }
        Ok(snapshots(&self.from.blobs(), Shard(shard))?.into_iter().map(|(name, _)| name).collect())
    }

    fn batches(&mut self, shard: u32, log: &ObjectLog, replay: &mut Replay) -> Result<(), BackupError> {
        let (bounds, (chain, last)) = (log.bounds(), log.checksums());
        let mut copy = LogImport::begin(self.to, shard, self.root.file.store_id, bounds.floor, chain);
        let mut reader = log.reader();
        for seq in (bounds.floor.0..bounds.next.0).map(Seq) {
            let batch = reader.read(seq)?;
            copy.append(&batch)?;
            replay.apply(&batch)?;
            self.report.count_batch(frame_len(batch.payload.len()) as u64);
            self.pace.advance(frame_len(batch.payload.len()) as u64)?;
        }
        if copy.finish()? != last {
            let what = format!("a copied log differs from its original: shard={shard}");
            return Err(StoreError::new(ErrorKind::Damaged, what).into());
        }
        Ok(())
    }

    fn document(
        &mut self,
        name: &BlobName,
        entry: &DocumentEntry,
        log: &mut ObjectLog,
    ) -> Result<(), BackupError> {
        let damage = match self.blob(name) {
            Ok(digest) => entry.check(digest.bytes, digest.hash),
            Err(BackupError::Store(error)) if error.kind == ErrorKind::Gone => {
                let next = log.bounds().next;
                if log.catch_up()?.next != next {
                    return Err(error.into());
                }
                Some(entry.damage("its blob is missing"))
            }
            Err(error) => return Err(error),
        };
        match damage.filter(|_| !self.options.keeps_damage) {
            None => Ok(()),
            Some(damage) => Err(BackupError::Damaged(format!(
                "a document cannot be read: {}; `lockd store check` lists all of them: key={} namespace={}",
                damage.what, damage.key, damage.namespace
            ))),
        }
    }

    fn blob(&mut self, name: &BlobName) -> Result<FileDigest, BackupError> {
        let store = self.from.blobs();
        // Fails before a file is created if the blob is missing.
        let mut part = store.read(name, 0, PART)?;
        let mut file = CopiedFile::create(&self.to.join("blob/by-name").join(name.as_str()))?;
        let mut offset = 0;
        loop {
            file.write(&part)?;
            self.pace.advance(part.len() as u64)?;
            offset += part.len() as u64;
            if part.len() < PART {
                self.report.count_blob(offset);
                return Ok(file.finish()?);
            }
            part = store.read(name, offset, PART)?;
        }
    }
}

fn blobs_of(recovered: &RecoveredShard) -> Vec<(BlobName, DocumentEntry)> {
    blobs(&recovered.kernel).map(|(blob, entry)| (blob.name(), entry)).collect()
}

fn truncated() -> BackupError {
    StoreError::new(ErrorKind::Gone, "the log was truncated while it was read").into()
}
