//! Scanning a tree: every name with its metadata, sorted, without file contents.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    let mut level = 0;
    while level < items.len() {
        let dirs: Vec<RelPath> = items[level..]
            .iter()
            .filter(|item| item.shape == Shape::Dir)
            .map(|item| item.path.clone())
            .collect();
        level = items.len();
        items.extend(scan_dirs(root, &dirs, device, ignored)?);
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

/// Whether the metadata of all `items` is as it was when they were scanned.
pub(crate) fn are_unchanged<'a>(root: &Root, mut items: impl Iterator<Item = &'a Item>) -> bool {
    let stat = |path: &RelPath| match path.parent() {
        None => fstat(root),
        Some(parent) => statat(root.open_dir(&parent)?, path.name(), AtFlags::SYMLINK_NOFOLLOW),
    };
    items.all(|item| stat(&item.path).is_ok_and(|stat| Fingerprint::of(&stat).same(&item.print)))
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

/// The names in `dirs`, in any order. Many directories are read by as many threads as there are cores.
fn scan_dirs(root: &Root, dirs: &[RelPath], device: u64, ignored: &IgnoreRules) -> Result<Vec<Item>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut items = Vec::new();
        while let Some(path) = dirs.get(next.fetch_add(1, Ordering::Relaxed)) {
            scan_dir(root, path, device, ignored, &mut items)?;
        }
        Ok(items)
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(MOST_THREADS).min(dirs.len() / DIRS_PER_THREAD);
    if threads < 2 {
        return work();
    }
    let found: Vec<Result<Vec<Item>>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
    });
    let mut items = Vec::new();
    for found in found {
        items.append(&mut found?);
    }
    Ok(items)
}

/// Directories for which another thread is worth its start.
const DIRS_PER_THREAD: usize = 8;
const MOST_THREADS: usize = 8;

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
    if path.as_bytes().len() >= PATH_MAX {
        return Err(too_long(&path));
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

/// The longest path that the system opens in one call, with a zero byte at its end.
const PATH_MAX: usize = 4096;

/// Names only the beginning of the path.
fn too_long(path: &RelPath) -> Error {
    let text: String = path.to_string().chars().take(80).collect();
    Error::invalid(format!(
        "a path in the worktree is longer than {} bytes, so it cannot be copied; move it up, or leave it out with \
         .jvsignore: bytes={} path={text}...",
        PATH_MAX - 1,
        path.as_bytes().len()
    ))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// More directories than one thread reads.
    #[test]
    fn many_directories_are_scanned_as_few_are() {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let mut expected = vec![String::from(".")];
        for n in 0..4 * DIRS_PER_THREAD {
            let below = format!("{n:02}/below");
            fs::create_dir_all(dir.path().join(&below)).expect("writable");
            fs::write(dir.path().join(&below).join("file"), b"x").expect("writable");
            expected.extend([format!("{n:02}"), below.clone(), format!("{below}/file")]);
        }
        let root = Root::open(dir.path()).expect("a directory");
        let found: Vec<String> =
            scan(&root).expect("readable").iter().map(|item| item.path.to_string()).collect();
        assert_eq!(found, expected);
        std::os::unix::net::UnixListener::bind(dir.path().join("20/below/socket")).expect("writable");
        let refused = scan(&root).expect_err("a socket").to_string();
        assert!(refused.contains("20/below/socket"), "{refused}");
    }

    /// Some network filesystems repeat inode numbers: two files were taken for one, and the second came back with the
    /// content of the first.
    #[test]
    fn files_with_one_name_each_are_no_links_even_with_the_same_inode() {
        let dir = tempfile::tempdir().expect("a directory for the test");
        fs::write(dir.path().join("a"), b"1").expect("writable");
        fs::write(dir.path().join("b"), b"2").expect("writable");
        fs::write(dir.path().join("c"), b"3").expect("writable");
        fs::hard_link(dir.path().join("c"), dir.path().join("d")).expect("writable");
        let mut items = scan(&Root::open(dir.path()).expect("a directory")).expect("readable");
        let inode = items[1].print.inode;
        items[2].print.inode = inode;
        rename_hard_links(&mut items);
        let shapes: Vec<Shape> = items.into_iter().map(|item| item.shape).collect();
        let first = RelPath::parse("c".as_ref()).expect("plain");
        assert_eq!(shapes, [Shape::Dir, Shape::File, Shape::File, Shape::File, Shape::HardLink { first }]);
    }

    #[test]
    fn every_change_of_metadata_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let file = dir.path().join("sub/file");
        fs::create_dir(dir.path().join("sub")).expect("writable");
        fs::write(&file, b"x").expect("writable");
        let root = Root::open(dir.path()).expect("a directory");
        let items = scan(&root).expect("readable");
        assert!(are_unchanged(&root, items.iter()));
        fs::write(&file, b"longer").expect("writable");
        assert!(!are_unchanged(&root, items.iter()), "another size");
        let items = scan(&root).expect("readable");
        fs::remove_file(&file).expect("there");
        assert!(!are_unchanged(&root, items.iter()), "gone");
    }
}
