//! Freeing the disk space of removed snapshots.
//!
//! **Invariant.** A file goes only if no snapshot that is left has it. Snapshots that are left are those with a
//! descriptor that were not removed, published or not, and those that a process uses: a snapshot that is being
//! taken uses its base. A removed snapshot whose files others share stays as a layer, without its descriptor.
//!
//! While a snapshot that is left is so damaged that its layers are unknown, nothing goes: it may share any file, and a
//! backup of its manifest may bring it back.
//!
//! Every step can be repeated: removed snapshots are known by their entries, so an interrupted run is finished by
//! the next.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs::{AtFlags, lstat, unlinkat};

use crate::error::{ErrorClass, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::SnapshotId;
use crate::repo::Repo;
use crate::tree::{self, Item, RelPath, Root, Shape};

impl Repo {
    /// Frees the space of all removed snapshots.
    pub(crate) fn reclaim(&self) -> Result<Reclaimed> {
        let removed = self.all_removed_snapshots()?;
        let plan = self.reclaim_plan(&removed)?;
        for (id, doomed) in &plan.doomed {
            let ready = self.layout.snapshot_ready(id);
            absent_is_none(self.env.fs.remove_file(&ready)).doing("remove", &ready)?;
            match doomed {
                DoomedFiles::All { .. } => tree::remove(&*self.env.fs, &self.layout.snapshot(id))?,
                DoomedFiles::Some { paths, .. } => self.remove_names(id, paths)?,
            }
        }
        Ok(plan.result())
    }

    /// What would be freed if `more` were removed as well.
    pub(crate) fn reclaimable(&self, more: &BTreeSet<SnapshotId>) -> Result<Reclaimed> {
        let mut removed = self.all_removed_snapshots()?;
        removed.extend(more.iter().cloned());
        Ok(self.reclaim_plan(&removed)?.result())
    }

    /// The disk space of all stored snapshots, in bytes. Without those that cannot be read: one that is being taken, or
    /// that was interrupted, is closed to other users.
    pub(crate) fn stored_bytes(&self) -> Result<u64> {
        let stored = self.stored_snapshots()?;
        Ok(stored.iter().map(|id| self.allocated_bytes(id).unwrap_or(0)).sum())
    }

    /// The disk space of one snapshot's directory, in bytes; 0 if it is not there yet.
    pub(crate) fn allocated_bytes(&self, id: &SnapshotId) -> Result<u64> {
        let dir = self.layout.snapshot(id);
        if absent_is_none(self.env.fs.meta(&dir)).doing("stat", &dir)?.is_none() {
            return Ok(0);
        }
        Ok(allocated(&tree::scan(&Root::open(&dir)?)?))
    }

    fn reclaim_plan(&self, removed: &BTreeSet<SnapshotId>) -> Result<ReclaimPlan> {
        // Marks first: a snapshot that is published after this has its base in one of the two.
        let used = self.used_snapshots()?;
        let stored: BTreeSet<SnapshotId> = self.stored_snapshots()?;
        let is_left = |id: &&SnapshotId| {
            let ready = self.layout.snapshot_ready(id);
            used.contains(*id) || (!removed.contains(*id) && self.env.fs.meta(&ready).is_ok())
        };
        let mut needed: BTreeMap<SnapshotId, BTreeSet<RelPath>> = BTreeMap::new();
        let mut plan = ReclaimPlan::default();
        for id in stored.iter().filter(is_left) {
            let Some(layers) = self.known_layers(id)? else {
                plan.blocked_by.push(id.clone());
                continue;
            };
            if layers.iter().any(|layer| removed.contains(layer)) {
                for item in self.stored_tree(id)?.items {
                    needed.entry(layers[item.layer].clone()).or_default().insert(item.path);
                }
            }
            for layer in layers {
                needed.entry(layer).or_default();
            }
        }
        if plan.blocked_by.is_empty() {
            for id in stored.iter().filter(|id| removed.contains(id) && !used.contains(id)) {
                plan.doomed.insert(id.clone(), self.doomed_files(id, needed.get(id))?);
            }
        }
        Ok(plan)
    }

    /// The layers of a snapshot; none if its manifest is not the published one. Without a descriptor, which a removed
    /// snapshot lacks, or if that is damaged, a manifest that can be read is believed.
    fn known_layers(&self, id: &SnapshotId) -> Result<Option<Vec<SnapshotId>>> {
        let chain = match self.manifest_chain(id) {
            Err(error) if error.class() == ErrorClass::Damaged => return Ok(None),
            other => other?,
        };
        let descriptor = self.ready(id).ok();
        let is_published = descriptor.is_none_or(|it| it.content_hash == chain.manifest.content_hash());
        Ok(is_published.then_some(chain.layers))
    }

    fn stored_snapshots(&self) -> Result<BTreeSet<SnapshotId>> {
        let dir = self.layout.snapshots();
        let names = self.env.fs.list(&dir).doing("list", &dir)?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    fn doomed_files(&self, id: &SnapshotId, needed: Option<&BTreeSet<RelPath>>) -> Result<DoomedFiles> {
        let Some(needed) = needed else {
            return Ok(DoomedFiles::All { bytes: self.allocated_bytes(id)? });
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

/// What a removal freed, or would free.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reclaimed {
    /// Disk space, in bytes.
    pub(crate) bytes: u64,
    /// Snapshots whose layers are unknown, so that nothing could be freed.
    pub(crate) blocked_by: Vec<SnapshotId>,
}

#[derive(Default)]
struct ReclaimPlan {
    doomed: BTreeMap<SnapshotId, DoomedFiles>,
    blocked_by: Vec<SnapshotId>,
}

impl ReclaimPlan {
    fn result(self) -> Reclaimed {
        Reclaimed { bytes: self.doomed.values().map(DoomedFiles::bytes).sum(), blocked_by: self.blocked_by }
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
