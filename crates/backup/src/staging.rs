//! A directory or file under a temporary name, beside its own.
//!
//! **Invariant.** Nothing is under its own name before it is complete and durable, and nothing is overwritten. What fails
//! is removed; a crash leaves a name that ends with `.partial-` and eight digits, which nothing reads.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use system::{file, hex, random};

use crate::error::BackupError;

/// A name that is given to its content once that is complete.
pub(crate) struct Staging {
    /// The temporary name.
    pub(crate) path: PathBuf,
    target: PathBuf,
}

impl Staging {
    /// Refuses a target that exists, unless it is an empty directory and `allow_empty`.
    pub(crate) fn new(target: &Path, allow_empty: bool) -> Result<Staging, BackupError> {
        let target =
            std::path::absolute(target).map_err(|error| BackupError::io(&error, "resolving", target))?;
        let Some(name) = target.file_name() else {
            return Err(BackupError::Refused(format!(
                "a path with a name is needed: path={}",
                target.display()
            )));
        };
        check_free(&target, allow_empty)?;
        let mut temporary = OsString::from(name);
        temporary.push(format!(".partial-{}", hex::encode(&random::bytes::<4>())));
        let parent = target.parent().expect("it has a name");
        if !parent.is_dir() {
            let what = "the directory to write into does not exist; create it first: path=";
            return Err(BackupError::Refused(format!("{what}{}", parent.display())));
        }
        Ok(Staging { path: target.with_file_name(temporary), target })
    }

    /// Gives the content its name, durably. All files below must be durable; the names of all directories are synced here.
    pub(crate) fn publish(self) -> Result<(), BackupError> {
        let doing = |error: io::Error| BackupError::io(&error, "renaming", &self.target);
        sync_directories(&self.path).map_err(doing)?;
        // An empty directory of that name, which the caller has allowed. Fails if it is not empty any more.
        match fs::remove_dir(&self.target) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                let what = "a mount point cannot be replaced; restore into a directory below it, or unmount it: path=";
                return Err(BackupError::Refused(format!("{what}{}", self.target.display())));
            }
            _ => {}
        }
        rename_new(&self.path, &self.target).map_err(doing)?;
        file::sync_parent(&self.target).map_err(doing)
    }
}

impl Drop for Staging {
    /// Removes what was not published. Of a published one nothing is left.
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path).or_else(|_| fs::remove_file(&self.path));
    }
}

fn check_free(target: &Path, allow_empty: bool) -> Result<(), BackupError> {
    let exists = |what: &str| Err(BackupError::Refused(format!("{what}: path={}", target.display())));
    match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BackupError::io(&error, "reading a file", target)),
        Ok(_) if !allow_empty => exists("the target exists, and nothing is overwritten; choose another name"),
        Ok(metadata) if !metadata.is_dir() => exists("the target exists, and is not a directory"),
        Ok(_) => match fs::read_dir(target).map(|mut entries| entries.next().is_some()) {
            Ok(false) => Ok(()),
            Ok(true) => exists("the target is not empty, and nothing is overwritten; move it away first"),
            Err(error) => Err(BackupError::io(&error, "reading a directory", target)),
        },
    }
}

/// Fails if the new name is in use.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every filesystem can; a race with another process is all that this loses.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) if !to.exists() => fs::rename(from, to),
        other => Ok(other?),
    }
}

/// Syncs a directory and all directories below it.
pub(crate) fn sync_directories(path: &Path) -> io::Result<()> {
    if !path.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_directories(&entry.path())?;
        }
    }
    File::open(path)?.sync_all()
}
