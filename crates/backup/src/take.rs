//! Takes a backup of a store, which a server may have open.
//!
//! **Invariant.** For each shard the copy has a prefix of its log, a snapshot that it continues, and every document that
//! the state at the end of that prefix refers to; for the store, its parameters, its map of slots and its key. It was
//! recovered a second time, from the copy alone, to the same state.
//!
//! **What would break it.** Reading the log before the hold begins: a document is superseded after the log was read, and
//! its blob is deleted before it is copied. Reading the floor after the snapshots were listed: two checkpoints meanwhile raise
//! it past the end of all of them. Listing snapshots after the log was read: a new one ends after the copied log,
//! which then looks truncated. So: hold, floor, snapshots, log, blobs; the hold ends when the last blob is copied.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kernel::Kernel;
use store::disk::{BackupHold, CopiedFile, FileDigest, LogCopy, StoreView};
use store::frame::frame_len;
use store::{Batch, BlobName, BlobStore, ErrorKind, Key, StoreError};

use crate::archive;
use crate::error::BackupError;
use crate::manifest::{FileEntry, Manifest, NAME, STORE, ShardEntry};
use crate::pace::{Pace, Progress};
use crate::recovered::{Replay, blobs};
use crate::staging::{Staging, sync_directories};
use crate::verify::verify_directory;

/// How to take a backup.
#[derive(Clone, Copy, Debug)]
pub struct BackupOptions {
    /// The key of the store, if it is not in its directory.
    pub key: Option<Key>,
    /// The wall clock, in milliseconds since 1970.
    pub now_unix_ms: u64,
    /// The highest rate in bytes per second, at which the copy works for at most a tenth of the time. `None` is unlimited, for
    /// a store that is not in use.
    pub rate: Option<u64>,
    /// How long the store may be held: until then it deletes nothing.
    pub timeout: Duration,
}

/// How often the copy is begun again because a server was restarted meanwhile.
const ATTEMPTS: u32 = 5;
const PART: usize = 1 << 20;

/// Takes a backup of the store in a directory, as a directory, or as one file if the name ends with `.tar`. Nothing is
/// overwritten. `on_damage` gets a description of damage that does not prevent a backup.
pub fn take(
    store: &Path,
    to: &Path,
    options: &BackupOptions,
    progress: &dyn Progress,
    on_damage: &mut dyn FnMut(String),
) -> Result<Manifest, BackupError> {
    let target = Staging::new(to, false)?;
    let copied = if is_archive(to) { Staging::new(&directory_of(to), false)? } else { target };
    // Refuses before anything is written.
    StoreView::open(store)?;
    let manifest = copy_again(store, &copied.path, options, progress, on_damage)?;
    let pace = Pace::beside_server(progress, options.rate, Duration::MAX);
    let verified = verify_directory(&copied.path, &pace)?;
    pace.rest();
    debug_assert_eq!(verified, manifest, "a manifest is read as it was written");
    if is_archive(to) {
        let archive = Staging::new(to, false)?;
        // Its writes compete with those of the server as much as the copy's.
        archive::pack(&copied.path, &manifest, &archive.path, &pace)?;
        archive.publish()?;
        pace.rest();
    } else {
        copied.publish()?;
    }
    Ok(manifest)
}

/// Whether a backup of this name is one file.
pub fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tar")
}

/// A name for the directory that becomes an archive.
fn directory_of(archive: &Path) -> PathBuf {
    let mut name = archive.file_name().unwrap_or_default().to_os_string();
    name.push(".d");
    archive.with_file_name(name)
}

fn copy_again(
    store: &Path,
    to: &Path,
    options: &BackupOptions,
    progress: &dyn Progress,
    on_damage: &mut dyn FnMut(String),
) -> Result<Manifest, BackupError> {
    let pace = Pace::beside_server(progress, options.rate, options.timeout);
    for attempt in 1.. {
        match copy(store, to, options, &pace, on_damage) {
            // A restart of the server has replaced the end of a log.
            Err(BackupError::Store(error)) if error.kind == ErrorKind::Gone && attempt < ATTEMPTS => {
                fs::remove_dir_all(to).map_err(|error| BackupError::io(&error, "removing", to))?;
            }
            done => {
                let manifest = done?;
                pace.rest();
                return Ok(manifest);
            }
        }
    }
    unreachable!("the last attempt returns")
}

fn copy(
    store: &Path,
    to: &Path,
    options: &BackupOptions,
    pace: &Pace<'_>,
    on_damage: &mut dyn FnMut(String),
) -> Result<Manifest, BackupError> {
    let hold = if planted!(BackupUnheld) { None } else { Some(BackupHold::take(store)?) };
    let view = StoreView::open(store)?;
    pace.begin("copying", size_of(&view)?);
    let mut copy = StoreCopy { view: &view, store, root: to, to: to.join(STORE), files: Vec::new(), pace };
    copy.parameters(options.key.as_ref())?;
    let mut manifest = Manifest::new(view.file().store_id, options.now_unix_ms);
    for shard in 0..view.file().shards {
        manifest.shards.push(copy.shard(shard, on_damage)?);
    }
    drop(hold);
    manifest.files = copy.files;
    let manifest = manifest.seal();
    let mut file = CopiedFile::create(&to.join(NAME))?;
    file.write(&manifest.encode())?;
    file.finish()?;
    sync_directories(to).map_err(|error| BackupError::io(&error, "syncing", to))?;
    Ok(manifest)
}

