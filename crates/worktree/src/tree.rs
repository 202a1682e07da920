//! File trees: scanning, copying, hashing and removing them, without ever leaving them.
//!
//! **Invariant.** Everything is opened relative to the descriptor of the tree's root, and no symbolic link is
//! followed, not even one created concurrently. So nothing outside the tree is read or written, even if other
//! processes move files at the same time.
//!
//! Kept: names of any bytes, symbolic links, hard links among the tree's own names, holes,
//! permission bits (sticky, set-user-id and set-group-id included, or refused), modification times, and
//! owners where that is permitted. Refused by name: sockets, pipes, devices, and other filesystems mounted
//! inside. Left out: extended attributes and access control lists.

mod beneath;
mod copy;
mod durable;
mod large;
mod manifest;
mod remove;
mod scan;

pub use beneath::Root;
pub(crate) use copy::{CopyResult, ReadMode, changed_underneath, copy, hash};
pub(crate) use durable::make_durable;
pub use manifest::{ManifestLine, NodeContent, TreeManifest};
pub(crate) use remove::remove;
pub(crate) use scan::{Item, fingerprint, first_difference, scan};

use std::fmt;

/// Receives the progress of a copy or a hash.
pub trait Progress: Sync {
    /// Work on `files` files of `bytes` bytes in all begins.
    fn begin(&self, files: u64, bytes: u64);
    /// One more file, of `bytes` bytes, is done.
    fn file_done(&self, bytes: u64);
}

/// Ignores progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _files: u64, _bytes: u64) {}
    fn file_done(&self, _bytes: u64) {}
}

/// A path below a tree's root, as raw bytes; empty for the root itself. Sorts by bytes, so that a directory
/// comes before its content.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RelPath(Vec<u8>);

impl RelPath {
    /// The tree's root.
    pub const ROOT: Self = Self(Vec::new());

    /// The entry `name` of this directory.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Self {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self(path)
    }

    /// The path for a system call.
    pub fn as_bytes(&self) -> &[u8] {
        if self.0.is_empty() { b"." } else { &self.0 }
    }
}

/// Escaped, so that a name with a newline stays on one line: every byte that is not a printable
/// ASCII character, and `%` itself, as `%` and two hexadecimal digits.
impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(self.as_bytes()))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_graphic() && *byte != b'%' {
            text.push(char::from(*byte));
        } else {
            text.push('%');
            text.push_str(&system::hex::encode(&[*byte]));
        }
    }
    text
}
