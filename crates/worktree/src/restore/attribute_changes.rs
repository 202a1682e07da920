//! Owners, extended attributes and access control lists that a restore would change. The manifest knows none of them,
//! so the comparison with the head does not show them: without this check they would be dropped unasked.
//!
//! Left out: modification times, which every tool that rewrites a file changes.

use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::TREE;
use crate::error::{Error, Result};
use crate::repo::Repo;
use crate::tree::{self, Item, Root, TreeSource};
use crate::worktree::Worktree;

impl Repo {
    /// Refuses if a name that is in the worktree and in the stage has another owner, attribute or list there.
    pub(crate) fn refuse_attribute_changes(
        &self,
        worktree: &Worktree,
        items: &[Item],
        stage: &Path,
    ) -> Result<()> {
        let files = Root::open_below(self.layout.root(), worktree.path.as_path())?;
        let staged = Root::open(&stage.join(TREE))?;
        let differing = attribute_changes(&files, items, &staged, &tree::scan(&staged)?)?;
        let Some(first) = differing.first() else { return Ok(()) };
        Err(Error::invalid(format!(
            "the restore would change owners, extended attributes or access control lists, which comparisons of \
             snapshots do not show; pass --discard-changes to accept that: differing={} first={first}",
            differing.len()
        ))
        .with("differing", &differing[..differing.len().min(100)]))
    }
}

/// The escaped paths of the names that `after` has with another owner, attribute or list. Both are sorted by path.
pub(super) fn attribute_changes(
    files: &Root,
    items: &[Item],
    after: &dyn TreeSource,
    items_after: &[Item],
) -> Result<Vec<String>> {
    let mut differing = Vec::new();
    for item in items {
        let Ok(at) = items_after.binary_search_by(|other| other.path.cmp(&item.path)) else {
            continue;
        };
        let other = &items_after[at];
        let is_same = item.print.owner == other.print.owner
            && attributes_of(files, item)? == attributes_of(after.root_of(other), other)?;
        if !is_same {
            differing.push(item.path.to_string());
        }
    }
    Ok(differing)
}

/// The attributes of a file or directory, by name; none of a symbolic link.
fn attributes_of(root: &Root, item: &Item) -> Result<Vec<(String, Vec<u8>)>> {
    if !item.has_attributes() {
        return Ok(Vec::new());
    }
    let failed =
        |cause: Errno| Error::io("read the attributes of", item.path.to_string().as_ref(), &cause.into());
    match root.open_at(&item.path, OFlags::RDONLY | OFlags::NONBLOCK) {
        // Removed since: a restore compares the tree again, and a preview is of one moment.
        Err(Errno::NOENT) => Ok(Vec::new()),
        other => tree::attributes(&other.map_err(failed)?).map_err(failed),
    }
}
