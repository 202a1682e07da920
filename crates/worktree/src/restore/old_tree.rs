//! The tree that a restore replaced: compared once more, and removed or kept.
//!
//! **Invariant.** A replaced tree is removed only if it is still the tree that was compared before the commit. It
//! is then in the stage, under a name that no other process uses.
//!
//! **What would break it.** Removing it unseen: a process writes a file after the last comparison and before the
//! swap, and the file is deleted with the old tree.
//!
//! Left out: a process that holds a file or directory of the old tree open can still write to it after this
//! comparison. A file that it creates keeps its directory from being removed; bytes that it writes to an existing
//! file are lost.

use std::path::{Path, PathBuf};

use super::{OLD, RECORD, StageRecord, TREE};
use crate::atomic::{DIR_MODE, parent};
use crate::error::{ErrorContext, Result};
use crate::fs::{absent_is_none, ensure_dir};
use crate::ids::random_hex;
use crate::repo::Repo;
use crate::tree::{self, Root};
use crate::worktree::Worktree;

impl Repo {
    /// Removes a stage that has had its effect, or can have none. The replaced tree in it is kept if it changed;
    /// returns where.
    pub(super) fn remove_old(
        &self,
        stage: &Path,
        record: Option<&StageRecord>,
        worktree: &Worktree,
    ) -> Result<Option<PathBuf>> {
        let mut rescued = None;
        if let Some(record) = record {
            for old in [stage.join(TREE), stage.join(OLD)] {
                if self.is_changed_old(&old, record)? {
                    rescued = Some(self.rescue(&old, record, worktree)?);
                }
            }
        }
        self.discard_stage(stage)?;
        Ok(rescued)
    }

    /// Removes a stage, its record first: a stage without a record is never swapped in.
    pub(super) fn discard_stage(&self, stage: &Path) -> Result<()> {
        let record = stage.join(RECORD);
        absent_is_none(self.env.fs.remove_file(&record)).doing("remove", &record)?;
        tree::remove(&*self.env.fs, stage)
    }

    /// Whether `tree` is a replaced tree that differs from the recorded fingerprint.
    fn is_changed_old(&self, tree: &Path, record: &StageRecord) -> Result<bool> {
        let Some(meta) = absent_is_none(self.env.fs.meta(tree)).doing("stat", tree)? else {
            return Ok(false);
        };
        if meta.inode == record.tree_inode {
            return Ok(false);
        }
        let Some(expected) = &record.replaces else { return Ok(false) };
        let now = Root::open(tree).and_then(|root| tree::scan(&root)).map(|items| tree::fingerprint(&items));
        // A tree that cannot be read any more has changed.
        Ok(now.map_or(true, |now| now != *expected))
    }

    fn rescue(&self, old: &Path, record: &StageRecord, worktree: &Worktree) -> Result<PathBuf> {
        let (fs, id) = (&*self.env.fs, &worktree.worktree_id);
        let unique = format!("{}-{}", record.restore_id, random_hex(&*self.env.entropy, 4));
        let target = self.layout.rescued(id, &unique);
        for dir in [self.layout.all_rescued(), parent(&target).to_owned()] {
            ensure_dir(fs, &dir, DIR_MODE).doing("create", &dir)?;
        }
        fs.rename(old, &target).doing("keep", old)?;
        fs.sync_dir(parent(&target)).doing("sync", parent(&target))?;
        Ok(target)
    }
}
