//! Removing snapshots: which may go, and the entry that removes them.
//!
//! **Invariant.** A snapshot is removed by an entry of its worktree's sequence, and its files only after that
//! entry is durable. When the entry is appended, the snapshot is no worktree's head, has no tag and no pin, and no
//! process uses it; and from the intent on, nothing of this can change:
//!
//! 1. the remover creates `removals/<snapshot_id>.json`, its intent;
//! 2. it checks for marks of readers first, and for heads, tags and pins after that: a reader (restore, fork,
//!    snapshot, tag, pin) drops its mark only when its result is durable;
//! 3. it appends the `forget` entry;
//! 4. it removes the files that no other snapshot shares (`reclaim`), and the intent last.
//!
//! A reader that begins after 1 sees the intent and is refused (`uses`). A crash before 3 leaves an intent, which
//! counts only while its process lives; a crash after 3 leaves files, which the next removal or `gc` reclaims.
//!
//! **What would break it.** Checking heads before marks: a restore commits its entry and drops its mark in
//! between, and its worktree's head is removed.
//!
//! Left out: snapshots of removed worktrees, whose sequences accept no entry; add the worktree again first.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::atomic::DIR_MODE;
use crate::clock::{Millis, UnixMs};
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::{absent_is_none, ensure_dir};
use crate::ids::{EntryNumber, SnapshotId, WorktreeId};
use crate::probe;
use crate::record::{EntryEvent, FORGET_MAX, FORMAT, known_format};
use crate::repo::{Repo, create_json};
use crate::sequence::Sequence;
use crate::snapshot::Descriptor;
use crate::worktree::Worktree;

/// Why a snapshot is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepReason {
    /// It is the head of a worktree.
    Head,
    /// It has a tag.
    Tagged,
    /// It is pinned.
    Pinned,
    /// A process reads it.
    InUse,
    /// A restore is in progress, whose undoing could make any snapshot a head again.
    RestoreInProgress,
    /// The policy keeps it.
    Policy,
    /// Its record cannot be read, so the policy does not apply; `snapshot rm` with its id removes it.
    Damaged,
}

/// A snapshot to remove. Its own record is not needed, so that a damaged one can be removed too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemovalTarget {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The worktree whose sequence publishes it.
    pub worktree_id: WorktreeId,
}

impl From<&Descriptor> for RemovalTarget {
    fn from(snapshot: &Descriptor) -> Self {
        Self { snapshot_id: snapshot.snapshot_id.clone(), worktree_id: snapshot.worktree_id.clone() }
    }
}

/// A snapshot that was not removed.
#[derive(Clone, Debug, Serialize)]
pub struct KeptSnapshot {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// Why it is kept.
    pub reason: KeepReason,
}

/// What was removed, or would be.
#[derive(Clone, Debug, Serialize)]
pub struct RemovalReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The removed snapshots.
    pub removed: Vec<SnapshotId>,
    /// The snapshots that were considered and kept.
    pub kept: Vec<KeptSnapshot>,
    /// Damaged snapshots that may share files with removed ones: until they are repaired or removed, no space is freed.
    pub blocked_by: Vec<SnapshotId>,
    /// Snapshots that were begun and never finished, removed by `gc`.
    pub unfinished: Vec<SnapshotId>,
    /// Disk space of all stored snapshots before, in bytes.
    pub bytes_before: u64,
    /// Disk space of all stored snapshots after, in bytes.
    pub bytes_after: u64,
}

/// Which snapshots `gc` keeps, besides heads, tagged, pinned and used ones. Without a rule it keeps all.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepPolicy {
    /// The newest ones of each worktree.
    pub last: Option<usize>,
    /// Those that were begun at most this many days ago.
    pub days: Option<u64>,
}

impl KeepPolicy {
    fn keeps(&self, position: usize, age_ms: Millis) -> bool {
        let last = self.last.is_some_and(|last| position < last);
        let recent = self.days.is_some_and(|days| age_ms <= days.saturating_mul(DAY_MS));
        last || recent || (self.last.is_none() && self.days.is_none())
    }
}

