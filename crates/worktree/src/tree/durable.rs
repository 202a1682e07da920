//! Making a copied tree durable.
//!
//! One `syncfs` replaces a hundred thousand `fsync`s on local filesystems. Network and user-space filesystems
//! may ignore it, so there every file is synced individually.

use rustix::fs::{OFlags, fstatfs, fsync, syncfs};

use super::beneath::DIRECTORY;
use super::scan::{Item, Shape};
use super::{RelPath, Root};
use crate::error::{ErrorContext, Result};
use crate::fs::Fs;

/// Syncs all `items` below `root`.
pub(crate) fn make_durable(fs: &dyn Fs, root: &Root, items: &[Item]) -> Result<()> {
    let here = std::path::Path::new(".");
    fs.step().doing("sync", here)?;
    if is_local(root) {
        return syncfs(root).doing("sync the filesystem", here);
    }
    // Files first, then directories, innermost first.
    for item in items.iter().filter(|item| item.shape == Shape::File) {
        sync_one(root, &item.path, OFlags::RDONLY)?;
    }
    for item in items.iter().rev().filter(|item| item.shape == Shape::Dir) {
        sync_one(root, &item.path, DIRECTORY)?;
    }
    Ok(())
}

fn sync_one(root: &Root, path: &RelPath, flags: OFlags) -> Result<()> {
    let name = path.to_string();
    let file = root.open_at(path, flags).doing("open", name.as_ref())?;
    fsync(file).doing("sync", name.as_ref())
}

/// ext2 to ext4, XFS, btrfs, F2FS, bcachefs, ZFS, tmpfs, overlayfs.
const KERNEL_FILESYSTEMS: [u64; 8] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x2fc1_2fc1, 0x0102_1994, 0x794c_7630];

fn is_local(root: &Root) -> bool {
    fstatfs(root).is_ok_and(|stat| {
        u64::try_from(stat.f_type).is_ok_and(|magic| KERNEL_FILESYSTEMS.contains(&(magic & 0xffff_ffff)))
    })
}
