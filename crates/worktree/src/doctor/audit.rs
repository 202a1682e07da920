//! The audit: whether each sequence is unaltered and complete.
//!
//! Numbers, hashes and states show a hole, a corrupt entry and an altered one. They do not show a lost tail:
//! the rest is a valid, shorter sequence. Its traces are elsewhere: a copy of the lock, a renewal or an
//! intent with a token after the newest entry, and a snapshot with a descriptor and no intent, which was
//! therefore published. Each of these is written after its entry is durable.
//!
//! Each check reads the trace first and the sequence after it; in the other order, an entry appended in
//! between would look lost.

use std::collections::BTreeSet;
use std::io;

use super::{Checkup, is_missing};
use crate::error::{ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::{Digest, EntryNumber, FencingToken, SnapshotId, WorktreeId};
use crate::record::{EntryEvent, LockRecord, WorktreeState};
use crate::sequence::Sequence;
use crate::snapshot::{Descriptor, SnapshotIntent};
use crate::worktree::Worktree;

/// The result of auditing one sequence.
#[derive(Debug)]
pub(super) struct Audit {
    integrity: Integrity,
    /// The snapshots that the audited entries publish.
    published: BTreeSet<SnapshotId>,
    /// Whether the worktree exists after the last audited entry.
    is_open: bool,
}

/// How much of a sequence is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Integrity {
    /// All of it: no trace of a missing entry was found.
    Whole,
    /// All existing entries are correct, and later ones are lost.
    TailLost,
    /// An entry is missing or wrong; later ones were not audited.
    Broken,
}

