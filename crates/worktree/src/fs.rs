//! The port to the filesystem: the few calls that the lock protocol and the records in `.jvs` need.
//!
//! Each method is one step that a crash can fall before or after. [`Fs::write_new`] is the only one with
//! an inside (create, write, sync), which is why nothing ever reads a file that it made under the name it
//! made it: a record becomes visible by `link` or `rename` alone.
//!
//! Left out: file trees. `tree` walks and copies them by directory descriptors, so that no symbolic link
//! is ever followed, and announces each of its changes through [`Fs::step`].

mod real;

use std::fmt::Debug;
use std::io;
use std::path::Path;

pub use real::RealFs;
pub(crate) use real::kind_of;

use crate::clock::UnixMs;

/// Whether bytes must survive a power cut before they are linked or renamed to where they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Synced before the call returns.
    Synced,
    /// Left to the filesystem: for copies that prove nothing, and files that mean nothing after a reboot.
    Lazy,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link, never followed.
    Symlink,
    /// A socket, pipe or device.
    Other,
}

/// What the filesystem says about a name, links not followed.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// What the name stands for.
    pub kind: Kind,
    /// The filesystem it is on.
    pub device: u64,
    /// The inode, which a rename keeps.
    pub inode: u64,
    /// When the content last changed, by the filesystem's own clock.
    pub modified: UnixMs,
}

/// The calls that the protocol is made of. Paths are absolute, and the last component is never followed.
pub trait Fs: Send + Sync + Debug {
    /// Creates `path` with `bytes` and permission bits `mode`; fails if the name exists. A crash inside can
    /// leave any part of the bytes there.
    fn write_new(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<Meta>;
    /// The whole content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// What `path` stands for.
    fn meta(&self, path: &Path) -> io::Result<Meta>;
    /// The names in a directory, in no order.
    fn list(&self, path: &Path) -> io::Result<Vec<std::ffi::OsString>>;
    /// Gives the file `from` the second name `to`; fails with `AlreadyExists` if `to` is taken. This is the
    /// one atomic test-and-set that the protocol rests on.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Moves `from` to `to`, replacing what was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Swaps two names in one step; `Unsupported` where the filesystem cannot.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()>;
    /// Removes a name of a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory; fails if the name exists.
    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory survive a power cut.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Called before each change that `tree` makes by descriptor; an error stops it there.
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

/// Creates a directory unless it is there already.
pub(crate) fn ensure_dir(fs: &dyn Fs, path: &Path, mode: u32) -> io::Result<()> {
    match fs.make_dir(path, mode) {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
