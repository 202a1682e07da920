//! The name of a worktree's directory, relative to an open descriptor of its parent.
//!
//! **Invariant.** Nothing here follows a symbolic link below the repository's root.
//!
//! **What would break it.** A path that is checked and then used as text may lead elsewhere by then, and the
//! swap would move unrelated files.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat, fstat, statat};
use rustix::io::Errno;

use crate::atomic::{FILE_MODE, OWNER_ONLY};
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::{Durability, FileKind, Fs, absent_is_none};
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
    /// its `..`, so the directories themselves must be writable, not only their parents. Whether the directory can
    /// be moved at all (a mount point, a lower layer of an overlay) only a trial shows: it is renamed to `trial`, a
    /// directory that is not empty, which every filesystem refuses after all other checks.
    pub(super) fn require_swappable(&self, fs: &dyn Fs, tree: &Path, trial: &Path) -> Result<()> {
        let doing = "replace, which needs write access to it and to the directory that holds it,";
        fs.meta(&self.parent()).doing("stat the parent directory of", &self.shown)?;
        allowed(&self.parent, Path::new("."), Access::WRITE_OK | Access::EXEC_OK)
            .doing(doing, &self.shown)?;
        let there = absent_is_none(fs.meta(&self.path())).doing("stat", &self.shown)?;
        if let Some(meta) = there.filter(|meta| meta.kind == FileKind::Dir) {
            allowed(&self.parent, Path::new(&self.name), Access::WRITE_OK).doing(doing, &self.shown)?;
            let staged = fs.meta(tree).doing("stat", tree)?;
            if staged.device != meta.device {
                return Err(self.unswappable("it is on another filesystem than .jvs"));
            }
            self.require_owner_if_sticky()?;
            self.try_to_move(fs, trial)?;
        }
        allowed(CWD, tree, Access::WRITE_OK).doing("move the restored files, which needs write access,", tree)
    }

    /// In a sticky directory only the owner of a name, the owner of the directory and root may move it.
    fn require_owner_if_sticky(&self) -> Result<()> {
        let parent = fstat(&self.parent).doing("stat the parent directory of", &self.shown)?;
        let name = statat(&self.parent, Path::new(&self.name), AtFlags::SYMLINK_NOFOLLOW)
            .doing("stat", &self.shown)?;
        let user = rustix::process::geteuid();
        let is_owner = [parent.st_uid, name.st_uid].contains(&user.as_raw());
        if parent.st_mode & STICKY == 0 || is_owner || user.is_root() {
            return Ok(());
        }
        Err(self.unswappable("it belongs to another user, in a directory with the sticky bit"))
    }

    fn try_to_move(&self, fs: &dyn Fs, trial: &Path) -> Result<()> {
        fs.make_dir(trial, OWNER_ONLY).doing("create", trial)?;
        let inside = trial.join("not-empty");
        fs.write_new(&inside, b"", FILE_MODE, Durability::Lazy).doing("create", &inside)?;
        let tried = fs.rename(&self.path(), trial);
        if tried.is_ok() {
            fs.rename(trial, &self.path()).doing("put back", &self.shown)?;
            return Err(self.unswappable("this filesystem lets a directory replace one that is not empty"));
        }
        fs.remove_file(&inside).doing("remove", &inside)?;
        fs.remove_dir(trial).doing("remove", trial)?;
        match tried {
            Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy => {
                Err(self.unswappable("it is a mount point, or in use as one"))
            }
            Err(cause) if cause.kind() == io::ErrorKind::CrossesDevices => {
                Err(self.unswappable("it is on another filesystem, or in the lower layer of an overlay"))
            }
            _ => Ok(()),
        }
    }

    fn unswappable(&self, reason: &str) -> Error {
        Error::new(
            ErrorClass::Io,
            format!(
                "the worktree's directory cannot be replaced: {reason}; restore into another worktree, or copy the \
                 files from .jvs/snapshots: path={}",
                self.shown.display()
            ),
        )
    }

    fn opened(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_fd().as_raw_fd()))
    }
}

/// Only owners move names in a directory with this bit.
const STICKY: u32 = 0o1000;

fn allowed(dir: impl AsFd, path: &Path, access: Access) -> rustix::io::Result<()> {
    match accessat(dir, path, access, AtFlags::empty()) {
        // Removed since: there is nothing to move away.
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