/// Copies a store that no server has open to a directory that does not exist. `key` is the store's, if it is not in its
/// directory.
pub(crate) fn copy_directory(
    store: &Path,
    key: Option<&Key>,
    to: &Path,
    progress: &dyn Progress,
    on_damage: &mut dyn FnMut(String),
) -> Result<Manifest, BackupError> {
    let (view, pace) = (StoreView::open(store)?, Pace::unlimited(progress));
    pace.begin("copying", size_of(&view)?);
    let mut copy =
        StoreCopy { view: &view, store, root: to, to: to.to_path_buf(), files: Vec::new(), pace: &pace };
    let mut manifest = Manifest::new(view.file().store_id, 0);
    for shard in 0..view.file().shards {
        manifest.shards.push(copy.shard(shard, on_damage)?);
    }
    copy.parameters(key)?;
    manifest.files = copy.files;
    Ok(manifest)
}

/// About the number of bytes to copy: blobs are not counted.
fn size_of(view: &StoreView) -> Result<u64, StoreError> {
    let mut bytes = 0;
    for shard in 0..view.file().shards {
        bytes += view.extents(shard)?.iter().map(|extent| extent.bytes).sum::<u64>();
    }
    Ok(bytes)
}

/// A copy in progress.
struct StoreCopy<'a> {
    view: &'a StoreView,
    store: &'a Path,
    /// The backup, and the store in it.
    root: &'a Path,
    to: PathBuf,
    files: Vec<FileEntry>,
    pace: &'a Pace<'a>,
}

impl StoreCopy<'_> {
    /// Copies the key, which is in the store or is passed, the map of slots and the parameters.
    fn parameters(&mut self, key: Option<&Key>) -> Result<(), BackupError> {
        let key = key.map_or_else(|| self.key(), |key| Ok(*key))?;
        self.view.check_key(&key)?;
        self.view.check_map()?;
        let mut file = CopiedFile::create(&self.to.join("store.key"))?;
        file.write(&key)?;
        self.add(&file.finish()?);
        for name in self.maps()? {
            self.small_file(&format!("map/{name}"))?;
        }
        self.small_file("store")
    }

    fn key(&self) -> Result<Key, BackupError> {
        let key = self.store.join("store.key");
        let bytes = match fs::read(&key) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(BackupError::Refused(format!(
                    "the store key is missing, and without it a backup is worthless; restore it first: file={}",
                    key.display()
                )));
            }
            read => read.map_err(|error| BackupError::io(&error, "reading a file", &key))?,
        };
        bytes.try_into().map_err(|_| {
            BackupError::Damaged(format!("not a store key, which has 32 bytes: file={}", key.display()))
        })
    }

    /// The numbers of the maps; a store of format 1 has none.
    fn maps(&self) -> Result<Vec<u64>, BackupError> {
        let dir = self.store.join("map");
        let failed = |error: io::Error| BackupError::io(&error, "listing", &dir);
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(failed)?,
        };
        let names = entries.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        Ok(names.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    fn small_file(&mut self, name: &str) -> Result<(), BackupError> {
        let path = self.store.join(name);
        let bytes = fs::read(&path).map_err(|error| BackupError::io(&error, "reading a file", &path))?;
        let mut file = CopiedFile::create(&self.to.join(name))?;
        file.write(&bytes)?;
        self.add(&file.finish()?);
        Ok(())
    }

    fn add(&mut self, digest: &FileDigest) {
        self.files.push(FileEntry::of(digest, self.root));
    }

    fn shard(&mut self, shard: u32, on_damage: &mut dyn FnMut(String)) -> Result<ShardEntry, BackupError> {
        // Opened before the snapshots are listed: its floor may rise meanwhile, past all of them.
        let log = self.view.log(shard)?;
        let mut replay = Replay::begin(&self.view.blobs(), shard, log.floor())?;
        for damaged in &replay.recovered.damaged {
            on_damage(format!("a damaged snapshot was left out: {damaged}"));
        }
        for name in replay.recovered.snapshots.clone() {
            self.blob(&name)?;
        }
        let pace = self.pace;
        let mut on_batch = |batch: &Batch| -> Result<(), BackupError> {
            pace.advance(frame_len(batch.payload.len()) as u64)?;
            replay.apply(batch)
        };
        let LogCopy { next, files, .. } = self.view.copy_log(shard, log, &self.to, &mut on_batch)?;
        for digest in &files {
            self.add(digest);
        }
        let recovered = replay.finish(next)?;
        self.documents(&recovered.kernel)?;
        Ok(ShardEntry::of(shard, &recovered))
    }

    /// Copies the documents that are not in the log.
    fn documents(&mut self, kernel: &Kernel) -> Result<(), BackupError> {
        for (blob, entry) in blobs(kernel) {
            let copied = match self.blob(&blob.name()) {
                Err(BackupError::Store(error)) if error.kind == ErrorKind::Gone => {
                    Err(entry.damage("its blob is missing"))
                }
                copied => {
                    let digest = copied?;
                    entry.check(digest.bytes, digest.hash).map_or(Ok(()), Err)
                }
            };
            copied.map_err(|damage| {
                BackupError::Damaged(format!(
                    "a document cannot be read: {}; `lockd store check` lists all of them: key={} namespace={}",
                    damage.what, damage.key, damage.namespace
                ))
            })?;
        }
        Ok(())
    }

    fn blob(&mut self, name: &BlobName) -> Result<FileDigest, BackupError> {
        let store = self.view.blobs();
        let mut file = CopiedFile::create(&self.to.join("blob/by-name").join(name.as_str()))?;
        let mut offset = 0;
        loop {
            let part = store.read(name, offset, PART)?;
            file.write(&part)?;
            self.pace.advance(part.len() as u64)?;
            offset += part.len() as u64;
            if part.len() < PART {
                let digest = file.finish()?;
                self.add(&digest);
                return Ok(digest);
            }
        }
    }
}