/// A removal in progress: the content of `removals/<snapshot_id>.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RemovalIntent {
    #[serde(deserialize_with = "known_format")]
    v: u32,
    snapshot_id: SnapshotId,
    /// The process, in the form used in the names of temporary files.
    maker: String,
    created_at: UnixMs,
}

impl Repo {
    /// Removes the given snapshots; refused, with nothing changed, if one of them must be kept.
    pub fn remove_snapshots(&self, snapshots: &[RemovalTarget], dry_run: bool) -> Result<RemovalReport> {
        self.remove_unless_kept(snapshots, dry_run, KeptPolicy::Refuse)
    }

    /// The snapshot to remove by a name as in [`Repo::find`]; a damaged one by its whole id.
    pub fn removal_target(&self, worktree: &Worktree, name: &str) -> Result<RemovalTarget> {
        let error = match self.find(worktree, name) {
            Ok(snapshot) => return Ok(RemovalTarget::from(&snapshot)),
            Err(error) => error,
        };
        let worktree_id = worktree.worktree_id.clone();
        let removed = self.removed_snapshots(&worktree_id)?;
        let mut publishes = self.publishes(&worktree_id)?;
        match publishes.find(|one| one.snapshot_id.as_str() == name && !removed.contains(&one.snapshot_id)) {
            Some(publish) => Ok(RemovalTarget { snapshot_id: publish.snapshot_id, worktree_id }),
            None => Err(error),
        }
    }

    /// Removes the snapshots of the given worktrees that `policy` does not keep, the files of snapshots whose
    /// removal was interrupted, and snapshots whose process was interrupted.
    pub fn collect_garbage(
        &self,
        worktrees: &[Worktree],
        policy: KeepPolicy,
        dry_run: bool,
    ) -> Result<RemovalReport> {
        let now = self.time_for_marks()?;
        let (mut candidates, mut kept) = (Vec::new(), Vec::new());
        for worktree in worktrees {
            let listing = self.history_listing(worktree, usize::MAX)?;
            for damaged in listing.damaged {
                // A sequence that cannot be read does not show which snapshots are needed.
                let snapshot_id = damaged.subject.parse::<SnapshotId>().map_err(|_| damaged.error)?;
                kept.push(KeptSnapshot { snapshot_id, reason: KeepReason::Damaged });
            }
            for (position, snapshot) in listing.snapshots.into_iter().enumerate() {
                if policy.keeps(position, now.since(snapshot.created_at)) {
                    kept.push(KeptSnapshot { snapshot_id: snapshot.snapshot_id, reason: KeepReason::Policy });
                } else {
                    candidates.push(RemovalTarget::from(&snapshot));
                }
            }
        }
        let mut report = self.remove_unless_kept(&candidates, dry_run, KeptPolicy::Skip)?;
        report.kept.extend(kept);
        self.remove_unfinished(&mut report)?;
        Ok(report)
    }

    fn remove_unfinished(&self, report: &mut RemovalReport) -> Result<()> {
        for id in self.unfinished_snapshots()? {
            // Another user's is closed, and left to that user.
            let Ok(bytes) = self.allocated_bytes(&id) else { continue };
            if !report.dry_run {
                self.discard_snapshot(&id)?;
            }
            report.bytes_after = report.bytes_after.saturating_sub(bytes);
            report.unfinished.push(id);
        }
        Ok(())
    }

    /// The snapshots that entries of a worktree's sequence removed.
    pub(crate) fn removed_snapshots(&self, worktree: &WorktreeId) -> Result<BTreeSet<SnapshotId>> {
        let sequence = Sequence::new(&self.env, &self.layout, worktree);
        let newest = match sequence.end() {
            Err(error) if error.class() == ErrorClass::Damaged => sequence.last_readable()?,
            other => other?,
        };
        let mut removed = BTreeSet::new();
        let mut at: Option<EntryNumber> = newest.and_then(|newest| newest.entry.state.last_forget);
        while let Some(n) = at {
            // What is behind a damaged entry counts as not removed: then nothing of it is reclaimed.
            let Ok(stored) = sequence.read(n) else { break };
            let EntryEvent::Forget { snapshot_ids, previous } = stored.entry.event else { break };
            removed.extend(snapshot_ids);
            at = previous.filter(|previous| *previous < n);
        }
        Ok(removed)
    }

