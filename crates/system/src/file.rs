//! Files that are replaced whole or not at all.
//!
//! **Invariant.** After a crash or a power cut a file has its old content or its new one, and once [`replace`] has returned,
//! the new one.
//!
//! **What would break it.** A rename without a sync of the file before it: the name leads to an empty file. A rename
//! without a sync of the directory after it: the old content is back.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::{hex, random};

/// The mode of a file that only its owner may read.
pub const OWNER_ONLY: u32 = 0o600;

/// Creates or replaces a file, durably, with this mode.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_os_string();
    name.push(format!(".{}.tmp", hex::encode(&random::bytes::<8>())));
    let temporary = path.with_file_name(name);
    let written = write_new(&temporary, bytes, mode).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_parent(path)
}

/// Replaces an existing file, durably. A symbolic link stays and leads to the new content; the mode stays.
pub fn replace_existing(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
    replace(&path, bytes, mode)
}

/// Makes the names in a file's directory durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("the file exists").permissions().mode() & 0o7777
    }

    #[test]
    fn a_file_is_created_and_replaced_with_the_mode_that_was_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        replace(&path, b"one", 0o600).expect("written");
        replace(&path, b"two", 0o640).expect("written");
        assert_eq!((fs::read(&path).expect("readable").as_slice(), mode(&path)), (&b"two"[..], 0o640));
        assert_eq!(fs::read_dir(dir.path()).expect("a list").count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_link_stays_and_leads_to_the_new_content_with_the_old_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        replace(&target, b"one", 0o644).expect("written");
        std::os::unix::fs::symlink("target", &link).expect("linked");
        replace_existing(&link, b"two").expect("written");
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!((fs::read(&target).expect("readable").as_slice(), mode(&target)), (&b"two"[..], 0o644));
    }

    #[test]
    fn a_failed_replacement_leaves_the_old_file_and_no_temporary_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("d");
        fs::create_dir(&path).expect("made");
        fs::write(path.join("inside"), b"kept").expect("written");
        replace(&path, b"two", 0o600).expect_err("a directory is not replaced by a file");
        assert!(path.join("inside").exists());
        assert_eq!(fs::read_dir(dir.path()).expect("a list").count(), 1);
        replace(Path::new("/"), b"", 0o600).expect_err("no file name");
    }
}
