//! Copies a log to another directory while a server may append to it.
//!
//! **Invariant.** The copy is a prefix of the log, from its floor: a store that opens, with every frame as it was written.
//! The mark of the last clean stop was read before the log, so the copy contains the batch that it names. The caller holds
//! a [`BackupHold`](super::BackupHold), so that no segment is removed meanwhile.
//!
//! **What would break it.** Reading the mark last: a server that appends and then stops in between leaves a mark that
//! names a batch which the copy lacks, and the copy counts as damaged. Copying a segment by its bytes: the end of the last
//! one is being written, and a restart of the server replaces it. Copying until the log has no more batches: a server that
//! appends faster than it is copied is followed until the timeout. So the copy ends with the segments that there were.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::inspect::{FramePlace, LogItem, LogView, StoreView};
use super::{clean_stop, floor};
use crate::frame::{SegmentHeader, encode_frame};
use crate::fs::File as _;
use crate::port::{Batch, ErrorKind, Seq, StoreError};
use crate::private;

/// A copied log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogCopy {
    /// The first batch of the copy.
    pub floor: Seq,
    /// The batch after its last.
    pub next: Seq,
    /// Its files.
    pub files: Vec<FileDigest>,
}

/// The length and the content hash of a file, as it was meant to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// BLAKE3 of its content.
    pub hash: [u8; 32],
}

/// A file of a copy: created with mode 0600, and durable once it is finished.
pub struct CopiedFile {
    path: PathBuf,
    file: File,
    hasher: blake3::Hasher,
    length: u64,
    /// The bytes whose writeback was started.
    started: u64,
}

impl CopiedFile {
    /// Bytes whose writeback is started together. A server on the same disk waits for at most this much in its own syncs.
    /// Syncs of the copy would each be a flush of the device and a commit of the filesystem's journal, for which the
    /// server waits too; so there is one at the end of each file.
    const PART: u64 = CopiedFile::PART_LEN as u64;
    const PART_LEN: usize = 256 << 10;

    /// Creates a file that does not exist, and its directories.
    pub fn create(path: &Path) -> Result<CopiedFile, StoreError> {
        let dir = path.parent().expect("a file is in a directory");
        let file = private::create_dir(dir).and_then(|()| private::create_file(path));
        let file = file.map_err(|error| writing(&error, path))?;
        let (path, hasher) = (path.to_path_buf(), blake3::Hasher::new());
        Ok(CopiedFile { path, file, hasher, length: 0, started: 0 })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.hasher.update(bytes);
        for part in bytes.chunks(CopiedFile::PART_LEN) {
            self.file.write_all(part).map_err(|error| writing(&error, &self.path))?;
            self.length += part.len() as u64;
            if self.length - self.started >= CopiedFile::PART {
                self.started = self.length;
                // Starts to write dirty pages to the device, and drops clean ones.
                self.file.evict();
            }
        }
        Ok(())
    }

    /// Makes the file durable, and drops it from the page cache, so that it is verified from the device. Its name is
    /// durable once its directory is synced.
    pub fn finish(self) -> Result<FileDigest, StoreError> {
        self.file.sync_all().map_err(|error| writing(&error, &self.path))?;
        self.file.evict();
        let hash = *self.hasher.finalize().as_bytes();
        Ok(FileDigest { path: self.path, bytes: self.length, hash })
    }
}

impl StoreView {
    /// Copies a log, of one shard and from the floor that it was opened with, into a store below `to`, and passes every
    /// batch to `on_batch` as it is copied. A log without any batch is copied as none. Segments that are begun meanwhile
    /// are not copied.
    ///
    /// [`ErrorKind::Gone`] if a restart of the server changed the log meanwhile: remove the copy, and copy again.
    pub fn copy_log<E: From<StoreError>>(
        &self,
        shard: u32,
        mut log: LogView,
        to: &Path,
        on_batch: &mut dyn FnMut(&Batch) -> Result<(), E>,
    ) -> Result<LogCopy, E> {
        let to = to.join("log").join(shard.to_string());
        let newest = self.extents(shard)?.last().map(|extent| extent.first);
        let mut copy = LogWriter { to, shard, view: self, open: None, files: Vec::new() };
        let mut last = None;
        while let LogItem::Batch(batch) = log.read_next()? {
            let place = log.last().expect("a batch was just read");
            if last.is_some() && newest.is_some_and(|newest| place.segment > newest) {
                break;
            }
            last = Some(place);
            copy.append(&batch, place)?;
            on_batch(&batch)?;
        }
        let last = last.or_else(|| log.last());
        Ok(copy.finish(&log, last)?)
    }
}

/// Writes the segments of a copy: one for each of the original's, the first from the floor on.
struct LogWriter<'a> {
    to: PathBuf,
    shard: u32,
    view: &'a StoreView,
    /// The segment of the original, and its copy.
    open: Option<(Seq, CopiedFile)>,
    files: Vec<FileDigest>,
}

impl LogWriter<'_> {
    fn append(&mut self, batch: &Batch, place: FramePlace) -> Result<(), StoreError> {
        if self.open.as_ref().is_none_or(|(segment, _)| *segment != place.segment) {
            self.close()?;
            self.open = Some((place.segment, self.begin(batch.seq, place.chain)?));
        }
        let (frame, crc) = encode_frame(batch.seq, batch.lsns, &batch.payload, place.chain);
        if crc != place.crc {
            let what = format!("a copied frame differs from its original: seq={}", batch.seq.0);
            return Err(StoreError::new(ErrorKind::Damaged, what));
        }
        self.open.as_mut().expect("it was just opened").1.write(&frame)
    }

    fn begin(&self, first: Seq, chain: u32) -> Result<CopiedFile, StoreError> {
        let store_id = self.view.file().store_id;
        let mut file = CopiedFile::create(&self.to.join(format!("{:016x}.seg", first.0)))?;
        file.write(&SegmentHeader { shard: self.shard, store_id, first, chain }.encode())?;
        Ok(file)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        if let Some((_, file)) = self.open.take() {
            self.files.push(file.finish()?);
        }
        Ok(())
    }

    /// Writes floor and mark. A log whose batches are all below the floor is copied as an empty segment. `last` is the
    /// place of the last frame of the copy.
    fn finish(mut self, log: &LogView, last: Option<FramePlace>) -> Result<LogCopy, StoreError> {
        let floor = log.floor();
        let next = last.map_or(floor, |last| last.next);
        if let (None, Some(last)) = (&self.open, last) {
            self.open = Some((last.segment, self.begin(last.next, last.crc)?));
        }
        self.close()?;
        if last.is_some() {
            self.write_small(floor::NAME, &floor::encode(floor))?;
        }
        if let Some(mark) = log.mark() {
            self.write_small(clean_stop::NAME, &mark.encode())?;
        }
        Ok(LogCopy { floor, next, files: self.files })
    }

    fn write_small(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut file = CopiedFile::create(&self.to.join(name))?;
        file.write(bytes)?;
        self.files.push(file.finish()?);
        Ok(())
    }
}

fn writing(error: &io::Error, path: &Path) -> StoreError {
    StoreError::io(error, "writing a file").with(format_args!("file={}", path.display()))
}
