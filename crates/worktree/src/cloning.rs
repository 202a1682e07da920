//! A new repository with the snapshots of another one.
//!
//! The clone has an id and sequences of its own: no session of the original works in it, and its audit begins with
//! the snapshots that were copied, oldest first. Locks are not copied. Snapshots keep their ids, notes and times.
//!
//! **Invariant.** The original is only read, and each snapshot is kept from being removed while it is copied. A
//! clone that fails leaves a directory that is no repository with an unfinished worktree: `jvs doctor --repair` in
//! it, or removing it, cleans up.

use std::path::Path;

use crate::env::Env;
use crate::error::{Error, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::SnapshotId;
use crate::record::EntryEvent;
use crate::repo::{NewWorktree, Repo};
use crate::snapshot::Descriptor;
use crate::tree::{self, Progress, ReadMode, Root};
use crate::worktree::Worktree;

/// The result of a clone.
pub struct ClonedRepo {
    /// The new repository.
    pub repo: Repo,
    /// The number of worktrees.
    pub worktrees: usize,
    /// The number of snapshots.
    pub snapshots: usize,
}

impl Repo {
    /// Creates a repository in `root` with the worktrees and snapshots of this one. Each worktree gets the files of
    /// its head; changes that are in no snapshot are not copied.
    pub fn clone_into(&self, env: Env, root: &Path, progress: &dyn Progress) -> Result<ClonedRepo> {
        let target = Self::init(env, root, self.record.policy)?;
        let mut cloned = ClonedRepo { repo: target, worktrees: 0, snapshots: 0 };
        let mut heads = Vec::new();
        for worktree in self.worktrees()? {
            let head = self.head(&worktree)?;
            let Worktree { worktree_id, path, mode, policy, .. } = worktree.clone();
            let copy = cloned.repo.add_worktree(NewWorktree { worktree_id, path, mode, policy })?;
            let mut history = self.history(&worktree, usize::MAX)?;
            history.reverse();
            for snapshot in &history {
                self.clone_snapshot(&cloned.repo, &copy, snapshot, progress)?;
                cloned.snapshots += 1;
            }
            cloned.worktrees += 1;
            if let Some(head) = head {
                heads.push((copy, head));
            }
        }
        // After all snapshots: a fork's head is a snapshot of another worktree.
        for (worktree, head) in heads {
            clone_head(&cloned.repo, &worktree, &head, progress)?;
        }
        for tag in self.tags()? {
            if let Ok(snapshot) = cloned.repo.visible(&tag.snapshot_id) {
                cloned.repo.add_tag(&tag.tag, &snapshot)?;
            }
        }
        Ok(cloned)
    }

    fn clone_snapshot(
        &self,
        target: &Self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        progress: &dyn Progress,
    ) -> Result<()> {
        let _use = self.use_snapshot(&snapshot.snapshot_id)?;
        for layer in self.manifest_chain(&snapshot.snapshot_id)?.layers {
            self.clone_layer(target, &layer, progress)?;
        }
        let stored = target.stored_manifest(snapshot)?;
        let event = |previous| EntryEvent::Publish {
            fencing_token: None,
            snapshot_id: snapshot.snapshot_id.clone(),
            content_hash: stored.content_hash(),
            moves_head: false,
            previous,
        };
        target.lock(worktree).commit(None, |view| Ok(event(view.state().last_publish))).map(drop)
    }

    /// Copies the directory of a snapshot, unless that was done for an earlier one.
    fn clone_layer(&self, target: &Self, id: &SnapshotId, progress: &dyn Progress) -> Result<()> {
        let (from, to) = (self.layout.snapshot(id), target.layout.snapshot(id));
        let fs = &*target.env.fs;
        if absent_is_none(fs.meta(&to)).doing("stat", &to)?.is_some() {
            return Ok(());
        }
        let source = Root::open(&from)?;
        let items = tree::scan(&source)?;
        fs.make_dir(&to, 0o700).doing("create", &to)?;
        let copy = Root::open(&to)?;
        tree::require_capacity(fs, &copy, &items)?;
        tree::copy(fs, &source, &copy, &items, ReadMode::Strict, progress)?;
        tree::make_durable(fs, &copy, &items)?;
        fs.sync_dir(&target.layout.snapshots()).doing("sync", &target.layout.snapshots())
    }
}

/// Restores the head into the new worktree.
fn clone_head(target: &Repo, worktree: &Worktree, head: &SnapshotId, progress: &dyn Progress) -> Result<()> {
    let snapshot = target.visible(head).map_err(|error| {
        Error::new(
            error.class(),
            format!(
                "the head of a worktree is a snapshot that was not cloned; restore another one first: worktree={} {}",
                worktree.worktree_id,
                error.detail()
            ),
        )
    })?;
    target.fill_worktree(worktree, &snapshot, progress)
}
