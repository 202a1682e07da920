//! The differences between two trees: a snapshot and another one, or a snapshot and the files of a worktree.
//!
//! Trees are compared by their manifests, so two snapshots are compared without reading a file. The files of a
//! worktree are read without its lock: a file that changes meanwhile is listed with the bytes that were read.
//!
//! Left out: the differences within a file, which `jvs show` and any comparing tool can print.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde::Serialize;

use crate::error::Result;
use crate::repo::Repo;
use crate::snapshot::Descriptor;
use crate::tree::{self, IgnoreRules, Progress, ReadMode, Root, TreeManifest};
use crate::worktree::Worktree;

/// How a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathChange {
    /// Only the second tree has it.
    Added,
    /// Only the first tree has it.
    Removed,
    /// Bytes, link target or hard links differ.
    Modified,
    /// Only the permission bits differ.
    ModeChanged,
    /// A file became a directory, or similar.
    TypeChanged,
}

/// A path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathDifference {
    /// The escaped path.
    pub path: String,
    /// How it differs.
    pub change: PathChange,
    /// Its kind in the second tree, or in the first if it was removed.
    pub kind: NodeKind,
    /// The size of the file in the first tree, in bytes.
    pub bytes_before: Option<u64>,
    /// The size of the file in the second tree, in bytes.
    pub bytes_after: Option<u64>,
}

/// The kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// Another name of a file.
    HardLink,
    /// A symbolic link.
    Symlink,
}

/// All paths that differ, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TreeDifferences {
    /// The paths that differ.
    pub changes: Vec<PathDifference>,
}

impl TreeDifferences {
    /// The differences between two manifests.
    pub fn between(before: &TreeManifest, after: &TreeManifest) -> Self {
        let (mut ours, mut theirs) = (StoredLine::all(before), StoredLine::all(after));
        let mut changes = Vec::new();
        let (mut left, mut right) = (ours.next(), theirs.next());
        loop {
            let order = match (&left, &right) {
                (None, None) => return Self { changes },
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(left), Some(right)) => left.sort_key().cmp(&right.sort_key()),
            };
            changes.extend(match order {
                Ordering::Less => left.as_ref().map(|line| line.alone(PathChange::Removed)),
                Ordering::Greater => right.as_ref().map(|line| line.alone(PathChange::Added)),
                Ordering::Equal => left.as_ref().zip(right.as_ref()).and_then(|(l, r)| l.changed_to(r)),
            });
            if order != Ordering::Greater {
                left = ours.next();
            }
            if order != Ordering::Less {
                right = theirs.next();
            }
        }
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether `path`, or a name below it, differs.
    pub fn touches(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.changes.iter().any(|one| one.path == path || one.path.starts_with(&below))
    }

    /// How many bytes of files the second tree has that the first has not, and the reverse; a file that changed
    /// counts as a whole.
    pub fn bytes(&self) -> (u64, u64) {
        let sum = |of: fn(&PathDifference) -> Option<u64>| self.changes.iter().filter_map(of).sum();
        (sum(|one| one.bytes_after), sum(|one| one.bytes_before))
    }
}

/// One line of a manifest, split.
pub(crate) struct StoredLine<'a> {
    pub(crate) kind: NodeKind,
    /// The permission bits, in octal; empty for links.
    pub(crate) mode: &'a str,
    /// The size of a file, in bytes.
    pub(crate) bytes: Option<u64>,
    /// The hash of a file, the target of a link, or the first name of a hard link.
    pub(crate) content: &'a str,
    pub(crate) path: &'a str,
}

impl<'a> StoredLine<'a> {
    pub(crate) fn all(manifest: &'a TreeManifest) -> impl Iterator<Item = Self> {
        // A manifest is only used after its hash was checked, so every line parses.
        manifest.as_text().lines().filter_map(Self::parse)
    }

    fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split(' ');
        let (kind, first, second) = (words.next()?, words.next()?, words.next()?);
        let link_of = |kind| Some(Self { kind, mode: "", bytes: None, content: first, path: second });
        match kind {
            "d" => Some(Self { kind: NodeKind::Dir, mode: first, bytes: None, content: "", path: second }),
            "f" => Some(Self {
                kind: NodeKind::File,
                mode: first,
                bytes: second.parse().ok(),
                content: words.next()?,
                path: words.next()?,
            }),
            "h" => link_of(NodeKind::HardLink),
            "l" => link_of(NodeKind::Symlink),
            _ => None,
        }
    }

    /// Orders escaped paths: manifests are sorted by the unescaped bytes, in which the root is empty.
    fn sort_key(&self) -> Cow<'a, [u8]> {
        tree::sort_key(self.path)
    }

    fn alone(&self, change: PathChange) -> PathDifference {
        let (bytes_before, bytes_after) =
            if change == PathChange::Added { (None, self.bytes) } else { (self.bytes, None) };
        PathDifference { path: self.path.to_owned(), change, kind: self.kind, bytes_before, bytes_after }
    }

    fn changed_to(&self, after: &Self) -> Option<PathDifference> {
        let change = if self.kind != after.kind {
            PathChange::TypeChanged
        } else if self.content != after.content || self.bytes != after.bytes {
            PathChange::Modified
        } else if self.mode != after.mode {
            PathChange::ModeChanged
        } else {
            return None;
        };
        let path = self.path.to_owned();
        Some(PathDifference {
            path,
            change,
            kind: after.kind,
            bytes_before: self.bytes,
            bytes_after: after.bytes,
        })
    }
}

