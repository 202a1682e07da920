//! Unsynced bytes are bounded: an append's sync on the same disk waits for them.

use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::{BlobName, BlobStore, LogStore};

use crate::observed_fs::ObservedFs;

/// A snapshot of some hundred megabytes was synced only at its end. Until that was done, every append to the
/// log on the same disk was blocked in its own sync.
#[test]
fn unsynced_bytes_of_a_blob_are_bounded() {
    for part in [1000, 65_536, (1 << 20) - 1, 1 << 20, 11 << 20] {
        let dir = tempfile::tempdir().expect("a directory");
        let fs = ObservedFs::default();
        let blobs = DiskBlobs::open(fs.clone(), dir.path()).expect("an empty directory");
        let contents: Vec<u8> = (0..=250).cycle().take(11 << 20).collect();
        let name = BlobName::new("snapshot/1").expect("a name");
        let mut writer = blobs.create(&name).expect("begun");
        contents.chunks(part).for_each(|part| writer.write(part).expect("writable"));
        assert_eq!(writer.finish().expect("a free name"), 11 << 20);
        assert_eq!(fs.unsynced(), (4 << 20, 6), "in parts of {part}");
        assert!(blobs.read(&name, 0, 12 << 20).expect("there") == contents, "in parts of {part}");
    }
}

#[test]
fn unsynced_bytes_of_a_spare_segment_are_bounded() {
    let dir = tempfile::tempdir().expect("a directory");
    let fs = ObservedFs::default();
    let options = LogOptions { shard: 0, store_id: 1, segment_bytes: (3 << 20) + 5 };
    let (mut log, _) = DiskLog::open(fs.clone(), dir.path(), options).expect("an empty log");
    log.reserve().expect("writable");
    assert_eq!(fs.unsynced(), (1 << 20, 4));
}
