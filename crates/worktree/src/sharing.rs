//! What a new snapshot stores, and what it shares with the one before.
//!
//! **Invariant.** A name is shared only if the index shows that it is unchanged, and if the base's manifest has
//! it. Names of one file are shared together or not at all: a layer has all of them, as hard links of each
//! other. No file of a worktree is ever a hard link of a stored one: sharing means not to store.
//!
//! Scans, indexes and manifests are in the same order, so that all of this is merging, at a constant cost for each name.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::file_index::hard_links;
use crate::ids::{SnapshotId, WorktreeId};
use crate::manifest_chain::{LAYERS_MAX, ManifestChain, delta};
use crate::repo::Repo;
use crate::tree::{Item, ManifestLine, RelPath, Shape, TreeManifest, manifest_key};
use crate::uses::SnapshotUse;

/// The base of a new snapshot.
pub(crate) struct SharePlan {
    base_id: SnapshotId,
    base: TreeManifest,
    /// Whether each item is not stored again, in the order of the items.
    shared: Vec<bool>,
    /// Whether each line of the base's manifest is that of a shared item.
    shared_lines: Vec<bool>,
    /// Keeps the base until the snapshot is published.
    _use: SnapshotUse,
}

impl Repo {
    /// The snapshot that a new one of `worktree` can share files with; none if everything must be stored. `items` are
    /// sorted by path.
    pub(crate) fn plan_sharing(&self, worktree: &WorktreeId, items: &[Item]) -> Option<SharePlan> {
        let index = self.file_index(worktree)?;
        let in_use = self.use_snapshot(&index.snapshot_id).ok()?;
        let descriptor = self.visible(&index.snapshot_id).ok()?;
        let ManifestChain { manifest, layers } = self.manifest_chain(&index.snapshot_id).ok()?;
        if manifest.content_hash() != descriptor.content_hash {
            return None;
        }
        let mut shared = index.unchanged(items);
        for names in hard_links(items).values() {
            if !names.iter().all(|at| shared[*at]) {
                for at in names {
                    shared[*at] = false;
                }
            }
        }
        let (base_id, base) = if layers.len() < LAYERS_MAX {
            (index.snapshot_id, manifest)
        } else {
            let stored = self.stored_tree(&index.snapshot_id).ok()?;
            let oldest = stored.items.into_iter().filter(|item| item.layer == 0);
            let oldest: BTreeSet<RelPath> = oldest.map(|item| item.path).collect();
            for (item, is_shared) in items.iter().zip(&mut shared) {
                *is_shared &= oldest.contains(&item.path);
            }
            (layers[0].clone(), self.manifest_chain(&layers[0]).ok()?.manifest)
        };
        let shared_lines = keep_known(items, &mut shared, &base);
        let is_shared_file = |(item, is_shared): (&Item, &bool)| *is_shared && item.shape == Shape::File;
        if !items.iter().zip(&shared).any(is_shared_file) {
            return None;
        }
        Some(SharePlan { base_id, base, shared, shared_lines, _use: in_use })
    }
}

/// Leaves out of `shared` the root, and items that the base has no line of. Returns which lines are of shared items.
fn keep_known(items: &[Item], shared: &mut [bool], base: &TreeManifest) -> Vec<bool> {
    let mut shared_lines = Vec::with_capacity(items.len());
    let mut next = 0;
    for line in base.as_text().lines() {
        let key = manifest_key(line);
        while items.get(next).is_some_and(|item| item.path.sort_key() < &*key) {
            shared[next] = false;
            next += 1;
        }
        let is_same = items.get(next).is_some_and(|item| item.path.sort_key() == &*key);
        if is_same {
            shared[next] &= items[next].path != RelPath::ROOT;
            next += 1;
        }
        shared_lines.push(is_same && shared[next - 1]);
    }
    shared[next..].fill(false);
    shared_lines
}

impl SharePlan {
    /// The snapshot whose files are shared.
    pub(crate) fn base_id(&self) -> &SnapshotId {
        &self.base_id
    }

    /// The items that are stored: those that are not shared, and the directories above them. `items` are those of the
    /// plan.
    pub(crate) fn stored(&self, items: &[Item]) -> Vec<Item> {
        let mut paths: BTreeSet<RelPath> = BTreeSet::from([RelPath::ROOT]);
        for (item, _) in items.iter().zip(&self.shared).filter(|(_, is_shared)| !**is_shared) {
            let mut path = Some(item.path.clone());
            while let Some(at) = path.filter(|at| paths.insert(at.clone())) {
                path = at.parent();
            }
        }
        items.iter().filter(|item| paths.contains(&item.path)).cloned().collect()
    }

    /// The manifest of the new snapshot: `stored` lines, and the base's lines of the shared paths.
    pub(crate) fn manifest(&self, stored: &[ManifestLine]) -> TreeManifest {
        let stored = TreeManifest::new(stored);
        let base = self.base.as_text().lines().zip(&self.shared_lines);
        let mut shared = base.filter(|(_, is_shared)| **is_shared).map(|(line, _)| line).peekable();
        let mut text = String::with_capacity(self.base.as_text().len() + stored.as_text().len());
        let mut push = |line: &str| {
            text.push_str(line);
            text.push('\n');
        };
        for line in stored.as_text().lines() {
            let key = manifest_key(line);
            while let Some(before) = shared.next_if(|shared| manifest_key(shared) < key) {
                push(before);
            }
            // A directory above a stored name may be shared too.
            shared.next_if(|shared| manifest_key(shared).cmp(&key) == Ordering::Equal);
            push(line);
        }
        shared.for_each(push);
        TreeManifest::from_text(text)
    }

    /// The text of `manifest.delta`.
    pub(crate) fn delta(&self, manifest: &TreeManifest) -> String {
        delta(&self.base_id, &self.base, manifest)
    }
}
