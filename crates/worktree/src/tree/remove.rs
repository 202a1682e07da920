//! Removing a tree, whatever its permission bits, and never through a link.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, chmod, openat, unlinkat};
use rustix::io::Errno;

use super::beneath::DIRECTORY;
use crate::error::{Context, Result};
use crate::fs::Fs;

/// Removes `path` and everything in it. What is gone already is fine.
pub(crate) fn remove(fs: &dyn Fs, path: &Path) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    remove_at(fs, CWD, path.as_os_str().as_bytes(), path)
}

fn remove_at(fs: &dyn Fs, parent: impl AsFd, name: &[u8], whole: &Path) -> Result<()> {
    fs.step().doing("remove", whole)?;
    match unlinkat(&parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(cause) => return Err(cause).doing("remove", whole),
    }
    let Some(dir) = open_dir(&parent, name).doing("open the directory", whole)? else { return Ok(()) };
    for name in names_in(&dir).doing("list", whole)? {
        remove_at(fs, &dir, &name, whole)?;
    }
    drop(dir);
    fs.step().doing("remove", whole)?;
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(cause) => Err(cause).doing("remove the directory", whole),
    }
}

/// All names at once, so that each level of a deep tree holds one descriptor open and no more.
fn names_in(dir: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let names = Dir::read_from(dir)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
    let wanted = |name: &Vec<u8>| name != b"." && name != b"..";
    names.filter(|name| name.as_ref().map_or(true, wanted)).collect()
}

/// A directory that its owner may not read or write is made so: it is about to go. The change is made
/// through a descriptor that names the directory itself, so that no link can stand in for it.
fn open_dir(parent: impl AsFd, name: &[u8]) -> rustix::io::Result<Option<OwnedFd>> {
    let pinned = match openat(&parent, name, DIRECTORY | OFlags::PATH, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other?,
    };
    // Only the owner may; where that is someone else, the removal itself says so.
    let _ = chmod(format!("/proc/self/fd/{}", pinned.as_raw_fd()), Mode::RWXU);
    openat(&pinned, c".", DIRECTORY, Mode::empty()).map(Some)
}