    /// The snapshots that were removed from any worktree. A sequence that cannot be read removes none.
    pub(crate) fn all_removed_snapshots(&self) -> Result<BTreeSet<SnapshotId>> {
        let locks = self.layout.locks();
        let mut removed = BTreeSet::new();
        for name in self.env.fs.list(&locks).doing("list", &locks)? {
            let id = name.to_str().and_then(|name| name.strip_suffix(".d")?.parse::<WorktreeId>().ok());
            removed.extend(id.and_then(|id| self.removed_snapshots(&id).ok()).unwrap_or_default());
        }
        Ok(removed)
    }

    /// Whether a live process is removing the snapshot. The intent of one that has ended is removed.
    pub(crate) fn is_being_removed(&self, id: &SnapshotId) -> Result<bool> {
        let path = self.layout.removal(id);
        let Some(bytes) = absent_is_none(self.env.fs.read(&path)).doing("read", &path)? else {
            return Ok(false);
        };
        let intent: RemovalIntent =
            serde_json::from_slice(&bytes).map_err(|cause| Error::damaged(&path, cause))?;
        let now = probe::read(&self.env, &self.layout)?.now.fs;
        if self.is_over(&intent.maker, intent.created_at, now) {
            absent_is_none(self.env.fs.remove_file(&path)).doing("remove", &path)?;
            return Ok(false);
        }
        Ok(true)
    }

    fn remove_unless_kept(
        &self,
        snapshots: &[RemovalTarget],
        dry_run: bool,
        kept_policy: KeptPolicy,
    ) -> Result<RemovalReport> {
        let before = self.stored_bytes()?;
        let intents = if dry_run { RemovalIntents::none(self) } else { self.begin_removals(snapshots)? };
        let (going, kept) = self.split(snapshots)?;
        if let (KeptPolicy::Refuse, Some(first)) = (kept_policy, kept.first()) {
            return Err(refusal(first));
        }
        let removed: Vec<SnapshotId> = going.iter().map(|one| one.snapshot_id.clone()).collect();
        let reclaimed = if dry_run {
            self.reclaimable(&removed.iter().cloned().collect())?
        } else {
            self.forget(&going)?;
            self.reclaim()?
        };
        drop(intents);
        Ok(RemovalReport {
            dry_run,
            removed,
            kept,
            blocked_by: reclaimed.blocked_by,
            unfinished: Vec::new(),
            bytes_before: before,
            bytes_after: if dry_run { before.saturating_sub(reclaimed.bytes) } else { self.stored_bytes()? },
        })
    }

