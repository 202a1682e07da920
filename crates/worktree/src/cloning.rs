//! A new repository with the snapshots of another one.
//!
//! The clone has an id and sequences of its own: no session of the original works in it, and its audit begins with
//! the snapshots that were copied, oldest first. Locks are not copied. Snapshots keep their ids, notes and times.
//!
//! **Invariant.** The original is only read, and each snapshot is kept from being removed while it is copied. A
//! damaged snapshot, worktree or head is left out and reported; the rest is cloned. A layer that is no snapshot of its
//! own, because it was removed or its descriptor is damaged, is cloned as a removed one. A
//! clone that fails leaves a directory that is no repository with an unfinished worktree: `jvs doctor --repair` in
//! it, or removing it, cleans up.

use std::collections::BTreeSet;
use std::path::Path;

use crate::env::Env;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::history::DamagedRecord;
use crate::ids::{Digest, SnapshotId};
use crate::record::EntryEvent;
use crate::repo::{NewWorktree, Repo};
use crate::snapshot::Descriptor;
use crate::tree::{self, Item, Progress, ReadMode, Root};
use crate::worktree::Worktree;

/// The result of a clone.
pub struct ClonedRepo {
    /// The new repository.
    pub repo: Repo,
    /// The number of worktrees.
    pub worktrees: usize,
    /// The number of snapshots.
    pub snapshots: usize,
    /// The records of the original that could not be cloned.
    pub damaged: Vec<DamagedRecord>,
}

/// The readable part of a repository.
struct CloneSource {
    /// Each with its head and its snapshots, oldest first.
    worktrees: Vec<(Worktree, Option<SnapshotId>, Vec<Descriptor>)>,
    /// The snapshots whose descriptors and manifests are those that were published.
    whole: BTreeSet<SnapshotId>,
    damaged: Vec<DamagedRecord>,
}

impl Repo {
    /// Creates a repository in `root` with the worktrees and snapshots of this one. Each worktree gets the files of
    /// its head; changes that are in no snapshot are not copied. Damaged records are left out and listed.
    pub fn clone_into(&self, env: Env, root: &Path, progress: &dyn Progress) -> Result<ClonedRepo> {
        let target = Self::init(env, root, self.record.policy)?;
        let CloneSource { worktrees, whole, damaged } = self.clone_source()?;
        let mut cloned = ClonedRepo { repo: target, worktrees: 0, snapshots: 0, damaged };
        let mut heads = Vec::new();
        for (worktree, head, snapshots) in worktrees {
            let Worktree { worktree_id, path, mode, policy, .. } = worktree;
            let copy = cloned.repo.add_worktree(NewWorktree { worktree_id, path, mode, policy })?;
            for snapshot in &snapshots {
                self.clone_snapshot(&cloned.repo, &copy, snapshot, &whole, progress)?;
                cloned.snapshots += 1;
            }
            cloned.worktrees += 1;
            heads.extend(head.map(|head| (copy, head)));
        }
        // After all snapshots: a fork's head is a snapshot of another worktree.
        for (worktree, head) in heads {
            if let Err(error) = clone_head(&cloned.repo, &worktree, &head, progress) {
                let subject = worktree.worktree_id.to_string();
                cloned.damaged.push(damage(subject, error)?);
            }
        }
        for tag in self.tags()? {
            if let Ok(snapshot) = cloned.repo.visible(&tag.snapshot_id) {
                cloned.repo.add_tag(&tag.tag, &snapshot)?;
            }
        }
        Ok(cloned)
    }