impl Checkup<'_> {
    /// Audits one sequence, once; damage is a finding.
    pub(super) fn audit(&mut self, id: &WorktreeId) -> Result<()> {
        if self.audits.contains_key(id) {
            return Ok(());
        }
        let mut audit = Audit { integrity: Integrity::Whole, published: BTreeSet::new(), is_open: false };
        if !self.audit_entries(id, &mut audit)? {
            audit.integrity = Integrity::Broken;
        }
        self.audits.insert(id.clone(), audit);
        Ok(())
    }

    /// Whether the sequence of `id` was audited and nothing of it is lost. Only then may repair remove or
    /// rewrite anything of that worktree: a damaged sequence does not show what is litter.
    pub(super) fn is_whole(&self, id: &WorktreeId) -> bool {
        self.audits.get(id).is_some_and(|audit| audit.integrity == Integrity::Whole)
    }

    /// Whether the sequence of `worktree` publishes `snapshot`; `None` if the sequence is damaged.
    pub(super) fn publishes(&mut self, worktree: &WorktreeId, snapshot: &SnapshotId) -> Result<Option<bool>> {
        self.audit(worktree)?;
        let audit = &self.audits[worktree];
        if audit.integrity == Integrity::Broken {
            return Ok(None);
        }
        if audit.published.contains(snapshot) {
            return Ok(Some(true));
        }
        // It may have been published since the audit.
        let sequence = Sequence::new(&self.repo.env, &self.repo.layout, worktree);
        if sequence.last_listed()? > sequence.newest()? {
            let detail = "the directory lists entries that cannot be opened; if this mount caches names, retry \
                          on another";
            self.mark_damaged(worktree, Integrity::Broken, detail);
            return Ok(None);
        }
        let published = self.repo.is_published(worktree, snapshot);
        self.damage_is_a_finding("audit_broken", worktree.as_str(), published)
    }

    /// Looks for traces of entries after the newest one of each audited sequence.
    pub(super) fn check_for_lost_tails(&mut self) -> Result<()> {
        let audited: Vec<WorktreeId> = self.audits.keys().cloned().collect();
        for id in &audited {
            let path = self.repo.layout.lock_copy(id);
            let copy = absent_is_none(self.repo.env.fs.read(&path)).doing("read", &path)?;
            let copied = copy.and_then(|bytes| serde_json::from_slice::<LockRecord>(&bytes).ok());
            self.require_entry(id, copied.map(|lock| lock.fencing_token), "its copy of the lock")?;
            let latest = self.renewals(id)?.into_iter().max();
            self.require_entry(id, latest, "a renewal")?;
        }
        Ok(())
    }

    /// Compares each stored snapshot with the sequence of its worktree.
    pub(super) fn check_stored_snapshots(&mut self) -> Result<()> {
        for id in self.repo.known_snapshots()? {
            // The intent before the descriptor: discarding a snapshot removes them in the other order.
            let path = self.repo.layout.intent(&id);
            match absent_is_none(self.repo.env.fs.read(&path)).doing("read", &path)? {
                Some(bytes) => {
                    let Ok(intent) = serde_json::from_slice::<SnapshotIntent>(&bytes) else { continue };
                    self.audit(&intent.worktree_id)?;
                    self.require_entry(&intent.worktree_id, intent.fencing_token, "an intent")?;
                }
                None => self.check_without_intent(&id)?,
            }
        }
        Ok(())
    }

    /// A snapshot without an intent was published, or was not taken by jvs. It is never removed.
    fn check_without_intent(&mut self, id: &SnapshotId) -> Result<()> {
        let (fs, dir) = (&self.repo.env.fs, self.repo.layout.snapshot(id));
        let path = self.repo.layout.snapshot_ready(id);
        let bytes = match fs.read(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotADirectory => None,
            other => absent_is_none(other).doing("read", &path)?,
        };
        let descriptor = bytes.and_then(|bytes| serde_json::from_slice::<Descriptor>(&bytes).ok());
        if let Some(descriptor) = descriptor.filter(|descriptor| descriptor.snapshot_id == *id) {
            let worktree = &descriptor.worktree_id;
            if self.publishes(worktree, id)? == Some(false) {
                let detail = format!(
                    "the snapshot was published, and the sequence of its worktree lost that entry; restore \
                     .jvs/locks from a backup: worktree={worktree}"
                );
                self.note("snapshot_unlisted", id.as_str(), detail);
                self.audits.get_mut(worktree).expect("audited above").integrity = Integrity::TailLost;
            }
            return Ok(());
        }
        let is_there = absent_is_none(fs.meta(&dir)).doing("stat", &dir)?.is_some();
        if is_there && !self.repo.is_published_anywhere(id)? {
            let detail = "this has neither an intent nor a matching descriptor, so it is damaged or \
                          was not taken by jvs; check it and move it out of .jvs/snapshots";
            self.note("snapshot_unlisted", id.as_str(), detail);
        }
        Ok(())
    }

    /// Finishes the removal of a worktree that was interrupted before its record was removed.
    pub(super) fn check_removal(&mut self, worktree: &Worktree) {
        let id = &worktree.worktree_id;
        if !self.is_whole(id) || self.audits[id].is_open {
            return;
        }
        let detail = "the worktree was removed, but its record is still there";
        self.note_or_repair("half_removed", id.as_str(), detail, |repo| {
            repo.remove_worktree(id)
                .map(drop)
                .or_else(|error| if is_missing(&error) { Ok(()) } else { Err(error) })
        });
    }

    /// Checks that published snapshots exist, and that their manifests match the published hashes.
    pub(super) fn check_published(&mut self, worktree: &Worktree) -> Result<()> {
        let repo = self.repo;
        let mut published = Vec::new();
        let walked = repo.each_published(&worktree.worktree_id, |id| {
            published.push(id.clone());
            Ok(true)
        });
        // The audit has reported it already.
        if walked.is_err() {
            return Ok(());
        }
        for id in published {
            self.report.snapshots += 1;
            let ready = repo.ready(&id);
            let descriptor = self.damage_is_a_finding("snapshot_damaged", id.as_str(), ready)?;
            let Some(descriptor) = descriptor.filter(|_| self.strict) else { continue };
            let manifest = repo.stored_manifest(&descriptor);
            if let Err(error) = manifest {
                self.note("snapshot_damaged", id.as_str(), error.detail());
            }
        }
        Ok(())
    }

    /// Checks numbers, hashes and states, up to the first entry that is wrong; false if there is one.
    fn audit_entries(&mut self, id: &WorktreeId, audit: &mut Audit) -> Result<bool> {
        let sequence = Sequence::new(&self.repo.env, &self.repo.layout, id);
        let last = sequence.last_listed()?.max(sequence.newest()?);
        let Some(last) = last else {
            let detail = "the worktree's sequence is gone; restore .jvs/locks from a backup";
            self.note("audit_broken", id.as_str(), detail);
            return Ok(false);
        };
        let (mut prev, mut state) = (Digest::NONE, WorktreeState::default());
        for n in (1..=last.0).map(EntryNumber) {
            let read = self.damage_is_a_finding("audit_broken", id.as_str(), sequence.read(n))?;
            let Some(stored) = read else { return Ok(false) };
            self.report.entries += 1;
            let expected = state.after(n, &stored.entry.event);
            let broken = match &expected {
                _ if stored.entry.prev != prev => Some("it does not carry the hash of the entry before it"),
                Err(reason) => Some(*reason),
                Ok(expected) if *expected != stored.entry.state => Some("its state does not follow"),
                Ok(_) => None,
            };
            if let Some(reason) = broken {
                let detail = format!(
                    "entry {n} was not written by this protocol: {reason}; compare .jvs/locks with a backup"
                );
                self.note("audit_broken", id.as_str(), detail);
                return Ok(false);
            }
            if let EntryEvent::Publish { snapshot_id, .. } = stored.entry.event {
                audit.published.insert(snapshot_id);
            }
            (prev, state) = (stored.digest, stored.entry.state);
        }
        audit.is_open = state.open;
        Ok(true)
    }

    /// Marks the sequence of `id` as damaged if it lacks the entry that granted `token`.
    fn require_entry(&mut self, id: &WorktreeId, token: Option<FencingToken>, trace: &str) -> Result<()> {
        let Some(token) = token.filter(|_| self.is_whole(id)) else { return Ok(()) };
        let newest = Sequence::new(&self.repo.env, &self.repo.layout, id).newest()?;
        if newest < Some(token.entry()) {
            let detail = format!(
                "the sequence has lost its end: {trace} names an entry after the newest one; restore \
                 .jvs/locks from a backup: token={token} newest={}",
                newest.map_or(0, |n| n.0)
            );
            self.mark_damaged(id, Integrity::TailLost, &detail);
        }
        Ok(())
    }

    fn mark_damaged(&mut self, id: &WorktreeId, integrity: Integrity, detail: &str) {
        self.note("audit_broken", id.as_str(), detail);
        self.audits.get_mut(id).expect("audited before").integrity = integrity;
    }
}
