//! The manifest: the content of a tree, one line per name, and its hash.
//!
//! ```text
//! d 0755 .
//! f 0644 12 <hash of the bytes> dir/file
//! h dir/file dir/other-name-of-it
//! l target%20as%20it%20is dir/symlink
//! ```
//!
//! Lines are sorted by the path's bytes; names are escaped, so a line is a line. The content hash is BLAKE3
//! of the manifest's bytes: two trees have the same hash if and only if paths, modes, bytes and links agree.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use super::{RelPath, escape, unescape};
use crate::ids::Digest;

/// The content of one name in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeContent {
    /// A directory.
    Dir,
    /// A regular file.
    File {
        /// Its length in bytes.
        size: u64,
        /// The hash of its bytes.
        digest: Digest,
    },
    /// Another name of the file `first`.
    HardLink {
        /// The name that sorts first.
        first: RelPath,
    },
    /// A symbolic link.
    Symlink {
        /// Its target, unresolved.
        target: Vec<u8>,
    },
}

/// One line of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestLine {
    /// The name.
    pub path: RelPath,
    /// Permission bits; meaningless for links.
    pub mode: u32,
    /// The content.
    pub content: NodeContent,
}

/// The content of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeManifest {
    text: String,
}

impl TreeManifest {
    /// The manifest of `records`, which are sorted by path.
    pub fn new<'a>(records: impl IntoIterator<Item = &'a ManifestLine>) -> Self {
        let mut text = String::new();
        for ManifestLine { path, mode, content } in records {
            let written = match content {
                NodeContent::Dir => writeln!(text, "d {mode:04o} {path}"),
                NodeContent::File { size, digest } => writeln!(text, "f {mode:04o} {size} {digest} {path}"),
                NodeContent::HardLink { first } => writeln!(text, "h {first} {path}"),
                NodeContent::Symlink { target } => writeln!(text, "l {} {path}", escape(target)),
            };
            written.expect("writing to a string cannot fail");
        }
        Self { text }
    }

    /// A stored manifest.
    pub fn from_text(text: String) -> Self {
        Self { text }
    }

    /// The same tree without content: only the root.
    #[must_use]
    pub fn emptied(&self) -> Self {
        let root = self.text.find('\n').map_or(0, |end| end + 1);
        Self { text: self.text[..root].to_owned() }
    }

    /// The manifest's text.
    pub fn as_text(&self) -> &str {
        &self.text
    }

    /// The content hash.
    pub fn content_hash(&self) -> Digest {
        Digest::of(self.text.as_bytes())
    }

    /// The escaped paths whose lines differ.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let (ours, theirs) = (self.by_path(), other.by_path());
        let mut paths: Vec<String> = ours
            .iter()
            .filter(|(path, line)| theirs.get(*path) != Some(line))
            .map(|(path, _)| (*path).to_owned())
            .collect();
        paths.extend(theirs.keys().filter(|path| !ours.contains_key(*path)).map(|path| (*path).to_owned()));
        paths.sort();
        paths
    }

    fn by_path(&self) -> BTreeMap<&str, &str> {
        self.text.lines().map(|line| (manifest_path(line), line)).collect()
    }
}

/// The escaped path of a manifest's line.
pub(crate) fn manifest_path(line: &str) -> &str {
    line.rsplit(' ').next().unwrap_or(line)
}

/// The bytes by which a manifest's lines are sorted.
pub(crate) fn manifest_key(line: &str) -> Cow<'_, [u8]> {
    sort_key(manifest_path(line))
}

/// The bytes by which an escaped path is sorted: the unescaped ones, and none for the root.
pub(crate) fn sort_key(path: &str) -> Cow<'_, [u8]> {
    match path {
        "." => Cow::Borrowed(&[]),
        _ if path.contains('%') => Cow::Owned(unescape(path)),
        _ => Cow::Borrowed(path.as_bytes()),
    }
}

/// The escaped paths of a manifest, in its order.
pub(crate) fn manifest_paths(manifest: &TreeManifest) -> impl Iterator<Item = &str> {
    manifest.text.lines().map(manifest_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &[u8], mode: u32, bytes: &[u8]) -> ManifestLine {
        let content = NodeContent::File { size: bytes.len() as u64, digest: Digest::of(bytes) };
        ManifestLine { path: RelPath::ROOT.join(path), mode, content }
    }

    #[test]
    fn path_mode_bytes_and_links_each_change_the_hash() {
        let base = TreeManifest::new(&[file(b"a", 0o644, b"x")]).content_hash();
        let link = ManifestLine {
            path: RelPath::ROOT.join(b"a"),
            mode: 0o644,
            content: NodeContent::Symlink { target: b"x".to_vec() },
        };
        for other in [file(b"b", 0o644, b"x"), file(b"a", 0o600, b"x"), file(b"a", 0o644, b"y"), link] {
            assert_ne!(TreeManifest::new([&other]).content_hash(), base, "{other:?}");
        }
        assert_eq!(TreeManifest::new(&[file(b"a", 0o644, b"x")]).content_hash(), base);
    }

    #[test]
    fn a_name_cannot_pretend_to_be_another_line() {
        let forged = TreeManifest::new(&[file(b"a\nf 0644 0 0 b", 0o644, b"")]);
        assert_eq!(forged.as_text().lines().count(), 1);
        assert!(forged.as_text().ends_with(" a%0af%200644%200%200%20b\n"));
        let percent = TreeManifest::new(&[file(b"%0a", 0o644, b"")]);
        assert!(percent.as_text().ends_with(" %250a\n"));
    }

    #[test]
    fn differences_name_what_changed_came_and_went() {
        let before = TreeManifest::new(&[file(b"a", 0o644, b"1"), file(b"b", 0o644, b"1")]);
        let after = TreeManifest::new(&[file(b"a", 0o644, b"2"), file(b"c", 0o644, b"1")]);
        assert_eq!(before.differences(&after), ["a", "b", "c"]);
        assert!(before.differences(&before).is_empty());
    }
}
