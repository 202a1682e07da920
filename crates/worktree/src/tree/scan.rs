//! Scanning a tree: every name with its metadata, sorted, without file contents.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Dir, Stat, StatxAttributes, StatxFlags, fstat, readlinkat, statat, statx};
use rustix::io::Errno;

use super::beneath::DIRECTORY;
use super::{IgnoreRules, RelPath, Root};
use crate::error::{Error, Result};
use crate::fs::FileKind;
use crate::fs::kind_of;
use crate::ids::Digest;

/// One name in a tree.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) path: RelPath,
    pub(crate) shape: Shape,
    pub(crate) print: Fingerprint,
    /// The layer of a stored tree that has it; 0 in a tree without layers.
    pub(crate) layer: usize,
}

impl Item {
    /// Whether its extended attributes are copied: those of symbolic links are not.
    pub(crate) fn has_attributes(&self) -> bool {
        !matches!(self.shape, Shape::Symlink { .. })
    }
}

/// The kind of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Dir,
    File,
    /// Another name of the file at `first`, which sorts before it.
    HardLink {
        first: RelPath,
    },
    Symlink {
        target: Vec<u8>,
    },
}

/// Metadata that changes whenever the content changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Whether the file has several names.
    pub(crate) has_links: bool,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) modified: (i64, u64),
    pub(crate) changed: (i64, u64),
}

impl Fingerprint {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            has_links: stat.st_nlink > 1,
            mode: stat.st_mode & 0o7777,
            owner: (stat.st_uid, stat.st_gid),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Whether two scans of a name saw the same, unchanged file. Block counts are ignored: they change when
    /// the filesystem writes data back, long after the content was set.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Self { blocks: 0, ..*self } == Self { blocks: 0, ..*other }
    }
}

/// Every name below `root`, and the root itself, sorted by path.
pub(crate) fn scan(root: &Root) -> Result<Vec<Item>> {
    scan_kept(root, &IgnoreRules::default())
}

/// The same without the names that `ignored` leaves out.
pub(crate) fn scan_kept(root: &Root, ignored: &IgnoreRules) -> Result<Vec<Item>> {
    let top = fstat(root).map_err(|cause| refused(&RelPath::ROOT, "read", cause))?;
    let top = Item { path: RelPath::ROOT, shape: Shape::Dir, print: Fingerprint::of(&top), layer: 0 };
    scan_from(root, top, ignored)
}

/// The name at `path` below `root`, and every name below it, sorted by path; nothing if it is not there.
pub(crate) fn scan_at(root: &Root, path: &RelPath) -> Result<Vec<Item>> {
    let above = match root.open_at(&path.parent().unwrap_or(RelPath::ROOT), DIRECTORY) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Vec::new()),
        other => other.map_err(|cause| refused(path, "open the directory of", cause))?,
    };
    let device = fstat(&above).map_err(|cause| refused(path, "stat the directory of", cause))?.st_dev;
    let rules = IgnoreRules::default();
    match scan_name(&above, path.clone(), path.name(), device, &rules)? {
        Some(top) => scan_from(root, top, &rules),
        None => Ok(Vec::new()),
    }
}

fn scan_from(root: &Root, top: Item, ignored: &IgnoreRules) -> Result<Vec<Item>> {
    let device = top.print.device;
    let mut items = vec![top];
    let mut next = 0;
    while next < items.len() {
        if items[next].shape == Shape::Dir {
            let path = items[next].path.clone();
            scan_dir(root, &path, device, ignored, &mut items)?;
        }
        next += 1;
    }
    items.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    name_hard_links(&mut items);
    Ok(items)
}

/// The first path at which two scans of one tree differ.
pub(crate) fn first_difference(before: &[Item], after: &[Item]) -> Option<RelPath> {
    let differs = |one: &Item, other: &Item| {
        one.path != other.path || one.shape != other.shape || !one.print.same(&other.print)
    };
    let pair = before.iter().zip(after).find(|(one, other)| differs(one, other));
    if let Some((one, other)) = pair {
        return Some(one.path.clone().min(other.path.clone()));
    }
    let longer = if before.len() > after.len() { before } else { after };
    longer.get(before.len().min(after.len())).map(|item| item.path.clone())
}

