//! Removing a tree regardless of its permission bits, and never through a link.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, chmod, fstat, openat, unlinkat};
use rustix::io::Errno;

use super::beneath::DIRECTORY;
use crate::error::{ErrorContext, Result};
use crate::fs::Fs;

/// Removes `path` and everything below it; names that no longer exist are skipped.
pub(crate) fn remove(fs: &dyn Fs, path: &Path) -> Result<()> {
    let name = path.as_os_str().as_bytes();
    let Some(mut here) = remove_name(fs, CWD, name, path, &[])? else { return Ok(()) };
    // The directories above `here`, which are opened again by `..`: held open, a deep tree would need more
    // descriptors than a process may have.
    let mut above: Vec<Level> = Vec::new();
    loop {
        if let Some(name) = here.names.pop() {
            if let Some(below) = remove_name(fs, &here.dir, &name, path, &above)? {
                let OpenDir { dir, names } = std::mem::replace(&mut here, below);
                let identity = identity(&dir).doing("stat", path)?;
                above.push(Level { identity, names, within: name });
            }
        } else if let Some(level) = above.pop() {
            here =
                climb(&here.dir, level.identity, level.names).doing("climb out of a directory in", path)?;
            remove_empty(fs, &here.dir, &level.within, path)?;
        } else {
            return remove_empty(fs, CWD, name, path);
        }
    }
}

/// A directory that is being emptied.
struct OpenDir {
    dir: OwnedFd,
    names: Vec<Vec<u8>>,
}

/// A directory to continue with once its child `within` is removed.
struct Level {
    identity: (u64, u64),
    names: Vec<Vec<u8>>,
    within: Vec<u8>,
}

/// Removes `name` unless it is a directory, which is opened instead. `above` leads from the tree to `parent`.
fn remove_name(
    fs: &dyn Fs,
    parent: impl AsFd,
    name: &[u8],
    whole: &Path,
    above: &[Level],
) -> Result<Option<OpenDir>> {
    fs.step().doing("remove", whole)?;
    let refused = match unlinkat(&parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(cause @ (Errno::ISDIR | Errno::PERM)) => cause,
        Err(cause) => return Err(cause).doing("remove", whole),
    };
    let opened = match open_dir(&parent, name) {
        // A file that may not be removed, such as an immutable one.
        Err(Errno::NOTDIR | Errno::LOOP) => {
            let below = above.iter().map(|level| &level.within[..]).chain([name]);
            let path = below.fold(whole.to_owned(), |path, name| path.join(OsStr::from_bytes(name)));
            return Err(refused).doing("remove", &path);
        }
        other => other.doing("open the directory", whole)?,
    };
    let Some(dir) = opened else { return Ok(None) };
    let names = names_in(&dir).doing("list", whole)?;
    Ok(Some(OpenDir { dir, names }))
}

fn remove_empty(fs: &dyn Fs, parent: impl AsFd, name: &[u8], whole: &Path) -> Result<()> {
    fs.step().doing("remove", whole)?;
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(cause) => Err(cause).doing("remove the directory", whole),
    }
}

/// Opens the parent of `dir`; refuses if `dir` was moved, because the new parent is not part of the tree.
fn climb(dir: &OwnedFd, expected: (u64, u64), names: Vec<Vec<u8>>) -> rustix::io::Result<OpenDir> {
    let dir = openat(dir, c"..", DIRECTORY, Mode::empty())?;
    if identity(&dir)? == expected { Ok(OpenDir { dir, names }) } else { Err(Errno::XDEV) }
}

fn identity(dir: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    fstat(dir).map(|stat| (stat.st_dev, stat.st_ino))
}

/// All names at once, so that a directory can be closed before it is empty.
fn names_in(dir: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let names = Dir::read_from(dir)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
    let wanted = |name: &Vec<u8>| name != b"." && name != b"..";
    names.filter(|name| name.as_ref().map_or(true, wanted)).collect()
}

/// Makes the directory accessible to its owner first, because it is about to be removed. The mode is changed
/// through a descriptor of the directory itself, so that no link can be substituted.
fn open_dir(parent: impl AsFd, name: &[u8]) -> rustix::io::Result<Option<OwnedFd>> {
    let pinned = match openat(&parent, name, DIRECTORY | OFlags::PATH, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other?,
    };
    // Only the owner may do this; for other users the removal itself fails with the reason.
    let _ = chmod(format!("/proc/self/fd/{}", pinned.as_raw_fd()), Mode::RWXU);
    openat(&pinned, c".", DIRECTORY, Mode::empty()).map(Some)
}
