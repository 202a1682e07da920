//! Copying one large file: the kernel copies, another thread hashes the copied part, and the disk starts
//! writing before the hash is done.
//!
//! The hash is taken from the copy, not from the source, so it describes the copy even if the source changes
//! concurrently.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver};

use rustix::fs::{copy_file_range, fdatasync, fstatfs};
use rustix::io::{Errno, pread};

use super::RelPath;
use super::copy::{copy_dense, failed};
use crate::error::Result;
use crate::ids::Digest;

/// Files of at least this size, in bytes, use two threads.
pub(super) const LARGE: u64 = 16 << 20;
/// Bytes per `copy_file_range` call; the hash follows chunk by chunk.
const CHUNK: usize = 4 << 20;
/// The same on FUSE. JuiceFS copies references to data, and keeps them in chunks of this size. A chunk of more than a few
/// references is compacted when it is read, which stores its data again.
const CHUNK_OF_FUSE: usize = 64 << 20;
const FUSE: u64 = 0x6573_5546;

/// Copies all of `file` into the empty `copy`.
pub(super) fn copy(
    file: &OwnedFd,
    copy: &OwnedFd,
    path: &RelPath,
    buffer: &mut [u8],
) -> Result<(u64, Digest)> {
    let chunk = chunk_for(copy);
    let first = match copy_file_range(file, None, copy, None, chunk) {
        Ok(len) if len > 0 => len,
        // Unsupported here, which filesystems report with different errors; nothing has been copied yet.
        _ => return copy_dense(file, copy, path, buffer),
    };
    let (copied, to_hash) = mpsc::channel();
    std::thread::scope(|scope| {
        let hash = scope.spawn(|| hash_behind(copy, path, to_hash, buffer));
        let mut len = first;
        while len > 0 {
            if copied.send(len).is_err() {
                break;
            }
            len = copy_chunk(file, copy, path, chunk)?;
        }
        drop(copied);
        fdatasync(copy).map_err(|cause| failed(path, "sync", cause))?;
        hash.join().expect("hashing does not panic")
    })
}

fn chunk_for(copy: &OwnedFd) -> usize {
    let is_fuse = fstatfs(copy).is_ok_and(|stat| u64::try_from(stat.f_type) == Ok(FUSE));
    if is_fuse { CHUNK_OF_FUSE } else { CHUNK }
}

fn copy_chunk(file: &OwnedFd, copy: &OwnedFd, path: &RelPath, chunk: usize) -> Result<usize> {
    loop {
        match copy_file_range(file, None, copy, None, chunk) {
            Err(Errno::INTR) => {}
            other => return other.map_err(|cause| failed(path, "copy", cause)),
        }
    }
}

/// Hashes the part of `copy` that has been written.
fn hash_behind(
    copy: &OwnedFd,
    path: &RelPath,
    written: Receiver<usize>,
    buffer: &mut [u8],
) -> Result<(u64, Digest)> {
    let (mut hasher, mut end) = (blake3::Hasher::new(), 0);
    for len in written {
        end += len as u64;
        while hasher.count() < end {
            let want = usize::try_from(end - hasher.count()).unwrap_or(usize::MAX).min(buffer.len());
            let len = pread(copy, &mut buffer[..want], hasher.count())
                .map_err(|cause| failed(path, "read back", cause))?;
            if len == 0 {
                // Another process truncated the copy.
                return Err(failed(path, "read back all of", Errno::IO));
            }
            hasher.update(&buffer[..len]);
        }
    }
    Ok((hasher.count(), hasher.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process truncated the copy while it was hashed, and the hash waited for ever for bytes that were gone.
    #[test]
    fn a_copy_that_was_truncated_ends_its_hash() {
        let copy = OwnedFd::from(tempfile::tempfile().expect("a file for the test"));
        let path = RelPath::parse("large".as_ref()).expect("plain");
        rustix::io::write(&copy, b"half").expect("writable");
        let (written, to_hash) = mpsc::channel();
        written.send(8).expect("the other end is here");
        drop(written);
        let refused = hash_behind(&copy, &path, to_hash, &mut [0; 64]).expect_err("four bytes are missing");
        assert!(refused.detail().contains("read back all of"), "{refused}");
    }
}
