//! Settling: finishing or undoing the restores of other processes, so that they can no longer do so
//! themselves.
//!
//! A stage is first renamed to a unique name, which makes a late swap fail, by its owner or by another
//! process that is settling it. Then it is swapped in if the restore was committed, was the last change of
//! the head, has not been swapped in yet, and the worktree's files are still those that it replaces. Then it
//! is removed. Once renamed, a stage has no effect, so a failure to remove it is ignored: the next settling
//! retries, and `doctor` reports it.
//!
//! The next holder of the lock settles every stage. Other processes settle only stages whose maker has ended.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::{OLD, RECORD, StageRecord, SwapTarget, TREE};
use crate::atomic::maker_is_gone;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::random_hex;
use crate::lock::AcquiredLock;
use crate::probe;
use crate::record::EntryEvent;
use crate::repo::Repo;
use crate::sequence::Sequence;
use crate::tree::{self, Root};
use crate::worktree::Worktree;

/// Which stages are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageFilter {
    All,
    Abandoned,
}

impl Repo {
    /// Finishes or undoes restores whose makers are gone.
    pub(crate) fn settle(&self, worktree: &Worktree) -> Result<()> {
        self.settle_stages(worktree, StageFilter::Abandoned)
    }

    /// Whether [`Repo::settle`] has anything to do.
    pub(crate) fn has_stages(&self, worktree: &Worktree) -> Result<bool> {
        Ok(!self.stages(worktree, StageFilter::Abandoned)?.is_empty())
    }

    /// Settles every stage while renewing the lease, and checks that the lock is still held afterwards.
    pub(crate) fn settle_as_holder(&self, worktree: &Worktree, acquired: &mut AcquiredLock) -> Result<()> {
        if self.stages(worktree, StageFilter::All)?.is_empty() {
            return Ok(());
        }
        self.while_renewing(worktree, &acquired.session, || self.settle_stages(worktree, StageFilter::All))?;
        let lock = self.lock(worktree);
        acquired.session = lock.session(&acquired.session.session_id)?;
        acquired.lock = lock.check(&acquired.session)?;
        Ok(())
    }

    /// Takes over every stage but `ours` that may have been committed.
    pub(super) fn take_others(&self, worktree: &Worktree, ours: &Path) -> Result<()> {
        for stage in self.stages(worktree, StageFilter::All)?.into_iter().filter(|stage| stage != ours) {
            let record = stage.join(RECORD);
            // A stage without a record is still being filled, and its commit will be refused.
            if absent_is_none(self.env.fs.meta(&record)).doing("stat", &record)?.is_none() {
                continue;
            }
            if let Some(taken) = self.take_stage(&stage, worktree)? {
                self.put_back(&taken, worktree)?;
                drop(self.discard_stage(&taken));
            }
        }
        Ok(())
    }

    /// Swaps the staged directory with the worktree's; false if another process took the stage over.
    pub(super) fn swap_in(&self, stage: &Path, worktree: &Worktree) -> Result<bool> {
        let (fs, tree, target) = (&*self.env.fs, stage.join(TREE), SwapTarget::of(self, worktree)?);
        let payload = target.path();
        let there = absent_is_none(fs.meta(&payload)).doing("stat", target.shown())?.is_some();
        let swapped = match if there { fs.exchange(&tree, &payload) } else { fs.rename(&tree, &payload) } {
            // Without RENAME_EXCHANGE the directory is missing for a moment; `settle` puts it back after a
            // crash.
            Err(cause) if cause.kind() == io::ErrorKind::Unsupported => {
                fs.rename(&payload, &stage.join(OLD)).and_then(|()| fs.rename(&tree, &payload))
            }
            other => other,
        };
        if let Err(cause) = swapped {
            let taken = cause.kind() == io::ErrorKind::NotFound
                && absent_is_none(fs.meta(stage)).doing("stat", stage)?.is_none();
            return if taken {
                Ok(false)
            } else {
                Err(Error::io("swap the restored files into", target.shown(), &cause))
            };
        }
        fs.sync_dir(&target.parent()).doing("sync the directory of", target.shown())?;
        absent_is_none(fs.sync_dir(stage)).doing("sync", stage)?;
        Ok(true)
    }

    /// Removes a stage, its record first: a stage without a record is never swapped in.
    pub(super) fn discard_stage(&self, stage: &Path) -> Result<()> {
        let record = stage.join(RECORD);
        absent_is_none(self.env.fs.remove_file(&record)).doing("remove", &record)?;
        tree::remove(&*self.env.fs, stage)
    }

    fn settle_stages(&self, worktree: &Worktree, filter: StageFilter) -> Result<()> {
        let mut settled = BTreeSet::new();
        for _ in 0..ROUNDS {
            let mut stages = self.stages(worktree, filter)?;
            stages.retain(|stage| !settled.contains(stage));
            if stages.is_empty() {
                return Ok(());
            }
            for stage in stages {
                // If another process was first, the next round finds the stage under its new name.
                if let Some(taken) = self.take_stage(&stage, worktree)? {
                    self.finish_if_due(&taken, worktree)?;
                    drop(self.discard_stage(&taken));
                    settled.insert(taken);
                }
            }
        }
        Err(Error::new(
            ErrorClass::LockConflict,
            format!("other processes kept taking over the stages of restores; retry: attempts={ROUNDS}"),
        ))
    }

