//! Copies a store from one location to another: directories and buckets, in any combination.
//!
//! **Invariant.** The source is only read. The target did not exist or was empty, and is complete and verified before a
//! server can open it. The copy has the store's id and key, and the numbers of all batches and records: credentials stay
//! valid, and tokens grow, because the next opening takes an LSN above the last one.
//!
//! **What would break it.** Two servers, one on each: both grant. The caller must keep the old one stopped.

use std::path::{Path, PathBuf};

use store::Key;
use store::disk::{StoreView, UnusedStore};

use crate::bucket_store::BucketStore;
use crate::download::{DownloadOptions, download};
use crate::error::BackupError;
use crate::manifest::{Manifest, ShardEntry};
use crate::pace::{Pace, Progress};
use crate::staging::Staging;
use crate::take::copy_directory;
use crate::upload::{KeyLocation, upload};
use crate::verify::verify_store;

/// The location of a store.
#[derive(Clone, Debug)]
pub enum StoreLocation {
    /// A directory.
    Disk(PathBuf),
    /// A prefix of a bucket.
    Bucket(BucketStore),
}

/// How to copy.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// The key of the source, if it is kept outside of it.
    pub key: Option<Key>,
    /// Where the key of the target is kept.
    pub key_location: KeyLocation,
    /// An existing directory for the intermediate copy from one bucket to another.
    pub scratch: PathBuf,
}

/// A copied store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// The store's id.
    pub store_id: u128,
    /// The state of each shard, in order.
    pub shards: Vec<ShardEntry>,
    /// Batches that were copied.
    pub batches: u64,
    /// Blobs that were copied: documents and snapshots.
    pub blobs: u64,
    /// Bytes of both.
    pub bytes: u64,
}

impl CopyReport {
    pub(crate) fn new(store_id: u128) -> CopyReport {
        CopyReport { store_id, shards: Vec::new(), batches: 0, blobs: 0, bytes: 0 }
    }

    pub(crate) fn count_batch(&mut self, bytes: u64) {
        self.batches += 1;
        self.bytes += bytes;
    }

    pub(crate) fn count_blob(&mut self, bytes: u64) {
        self.blobs += 1;
        self.bytes += bytes;
    }

    /// Leases in all shards.
    pub fn leases(&self) -> u64 {
        self.shards.iter().map(|shard| shard.leases).sum()
    }

    /// Documents in all shards.
    pub fn documents(&self) -> u64 {
        self.shards.iter().map(|shard| shard.documents).sum()
    }

    /// The highest LSN of all shards.
    pub fn last_lsn(&self) -> u64 {
        self.shards.iter().map(|shard| shard.last_lsn).max().unwrap_or_default()
    }

    /// As the manifest that a store is verified against.
    fn manifest(&self) -> Manifest {
        let mut manifest = Manifest::new(self.store_id, 0);
        manifest.shards.clone_from(&self.shards);
        manifest
    }
}

/// Copies a store, and verifies the copy. `on_damage` gets a description of damage that does not prevent a copy.
pub fn copy_store(
    from: &StoreLocation,
    to: &StoreLocation,
    options: &CopyOptions,
    progress: &dyn Progress,
    on_damage: &mut dyn FnMut(String),
) -> Result<CopyReport, BackupError> {
    let key = options.key.as_ref();
    match (from, to) {
        (StoreLocation::Disk(from), StoreLocation::Disk(to)) => {
            disk_to_disk(from, to, options, progress, on_damage)
        }
        (StoreLocation::Disk(from), StoreLocation::Bucket(to)) => {
            upload(from, key, to, options.key_location, progress)
        }
        (StoreLocation::Bucket(from), StoreLocation::Disk(to)) => {
            let staging = Staging::new(to, true)?;
            let report = staged(from, &staging.path, key, progress, on_damage)?;
            verify_store(&staging.path, &report.manifest(), &Pace::unlimited(progress))?;
            publish(staging, options.key_location)?;
            Ok(report)
        }
        (StoreLocation::Bucket(from), StoreLocation::Bucket(to)) => {
            to.check_empty()?;
            let staging = Staging::new(&options.scratch.join("lockd-copy"), false)?;
            let downloaded = staged(from, &staging.path, key, progress, on_damage)?;
            let uploaded = upload(&staging.path, None, to, options.key_location, progress)?;
            if downloaded.shards != uploaded.shards {
                let what =
                    "the copy leads to another state than its original; do not use it, and report this";
                return Err(BackupError::Damaged(what.into()));
            }
            Ok(uploaded)
        }
    }
}

fn staged(
    from: &BucketStore,
    to: &Path,
    key: Option<&Key>,
    progress: &dyn Progress,
    on_damage: &mut dyn FnMut(String),
) -> Result<CopyReport, BackupError> {
    let options = DownloadOptions { key, rate: None, keeps_damage: false };
    download(from, to, &options, progress, on_damage)
}

/// The store in a directory that no server has open.
fn disk_to_disk(
    from: &Path,
    to: &Path,
    options: &CopyOptions,
    progress: &dyn Progress,
    on_damage: &mut dyn FnMut(String),
) -> Result<CopyReport, BackupError> {
    let staging = Staging::new(to, true)?;
    StoreView::open(from)?;
    let _unused = UnusedStore::lock(from)?;
    let manifest = copy_directory(from, options.key.as_ref(), &staging.path, progress, on_damage)?;
    verify_store(&staging.path, &manifest, &Pace::unlimited(progress))?;
    publish(staging, options.key_location)?;
    let mut report = CopyReport::new(StoreView::open(to)?.file().store_id);
    (report.bytes, report.shards) = (manifest.bytes(), manifest.shards);
    Ok(report)
}

/// Gives a verified store its name, without its key if that is kept outside.
fn publish(staging: Staging, key_location: KeyLocation) -> Result<(), BackupError> {
    if key_location == KeyLocation::Outside {
        let key = staging.path.join("store.key");
        std::fs::remove_file(&key).map_err(|error| BackupError::io(&error, "removing", &key))?;
    }
    staging.publish()
}
