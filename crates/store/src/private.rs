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

/// Which users may enter a directory, after [`tighten`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its owner alone.
    Private,
    /// Other users too: the directory is not lockd's alone.
    Open,
}

/// Takes a directory's permissions away from group and others, if this process owns it and has it for itself.
///
/// A directory with the sticky bit, or with a subdirectory that is not named in `subdirectories`, is used for something
/// else too (`/`, `/tmp`, a home directory), and stays as it is.
pub fn tighten(path: &Path, subdirectories: &[&str]) -> io::Result<Access> {
    let metadata = fs::metadata(path)?;
    let mode = metadata.permissions().mode();
    if mode & OTHERS == 0 {
        return Ok(Access::Private);
    }
    let owned = metadata.uid() == rustix::process::geteuid().as_raw();
    if !owned || mode & STICKY != 0 || has_other_subdirectory(path, subdirectories)? {
        return Ok(Access::Open);
    }
    fs::set_permissions(path, Permissions::from_mode(DIR_MODE))?;
    Ok(Access::Private)
}

fn has_other_subdirectory(path: &Path, known: &[&str]) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && !known.iter().any(|name| entry.file_name() == *name) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
    }

    #[test]
    fn a_directory_is_tightened_only_if_it_has_nothing_else_in_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path();
        let widen = |mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
        for (wide, access, left) in [
            (0o755, Access::Private, 0o700),
            (0o2770, Access::Private, 0o700),
            (0o1777, Access::Open, 0o1777),
        ] {
            widen(wide);
            assert_eq!(tighten(path, &[]).expect("ours"), access, "{wide:o}");
            assert_eq!(mode(path) & 0o1777, left, "{wide:o}");
        }
        widen(0o755);
        create_dir(&path.join("store/log")).expect("made");
        assert_eq!(tighten(path, &["store"]).expect("ours"), Access::Private);
        widen(0o755);
        assert_eq!(tighten(path, &[]).expect("ours"), Access::Open);
        assert_eq!(mode(path), 0o755);
        assert_eq!([mode(&path.join("store")), mode(&path.join("store/log"))], [0o700; 2]);
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
