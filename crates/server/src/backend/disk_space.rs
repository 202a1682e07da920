//! Free disk space: of the filesystem with the store, and what a new store needs.

use std::io;
use std::path::Path;

use store::disk::LogOptions;

/// Space for the files beside the logs of a new store.
const OTHER_FILES: u64 = 1 << 20;

/// The space of a filesystem, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    pub(crate) size: u64,
    /// What this process may still use.
    pub(crate) free: u64,
}

impl DiskSpace {
    /// The space of the filesystem that contains a path.
    pub(crate) fn of(path: &Path) -> io::Result<DiskSpace> {
        let found = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(DiskSpace { size: bytes(found.f_blocks), free: bytes(found.f_bavail) })
    }
}

/// What a new store needs before it can grant: a segment for each shard, and the next one, which is twice as long.
pub(crate) fn needed_by_new_store(shards: u32) -> u64 {
    u64::from(shards) * 3 * LogOptions::SEGMENT_BYTES_FIRST + OTHER_FILES
}
