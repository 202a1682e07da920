//! One file per blob, written under a temporary name and linked to its own name once it is complete.
//!
//! **Invariant.** A blob under its own name is complete and durable. Temporary files are numbered from 0 in a
//! directory that is emptied when the store is opened, so they never collide with an earlier process's. A
//! long blob is synced while it is written, each part during the write of the next.
//!
//! **What would break it.** Finishing a blob after a failed write or sync: the operating system reports the
//! failure once, and the next sync succeeds without the bytes. So such a blob is never finished. Treating any
//! failure to list a directory as "it is a file": with no descriptors left, a directory would be listed as a
//! blob, and the blobs in it would be missing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::backup_lock::DeletionGuard;
use crate::fs::{File, Fs, PendingSync};
use crate::port::{BlobName, BlobStore, BlobWriter, ErrorKind, StoreError};

/// Blobs below a directory.
pub struct DiskBlobs<F: Fs> {
    fs: F,
    dir: PathBuf,
    /// The name of the next temporary file.
    next_temporary: AtomicU64,
    deletions: DeletionGuard,
}

const TMP: &str = "tmp";
const BY_NAME: &str = "by-name";
/// The unit of syncing, in bytes: one part is synced while the next is written. So at most two parts of a
/// blob are written and not synced: an append's sync on the same disk may wait for them.
const PART: u64 = 2 << 20;

impl<F: Fs> DiskBlobs<F> {
    /// Opens or creates the directory, and removes unfinished blobs of an earlier process.
    pub fn open(fs: F, dir: &Path) -> Result<DiskBlobs<F>, StoreError> {
        let opened = || -> io::Result<()> {
            fs.create_dir_durably(&dir.join(TMP))?;
            for name in fs.list(&dir.join(TMP))? {
                fs.remove(&dir.join(TMP).join(name))?;
            }
            Ok(())
        };
        opened().map_err(|error| {
            StoreError::io(&error, "opening the blob directory").with(format_args!("path={}", dir.display()))
        })?;
        Ok(DiskBlobs::view(fs, dir))
    }

    /// Keeps blobs while a backup reads them: their deletion is postponed.
    pub(super) fn guarded_by(self, deletions: DeletionGuard) -> DiskBlobs<F> {
        DiskBlobs { deletions, ..self }
    }

    /// The blobs of a directory as they are: creates and removes nothing.
    pub(super) fn view(fs: F, dir: &Path) -> DiskBlobs<F> {
        let (next_temporary, deletions) = (AtomicU64::new(0), DeletionGuard::default());
        DiskBlobs { fs, dir: dir.to_path_buf(), next_temporary, deletions }
    }

    fn path(&self, name: &BlobName) -> PathBuf {
        self.dir.join(BY_NAME).join(name.as_str())
    }

    fn open_blob(&self, name: &BlobName) -> Result<F::File, StoreError> {
        self.fs
            .open(&self.path(name))
            .map_err(|error| StoreError::io(&error, "opening a blob").with(format_args!("name={name}")))
    }

    /// Collects blob names recursively. Concurrently deleted blobs may or may not be included.
    fn collect(&self, path: &str, names: &mut Vec<String>) -> io::Result<()> {
        match self.fs.list(&self.dir.join(BY_NAME).join(path)) {
            Ok(listed) => listed.iter().try_for_each(|name| self.collect(&join(path, name), names)),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                names.push(path.to_string());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_string() } else { format!("{dir}/{name}") }
}

impl<F: Fs> BlobStore for DiskBlobs<F> {
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError> {
        let number = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        let tmp = self.dir.join(TMP).join(format!("{number:016x}"));
        let file = self
            .fs
            .create(&tmp)
            .map_err(|error| StoreError::io(&error, "creating a blob").with(format_args!("name={name}")))?;
        let (fs, path) = (self.fs.clone(), self.path(name));
        let dir = self.dir.clone();
        Ok(Box::new(DiskWriter {
            fs,
            dir,
            tmp,
            path,
            file: Arc::new(file),
            length: 0,
            synced: 0,
            syncing: None,
            failed: false,
        }))
    }