    fn clone_source(&self) -> Result<CloneSource> {
        let listing = self.worktree_listing()?;
        let (worktrees, whole) = (Vec::new(), BTreeSet::new());
        let mut source = CloneSource { worktrees, whole, damaged: listing.damaged };
        for worktree in listing.worktrees {
            let id = worktree.worktree_id.to_string();
            let history = match self.history_listing(&worktree, usize::MAX) {
                Ok(history) => history,
                Err(error) => {
                    source.damaged.push(damage(id, error)?);
                    continue;
                }
            };
            source.damaged.extend(history.damaged);
            let (mut snapshots, mut before) = (Vec::new(), None);
            for snapshot in history.snapshots.into_iter().rev() {
                match self.checked_chain(&snapshot, before.as_ref()) {
                    Ok(chain) => {
                        before = Some(chain);
                        source.whole.insert(snapshot.snapshot_id.clone());
                        snapshots.push(snapshot);
                    }
                    Err(error) => source.damaged.push(damage(snapshot.snapshot_id.to_string(), error)?),
                }
            }
            source.worktrees.push((worktree, history.head, snapshots));
        }
        Ok(source)
    }

    fn clone_snapshot(
        &self,
        target: &Self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        whole: &BTreeSet<SnapshotId>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let _use = self.use_snapshot(&snapshot.snapshot_id)?;
        for layer in self.manifest_chain(&snapshot.snapshot_id)?.layers {
            let is_snapshot = whole.contains(&layer);
            let is_new = self.clone_layer(target, &layer, is_snapshot, progress)?;
            if is_new && !is_snapshot {
                let content_hash = target.manifest_chain(&layer)?.manifest.content_hash();
                commit_publish(target, worktree, &layer, content_hash)?;
                commit_removal(target, worktree, &layer)?;
            }
        }
        let content_hash = target.stored_manifest(snapshot)?.content_hash();
        commit_publish(target, worktree, &snapshot.snapshot_id, content_hash)
    }

    /// Copies the directory of a snapshot, its descriptor only if it `is_snapshot`. Whether it was not there before.
    fn clone_layer(
        &self,
        target: &Self,
        id: &SnapshotId,
        is_snapshot: bool,
        progress: &dyn Progress,
    ) -> Result<bool> {
        let (from, to) = (self.layout.snapshot(id), target.layout.snapshot(id));
        let fs = &*target.env.fs;
        if absent_is_none(fs.meta(&to)).doing("stat", &to)?.is_some() {
            return Ok(false);
        }
        let source = Root::open(&from)?;
        let mut items = tree::scan(&source)?;
        let is_ready = |item: &Item| from.join(item.path.to_string()) == self.layout.snapshot_ready(id);
        items.retain(|item| is_snapshot || !is_ready(item));
        fs.make_dir(&to, 0o700).doing("create", &to)?;
        let copy = Root::open(&to)?;
        tree::require_capacity(fs, &copy, &items)?;
        tree::copy(fs, &source, &copy, &items, ReadMode::Strict, progress)?;
        tree::make_durable(fs, &copy, &items)?;
        fs.sync_dir(&target.layout.snapshots()).doing("sync", &target.layout.snapshots())?;
        Ok(true)
    }
}

/// Damage of the original, which the clone reports; any other error ends it.
fn damage(subject: String, error: Error) -> Result<DamagedRecord> {
    use ErrorClass::{Damaged, NotFound, PartialSnapshot};
    match error.class() {
        Damaged | NotFound | PartialSnapshot => Ok(DamagedRecord { subject, error }),
        _ => Err(error),
    }
}

fn commit_publish(target: &Repo, worktree: &Worktree, id: &SnapshotId, content_hash: Digest) -> Result<()> {
    let event = |previous| EntryEvent::Publish {
        fencing_token: None,
        snapshot_id: id.clone(),
        content_hash,
        moves_head: false,
        previous,
    };
    target.lock(worktree).commit(None, |view| Ok(event(view.state().last_publish))).map(drop)
}

fn commit_removal(target: &Repo, worktree: &Worktree, id: &SnapshotId) -> Result<()> {
    let event = |previous| EntryEvent::Forget { snapshot_ids: vec![id.clone()], previous };
    target.lock(worktree).commit(None, |view| Ok(event(view.state().last_forget))).map(drop)
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