impl Repo {
    /// The differences from one snapshot to another.
    pub fn diff_snapshots(&self, before: &Descriptor, after: &Descriptor) -> Result<TreeDifferences> {
        Ok(TreeDifferences::between(&self.stored_manifest(before)?, &self.stored_manifest(after)?))
    }

    /// The differences from a snapshot, or from an empty tree, to the files of `worktree`.
    pub fn diff_files(
        &self,
        worktree: &Worktree,
        before: Option<&Descriptor>,
        progress: &dyn Progress,
    ) -> Result<TreeDifferences> {
        let files = self.manifest_without(worktree, IgnoreRules::of, progress)?;
        let before = match before {
            Some(snapshot) => self.stored_manifest(snapshot)?,
            None => files.emptied(),
        };
        Ok(TreeDifferences::between(&before, &files))
    }

    /// The manifest of a worktree's files as they are now, ignored ones included. Files that are unchanged since the
    /// last snapshot are not read.
    pub(crate) fn manifest_of_files(
        &self,
        worktree: &Worktree,
        progress: &dyn Progress,
    ) -> Result<TreeManifest> {
        self.manifest_without(worktree, |_| Ok(IgnoreRules::default()), progress)
    }

    fn manifest_without(
        &self,
        worktree: &Worktree,
        ignored: impl FnOnce(&Root) -> Result<IgnoreRules>,
        progress: &dyn Progress,
    ) -> Result<TreeManifest> {
        let root = Root::open_below(self.layout.root(), worktree.path.as_path())?;
        let items = tree::scan_kept(&root, &ignored(&root)?)?;
        let plan = self.plan_sharing(&worktree.worktree_id, &items);
        let read = plan.as_ref().map_or_else(|| items.clone(), |plan| plan.stored(&items));
        let hashed = tree::hash(&*self.env.fs, &root, &read, ReadMode::BestEffort, progress)?;
        Ok(match plan {
            Some(plan) => plan.manifest(&hashed.records),
            None => TreeManifest::new(&hashed.records),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(lines: &str) -> TreeManifest {
        TreeManifest::from_text(lines.to_owned())
    }

    #[test]
    fn every_kind_of_change_is_told_apart() {
        let before =
            manifest("d 0755 .\nf 0644 1 aa gone\nf 0644 1 aa mode\nf 0644 1 aa text\nf 0644 1 aa type\n");
        let after = manifest(
            "d 0755 .\nf 0600 1 aa mode\nf 0644 2 bb new\nf 0644 9 bb text\nd 0755 type\nl x type/l\n",
        );
        let found = TreeDifferences::between(&before, &after);
        let told: Vec<(&str, PathChange)> =
            found.changes.iter().map(|one| (one.path.as_str(), one.change)).collect();
        assert_eq!(
            told,
            [
                ("gone", PathChange::Removed),
                ("mode", PathChange::ModeChanged),
                ("new", PathChange::Added),
                ("text", PathChange::Modified),
                ("type", PathChange::TypeChanged),
                ("type/l", PathChange::Added),
            ]
        );
        assert!(found.touches("type") && found.touches("type/l") && !found.touches("typ"));
        assert_eq!(found.bytes(), (1 + 2 + 9, 1 + 1 + 1 + 1));
        assert!(TreeDifferences::between(&after, &after).is_empty());
    }

    /// A space is written `%20`, which sorts before `.`; as a byte it sorts before it too, but `%` itself and
    /// bytes over 126 do not. A merge in the order of the text would take both names for new.
    #[test]
    fn escaped_names_are_merged_in_the_order_of_their_bytes() {
        let before = manifest("d 0755 .\nf 0644 1 aa a-b\nf 0644 1 aa a%c3%a9\n");
        let after = manifest("d 0755 .\nf 0644 1 aa a%20b\nf 0644 1 aa a-b\nf 0644 1 aa a%c3%a9\n");
        let found = TreeDifferences::between(&before, &after);
        assert_eq!(found.changes.len(), 1);
        assert_eq!((found.changes[0].path.as_str(), found.changes[0].change), ("a%20b", PathChange::Added));
    }
}