    fn len(&self, name: &BlobName) -> Result<u64, StoreError> {
        self.open_blob(name)?
            .length()
            .map_err(|error| StoreError::io(&error, "reading a blob").with(format_args!("name={name}")))
    }

    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; length];
        let read = self.open_blob(name)?.read_at(&mut bytes, offset);
        bytes.truncate(
            read.map_err(|error| StoreError::io(&error, "reading a blob").with(format_args!("name={name}")))?,
        );
        Ok(bytes)
    }

    /// A blob that cannot be opened is not reported here: the read that follows reports it.
    fn evict(&self, name: &BlobName) {
        if let Ok(file) = self.open_blob(name)
            && !planted!(BlobNotEvicted)
        {
            file.evict();
        }
    }

    fn delete(&self, name: &BlobName) -> Result<(), StoreError> {
        let path = self.path(name);
        let Some(permit) = self.deletions.permit() else { return Ok(()) };
        let removed = self.fs.remove(&path);
        drop(permit);
        let removed = match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.and_then(|()| self.fs.sync_dir(path.parent().expect("a blob is in a directory"))),
        };
        removed.map_err(|error| StoreError::io(&error, "deleting a blob").with(format_args!("name={name}")))
    }

    fn list(&self, prefix: &str) -> Result<Vec<BlobName>, StoreError> {
        let mut names = Vec::new();
        self.collect("", &mut names).map_err(|error| StoreError::io(&error, "listing blobs"))?;
        let mut names: Vec<BlobName> = names
            .iter()
            .filter(|name| name.starts_with(prefix))
            .filter_map(|name| BlobName::new(name))
            .collect();
        names.sort_unstable();
        Ok(names)
    }
}

struct DiskWriter<F: Fs> {
    fs: F,
    dir: PathBuf,
    tmp: PathBuf,
    path: PathBuf,
    file: Arc<F::File>,
    length: u64,
    /// The number of bytes that are durable once `syncing` has ended.
    synced: u64,
    syncing: Option<PendingSync>,
    /// A write or a sync has failed.
    failed: bool,
}

impl<F: Fs> DiskWriter<F> {
    /// Creates the parent directories of the blob, and syncs each into its parent.
    fn create_parents(&self) -> io::Result<()> {
        let relative = self.path.strip_prefix(&self.dir).expect("a blob is below the directory");
        let mut dir = self.dir.clone();
        for part in relative.parent().expect("a blob has a name").components() {
            let parent = dir.clone();
            dir.push(part);
            self.fs.create_dir(&dir)?;
            self.fs.sync_dir(&parent)?;
        }
        Ok(())
    }

    /// Writes and syncs part by part, so that few unsynced bytes pile up.
    fn write_parts(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let left = usize::try_from(PART - (self.length - self.synced)).expect("at most a part");
            let (part, rest) = bytes.split_at(left.min(bytes.len()));
            self.file.write_at(part, self.length)?;
            self.length += part.len() as u64;
            if self.length - self.synced == PART {
                self.wait_for_sync()?;
                self.syncing = Some(self.file.begin_sync());
                self.synced = self.length;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Bytes that were lost once stay lost, even if a later sync succeeds.
    fn check_not_failed(&self) -> io::Result<()> {
        if self.failed { Err(io::Error::other("an earlier write or sync failed")) } else { Ok(()) }
    }

    fn wait_for_sync(&mut self) -> io::Result<()> {
        self.syncing.take().map_or(Ok(()), PendingSync::wait)
    }

    /// Syncs the temporary file, and only then links it to its name. The link fails if the name is in use.
    fn publish(&mut self) -> io::Result<()> {
        self.check_not_failed()?;
        self.wait_for_sync()?;
        if !planted!(BlobUnsynced) {
            self.file.sync()?;
        }
        self.create_parents()?;
        self.fs.link(&self.tmp, &self.path)?;
        if planted!(BlobNameUnsynced) {
            return Ok(());
        }
        self.fs.sync_dir(self.path.parent().expect("a blob is in a directory"))
    }
}

impl<F: Fs> BlobWriter for DiskWriter<F> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.check_not_failed().and_then(|()| self.write_parts(bytes));
        self.failed |= written.is_err();
        written.map_err(|error| StoreError::io(&error, "writing a blob"))
    }

    fn finish(mut self: Box<Self>) -> Result<u64, StoreError> {
        match self.publish() {
            Ok(()) => Ok(self.length),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let what = format!("the blob exists already: file={}", self.path.display());
                Err(StoreError::new(ErrorKind::Taken, what))
            }
            Err(error) => Err(StoreError::io(&error, "finishing a blob")),
        }
    }
}

impl<F: Fs> Drop for DiskWriter<F> {
    /// If this fails, the next opening of the store removes the file.
    fn drop(&mut self) {
        let _ = self.fs.remove(&self.tmp);
    }
}
