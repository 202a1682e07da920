//! A worktree's record: its directory, its mode and its policy.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::clock::UnixMs;
use crate::error::{Error, Result};
use crate::ids::WorktreeId;
use crate::policy::LockPolicy;
use crate::record::known_format;

/// Whether a worktree has a single writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A single writer at a time: the holder of its lock.
    Exclusive,
    /// No lock: any process may write at any time.
    Shared,
}

/// One worktree of a repository.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Worktree {
    /// The version of this shape.
    #[serde(deserialize_with = "known_format")]
    pub v: u32,
    /// Its name.
    pub worktree_id: WorktreeId,
    /// Its directory, below the repository's root.
    pub path: PayloadPath,
    /// Whether it has a single writer.
    pub mode: Mode,
    /// The policy of its locks, unless an acquire overrides it.
    #[serde(flatten)]
    pub policy: LockPolicy,
    /// When it was added.
    pub created_at: UnixMs,
}

/// A directory below the repository's root and outside `.jvs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PathBuf", into = "PathBuf")]
pub struct PayloadPath(PathBuf);

impl PayloadPath {
    /// The path relative to the repository's root.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Whether one of the two contains the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0) || other.0.starts_with(&self.0)
    }
}

impl TryFrom<PathBuf> for PayloadPath {
    type Error = Error;

    fn try_from(path: PathBuf) -> Result<Self> {
        let normal = path.components().all(|part| matches!(part, Component::Normal(_)));
        let empty = path.components().next().is_none();
        if path.to_str().is_none() || empty || !normal || is_reserved(&path) {
            return Err(Error::invalid(format!(
                "a worktree's path must be UTF-8 and below the repository's root, but neither the root \
                 itself nor in .jvs: path={}",
                path.display()
            )));
        }
        Ok(Self(path.components().collect()))
    }
}

/// Whether the path is in `.jvs`, in any case: on some filesystems `.JVS` is the same directory.
fn is_reserved(path: &Path) -> bool {
    let first = path.components().next().map(|first| first.as_os_str().to_ascii_lowercase());
    first.is_some_and(|first| first == ".jvs")
}

impl From<PayloadPath> for PathBuf {
    fn from(path: PayloadPath) -> Self {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worktree_cannot_lie_outside_the_repository_or_in_its_records() {
        for path in ["", ".", "..", "/etc", "a/../..", ".jvs", ".JVS", ".Jvs/x", ".jvs/x", "a/.."] {
            assert!(PayloadPath::try_from(PathBuf::from(path)).is_err(), "accepted {path:?}");
        }
        for path in ["main", "worktrees/a", "a//b", ".jvs2"] {
            assert!(PayloadPath::try_from(PathBuf::from(path)).is_ok(), "refused {path:?}");
        }
    }

    #[test]
    fn nested_worktrees_overlap() {
        let path = |text: &str| PayloadPath::try_from(PathBuf::from(text)).expect("a valid path");
        assert!(path("a").overlaps(&path("a/b")));
        assert!(path("a/b").overlaps(&path("a")));
        assert!(!path("a").overlaps(&path("ab")));
    }
}
