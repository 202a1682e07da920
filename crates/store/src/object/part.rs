//! Bytes of a blob that wait until they are sent: in memory, or in a file without a name.
//!
//! **Invariant.** With a [`Spool`], a blob that is being written has at most [`PartBuffer::MEMORY_MAX`] bytes and one
//! piece of a write in memory. The bytes of a [`Part`] never change.
//!
//! **What would break it.** Writing the next part over the bytes of the last one: a request that timed out may still be
//! sending them. So every part that is taken from a file leaves the file to its requests, and the next one gets a new file.
//!
//! Object stores want parts of 5 MiB or more, and their length in advance. The file lets a part be repeated without being
//! held in memory. It never has a name, so a process that ends leaves nothing behind.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::port::{ObjectsError, ObjectsErrorKind};
use crate::port::StoreError;

/// A directory for the parts of blobs that are being written. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spool(Arc<PathBuf>);

impl Spool {
    /// Fails if no file can be created there.
    pub fn open(directory: &Path) -> io::Result<Spool> {
        let spool = Spool(Arc::new(directory.to_path_buf()));
        spool.create().map(|_| spool)
    }

    /// A file that only its descriptor refers to.
    fn create(&self) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(self.0.as_path(), flags, Mode::RUSR | Mode::WUSR) {
            // This filesystem has no files without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => self.create_and_remove(),
            opened => Ok(File::from(opened?)),
        }
    }

    fn create_and_remove(&self) -> io::Result<File> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.0.join(format!(".lockd-part-{}-{number}", std::process::id()));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        std::fs::remove_file(&path)?;
        Ok(File::from(file))
    }
}

/// Bytes to be sent by one request, which may be repeated. Clones share them.
#[derive(Clone, Debug)]
pub struct Part(Content);

#[derive(Clone, Debug)]
enum Content {
    Memory(Arc<Vec<u8>>),
    File { file: Arc<File>, offset: u64, length: usize },
}

impl From<Vec<u8>> for Part {
    fn from(bytes: Vec<u8>) -> Part {
        Part(Content::Memory(Arc::new(bytes)))
    }
}

impl Part {
    /// A client that sends a part from its file reads it in pieces of this many bytes.
    pub const PIECE_BYTES: usize = 64 << 10;

    /// The number of bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Content::Memory(bytes) => bytes.len(),
            Content::File { length, .. } => *length,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are in memory.
    pub fn in_memory(&self) -> Option<&Arc<Vec<u8>>> {
        match &self.0 {
            Content::Memory(bytes) => Some(bytes),
            Content::File { .. } => None,
        }
    }

    /// All bytes. An error is not transient: the file is damaged.
    pub fn bytes(&self) -> Result<Vec<u8>, ObjectsError> {
        let unreadable = |error| {
            ObjectsError::new(ObjectsErrorKind::Denied, format!("a spooled part cannot be read: {error}"))
        };
        self.read(0, self.len()).map_err(unreadable)
    }

    /// Reads at most `length` bytes from `offset`; fewer only at the end.
    pub fn read(&self, offset: usize, length: usize) -> io::Result<Vec<u8>> {
        let from = offset.min(self.len());
        let length = length.min(self.len() - from);
        match &self.0 {
            Content::Memory(bytes) => Ok(bytes[from..from + length].to_vec()),
            Content::File { file, offset, .. } => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset + from as u64)?;
                Ok(bytes)
            }
        }
    }
}

/// The bytes of a blob that were written and not sent.
pub(super) struct PartBuffer {
    spool: Option<Spool>,
    /// The last bytes.
    memory: Vec<u8>,
    /// The bytes before them.
    file: Option<SpoolFile>,
}

/// A range of a file.
struct SpoolFile {
    file: Arc<File>,
    from: u64,
    to: u64,
}

impl PartBuffer {
    /// With a spool, more bytes than this go to a file.
    pub(super) const MEMORY_MAX: usize = 64 << 10;

    /// Without a spool all bytes stay in memory.
    pub(super) fn new(spool: Option<Spool>) -> PartBuffer {
        PartBuffer { spool, memory: Vec::new(), file: None }
    }

    pub(super) fn len(&self) -> usize {
        let spooled = self.file.as_ref().map_or(0, |file| file.to - file.from);
        usize::try_from(spooled).expect("a part fits in memory") + self.memory.len()
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if self.spool.is_none() {
            self.memory.extend_from_slice(bytes);
            return Ok(());
        }
        for piece in bytes.chunks(PartBuffer::MEMORY_MAX) {
            if self.memory.len() + piece.len() > PartBuffer::MEMORY_MAX {
                self.spill()?;
            }
            self.memory.extend_from_slice(piece);
        }
        Ok(())
    }

