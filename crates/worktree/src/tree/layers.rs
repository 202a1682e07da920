//! A tree whose files are spread over several directories, its layers: the newest layer that has a name
//! decides.
//!
//! A stored snapshot with a base has only the names that were new or changed; the others are in the layers
//! below. [`TreeSource`] hides this from copying and hashing.

use std::collections::BTreeSet;

use super::scan::{Item, scan};
use super::{Root, TreeManifest, manifest_paths};
use crate::error::Result;

/// Where the files of a tree are.
pub(crate) trait TreeSource: Sync {
    /// The root of the layer that has `item`.
    fn root_of(&self, item: &Item) -> &Root;
}

impl TreeSource for Root {
    fn root_of(&self, _item: &Item) -> &Root {
        self
    }
}

/// An open stored tree.
pub(crate) struct LayeredTree {
    roots: Vec<Root>,
    /// Every name of the tree, sorted by path, with its layer.
    pub(crate) items: Vec<Item>,
}

impl LayeredTree {
    /// The tree that `manifest` describes, from its layers, oldest first. A name that the manifest has and no
    /// layer has is missing from the items, which the comparison of manifests shows.
    pub(crate) fn open(roots: Vec<Root>, manifest: &TreeManifest) -> Result<Self> {
        let mut items = Vec::new();
        for (layer, root) in roots.iter().enumerate() {
            items.extend(scan(root)?.into_iter().map(|item| Item { layer, ..item }));
        }
        if roots.len() > 1 {
            keep_newest(&mut items);
            let paths: BTreeSet<&str> = manifest_paths(manifest).collect();
            items.retain(|item| paths.contains(item.path.to_string().as_str()));
        }
        Ok(Self { roots, items })
    }
}

impl LayeredTree {
    /// The oldest layer, if it has most of the tree's names.
    pub(crate) fn main_layer(&self) -> Option<&Root> {
        let in_oldest = self.items.iter().filter(|item| item.layer == 0).count();
        self.roots.first().filter(|_| in_oldest * 2 >= self.items.len())
    }
}

impl TreeSource for LayeredTree {
    fn root_of(&self, item: &Item) -> &Root {
        &self.roots[item.layer]
    }
}

/// Sorts by path, and of each path keeps the item of the highest layer.
fn keep_newest(items: &mut Vec<Item>) {
    items.sort_by(|one, other| one.path.cmp(&other.path).then(other.layer.cmp(&one.layer)));
    items.dedup_by(|one, other| one.path == other.path);
}
