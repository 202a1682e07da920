//! Settling: finishing or undoing the restores of other processes, so that they can no longer do so
//! themselves.
//!
//! A stage is first renamed to a unique name, which makes a late swap fail, by its owner or by another
//! process that is settling it. Then it is swapped in if the restore was committed, was the last change of
//! the head, has not been swapped in yet, and the worktree's files are still those that it replaces. A swap that
//! fails is undone (`undo`). Then the stage is removed; the replaced files in it are kept if they changed
//! (`old_tree`). Once renamed, a stage has no effect, so a failure to remove it is ignored: the next settling
//! retries, and `doctor` reports it.
//!
//! The next holder of the lock settles every stage. Other processes settle only stages whose maker has ended.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{OLD, RECORD, StageRecord, Swap, SwapTarget, TREE};
use crate::atomic::maker_is_gone;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::{EntryNumber, SnapshotId, random_hex};
use crate::lock::AcquiredLock;
use crate::probe;
use crate::record::EntryEvent;
use crate::repo::Repo;
use crate::restore_path::PathRecord;
use crate::sequence::Sequence;
use crate::tree::{self, Root};
use crate::worktree::Worktree;

/// What became of a committed restore that its own process did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SettledOutcome {
    /// Its files are in the worktree now.
    Finished,
    /// Its files could not be swapped in, and an entry put the head back.
    Undone,
    /// The worktree was written to since, or its head moved: the files stay as they are.
    Skipped,
}

/// A committed restore of another process that was settled.
#[derive(Clone, Debug, Serialize)]
pub struct SettledRestore {
    /// The snapshot that was restored.
    pub snapshot_id: SnapshotId,
    /// What became of it.
    pub outcome: SettledOutcome,
    /// Where the replaced files are kept, if they changed after the restore was committed.
    pub rescued: Option<PathBuf>,
}

/// Which stages are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageFilter {
    All,
    Abandoned,
}

impl Repo {
    /// Finishes or undoes restores whose makers are gone.
    pub(crate) fn settle(&self, worktree: &Worktree) -> Result<Vec<SettledRestore>> {
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
        let settle = || self.settle_stages(worktree, StageFilter::All);
        acquired.settled = self.while_renewing(worktree, &acquired.session, settle)?;
        let lock = self.lock(worktree);
        acquired.session = lock.session(&acquired.session.session_id)?;
        acquired.lock = lock.check(&acquired.session)?;
        Ok(())
    }

    /// Takes over every stage but `ours` that may have been committed.
    pub(super) fn take_others(&self, worktree: &Worktree, ours: &Path) -> Result<()> {
        for stage in self.stages(worktree, StageFilter::All)?.into_iter().filter(|stage| stage != ours) {
            // A stage without a record is still being filled, and its commit will be refused.
            let Some(record) = self.stage_record(&stage)? else { continue };
            if let Some(taken) = self.take_stage(&stage, worktree)? {
                self.put_back(&taken, worktree)?;
                drop(self.remove_old(&taken, Some(&record), worktree));
            }
        }
        Ok(())
    }