    /// Moves the bytes in memory to the end of the file.
    fn spill(&mut self) -> Result<(), StoreError> {
        let Some(spool) = &self.spool else { return Ok(()) };
        let failed =
            |error| StoreError::io(&error, format_args!("spooling a part path={}", spool.0.display()));
        if self.file.is_none() {
            let file = Arc::new(spool.create().map_err(failed)?);
            self.file = Some(SpoolFile { file, from: 0, to: 0 });
        }
        let spooled = self.file.as_mut().expect("it has just been created");
        spooled.file.write_all_at(&self.memory, spooled.to).map_err(failed)?;
        spooled.to += self.memory.len() as u64;
        self.memory.clear();
        Ok(())
    }

    /// Removes the first bytes. There must be as many.
    pub(super) fn take(&mut self, length: usize) -> Result<Part, StoreError> {
        if self.file.is_none() {
            let rest = self.memory.split_off(length);
            return Ok(Part::from(std::mem::replace(&mut self.memory, rest)));
        }
        self.spill()?;
        let spooled = self.file.as_mut().expect("checked above");
        let (file, offset) = (Arc::clone(&spooled.file), spooled.from);
        spooled.from += length as u64;
        assert!(spooled.from <= spooled.to);
        if spooled.from == spooled.to {
            self.file = None;
        }
        Ok(Part(Content::File { file, offset, length }))
    }

    /// Reuses the memory of a part that was sent.
    pub(super) fn reuse(&mut self, part: Part) {
        let Content::Memory(bytes) = part.0 else { return };
        // The client may keep a part for a moment after its response.
        let mut bytes = Arc::try_unwrap(bytes).unwrap_or_default();
        bytes.clear();
        bytes.append(&mut self.memory);
        self.memory = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(part: &Part) -> Vec<u8> {
        let halves = [part.read(0, part.len() / 2), part.read(part.len() / 2, usize::MAX)];
        halves.into_iter().flat_map(|half| half.expect("readable")).collect()
    }

    #[test]
    fn parts_have_the_bytes_that_were_written_in_memory_and_in_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let bytes: Vec<u8> = (0..3 << 20).map(|n: u32| n.to_le_bytes()[n as usize % 3]).collect();
        let spool = Spool::open(directory.path()).expect("writable");
        for (spool, is_spooled) in [(None, false), (Some(spool), true)] {
            let mut buffer = PartBuffer::new(spool);
            for piece in bytes.chunks(700_001) {
                buffer.append(piece).expect("capacity");
                assert!(!is_spooled || buffer.memory.len() <= PartBuffer::MEMORY_MAX);
            }
            assert_eq!(buffer.len(), bytes.len());
            let first = buffer.take(2_000_000).expect("enough");
            let rest = buffer.take(buffer.len()).expect("enough");
            assert_eq!((first.in_memory().is_none(), rest.in_memory().is_none()), (is_spooled, is_spooled));
            // The next part must not change the bytes of one that a request may still send.
            buffer.append(&vec![7; 2 << 20]).expect("capacity");
            assert_eq!(buffer.take(2 << 20).expect("enough").read(0, 9).expect("readable"), [7; 9]);
            assert!([read(&first), read(&rest)].concat() == bytes);
        }
        assert_eq!(
            std::fs::read_dir(directory.path()).expect("a directory").count(),
            0,
            "no file has a name"
        );
    }

    /// An `O_TMPFILE` that the filesystem does not have cannot be had here, so the way around it is taken directly.
    #[test]
    fn a_filesystem_without_nameless_files_keeps_no_name_either() {
        let directory = tempfile::tempdir().expect("a directory");
        let spool = Spool::open(directory.path()).expect("writable");
        let files =
            [spool.create_and_remove().expect("writable"), spool.create_and_remove().expect("writable")];
        for (file, byte) in files.iter().zip([b'1', b'2']) {
            file.write_all_at(&[byte], 0).expect("capacity");
        }
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
        let mut byte = [0];
        files[0].read_exact_at(&mut byte, 0).expect("written");
        assert_eq!(byte, *b"1");
    }

    #[test]
    fn short_blobs_stay_in_memory_and_a_missing_directory_is_reported() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut buffer = PartBuffer::new(Some(Spool::open(directory.path()).expect("writable")));
        buffer.append(&vec![1; PartBuffer::MEMORY_MAX]).expect("capacity");
        let part = buffer.take(PartBuffer::MEMORY_MAX).expect("enough");
        assert!(part.in_memory().is_some());
        buffer.reuse(part);
        assert!(buffer.memory.capacity() >= PartBuffer::MEMORY_MAX);
        Spool::open(&directory.path().join("missing")).expect_err("there is no such directory");
    }
}
