//! Freeing the disk space of removed snapshots.
//!
//! **Invariant.** A file goes only if no snapshot that is left has it. Snapshots that are left are those with a
//! descriptor that were not removed, published or not, and those that a process uses: a snapshot that is being
//! taken uses its base. A removed snapshot whose files others share stays as a layer, without its descriptor.
//!
//! Every step can be repeated: removed snapshots are known by their entries, so an interrupted run is finished by
//! the next.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs::{AtFlags, lstat, unlinkat};

use crate::error::{ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::SnapshotId;
use crate::repo::Repo;
use crate::tree::{self, Item, RelPath, Root, Shape};

impl Repo {
    /// Frees the space of all removed snapshots. Returns the bytes that were freed.
    pub(crate) fn reclaim(&self) -> Result<u64> {
        let removed = self.all_removed_snapshots()?;
        let plan = self.reclaim_plan(&removed)?;
        for (id, doomed) in &plan {
            let ready = self.layout.snapshot_ready(id);
            absent_is_none(self.env.fs.remove_file(&ready)).doing("remove", &ready)?;
            match doomed {
                DoomedFiles::All { .. } => tree::remove(&*self.env.fs, &self.layout.snapshot(id))?,
                DoomedFiles::Some { paths, .. } => self.remove_names(id, paths)?,
            }
        }
        Ok(plan.values().map(DoomedFiles::bytes).sum())
    }

    /// The bytes that would be freed if `more` were removed as well.
    pub(crate) fn reclaimable(&self, more: &BTreeSet<SnapshotId>) -> Result<u64> {
        let mut removed = self.all_removed_snapshots()?;
        removed.extend(more.iter().cloned());
        Ok(self.reclaim_plan(&removed)?.values().map(DoomedFiles::bytes).sum())
    }

    /// The disk space of all stored snapshots, in bytes.
    pub(crate) fn stored_bytes(&self) -> Result<u64> {
        let snapshots = self.layout.snapshots();
        Ok(allocated(&tree::scan(&Root::open(&snapshots)?)?))
    }

    fn reclaim_plan(&self, removed: &BTreeSet<SnapshotId>) -> Result<BTreeMap<SnapshotId, DoomedFiles>> {
        // Marks first: a snapshot that is published after this has its base in one of the two.
        let used = self.used_snapshots()?;
        let stored: BTreeSet<SnapshotId> = self.stored_snapshots()?;
        let is_left = |id: &&SnapshotId| {
            let ready = self.layout.snapshot_ready(id);
            used.contains(*id) || (!removed.contains(*id) && self.env.fs.meta(&ready).is_ok())
        };
        let mut needed: BTreeMap<SnapshotId, BTreeSet<RelPath>> = BTreeMap::new();
        for id in stored.iter().filter(is_left) {
            let layers = self.manifest_chain(id)?.layers;
            if layers.iter().any(|layer| removed.contains(layer)) {
                for item in self.stored_tree(id)?.items {
                    needed.entry(layers[item.layer].clone()).or_default().insert(item.path);
                }
            }
            for layer in layers {
                needed.entry(layer).or_default();
            }
        }
        let mut plan = BTreeMap::new();
        for id in stored.iter().filter(|id| removed.contains(id) && !used.contains(id)) {
            plan.insert(id.clone(), self.doomed_files(id, needed.get(id))?);
        }
        Ok(plan)
    }

    fn stored_snapshots(&self) -> Result<BTreeSet<SnapshotId>> {
        let dir = self.layout.snapshots();
        let names = self.env.fs.list(&dir).doing("list", &dir)?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    fn doomed_files(&self, id: &SnapshotId, needed: Option<&BTreeSet<RelPath>>) -> Result<DoomedFiles> {
        let Some(needed) = needed else {
            return Ok(DoomedFiles::All {
                bytes: allocated(&tree::scan(&Root::open(&self.layout.snapshot(id))?)?),
            });
        };
        let items = tree::scan(&Root::open(&self.layout.snapshot_tree(id))?)?;
        let doomed: Vec<Item> = items
            .into_iter()
            .filter(|item| item.shape != Shape::Dir && !needed.contains(&item.path))
            .collect();
        let ready = lstat(self.layout.snapshot_ready(id))
            .map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0));
        let bytes = allocated(&doomed) + ready * 512;
        Ok(DoomedFiles::Some { paths: doomed.into_iter().map(|item| item.path).collect(), bytes })
    }

    fn remove_names(&self, id: &SnapshotId, paths: &[RelPath]) -> Result<()> {
        let dir = self.layout.snapshot_tree(id);
        let root = Root::open(&dir)?;
        for path in paths {
            self.env.fs.step().doing("remove", &dir)?;
            let parent = path.parent().unwrap_or(RelPath::ROOT);
            let parent = root.open_dir(&parent).doing("open", &dir)?;
            absent_is_none(unlinkat(&parent, path.name(), AtFlags::empty()).map_err(Into::into))
                .doing("remove a file of", &dir)?;
        }
        Ok(())
    }
}

/// The files of a removed snapshot that no other one needs.
enum DoomedFiles {
    All { bytes: u64 },
    Some { paths: Vec<RelPath>, bytes: u64 },
}

impl DoomedFiles {
    fn bytes(&self) -> u64 {
        match self {
            Self::All { bytes } | Self::Some { bytes, .. } => *bytes,
        }
    }
}

/// The disk space of `items`; a file with several names counts once.
fn allocated(items: &[Item]) -> u64 {
    let counted = items.iter().filter(|item| !matches!(item.shape, Shape::HardLink { .. }));
    counted.map(|item| item.print.blocks * 512).sum()
}