    fn settle_stages(&self, worktree: &Worktree, filter: StageFilter) -> Result<Vec<SettledRestore>> {
        let (mut settled, mut taken_stages) = (Vec::new(), BTreeSet::new());
        for _ in 0..ROUNDS {
            let mut stages = self.stages(worktree, filter)?;
            stages.retain(|stage| !taken_stages.contains(stage));
            if stages.is_empty() {
                return Ok(settled);
            }
            for stage in stages {
                // If another process was first, the next round finds the stage under its new name.
                if let Some(taken) = self.take_stage(&stage, worktree)? {
                    settled.extend(self.settle_stage(&taken, worktree)?);
                    taken_stages.insert(taken);
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

    /// Finishes, undoes or drops a stage that this process has taken over.
    fn settle_stage(&self, stage: &Path, worktree: &Worktree) -> Result<Option<SettledRestore>> {
        // A stage without a record, or with a torn one, was never committed.
        let Some(record) = self.stage_record(stage)? else {
            if let Some(path) = self.path_record(stage)? {
                return Ok(self.settle_path(stage, path, worktree));
            }
            self.put_back(stage, worktree)?;
            drop(self.discard_stage(stage));
            return Ok(None);
        };
        let outcome = self.finish_if_due(stage, &record, worktree)?;
        let rescued = self.remove_old(stage, Some(&record), worktree).unwrap_or_default();
        // A restore that was swapped in before its process ended is news only if files were kept.
        let outcome = outcome.or(rescued.as_ref().map(|_| SettledOutcome::Finished));
        Ok(outcome.map(|outcome| SettledRestore { snapshot_id: record.snapshot_id, outcome, rescued }))
    }

    /// The restore of a single path is never finished by another process: its files are kept, or dropped.
    fn settle_path(&self, stage: &Path, record: PathRecord, worktree: &Worktree) -> Option<SettledRestore> {
        // Files that could not be kept now stay in the stage, and the next settling retries.
        let rescued = self.finish_path(stage, &record, worktree).unwrap_or_default();
        let outcome = SettledOutcome::Finished;
        rescued.map(|kept| SettledRestore { snapshot_id: record.snapshot_id, outcome, rescued: Some(kept) })
    }

    fn finish_if_due(
        &self,
        stage: &Path,
        record: &StageRecord,
        worktree: &Worktree,
    ) -> Result<Option<SettledOutcome>> {
        let tree = stage.join(TREE);
        let staged = absent_is_none(self.env.fs.meta(&tree)).doing("stat", &tree)?;
        let was_swapped = staged.is_none_or(|meta| meta.inode != record.tree_inode);
        let Some(n) = self.latest(record, worktree)?.filter(|_| !was_swapped) else {
            self.put_back(stage, worktree)?;
            return Ok(None);
        };
        if !self.would_lose_nothing(record, worktree)? {
            self.put_back(stage, worktree)?;
            return Ok(Some(SettledOutcome::Skipped));
        }
        match self.swap_in(stage, worktree) {
            Ok(Swap::Done) => Ok(Some(SettledOutcome::Finished)),
            Ok(Swap::TakenOver) => Ok(None),
            Err(_) if self.is_swapped_in(record, worktree)? => Ok(Some(SettledOutcome::Finished)),
            // If even the entry cannot be appended, the cause of the failed swap says more.
            Err(error) => match self.undo_restore(n, worktree) {
                Ok(()) => {
                    self.put_back(stage, worktree)?;
                    Ok(Some(SettledOutcome::Undone))
                }
                Err(_) => Err(error),
            },
        }
    }

    /// Whether the worktree's files are those that the restore replaces.
    fn would_lose_nothing(&self, record: &StageRecord, worktree: &Worktree) -> Result<bool> {
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

    /// The number of the restore's entry, if it is committed and the head has not moved since.
    fn latest(&self, record: &StageRecord, worktree: &Worktree) -> Result<Option<EntryNumber>> {
        let view = self.lock(worktree).view()?;
        let Some(last) = view.state().last_restore else { return Ok(None) };
        // A snapshot's id is used once, so a head with another id was published later.
        if view.state().head.as_ref() != Some(&record.snapshot_id) {
            return Ok(None);
        }
        let sequence = Sequence::new(&self.env, &self.layout, &worktree.worktree_id);
        match sequence.read(last)?.entry.event {
            EntryEvent::Restore { restore_id, .. } if restore_id == record.restore_id => Ok(Some(last)),
            _ => Ok(None),
        }
    }

    fn stage_record(&self, stage: &Path) -> Result<Option<StageRecord>> {
        let path = stage.join(RECORD);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Undoes a swap by two renames that was interrupted between them.
    pub(super) fn put_back(&self, stage: &Path, worktree: &Worktree) -> Result<()> {
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
