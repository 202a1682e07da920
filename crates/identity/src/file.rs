//! Identity files on disk: read, and written whole or not at all, for their owner alone.
//!
//! Invariant: what is written appears under its name complete and synced, with mode 0600. A file that is there
//! is replaced only if the caller says so; two that belong together are checked before either is written.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind};
use crate::serial::Serial;

/// More than any identity file or denylist needs.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
const OWNER_ONLY: u32 = 0o600;

/// What to do about a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Leave it, and fail.
    Keep,
    /// Replace it.
    Replace,
}

/// The text of a file.
pub fn read(path: &Path) -> Result<Zeroizing<String>, Error> {
    let failed = |cause: io::Error| Error::io("the file cannot be read", path, &cause);
    let mut text = Zeroizing::new(String::with_capacity(64 * 1024));
    let file = File::open(path).map_err(failed)?;
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Error::invalid(format!("the file is too long: max={BYTES_MAX} file={}", path.display())));
    }
    Ok(text)
}

/// Whether a file of that name could be written, as far as one can tell before: to be asked before people are.
pub fn check(path: &Path, existing: Existing) -> Result<(), Error> {
    match fs::metadata(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(Error::io("the file cannot be looked at", path, &cause)),
        // A rename over a device would leave a file where everybody expects the device.
        Ok(found) if !found.is_file() => {
            Err(Error::invalid(format!("not a regular file; give another name: file={}", path.display())))
        }
        Ok(_) if existing == Existing::Keep => Err(taken(path)),
        Ok(_) => Ok(()),
    }
}

/// Writes files that belong together, in order. If any of them cannot be written, none that is new stays.
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
        staged.push(Staged::write(path, text, fill)?);
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

/// Keeps others from changing the files of a directory by way of this function, until it is dropped.
///
/// Reading a file, changing it and writing it back must not lose what another did in between: a revocation,
/// say. Where the filesystem has no locks, nothing is kept from anybody.
pub fn lock_beside(path: &Path) -> Result<Option<File>, Error> {
    let dir = parent(path);
    let failed = |cause: io::Error| Error::io("the directory cannot be locked", &dir, &cause);
    let handle = File::open(&dir).map_err(failed)?;
    match handle.try_lock() {
        Ok(()) => Ok(Some(handle)),
        // A revocation that may lose another's is better than none.
        Err(TryLockError::Error(_)) => Ok(None),
        Err(TryLockError::WouldBlock) => handle.lock().map_err(failed).map(|()| Some(handle)),
    }
}

/// A file under a name that nobody reads; removed unless it was published.
struct Staged {
    temp: PathBuf,
    target: PathBuf,
}

impl Staged {
    fn write(path: &Path, text: &str, fill: &mut dyn FnMut(&mut [u8])) -> Result<Staged, Error> {
        // Through a link to the file that it stands for.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let temp = parent(&target).join(format!(".{name}.{}.tmp", Serial::random(fill)));
        let failed = |cause: io::Error| Error::io("the file cannot be written", path, &cause);
        let mut options = OpenOptions::new();
        let mut handle = options.write(true).create_new(true).mode(OWNER_ONLY).open(&temp).map_err(failed)?;
        let staged = Staged { temp, target };
        handle.write_all(text.as_bytes()).and_then(|()| handle.sync_all()).map_err(failed)?;
        Ok(staged)
    }

    fn publish(self, existing: Existing) -> Result<PathBuf, Error> {
        let named = match existing {
            Existing::Replace => fs::rename(&self.temp, &self.target),
            // Fails if the name was taken meanwhile, where a rename would not.
            Existing::Keep => fs::hard_link(&self.temp, &self.target),
        };
        named.map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => taken(&self.target),
            _ => Error::io("the file cannot be given its name", &self.target, &cause),
        })?;
        let synced = File::open(parent(&self.target)).and_then(|dir| dir.sync_all());
        synced.map_err(|cause| Error::io("the directory cannot be synced", &self.target, &cause))?;
        Ok(self.target.clone())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After a rename it is gone already.
        drop(fs::remove_file(&self.temp));
    }
}

fn taken(path: &Path) -> Error {
    let what = "the file is there already; give another name, or --force to replace it";
    Error::new(ErrorKind::Exists, format!("{what}: file={}", path.display()))
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => PathBuf::from("/"),
    }
}