    fn stages(&self, worktree: &Worktree, filter: StageFilter) -> Result<Vec<PathBuf>> {
        let dir = self.layout.restores(&worktree.worktree_id);
        let names = absent_is_none(self.env.fs.list(&dir)).doing("list", &dir)?.unwrap_or_default();
        let mut stages = Vec::new();
        for name in names {
            let stage = dir.join(&name);
            if filter == StageFilter::All || self.is_abandoned(&stage, name.to_str().unwrap_or_default())? {
                stages.push(stage);
            }
        }
        Ok(stages)
    }

    /// Whether no process can be using this stage. If its maker is on another machine, its age decides.
    fn is_abandoned(&self, stage: &Path, name: &str) -> Result<bool> {
        if let Some(gone) = maker_is_gone(&self.env, name) {
            return Ok(gone);
        }
        let Some(meta) = absent_is_none(self.env.fs.meta(stage)).doing("stat", stage)? else {
            return Ok(false);
        };
        Ok(probe::read(&self.env, &self.layout)?.now.fs.0 - meta.modified.0 > DAY_MS)
    }

    /// Renames a stage, so that processes that know its old name cannot use it; none if another was first.
    fn take_stage(&self, stage: &Path, worktree: &Worktree) -> Result<Option<PathBuf>> {
        let unique = random_hex(&*self.env.entropy, 8);
        let taken = self.layout.taken_restore(&worktree.worktree_id, &self.env.maker, &unique);
        let renamed = absent_is_none(self.env.fs.rename(stage, &taken)).doing("take over", stage)?;
        Ok(renamed.map(|()| taken))
    }

    fn finish_if_due(&self, stage: &Path, worktree: &Worktree) -> Result<()> {
        let path = stage.join(RECORD);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
        // A stage without a record, or with a torn one, was never committed.
        let record = bytes.and_then(|bytes| serde_json::from_slice::<StageRecord>(&bytes).ok());
        match record {
            Some(record) if self.is_due(stage, &record, worktree)? => self.swap_in(stage, worktree).map(drop),
            _ => self.put_back(stage, worktree),
        }
    }

    /// Whether the swap is still to be done, and discards nothing that was written later.
    fn is_due(&self, stage: &Path, record: &StageRecord, worktree: &Worktree) -> Result<bool> {
        let tree = stage.join(TREE);
        let staged = absent_is_none(self.env.fs.meta(&tree)).doing("stat", &tree)?;
        if staged.is_none_or(|meta| meta.inode != record.tree_inode) || !self.is_latest(record, worktree)? {
            return Ok(false);
        }
        let target = SwapTarget::of(self, worktree)?;
        if absent_is_none(self.env.fs.meta(&target.path())).doing("stat", target.shown())?.is_none() {
            return Ok(true);
        }
        let now = Root::open_below(self.layout.root(), worktree.path.as_path())
            .and_then(|root| tree::scan(&root))
            .map(|items| tree::fingerprint(&items));
        // A tree that cannot be read does not match the fingerprint.
        Ok(now.is_ok_and(|now| Some(now) == record.replaces))
    }

    /// Whether the restore was committed, and the head has not moved since.
    fn is_latest(&self, record: &StageRecord, worktree: &Worktree) -> Result<bool> {
        let view = self.lock(worktree).view()?;
        let Some(last) = view.state().last_restore else { return Ok(false) };
        // A snapshot's id is used once, so a head with another id was published later.
        if view.state().head.as_ref() != Some(&record.snapshot_id) {
            return Ok(false);
        }
        let sequence = Sequence::new(&self.env, &self.layout, &worktree.worktree_id);
        match sequence.read(last)?.entry.event {
            EntryEvent::Restore { restore_id, .. } => Ok(restore_id == record.restore_id),
            _ => Ok(false),
        }
    }

    /// Undoes a swap by two renames that was interrupted between them.
    fn put_back(&self, stage: &Path, worktree: &Worktree) -> Result<()> {
        let (fs, old) = (&*self.env.fs, stage.join(OLD));
        if absent_is_none(fs.meta(&old)).doing("stat", &old)?.is_none() {
            return Ok(());
        }
        let target = SwapTarget::of(self, worktree)?;
        if absent_is_none(fs.meta(&target.path())).doing("stat", target.shown())?.is_none() {
            fs.rename(&old, &target.path()).doing("put back", target.shown())?;
            fs.sync_dir(&target.parent()).doing("sync the directory of", target.shown())?;
        }
        Ok(())
    }
}

/// Rounds of settling; each failed round means that another process made progress.
const ROUNDS: usize = 64;
/// Longer than staging a restore can take without adding a name to the stage.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;
