//! Whether a copy fits on the disk, checked before it begins.
//!
//! Filesystems that may share blocks or compress (btrfs, XFS, bcachefs, ZFS) are not checked: a copy may need no
//! space there. Quotas are not known in advance either; a full disk or quota still ends a copy with an error.

use rustix::fs::fstatfs;

use super::Root;
use super::scan::{Item, Shape};
use crate::error::{Error, ErrorClass, Result};
use crate::fs::Fs;

/// Refuses to copy `items` to the filesystem of `target` if it has too little free space.
pub(crate) fn require_capacity(fs: &dyn Fs, target: &Root, items: &[Item]) -> Result<()> {
    let files = items.iter().filter(|item| item.shape == Shape::File);
    let Ok(stat) = fstatfs(target) else { return Ok(()) };
    let block = u64::try_from(stat.f_frsize).unwrap_or(0).clamp(1, 1 << 20);
    let needed = files.map(|item| needed_bytes(item.print.size, item.print.blocks, block)).sum();
    let magic = u64::try_from(stat.f_type).unwrap_or(0) & 0xffff_ffff;
    if SHARING_FILESYSTEMS.contains(&magic) {
        return Ok(());
    }
    let free_blocks = if rustix::process::geteuid().is_root() { stat.f_bfree } else { stat.f_bavail };
    let free = free_blocks.saturating_mul(u64::try_from(stat.f_bsize).unwrap_or(0));
    refuse_shortage(needed, fs.free_bytes(free))
}

/// Whole blocks. A large file may be sparse; the block count of a small one is not trusted: filesystems may report it
/// late.
fn needed_bytes(size: u64, blocks: u64, block: u64) -> u64 {
    let stored = if size < 1 << 20 { size } else { size.min(blocks * 512) };
    stored.div_ceil(block) * block
}

/// btrfs, XFS, bcachefs, ZFS.
const SHARING_FILESYSTEMS: [u64; 4] = [0x9123_683e, 0x5846_5342, 0xca45_1a4e, 0x2fc1_2fc1];

fn refuse_shortage(needed: u64, free: u64) -> Result<()> {
    if needed <= free {
        return Ok(());
    }
    Err(Error::new(
        ErrorClass::Io,
        format!(
            "the disk has too little free space for the copy, so nothing was copied; remove old snapshots with \
             `jvs gc`, or free space otherwise: needed_bytes={needed} free_bytes={free}"
        ),
    )
    .with("needed_bytes", needed)
    .with("free_bytes", free))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk filled up in the middle of a copy of 60,000 small files: their sizes had been added, not their blocks.
    #[test]
    fn a_small_file_needs_a_whole_block_and_a_hole_needs_none() {
        assert_eq!(needed_bytes(1, 0, 4096), 4096);
        assert_eq!(needed_bytes(0, 0, 4096), 0);
        assert_eq!(needed_bytes(4097, 8, 4096), 8192);
        assert_eq!(needed_bytes(1 << 30, 8, 4096), 4096, "a hole of a gigabyte");
        assert!(refuse_shortage(4096, 4095).is_err());
        assert!(refuse_shortage(4096, 4096).is_ok());
    }
}