/// The fingerprint of a scan: another scan has the same if and only if nothing changed. The times of the root are
/// left out, because moving a directory changes them; a name that was created or removed in it shows anyway.
pub(crate) fn fingerprint(items: &[Item]) -> Digest {
    use std::fmt::Write;
    let mut text = String::new();
    for item in items {
        let mut print = Fingerprint { blocks: 0, ..item.print };
        if item.path == RelPath::ROOT {
            (print.modified, print.changed, print.size) = ((0, 0), (0, 0), 0);
        }
        writeln!(text, "{} {print:?}", item.path).expect("writing to a string cannot fail");
    }
    Digest::of(text.as_bytes())
}

fn scan_dir(
    root: &Root,
    path: &RelPath,
    device: u64,
    ignored: &IgnoreRules,
    items: &mut Vec<Item>,
) -> Result<()> {
    // A directory removed concurrently shows as a change of its parent.
    let dir = match root.open_at(path, DIRECTORY) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        other => other.map_err(|cause| refused(path, "open the directory", cause))?,
    };
    let entries = Dir::read_from(&dir).map_err(|cause| refused(path, "list the directory", cause))?;
    for entry in entries {
        let entry = entry.map_err(|cause| refused(path, "list the directory", cause))?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if let Some(item) = scan_name(&dir, path.join(name), name, device, ignored)? {
            items.push(item);
        }
    }
    Ok(())
}

fn scan_name(
    dir: impl AsFd,
    path: RelPath,
    name: &[u8],
    device: u64,
    ignored: &IgnoreRules,
) -> Result<Option<Item>> {
    let stat = match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(|cause| refused(&path, "stat", cause))?,
    };
    if ignored.ignores(&path, kind_of(&stat) == FileKind::Dir) {
        return Ok(None);
    }
    let print = Fingerprint::of(&stat);
    // Subvolumes of btrfs, and files of some overlays, have devices of their own and are not mounted.
    if print.device != device && is_mount(&dir, name) {
        return Err(Error::invalid(format!(
            "another filesystem is mounted inside the worktree and would not be restored; unmount it or move \
             it away: path={path}"
        )));
    }
    let shape = match kind_of(&stat) {
        FileKind::Dir => Shape::Dir,
        FileKind::File => Shape::File,
        FileKind::Symlink => match readlinkat(&dir, name, Vec::new()) {
            Err(Errno::NOENT | Errno::INVAL) => return Ok(None),
            other => Shape::Symlink {
                target: other.map_err(|cause| refused(&path, "read the link", cause))?.into_bytes(),
            },
        },
        FileKind::Other => {
            return Err(Error::invalid(format!(
                "a socket, pipe or device cannot be kept in a snapshot; remove it or move it out of the \
                 worktree: path={path}"
            )));
        }
    };
    Ok(Some(Item { path, shape, print, layer: 0 }))
}

/// Whether `name` is on another mount than the directory that holds it; where the kernel does not tell, a device of its
/// own counts as one.
fn is_mount(dir: impl AsFd, name: &[u8]) -> bool {
    let attributes = statx(&dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
    attributes.map_or(true, |found| {
        let mask = found.stx_attributes_mask;
        !mask.contains(StatxAttributes::MOUNT_ROOT)
            || found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    })
}

/// Names the hard links of a selection of items again, because their first names may not be part of it.
pub(crate) fn rename_hard_links(items: &mut [Item]) {
    for item in items.iter_mut().filter(|item| matches!(item.shape, Shape::HardLink { .. })) {
        item.shape = Shape::File;
    }
    name_hard_links(items);
}

/// Later names of a file become hard links to its first name.
fn name_hard_links(items: &mut [Item]) {
    let mut first_names: BTreeMap<(u64, u64), RelPath> = BTreeMap::new();
    // Some network filesystems repeat inode numbers, so a file with one name is never a link.
    for item in items.iter_mut().filter(|item| item.shape == Shape::File && item.print.has_links) {
        let identity = (item.print.device, item.print.inode);
        match first_names.get(&identity) {
            Some(first) => item.shape = Shape::HardLink { first: first.clone() },
            None => drop(first_names.insert(identity, item.path.clone())),
        }
    }
}

fn refused(path: &RelPath, action: &str, cause: Errno) -> Error {
    Error::io(action, std::path::Path::new(&path.to_string()), &cause.into())
}
