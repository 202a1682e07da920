//! Opening names below a root without following any symbolic link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

use super::RelPath;
use crate::error::{ErrorContext, Result};

/// An open root of a tree: renaming or replacing directories above it has no effect.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
}

impl Root {
    /// Opens the directory `path`, which must not be a symbolic link.
    pub fn open(path: &Path) -> Result<Self> {
        let fd = open(path, DIRECTORY, Mode::empty()).doing("open the directory", path)?;
        Ok(Self { fd })
    }

    /// Opens the directory `path` below `parent` without following a symbolic link.
    pub fn open_below(parent: &Path, path: &Path) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let whole = parent.join(path);
        let parent = Self { fd: openat(CWD, parent, DIRECTORY, Mode::empty()).doing("open", parent)? };
        let fd = parent
            .open_at(&RelPath(path.as_os_str().as_bytes().to_vec()), DIRECTORY)
            .doing("open the directory, through no symbolic link,", &whole)?;
        Ok(Self { fd })
    }

    /// The root's own permission bits.
    pub(crate) fn mode(&self) -> Result<u32> {
        let stat = fstat(&self.fd).doing("stat the directory", Path::new("."))?;
        Ok(stat.st_mode & 0o7777)
    }

    /// Opens the directory `path` below the root.
    pub(crate) fn open_dir(&self, path: &RelPath) -> rustix::io::Result<OwnedFd> {
        self.open_at(path, DIRECTORY)
    }

    /// Opens `path` below the root.
    pub(crate) fn open_at(&self, path: &RelPath, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.fd, path.as_bytes(), flags, Mode::empty(), resolve) {
            // Missing in old kernels and some sandboxes.
            Err(Errno::NOSYS | Errno::PERM) => self.open_stepwise(path, flags),
            other => other,
        }
    }

    /// The same, one component at a time.
    fn open_stepwise(&self, path: &RelPath, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut parts = path.as_bytes().split(|byte| *byte == b'/').peekable();
        let mut dir: Option<OwnedFd> = None;
        while let Some(part) = parts.next() {
            let at = dir.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            let last = parts.peek().is_none();
            let opened = openat(at, part, if last { flags } else { DIRECTORY }, Mode::empty())?;
            dir = Some(opened);
        }
        dir.ok_or(Errno::INVAL)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How a directory is opened.
pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_way_of_opening_follows_a_link_or_climbs_out() {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let inside = dir.path().join("inside");
        std::fs::create_dir_all(inside.join("sub")).expect("writable");
        std::fs::write(dir.path().join("secret"), b"outside").expect("writable");
        std::fs::write(inside.join("sub/file"), b"inside").expect("writable");
        std::os::unix::fs::symlink("..", inside.join("up")).expect("writable");
        std::os::unix::fs::symlink("sub", inside.join("alias")).expect("writable");
        std::os::unix::fs::symlink("../secret", inside.join("direct")).expect("writable");
        let root = Root::open(&inside).expect("a directory");
        let path = |text: &str| RelPath(text.as_bytes().to_vec());
        for refused in ["up/secret", "alias/file", "direct"] {
            assert!(root.open_at(&path(refused), OFlags::RDONLY).is_err(), "opened {refused}");
            let stepwise = root.open_stepwise(&path(refused), OFlags::RDONLY | OFlags::NOFOLLOW);
            assert!(stepwise.is_err(), "opened {refused} stepwise");
        }
        assert!(root.open_at(&path("sub/file"), OFlags::RDONLY).is_ok());
        assert!(root.open_stepwise(&path("sub/file"), OFlags::RDONLY).is_ok());
        assert!(Root::open(&inside.join("alias")).is_err(), "a root is not a link either");
    }
}
