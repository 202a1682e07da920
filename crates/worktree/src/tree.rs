//! File trees: scanning, copying, hashing and removing them, without ever leaving them.
//!
//! **Invariant.** Everything is opened relative to the descriptor of the tree's root, and no symbolic link is
//! followed, not even one created concurrently. So nothing outside the tree is read or written, even if other
//! processes move files at the same time.
//!
//! Kept: names of any bytes, symbolic links, hard links among the tree's own names, holes,
//! permission bits (sticky, set-user-id and set-group-id included, or refused), modification times, and
//! owners, extended attributes and access control lists where that is permitted. Refused by name: sockets, pipes,
//! devices, and other filesystems mounted inside.

mod attributes;
mod beneath;
mod capacity;
mod copy;
mod durable;
mod ignore;
mod large;
mod layers;
mod manifest;
mod remove;
mod scan;
mod whole_clone;

pub(crate) use attributes::all as attributes;
pub use beneath::Root;
pub(crate) use capacity::require_capacity;
pub(crate) use copy::{ReadMode, changed_underneath, copy, copy_over_clone, hash};
pub(crate) use durable::make_durable;
pub(crate) use ignore::IgnoreRules;
pub(crate) use layers::{LayeredTree, TreeSource};
pub use manifest::{ManifestLine, NodeContent, TreeManifest};
pub(crate) use manifest::{manifest_key, manifest_path, manifest_paths, sort_key};
pub(crate) use remove::remove;
pub(crate) use scan::{
    Fingerprint, Item, Shape, are_unchanged, fingerprint, first_difference, rename_hard_links, scan, scan_at,
    scan_kept,
};
pub(crate) use whole_clone::clone_whole;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

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

    /// A path as a user writes it, relative to the root: `.` is the root, and a trailing slash is ignored.
    pub fn parse(path: &Path) -> Result<Self> {
        let mut parsed = Self::ROOT;
        for part in path.components() {
            match part {
                Component::Normal(name) => parsed = parsed.join(name.as_bytes()),
                Component::CurDir => {}
                _ => {
                    return Err(Error::invalid(format!(
                        "a path in a tree is relative to its root and contains no `..`: path={}",
                        path.display()
                    )));
                }
            }
        }
        Ok(parsed)
    }

    /// The path that is shown as `text`.
    pub(crate) fn from_escaped(text: &str) -> Self {
        Self(sort_key(text).into_owned())
    }

    /// The directory that has this name; none for the root.
    pub(crate) fn parent(&self) -> Option<Self> {
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Some(Self(self.0[..end].to_vec()))
    }

    /// Whether this is `other`, or a name below it.
    pub(crate) fn is_at_or_below(&self, other: &Self) -> bool {
        let rest = self.0.strip_prefix(other.0.as_slice());
        rest.is_some_and(|rest| other.0.is_empty() || rest.is_empty() || rest[0] == b'/')
    }

    /// The path as a relative one of this system.
    pub(crate) fn to_path(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(self.as_bytes()))
    }

    /// The last component.
    pub(crate) fn name(&self) -> &[u8] {
        self.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// The bytes that paths are sorted by: none for the root.
    pub(crate) fn sort_key(&self) -> &[u8] {
        &self.0
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
        let bytes = self.as_bytes();
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.iter().copied().all(is_plain) => f.write_str(text),
            _ => f.write_str(&escape(bytes)),
        }
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether the byte is written as it is.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'%'
}

pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if is_plain(*byte) {
            text.push(char::from(*byte));
        } else {
            text.push('%');
            text.push_str(&system::hex::encode(&[*byte]));
        }
    }
    text
}

/// The bytes that [`escape`] wrote as `text`.
pub(crate) fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = after
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    bytes
}
