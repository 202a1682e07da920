//! The name of a worktree's directory, relative to an open descriptor of its parent.
//!
//! **Invariant.** Nothing here follows a symbolic link below the repository's root.
//!
//! **What would break it.** A path that is checked and then used as text may lead elsewhere by then, and the
//! swap would move unrelated files.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::error::{ErrorContext, Result};
use crate::fs::{FileKind, Fs, absent_is_none};
use crate::repo::Repo;
use crate::tree::Root;
use crate::worktree::Worktree;

pub(super) struct SwapTarget {
    parent: Root,
    name: OsString,
    /// The path when it was opened, for messages.
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

    /// The parent directory, by its descriptor.
    pub(super) fn parent(&self) -> PathBuf {
        // With the dot it is the directory itself; without it, a symbolic link to it.
        self.opened().join(".")
    }

    /// The worktree's directory, by the descriptor of its parent.
    pub(super) fn path(&self) -> PathBuf {
        self.opened().join(&self.name)
    }

    /// The path to show in messages.
    pub(super) fn shown(&self) -> &Path {
        &self.shown
    }

    /// Refuses, before anything is committed, if `tree` cannot be swapped in here. Moving a directory changes
    /// its `..`, so the directories themselves must be writable, not only their parents.
    pub(super) fn require_swappable(&self, fs: &dyn Fs, tree: &Path) -> Result<()> {
        let doing = "replace, which needs write access to it and to the directory that holds it,";
        fs.meta(&self.parent()).doing("stat the parent directory of", &self.shown)?;
        allowed(&self.parent, Path::new("."), Access::WRITE_OK | Access::EXEC_OK)
            .doing(doing, &self.shown)?;
        let there = absent_is_none(fs.meta(&self.path())).doing("stat", &self.shown)?;
        if there.is_some_and(|meta| meta.kind == FileKind::Dir) {
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
        // Removed since: there is nothing to move away.
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
