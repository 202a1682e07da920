//! A blob that was evicted is read from the device.

use std::fs::File;
use std::io::IoSliceMut;
use std::path::Path;

use rustix::fs::statfs;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use store::disk::DiskBlobs;
use store::fs::RealFs;
use store::{BlobName, BlobStore};

const BYTES: u64 = 8 << 20;
/// The type of a filesystem in memory, which has no device.
const TMPFS: i64 = 0x0102_1994;

/// Whether a page of the file is in the page cache: the read returns instead of waiting for the device. `None` if the
/// filesystem cannot tell.
fn is_cached(path: &Path, offset: u64) -> Option<bool> {
    let file = File::open(path).expect("the blob's file");
    let mut page = [0; 512];
    match preadv2(&file, &mut [IoSliceMut::new(&mut page)], offset, ReadWriteFlags::NOWAIT) {
        Ok(_) => Some(true),
        Err(Errno::AGAIN) => Some(false),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A snapshot was read back right after it was written. The page cache returned it, and the damage on the device was
/// found at the next restart.
#[test]
fn an_evicted_blob_is_no_longer_in_the_page_cache() {
    let dir = tempfile::tempdir().expect("a directory");
    let blobs = DiskBlobs::open(RealFs, dir.path()).expect("an empty directory");
    let name = BlobName::new("snapshot/1").expect("a name");
    let mut writer = blobs.create(&name).expect("begun");
    writer.write(&vec![7; usize::try_from(BYTES).expect("small")]).expect("writable");
    writer.finish().expect("durable");
    let path = dir.path().join("by-name/snapshot/1");
    let in_memory = statfs(dir.path()).expect("a filesystem").f_type == TMPFS;
    // From the end: a read may start a readahead of what follows it.
    let offsets = || (0..4).rev().map(|n| n * BYTES / 4);
    if in_memory || is_cached(&path, 0).is_none() {
        return;
    }
    assert!(offsets().all(|offset| is_cached(&path, offset) == Some(true)), "it was just written");
    blobs.evict(&name);
    assert!(offsets().all(|offset| is_cached(&path, offset) == Some(false)), "it was evicted");
    assert!(blobs.read(&name, 0, 1000).expect("there").iter().all(|byte| *byte == 7));
    // A blob that does not exist is left to the read that follows.
    blobs.evict(&BlobName::new("snapshot/2").expect("a name"));
}
