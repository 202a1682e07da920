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
    let needed = files.map(|item| needed_bytes(item.print.size, item.print.blocks)).sum();
    let Ok(stat) = fstatfs(target) else { return Ok(()) };
    let magic = u64::try_from(stat.f_type).unwrap_or(0) & 0xffff_ffff;
    if SHARING_FILESYSTEMS.contains(&magic) {
        return Ok(());
    }
    let free_blocks = if rustix::process::geteuid().is_root() { stat.f_bfree } else { stat.f_bavail };
    let free = free_blocks.saturating_mul(u64::try_from(stat.f_bsize).unwrap_or(0));
    refuse_shortage(needed, fs.free_bytes(free))
}

/// A large file may be sparse. The block count of a small one is not trusted: filesystems may report it late.
fn needed_bytes(size: u64, blocks: u64) -> u64 {
    if size < 1 << 20 { size } else { size.min(blocks * 512) }
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
