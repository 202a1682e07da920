//! Cloning a whole directory by the command of its filesystem, which copies no data: `juicefs clone`.
//!
//! The clone only saves the copying of bytes. Every name is still visited afterwards, as if it had been copied: bytes
//! are hashed from the clone, owners, modes, times and attributes are set, and links are made again. So the result does
//! not depend on what the command keeps; and a name that it left out, or a file of another size, is copied.
//!
//! **Invariant.** If there is no such command, or it fails, or the clone is not a directory of the expected kind, the
//! target is an empty directory again, and the caller copies.
//!
//! **What would break it.** The command resolves the path of the directory by itself, while everything else here goes
//! by descriptors. So the directory at that path must be the opened one, before and after.
//!
//! The command is not atomic for a directory: files may change while it runs. The caller compares the source before
//! and after, as it does for a copy.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, Mode, fchmod, fstat, unlinkat};

use super::beneath::DIRECTORY;
use super::scan::{Item, Shape, scan};
use super::{RelPath, Root, remove};
use crate::atomic::OWNER_ONLY;
use crate::error::{ErrorContext, Result};
use crate::fs::{FileKind, Fs};

/// Clones the directory `from`, which is open as `source`, over the empty directory `to`, and removes from the clone
/// the names that are not among the `items` of layer 0. False if everything must be copied.
pub(crate) fn clone_whole(
    fs: &dyn Fs,
    source: &Root,
    from: &Path,
    to: &Path,
    items: &[Item],
) -> Result<bool> {
    let Some(command) = fs.clone_command(from) else { return Ok(false) };
    if !is_at(fs, source, from) {
        return Ok(false);
    }
    fs.remove_dir(to).doing("remove", to)?;
    let mut clone = Command::new(command);
    clone.args(["clone", "--preserve"]).arg(from).arg(to);
    clone.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let is_done = clone.status().is_ok_and(|status| status.success());
    let is_dir = || fs.meta(to).is_ok_and(|meta| meta.kind == FileKind::Dir);
    if is_done && is_at(fs, source, from) && is_dir() && prune(fs, to, items).is_ok() {
        return Ok(true);
    }
    remove(fs, to)?;
    fs.make_dir(to, OWNER_ONLY).doing("create", to)?;
    Ok(false)
}

/// Whether `path` is the open directory.
fn is_at(fs: &dyn Fs, open: &Root, path: &Path) -> bool {
    let found = fs.meta(path).ok().filter(|meta| meta.kind == FileKind::Dir);
    let open = fstat(open).ok();
    found.zip(open).is_some_and(|(found, open)| (found.device, found.inode) == (open.st_dev, open.st_ino))
}

/// Leaves the directories of `items`, and the files of their layer 0; links are made again by the copy.
fn prune(fs: &dyn Fs, to: &Path, items: &[Item]) -> Result<()> {
    let root = Root::open(to)?;
    let expected: BTreeMap<&RelPath, &Item> = items.iter().map(|item| (&item.path, item)).collect();
    let found = scan(&root)?;
    for item in found.iter().filter(|item| item.shape == Shape::Dir) {
        make_writable(&root, item).doing("change the mode of", to)?;
    }
    for item in found.iter().rev().filter(|item| item.path != RelPath::ROOT) {
        let is_dir = item.shape == Shape::Dir;
        let is_kept = expected.get(&item.path).is_some_and(|expected| match &expected.shape {
            Shape::Dir => is_dir,
            Shape::File => !is_dir && !matches!(item.shape, Shape::Symlink { .. }) && expected.layer == 0,
            Shape::HardLink { .. } | Shape::Symlink { .. } => false,
        });
        if !is_kept {
            fs.step().doing("remove from", to)?;
            let above = root.open_dir(&item.path.parent().unwrap_or(RelPath::ROOT)).doing("open", to)?;
            let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            unlinkat(&above, item.path.name(), flags).doing("remove from", to)?;
        }
    }
    Ok(())
}

/// Until its final mode is set, names are removed and created in it.
fn make_writable(root: &Root, dir: &Item) -> rustix::io::Result<()> {
    if dir.print.mode & OWNER_ONLY == OWNER_ONLY {
        return Ok(());
    }
    let opened = root.open_at(&dir.path, DIRECTORY)?;
    fchmod(&opened, Mode::from_raw_mode(dir.print.mode | OWNER_ONLY))
}
