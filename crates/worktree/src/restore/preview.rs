//! The preview of a restore: its changes, without the lock and without making them.

use serde::Serialize;

use super::attribute_changes::attribute_changes;
use crate::diff::TreeDifferences;
use crate::error::Result;
use crate::repo::Repo;
use crate::snapshot::Descriptor;
use crate::tree::{self, Progress, Root};
use crate::worktree::Worktree;

/// The changes that a restore would make, as of one reading of the files.
#[derive(Clone, Debug, Serialize)]
pub struct RestorePreview {
    /// From the files as they are to those of the snapshot.
    pub changes: TreeDifferences,
    /// Changes since the head, which are in no snapshot: a restore discards them, and needs --discard-changes.
    pub unsaved: TreeDifferences,
    /// Escaped paths whose owners, extended attributes or access control lists would change, which no comparison of
    /// manifests shows: a restore needs --discard-changes for that too.
    pub attributes: Vec<String>,
}

impl Repo {
    /// Compares the files of `worktree` with those of the snapshot, and with the head. Changes nothing.
    pub fn preview_restore(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        progress: &dyn Progress,
    ) -> Result<RestorePreview> {
        let files = self.manifest_of_files(worktree, progress)?;
        let head = match self.head(worktree)? {
            Some(head) => self.stored_manifest(&self.ready(&head)?)?,
            None => files.emptied(),
        };
        let target = self.stored_manifest(snapshot)?;
        let root = Root::open_below(self.layout.root(), worktree.path.as_path())?;
        let stored = self.stored_tree(&snapshot.snapshot_id)?;
        Ok(RestorePreview {
            changes: TreeDifferences::between(&files, &target),
            unsaved: TreeDifferences::between(&head, &files),
            attributes: attribute_changes(&root, &tree::scan(&root)?, &stored, &stored.items)?,
        })
    }
}
