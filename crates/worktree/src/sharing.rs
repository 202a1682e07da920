//! What a new snapshot stores, and what it shares with the one before.
//!
//! **Invariant.** A name is shared only if the index shows that it is unchanged, and if the base's manifest has
//! it. Names of one file are shared together or not at all: a layer has all of them, as hard links of each
//! other. No file of a worktree is ever a hard link of a stored one: sharing means not to store.

use std::collections::BTreeSet;

use crate::file_index::hard_links;
use crate::ids::{SnapshotId, WorktreeId};
use crate::manifest_chain::{LAYERS_MAX, ManifestChain, delta};
use crate::repo::Repo;
use crate::tree::{Item, ManifestLine, RelPath, Shape, TreeManifest, manifest_path};
use crate::uses::SnapshotUse;

/// The base of a new snapshot.
pub(crate) struct SharePlan {
    base_id: SnapshotId,
    base: TreeManifest,
    /// The paths that are not stored again.
    shared: BTreeSet<RelPath>,
    /// Keeps the base until the snapshot is published.
    _use: SnapshotUse,
}

impl Repo {
    /// The snapshot that a new one of `worktree` can share files with; none if everything must be stored.
    pub(crate) fn plan_sharing(&self, worktree: &WorktreeId, items: &[Item]) -> Option<SharePlan> {
        let index = self.file_index(worktree)?;
        let in_use = self.use_snapshot(&index.snapshot_id).ok()?;
        let descriptor = self.visible(&index.snapshot_id).ok()?;
        let ManifestChain { manifest, layers } = self.manifest_chain(&index.snapshot_id).ok()?;
        if manifest.content_hash() != descriptor.content_hash {
            return None;
        }
        let mut shared: BTreeSet<RelPath> =
            items.iter().filter(|item| index.has(item)).map(|item| item.path.clone()).collect();
        for names in hard_links(items).values() {
            if !names.iter().all(|name| shared.contains(name)) {
                for name in names {
                    shared.remove(*name);
                }
            }
        }
        let (base_id, base) = if layers.len() < LAYERS_MAX {
            (index.snapshot_id, manifest)
        } else {
            let stored = self.stored_tree(&index.snapshot_id).ok()?;
            let oldest = stored.items.into_iter().filter(|item| item.layer == 0);
            let oldest: BTreeSet<RelPath> = oldest.map(|item| item.path).collect();
            shared.retain(|path| oldest.contains(path));
            (layers[0].clone(), self.manifest_chain(&layers[0]).ok()?.manifest)
        };
        let known: BTreeSet<&str> = base.as_text().lines().map(manifest_path).collect();
        shared.retain(|path| *path != RelPath::ROOT && known.contains(path.to_string().as_str()));
        drop(known);
        let is_shared_file = |item: &Item| item.shape == Shape::File && shared.contains(&item.path);
        if !items.iter().any(is_shared_file) {
            return None;
        }
        Some(SharePlan { base_id, base, shared, _use: in_use })
    }
}

impl SharePlan {
    /// The snapshot whose files are shared.
    pub(crate) fn base_id(&self) -> &SnapshotId {
        &self.base_id
    }

    /// The items that are stored: those that are not shared, and the directories above them.
    pub(crate) fn stored(&self, items: &[Item]) -> Vec<Item> {
        let mut paths: BTreeSet<RelPath> = BTreeSet::from([RelPath::ROOT]);
        for item in items.iter().filter(|item| !self.shared.contains(&item.path)) {
            let mut path = Some(item.path.clone());
            while let Some(at) = path.filter(|at| paths.insert(at.clone())) {
                path = at.parent();
            }
        }
        items.iter().filter(|item| paths.contains(&item.path)).cloned().collect()
    }

    /// The manifest of the new snapshot: `stored` lines, and the base's lines of the shared paths.
    pub(crate) fn manifest(&self, stored: &[ManifestLine]) -> TreeManifest {
        let stored_text = TreeManifest::new(stored);
        let mut lines: Vec<(Vec<u8>, &str)> = Vec::new();
        let paths: BTreeSet<&RelPath> = stored.iter().map(|line| &line.path).collect();
        let shared: BTreeSet<String> =
            self.shared.iter().filter(|path| !paths.contains(path)).map(ToString::to_string).collect();
        let key = |line: &str| crate::tree::unescape(manifest_path(line));
        let of_base = self.base.as_text().lines().filter(|line| shared.contains(manifest_path(line)));
        lines.extend(of_base.map(|line| (key(line), line)));
        // The root's path is a dot, and sorts first.
        let root = stored_text.as_text().lines().filter(|line| manifest_path(line) == ".");
        lines.extend(root.map(|line| (Vec::new(), line)));
        let others = stored_text.as_text().lines().filter(|line| manifest_path(line) != ".");
        lines.extend(others.map(|line| (key(line), line)));
        lines.sort_unstable();
        let mut text = String::new();
        for (_, line) in lines {
            text.push_str(line);
            text.push('\n');
        }
        TreeManifest::from_text(text)
    }

    /// The text of `manifest.delta`.
    pub(crate) fn delta(&self, manifest: &TreeManifest) -> String {
        delta(&self.base_id, &self.base, manifest)
    }
}