    fn begin_removals(&self, snapshots: &[RemovalTarget]) -> Result<RemovalIntents<'_>> {
        let dir = self.layout.removals();
        ensure_dir(&*self.env.fs, &dir, DIR_MODE).doing("create", &dir)?;
        let created_at = probe::read(&self.env, &self.layout)?.now.fs;
        let mut intents = RemovalIntents::none(self);
        for snapshot in snapshots {
            let snapshot_id = snapshot.snapshot_id.clone();
            // Removes the intent of a process that has ended.
            self.is_being_removed(&snapshot_id)?;
            let path = self.layout.removal(&snapshot_id);
            let maker = self.env.maker.to_string();
            let intent = RemovalIntent { v: FORMAT, snapshot_id: snapshot_id.clone(), maker, created_at };
            create_json(&self.env, &self.layout, &path, &intent)?;
            intents.ids.push(snapshot_id);
        }
        Ok(intents)
    }

    /// Those that may go, and those that must be kept. Marks are read before heads, tags and pins.
    fn split<'a>(
        &self,
        snapshots: &'a [RemovalTarget],
    ) -> Result<(Vec<&'a RemovalTarget>, Vec<KeptSnapshot>)> {
        let used = self.used_snapshots()?;
        let (mut heads, mut restoring) = (BTreeSet::new(), false);
        for worktree in self.worktrees()? {
            heads.extend(self.head(&worktree)?);
            let stages = absent_is_none(self.env.fs.list(&self.layout.restores(&worktree.worktree_id)));
            restoring |= !stages.doing("list", &self.layout.all_restores())?.unwrap_or_default().is_empty();
        }
        let tagged: BTreeSet<SnapshotId> = self.tags()?.into_iter().map(|tag| tag.snapshot_id).collect();
        let pinned: BTreeSet<SnapshotId> = self.pins()?.into_iter().map(|pin| pin.snapshot_id).collect();
        let reason_for = |id: &SnapshotId| {
            let reasons = [
                (heads.contains(id), KeepReason::Head),
                (tagged.contains(id), KeepReason::Tagged),
                (pinned.contains(id), KeepReason::Pinned),
                (used.contains(id), KeepReason::InUse),
                (restoring, KeepReason::RestoreInProgress),
            ];
            reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason)
        };
        let (mut going, mut kept) = (Vec::new(), Vec::new());
        for snapshot in snapshots {
            match reason_for(&snapshot.snapshot_id) {
                None => going.push(snapshot),
                Some(reason) => kept.push(KeptSnapshot { snapshot_id: snapshot.snapshot_id.clone(), reason }),
            }
        }
        Ok((going, kept))
    }

    /// Appends the entries that remove the snapshots.
    fn forget(&self, snapshots: &[&RemovalTarget]) -> Result<()> {
        let mut by_worktree: BTreeMap<&WorktreeId, Vec<SnapshotId>> = BTreeMap::new();
        for snapshot in snapshots {
            by_worktree.entry(&snapshot.worktree_id).or_default().push(snapshot.snapshot_id.clone());
        }
        for (id, ids) in by_worktree {
            let worktree = self.worktree(id).map_err(|error| {
                Error::new(
                    error.class(),
                    format!(
                        "a snapshot of a removed worktree cannot be removed; add the worktree again with `jvs \
                         worktree add {id}` first: {}",
                        error.detail()
                    ),
                )
            })?;
            for some in ids.chunks(FORGET_MAX) {
                self.lock(&worktree).commit(None, |view| {
                    Ok(EntryEvent::Forget { snapshot_ids: some.to_vec(), previous: view.state().last_forget })
                })?;
            }
        }
        Ok(())
    }
}

/// What to do about a snapshot that must be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptPolicy {
    Refuse,
    Skip,
}

/// The intents of this removal; dropping it removes them.
struct RemovalIntents<'a> {
    repo: &'a Repo,
    ids: Vec<SnapshotId>,
}

impl<'a> RemovalIntents<'a> {
    fn none(repo: &'a Repo) -> Self {
        Self { repo, ids: Vec::new() }
    }
}

impl Drop for RemovalIntents<'_> {
    fn drop(&mut self) {
        for id in &self.ids {
            // One that stays behind does not count once this process has ended.
            drop(self.repo.env.fs.remove_file(&self.repo.layout.removal(id)));
        }
    }
}

const DAY_MS: Millis = 24 * 3600 * 1000;

fn refusal(kept: &KeptSnapshot) -> Error {
    let id = &kept.snapshot_id;
    let why = match kept.reason {
        KeepReason::Head => "it is the head of a worktree; restore or take another one first",
        KeepReason::Tagged => "it has a tag; remove that with `jvs tag rm` first",
        KeepReason::Pinned => "it is pinned; run `jvs pin rm` first",
        KeepReason::InUse => "a running command reads it; retry when that has ended",
        KeepReason::RestoreInProgress => "a restore is in progress; retry when it has ended",
        KeepReason::Policy => "the policy keeps it",
        KeepReason::Damaged => "its record is damaged; run `jvs doctor --strict`",
    };
    Error::invalid(format!("the snapshot was not removed: {why}: snapshot={id}"))
        .with("snapshot_id", id)
        .with("reason", kept.reason)
}
