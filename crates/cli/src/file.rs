//! Atomic file replacement: a reader sees the old content or the new, never a part.
//!
//! The content is synced before the rename; the directory is not, so a power cut may bring the old file back.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Replaces an existing file and keeps its permissions. Symbolic links are followed.
pub fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = std::fs::canonicalize(file)?;
    let permissions = std::fs::metadata(&file)?.permissions();
    put(&file, bytes, permissions)
}

/// Creates or replaces a file with mode 0600.
pub fn put_secret(file: &Path, bytes: &[u8]) -> io::Result<()> {
    put(file, bytes, Permissions::from_mode(0o600))
}

fn put(file: &Path, bytes: &[u8], permissions: Permissions) -> io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let tmp = file.with_file_name(name);
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&tmp)?;
    let written = fill(made, bytes, permissions).and_then(|()| std::fs::rename(&tmp, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&tmp);
    }
    written
}

fn fill(mut made: std::fs::File, bytes: &[u8], permissions: Permissions) -> io::Result<()> {
    made.write_all(bytes)?;
    made.set_permissions(permissions)?;
    made.sync_all()
}
