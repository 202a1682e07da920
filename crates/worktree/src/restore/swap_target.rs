//! The name of a worktree's directory, in a directory that is held open.
//!
//! Invariant: nothing here follows a symbolic link below the repository's root. A path that was checked and
//! then used as text could lead elsewhere by then, and a swap would carry off files of somebody else's.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::error::{Context, Result};
use crate::fs::{Fs, Kind, absent_is_none};
use crate::repo::Repo;
use crate::tree::Root;
use crate::worktree::Worktree;

pub(super) struct SwapTarget {
    parent: Root,
    name: OsString,
    /// For people: what it was called when it was opened.
    shown: PathBuf,
}

impl SwapTarget {
    pub(super) fn of(repo: &Repo, worktree: &Worktree) -> Result<Self> {
        let path = worktree.path.as_path();
        let parent = path.parent().expect("a worktree's path has a name in it");
        Ok(Self {
            parent: Root::open_below(repo.layout().root(), parent)?,
            name: path.file_name().expect("a worktree's path ends in a name").to_owned(),
            shown: repo.payload(worktree),
        })
    }

    /// The directory that holds the name, by its descriptor.
    pub(super) fn parent(&self) -> PathBuf {
        // The dot makes it the directory itself, where the name alone is a link to it.
        self.opened().join(".")
    }

    /// The worktree's directory, by the descriptor of the one that holds it.
    pub(super) fn path(&self) -> PathBuf {
        self.opened().join(&self.name)
    }

    /// What to call it in a message.
    pub(super) fn shown(&self) -> &Path {
        &self.shown
    }

    /// Refuses, while nothing is committed yet, if `tree` could not be put here. A directory that moves to
    /// another has its own `..` changed, so each must be writable, not only those that hold them.
    pub(super) fn require_swappable(&self, fs: &dyn Fs, tree: &Path) -> Result<()> {
        let doing = "replace, which needs write access to it and to the directory that holds it,";
        fs.meta(&self.parent()).doing("look at the directory of", &self.shown)?;
        allowed(&self.parent, Path::new("."), Access::WRITE_OK | Access::EXEC_OK)
            .doing(doing, &self.shown)?;
        let there = absent_is_none(fs.meta(&self.path())).doing("look at", &self.shown)?;
        if there.is_some_and(|meta| meta.kind == Kind::Dir) {
            allowed(&self.parent, Path::new(&self.name), Access::WRITE_OK).doing(doing, &self.shown)?;
        }
        allowed(CWD, tree, Access::WRITE_OK).doing("move the restored files, which needs write access,", tree)
    }

    fn opened(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_fd().as_raw_fd()))
    }
}

fn allowed(dir: impl AsFd, path: &Path, access: Access) -> rustix::io::Result<()> {
    match accessat(dir, path, access, AtFlags::empty()) {
        // Gone meanwhile: then there is nothing to be moved away.
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
