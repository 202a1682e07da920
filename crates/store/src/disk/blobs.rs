//! A file for each blob, made under another name and linked to its own when it is whole.
//!
//! **Invariant.** A blob that has its name is whole and durable. Files under way are numbered from 0 in a
//! directory that is emptied when the store is opened, so none meets one of an earlier process. A long one is synced
//! as it grows, each part while the next is written.
//!
//! **What would break it.** To finish a blob after a write or a sync of it failed: the operating system
//! reports that once, and the next sync succeeds without the bytes. So such a blob is never finished. To take
//! any failure to list a directory for a file: with no descriptors left, a directory would become a blob and
//! those in it would vanish from the list.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sync_above;
use crate::fs::{File, Fs, Syncing};
use crate::port::{BlobName, BlobStore, BlobWriter, ErrorKind, StoreError};

/// Blobs below a directory.
pub struct DiskBlobs<F: Fs> {
    fs: F,
    dir: PathBuf,
    /// Names files under way.
    made: AtomicU64,
}

const TMP: &str = "tmp";
/// While one of these is synced, the next is written. What of a blob is written and not synced is at most two of them: an
/// append's sync on the same disk may have to wait behind it.
const PART: u64 = 2 << 20;

impl<F: Fs> DiskBlobs<F> {
    /// Opens the directory, or makes it, and removes what was under way when it was last in use.
    pub fn open(fs: F, dir: &Path) -> Result<DiskBlobs<F>, StoreError> {
        let opened = || -> io::Result<()> {
            fs.create_dir(dir)?;
            fs.create_dir(&dir.join(TMP))?;
            fs.sync_dir(dir)?;
            sync_above(&fs, dir)?;
            for name in fs.list(&dir.join(TMP))? {
                fs.remove(&dir.join(TMP).join(name))?;
            }
            Ok(())
        };
        opened().map_err(|error| StoreError::io(&error, "opening the blobs' directory"))?;
        Ok(DiskBlobs { fs, dir: dir.to_path_buf(), made: AtomicU64::new(0) })
    }

    fn path(&self, name: &BlobName) -> PathBuf {
        self.dir.join("by-name").join(name.as_str())
    }

    fn open_blob(&self, name: &BlobName) -> Result<F::File, StoreError> {
        self.fs.open(&self.path(name)).map_err(|error| StoreError::io(&error, format!("opening blob {name}")))
    }

    /// A blob's name, or those below a directory, in depth. What is deleted meanwhile may be among them or not.
    fn collect(&self, path: &str, names: &mut Vec<String>) -> io::Result<()> {
        match self.fs.list(&self.dir.join("by-name").join(path)) {
            Ok(listed) => listed.iter().try_for_each(|name| self.collect(&below(path, name), names)),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                names.push(path.to_string());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn below(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_string() } else { format!("{dir}/{name}") }
}

impl<F: Fs> BlobStore for DiskBlobs<F> {
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let tmp = self.dir.join(TMP).join(format!("{number:016x}"));
        let file =
            self.fs.create(&tmp).map_err(|error| StoreError::io(&error, format!("beginning blob {name}")))?;
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
        self.open_blob(name)?.length().map_err(|error| StoreError::io(&error, format!("reading blob {name}")))
    }

    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; length];
        let read = self.open_blob(name)?.read_at(&mut bytes, offset);
        bytes.truncate(read.map_err(|error| StoreError::io(&error, format!("reading blob {name}")))?);
        Ok(bytes)
    }

    fn delete(&self, name: &BlobName) -> Result<(), StoreError> {
        let path = self.path(name);
        let removed = match self.fs.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.and_then(|()| self.fs.sync_dir(path.parent().expect("a blob is in a directory"))),
        };
        removed.map_err(|error| StoreError::io(&error, format!("deleting blob {name}")))
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
    /// How much of it is durable, once `syncing` has ended.
    synced: u64,
    syncing: Option<Syncing>,
    /// A write or a sync failed.
    failed: bool,
}

impl<F: Fs> DiskWriter<F> {
    /// The directories of a name, each synced into the one above it.
    fn make_way(&self) -> io::Result<()> {
        let below = self.path.strip_prefix(&self.dir).expect("a blob is below the directory");
        let mut dir = self.dir.clone();
        for part in below.parent().expect("a blob has a name").components() {
            let above = dir.clone();
            dir.push(part);
            self.fs.create_dir(&dir)?;
            self.fs.sync_dir(&above)?;
        }
        Ok(())
    }

    /// In parts, so that little is ever waiting to be synced.
    fn write_parts(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = usize::try_from(PART - (self.length - self.synced)).expect("at most a part");
            let (part, rest) = bytes.split_at(room.min(bytes.len()));
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

    /// What was lost once stays lost, whatever a later sync says.
    fn go_on(&self) -> io::Result<()> {
        if self.failed { Err(io::Error::other("a part of it could not be written")) } else { Ok(()) }
    }

    fn wait_for_sync(&mut self) -> io::Result<()> {
        self.syncing.take().map_or(Ok(()), Syncing::wait)
    }

    /// Whole and synced under its other name, and only then linked: a link fails if the name is in use.
    fn publish(&mut self) -> io::Result<()> {
        self.go_on()?;
        self.wait_for_sync()?;
        if !planted!(BlobUnsynced) {
            self.file.sync()?;
        }
        self.make_way()?;
        self.fs.link(&self.tmp, &self.path)?;
        if planted!(BlobNameUnsynced) {
            return Ok(());
        }
        self.fs.sync_dir(self.path.parent().expect("a blob is in a directory"))
    }
}

impl<F: Fs> BlobWriter for DiskWriter<F> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.go_on().and_then(|()| self.write_parts(bytes));
        self.failed |= written.is_err();
        written.map_err(|error| StoreError::io(&error, "writing a blob"))
    }

    fn finish(mut self: Box<Self>) -> Result<u64, StoreError> {
        match self.publish() {
            Ok(()) => Ok(self.length),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(StoreError::new(ErrorKind::Taken, "a blob of this name is there already"))
            }
            Err(error) => Err(StoreError::io(&error, "finishing a blob")),
        }
    }
}

impl<F: Fs> Drop for DiskWriter<F> {
    /// If this fails, the file goes when the store is opened next.
    fn drop(&mut self) {
        let _ = self.fs.remove(&self.tmp);
    }
}
