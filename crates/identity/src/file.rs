//! Reads identity files, and writes them atomically with mode 0600.
//!
//! **Invariant.** A file appears under its name complete and synced, with mode 0600. An existing file is replaced only on
//! request, and its replacement has the owner, group and mode of the file before: a command of root must not take the
//! file away from the service's user. Files that belong together are all checked and staged before the first one is
//! published.

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind};
use crate::serial::Serial;

/// Maximum size of an identity file or denylist, in bytes.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
pub(crate) const OWNER_ONLY: u32 = 0o600;

/// What to do with an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Keep it, and fail.
    Keep,
    /// Replace it.
    Replace,
}

/// Reads the text of a file.
pub fn read(path: &Path) -> Result<Zeroizing<String>, Error> {
    read_as("file", path)
}

/// The same for a file of a kind, which messages name.
pub fn read_as(kind: &str, path: &Path) -> Result<Zeroizing<String>, Error> {
    let failed = |cause: io::Error| Error::io(&format!("the {kind} cannot be read"), path, &cause);
    let mut text = Zeroizing::new(String::with_capacity(64 * 1024));
    let file = File::open(path).map_err(failed)?;
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Error::invalid(format!("the file is too long: max={BYTES_MAX} file={}", path.display())));
    }
    Ok(text)
}

/// Checks in advance whether the file could be written, before the caller prompts for a passphrase.
pub fn check(path: &Path, existing: Existing) -> Result<(), Error> {
    match fs::metadata(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(Error::io("the file's metadata cannot be read", path, &cause)),
        // A rename over a device would replace the device with a file.
        Ok(found) if !found.is_file() => {
            Err(Error::invalid(format!("not a regular file; choose another name: file={}", path.display())))
        }
        Ok(_) if existing == Existing::Keep => Err(already_exists(path)),
        Ok(_) => Ok(()),
    }
}

/// Writes files that belong together, in order. If one of them cannot be written, new files are removed again.
pub fn write(
    files: &[(&Path, &str)],
    existing: Existing,
    fill: &mut dyn FnMut(&mut [u8]),
) -> Result<(), Error> {
    for (path, _) in files {
        check(path, existing)?;
    }
    let mut staged = Vec::new();
    for (path, text) in files {
        staged.push(StagedFile::write(path, text.as_bytes(), fill)?);
    }
    let mut written = Vec::new();
    for file in staged {
        match file.publish(existing) {
            Ok(path) => written.push(path),
            Err(error) => {
                if existing == Existing::Keep {
                    for path in &written {
                        drop(fs::remove_file(path));
                    }
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Writes one file that is no text.
pub fn write_bytes(
    path: &Path,
    bytes: &[u8],
    existing: Existing,
    fill: &mut dyn FnMut(&mut [u8]),
) -> Result<(), Error> {
    check(path, existing)?;
    StagedFile::write(path, bytes, fill)?.publish(existing).map(drop)
}

/// Locks the directory of a file against other callers of this function, until the result is dropped.
///
/// Two concurrent read-modify-write cycles would otherwise lose an update, such as a revocation. `None` if the filesystem
/// has no locks.
pub fn lock_beside(path: &Path) -> Result<Option<File>, Error> {
    let dir = parent(path);
    let failed = |cause: io::Error| Error::io("the directory cannot be locked", &dir, &cause);
    let handle = File::open(&dir).map_err(failed)?;
    match handle.try_lock() {
        Ok(()) => Ok(Some(handle)),
        // A revocation that may overwrite a concurrent one is better than none.
        Err(TryLockError::Error(_)) => Ok(None),
        Err(TryLockError::WouldBlock) => handle.lock().map_err(failed).map(|()| Some(handle)),
    }
}

/// A complete file under a temporary name; removed unless it is published.
struct StagedFile {
    temp: PathBuf,
    target: PathBuf,
}

impl StagedFile {
    fn write(path: &Path, bytes: &[u8], fill: &mut dyn FnMut(&mut [u8])) -> Result<StagedFile, Error> {
        // A symbolic link is followed: its target is replaced.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let temp = parent(&target).join(format!(".{name}.{}.tmp", Serial::random(fill)));
        let failed = |cause: io::Error| Error::io("the file cannot be written", path, &cause);
        let mut options = OpenOptions::new();
        let mut handle = options.write(true).create_new(true).mode(OWNER_ONLY).open(&temp).map_err(failed)?;
        let staged = StagedFile { temp, target };
        handle.write_all(bytes).map_err(failed)?;
        if let Ok(replaced) = fs::metadata(&staged.target) {
            keep_access(&handle, &replaced).map_err(|cause| access_error(path, &cause))?;
        }
        handle.sync_all().map_err(failed)?;
        Ok(staged)
    }

    fn publish(self, existing: Existing) -> Result<PathBuf, Error> {
        let published = match existing {
            Existing::Replace => fs::rename(&self.temp, &self.target),
            // Unlike a rename, fails if the name was taken since the check.
            Existing::Keep => fs::hard_link(&self.temp, &self.target),
        };
        published.map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => already_exists(&self.target),
            _ => Error::io("the file cannot be published under its name", &self.target, &cause),
        })?;
        let synced = File::open(parent(&self.target)).and_then(|dir| dir.sync_all());
        synced.map_err(|cause| Error::io("the directory cannot be synced", &self.target, &cause))?;
        Ok(self.target.clone())
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        // After a rename the temporary name no longer exists.
        drop(fs::remove_file(&self.temp));
    }
}

/// Gives a new file the owner, group and mode of the file that it replaces.
fn keep_access(handle: &File, replaced: &Metadata) -> io::Result<()> {
    let new = handle.metadata()?;
    if (new.uid(), new.gid()) != (replaced.uid(), replaced.gid()) {
        fchown(handle, Some(replaced.uid()), Some(replaced.gid()))?;
    }
    handle.set_permissions(Permissions::from_mode(replaced.mode() & 0o777))
}

fn access_error(path: &Path, cause: &io::Error) -> Error {
    Error::io("the file's owner cannot be kept; run this as its owner or as root", path, cause)
}

fn already_exists(path: &Path) -> Error {
    let what = "the file exists; choose another name, or replace it with --force";
    Error::new(ErrorKind::Exists, format!("{what}: file={}", path.display()))
}

pub(crate) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => PathBuf::from("/"),
    }
}
