//! The filesystem port: the calls that the lock protocol and the records in `.jvs` need.
//!
//! Each method is one step, before or after which a process can crash. Only [`Fs::write_new`] has several
//! (create, write, sync), so its file is never read under the name it was written to: a record becomes
//! visible only by `link` or `rename`.
//!
//! Left out: file trees. `tree` scans and copies them by directory descriptors, so that no symbolic link is
//! ever followed, and announces each change through [`Fs::step`].

mod mounts;
mod real;

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};

pub use real::RealFs;
pub(crate) use real::kind_of;

use crate::clock::UnixMs;

/// Whether bytes must be durable before they are linked or renamed to their final name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Synced before the call returns.
    Synced,
    /// Left to the filesystem: for copies that decide nothing, and files that are useless after a reboot.
    Lazy,
}

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link, never followed.
    Symlink,
    /// A socket, pipe or device.
    Other,
}

/// The metadata of a name, symbolic links not followed.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// The type of the file.
    pub kind: FileKind,
    /// The filesystem it is on.
    pub device: u64,
    /// The inode number, which a rename does not change.
    pub inode: u64,
    /// When the content last changed, by the filesystem's own clock.
    pub modified: UnixMs,
}

/// The filesystem calls of the protocol. Paths are absolute; a symbolic link as last component is not
/// followed.
pub trait Fs: Send + Sync + Debug {
    /// Creates `path` with `bytes` and permission bits `mode`; fails if the name exists. A crash can leave
    /// any part of the bytes.
    fn write_new(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<Meta>;
    /// The whole content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The metadata of `path`.
    fn meta(&self, path: &Path) -> io::Result<Meta>;
    /// The names in a directory, unordered.
    fn list(&self, path: &Path) -> io::Result<Vec<std::ffi::OsString>>;
    /// Gives the file `from` the second name `to`; fails with `AlreadyExists` if `to` exists. The atomic
    /// test-and-set of the protocol.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Moves `from` to `to`, replacing an existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Swaps two names atomically; `Unsupported` if the filesystem cannot.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()>;
    /// Removes the name of a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory; fails if the name exists.
    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// The free space of a filesystem, in bytes, of which the system reports `reported`; tests fake a full disk.
    fn free_bytes(&self, reported: u64) -> u64 {
        reported
    }
    /// The program whose subcommand `clone` clones a directory of the filesystem of `path` without copying data; none
    /// if the filesystem has none.
    fn clone_command(&self, _path: &Path) -> Option<PathBuf> {
        None
    }
    /// Called before each change that `tree` makes by descriptor; an error aborts the change.
    fn step(&self) -> io::Result<()> {
        Ok(())
    }
}

/// `Ok(None)` where the name does not exist.
pub(crate) fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// Creates a directory unless it exists.
pub(crate) fn ensure_dir(fs: &dyn Fs, path: &Path, mode: u32) -> io::Result<()> {
    match fs.make_dir(path, mode) {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
