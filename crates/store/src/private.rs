//! Directories and files for their owner alone, under any umask.
//!
//! **Invariant.** What a store or a server creates is 0700 (directories) or 0600 (files) from its first moment: the modes
//! are given to the calls that create, and a umask can only take bits away.
//! **What would break it.** `std::fs::write`, `File::create` or `create_dir_all`, which create with 0666 and 0777.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Any access by group or others.
const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Creates a directory and its missing parents; fine if it exists.
pub fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
}

/// How to open files that may have to be created: with the mode of private files, and never through a symbolic link.
pub fn file_options() -> OpenOptions {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE).custom_flags(nofollow);
    options
}

/// Creates a file that does not exist, to read and write.
pub fn create_file(path: &Path) -> io::Result<File> {
    file_options().read(true).write(true).create_new(true).open(path)
}

/// Restricts an empty directory to its owner, if this process is the owner and the directory is not shared (sticky).
pub fn restrict_empty(path: &Path) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    let mode = metadata.permissions().mode();
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw() && mode & STICKY == 0;
    if mode & OTHERS != 0 && is_own && fs::read_dir(path)?.next().is_none() {
        fs::set_permissions(path, Permissions::from_mode(DIR_MODE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_directory_that_is_not_shared_is_restricted() {
        let dir = tempfile::tempdir().expect("a directory");
        let after = |mode: u32| {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).expect("ours");
            restrict_empty(dir.path()).expect("ours");
            fs::metadata(dir.path()).expect("there").permissions().mode() & 0o7777
        };
        assert_eq!([after(0o755), after(0o770), after(0o500), after(0o1777)], [0o700, 0o700, 0o500, 0o1777]);
        fs::write(dir.path().join("file"), "").expect("written");
        assert_eq!(after(0o755), 0o755);
    }

    /// `lock` was opened with `File::create`: a symbolic link of that name had its target emptied.
    #[test]
    fn a_file_is_not_opened_through_a_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let (target, link) = (dir.path().join("target"), dir.path().join("lock"));
        fs::write(&target, "precious").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        assert!(file_options().write(true).create(true).truncate(false).open(&link).is_err());
        assert_eq!(fs::read_to_string(&target).expect("there"), "precious");
    }
}
