//! The audit: whether each sequence is unaltered and complete.
//!
//! Numbers, hashes and states show a hole, a corrupt entry and an altered one; the audit reports each and goes
//! on behind it. They do not show a lost tail: the rest is a valid, shorter sequence. Its traces are elsewhere
//! (`traces`), and each is written after its entry is durable.
//!
//! Each check reads the trace first and the sequence after it; in the other order, an entry appended in
//! between would look lost.

use std::collections::{BTreeMap, BTreeSet};

use super::Checkup;
use crate::error::{ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::{Digest, EntryNumber, FencingToken, NumberRange, SnapshotId, WorktreeId};
use crate::manifest_chain::ManifestChain;
use crate::record::{EntryEvent, WorktreeState};
use crate::sequence::{OTHER_LOCK, Sequence, StoredEntry, Survey};
use crate::snapshot::{Descriptor, SnapshotIntent};
use crate::traces::{self, Traces};
use crate::worktree::Worktree;

/// The result of auditing one sequence.
#[derive(Debug)]
pub(super) struct Audit {
    pub(super) integrity: Integrity,
    /// The snapshots that the audited entries publish, and the hashes that were published.
    published: BTreeMap<SnapshotId, Digest>,
    /// The snapshots that the audited entries remove.
    removed: BTreeSet<SnapshotId>,
    /// The newest audited entry.
    newest: Option<EntryNumber>,
    /// The newest entry with no fault of its own.
    pub(super) last_good: Option<StoredEntry>,
    /// Numbers whose entries are missing or wrong, and not declared lost.
    pub(super) faulty: Vec<NumberRange>,
    /// The largest token that a trace names.
    pub(super) traced: Option<FencingToken>,
    /// Snapshots that were published, and that no entry publishes now.
    pub(super) unlisted: Vec<Descriptor>,
}

/// How much of a sequence is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Integrity {
    /// All of it: no trace of a missing entry was found.
    Whole,
    /// All existing entries are correct, and later ones are lost.
    TailLost,
    /// An entry is missing or wrong.
    Broken,
}

/// Faults of one sequence that are reported one by one; the rest is counted.
const FAULTS_SHOWN: usize = 16;

impl Checkup<'_> {
    /// Audits the sequences of all worktrees, removed ones included.
    pub(super) fn audit_all(&mut self, worktrees: &[Worktree]) -> Result<()> {
        for worktree in worktrees {
            self.audit(&worktree.worktree_id)?;
        }
        let locks = self.repo.layout.locks();
        for name in self.repo.env.fs.list(&locks).doing("list", &locks)? {
            if let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".d")?.parse().ok()) {
                self.audit(&id)?;
            }
        }
        Ok(())
    }

    /// Audits one sequence, once; damage is a finding.
    pub(super) fn audit(&mut self, id: &WorktreeId) -> Result<()> {
        if self.audits.contains_key(id) {
            return Ok(());
        }
        let in_sessions = self.traces(id).of_sessions()?;
        let survey = Sequence::new(&self.repo.env, &self.repo.layout, id).survey()?;
        let mut audit = Audit {
            integrity: Integrity::Whole,
            published: BTreeMap::new(),
            removed: BTreeSet::new(),
            newest: survey.newest(),
            last_good: None,
            faulty: Vec::new(),
            traced: survey.traced.max(in_sessions),
            unlisted: Vec::new(),
        };
        self.audit_entries(id, &survey, &mut audit);
        let traced = audit.traced;
        self.audits.insert(id.clone(), audit);
        self.require_entry(id, traced, "a session, a renewal or the copy of the lock")
    }

    /// Whether the sequence of `id` was audited and nothing of it is lost. Only then may repair remove or
    /// rewrite anything of that worktree: a damaged sequence does not show what is litter.
    pub(super) fn is_whole(&self, id: &WorktreeId) -> bool {
        self.audits.get(id).is_some_and(|audit| audit.integrity == Integrity::Whole)
    }

    /// Whether the audited sequence shows that the worktree was removed.
    pub(super) fn is_removed(&self, id: &WorktreeId) -> bool {
        let last = self.audits.get(id).and_then(|audit| audit.last_good.as_ref());
        self.is_whole(id) && last.is_some_and(|last| !last.entry.state.open)
    }

    /// Whether the sequence of `worktree` publishes `snapshot`; `None` if the sequence is broken.
    pub(super) fn publishes(&mut self, worktree: &WorktreeId, snapshot: &SnapshotId) -> Result<Option<bool>> {
        self.audit(worktree)?;
        if self.audits[worktree].published.contains_key(snapshot) {
            return Ok(Some(true));
        }
        // It may have been published since the audit.
        self.audit_appended(worktree)?;
        let audit = &self.audits[worktree];
        let published = audit.published.contains_key(snapshot);
        Ok((published || audit.integrity != Integrity::Broken).then_some(published))
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

    /// Checks that published snapshots exist, and that their manifests match the published hashes.
    pub(super) fn check_published(&mut self, worktree: &Worktree) {
        let repo = self.repo;
        let Some(audit) = self.audits.get(&worktree.worktree_id) else { return };
        let mut published = audit.published.clone();
        published.retain(|id, _| !audit.removed.contains(id));
        // Ids sort by time, so the base of a snapshot is usually the one before.
        let mut before: Option<ManifestChain> = None;
        for (id, content_hash) in published {
            self.report.snapshots += 1;
            let checked = repo.ready(&id).and_then(|descriptor| {
                if descriptor.content_hash != content_hash {
                    let path = repo.layout.snapshot_ready(&id);
                    return Err(crate::error::Error::damaged(&path, "its hash is not the published one"));
                }
                if self.strict {
                    before = Some(repo.checked_chain(&descriptor, before.as_ref())?);
                }
                Ok(())
            });
            if let Err(error) = checked {
                self.note("snapshot_damaged", id.as_str(), error.detail());
            }
        }
    }

    /// A snapshot without an intent was published, or was not taken by jvs. It is never removed.
    fn check_without_intent(&mut self, id: &SnapshotId) -> Result<()> {
        let (env, layout) = (&self.repo.env, &self.repo.layout);
        if let Some(descriptor) = traces::descriptor(env, layout, id)? {
            let worktree = descriptor.worktree_id.clone();
            if self.publishes(&worktree, id)? == Some(true) {
                return Ok(());
            }
            let detail = format!(
                "the snapshot was published, and the sequence of its worktree lost that entry; restore \
                 .jvs/locks from a backup, or accept the loss with `jvs doctor --accept-loss`, which lists the \
                 snapshot again: worktree={worktree}"
            );
            self.note("snapshot_unlisted", id.as_str(), detail);
            let audit = self.audits.get_mut(&worktree).expect("audited above");
            audit.traced = audit.traced.max(descriptor.fencing_token);
            audit.unlisted.push(descriptor);
            if audit.integrity == Integrity::Whole {
                audit.integrity = Integrity::TailLost;
            }
            return Ok(());
        }
        let dir = layout.snapshot(id);
        let is_there = absent_is_none(env.fs.meta(&dir)).doing("stat", &dir)?.is_some();
        if is_there && !self.is_published_anywhere(id)? {
            let detail = "this has neither an intent nor a matching descriptor, so it is damaged or \
                          was not taken by jvs; check it and move it out of .jvs/snapshots";
            self.note("snapshot_unlisted", id.as_str(), detail);
        }
        Ok(())
    }

    /// Whether any worktree, removed ones included, publishes `id`; a broken sequence might.
    fn is_published_anywhere(&mut self, id: &SnapshotId) -> Result<bool> {
        let audited: Vec<WorktreeId> = self.audits.keys().cloned().collect();
        for worktree in audited {
            if self.publishes(&worktree, id)? != Some(false) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Finishes the removal of a worktree that was interrupted before its record was removed.
    pub(super) fn check_removal(&mut self, worktree: &Worktree) {
        let id = &worktree.worktree_id;
        if !self.is_removed(id) {
            return;
        }
        let detail = "the worktree was removed, but its record is still there";
        self.note_or_repair("half_removed", id.as_str(), detail, |repo| {
            repo.remove_worktree(id)
                .map(drop)
                .or_else(|error| if super::is_missing(&error) { Ok(()) } else { Err(error) })
        });
    }

    /// Checks numbers, hashes and states of all entries, and goes on behind each that is wrong.
    fn audit_entries(&mut self, id: &WorktreeId, survey: &Survey, audit: &mut Audit) {
        let sequence = Sequence::new(&self.repo.env, &self.repo.layout, id);
        let mut faults = Vec::new();
        if survey.numbers.is_empty() {
            faults.push((NumberRange { first: 1, last: 1 }, "the worktree's sequence is gone".to_owned()));
        }
        let readable = survey.numbers.iter().rev().find_map(|n| sequence.read(EntryNumber(*n)).ok());
        let lost = readable.map_or_else(Vec::new, |newest| newest.entry.state.lost);
        let is_lost = |range: NumberRange| lost.iter().any(|lost| lost.contains(range));
        for gap in survey.gaps().into_iter().filter(|gap| !is_lost(*gap)) {
            faults.push((gap, "it is missing".to_owned()));
        }
        let replaced = sequence.replaced_grant(survey, &lost);
        for n in &survey.numbers {
            let here = NumberRange { first: *n, last: *n };
            if is_lost(here) {
                continue;
            }
            let read = sequence.read(EntryNumber(*n));
            self.report.entries += 1;
            let fault = match &read {
                Err(error) => Some(error.detail().to_owned()),
                Ok(_) if replaced == Some(EntryNumber(*n)) => Some(OTHER_LOCK.to_owned()),
                Ok(stored) => fault_of(stored, audit.last_good.as_ref()).map(str::to_owned),
            };
            if let Ok(stored) = read {
                audit.take(stored, fault.is_none());
            }
            faults.extend(fault.map(|fault| (here, fault)));
        }
        self.note_faults(id, &faults);
        audit.faulty = faults.into_iter().map(|(range, _)| range).collect();
        if !audit.faulty.is_empty() {
            audit.integrity = Integrity::Broken;
        }
    }

    /// Audits the entries that were appended since the audit.
    fn audit_appended(&mut self, id: &WorktreeId) -> Result<()> {
        let sequence = Sequence::new(&self.repo.env, &self.repo.layout, id);
        let survey = sequence.survey()?;
        let Some(audit) = self.audits.get_mut(id) else { return Ok(()) };
        let (audited, mut unreadable) = (audit.newest, None);
        for n in survey.numbers.iter().copied().filter(|n| audited < Some(EntryNumber(*n))) {
            match sequence.read(EntryNumber(n)) {
                Ok(stored) => audit.take(stored, true),
                Err(error) => unreadable = Some((NumberRange { first: n, last: n }, error)),
            }
        }
        audit.newest = audit.newest.max(survey.newest());
        if let Some((range, error)) = unreadable {
            audit.faulty.push(range);
            self.mark_damaged(id, Integrity::Broken, error.detail());
        }
        Ok(())
    }

    fn note_faults(&mut self, id: &WorktreeId, faults: &[(NumberRange, String)]) {
        for (range, fault) in faults.iter().take(FAULTS_SHOWN) {
            let detail = format!("entry {range}: {fault}; {RECOVERY}");
            self.note("audit_broken", id.as_str(), detail);
        }
        if let Some(more) = faults.len().checked_sub(FAULTS_SHOWN).filter(|more| *more > 0) {
            let detail = format!("more entries of this sequence are missing or wrong: count={more}");
            self.note("audit_broken", id.as_str(), detail);
        }
    }

    /// Marks the sequence of `id` as damaged if it lacks the entry that granted `token`.
    fn require_entry(&mut self, id: &WorktreeId, token: Option<FencingToken>, trace: &str) -> Result<()> {
        let Some(token) = token else { return Ok(()) };
        let audit = self.audits.get_mut(id).expect("audited before");
        audit.traced = audit.traced.max(Some(token));
        if audit.newest >= Some(token.entry()) {
            return Ok(());
        }
        self.audit_appended(id)?;
        let newest = self.audits[id].newest;
        if newest < Some(token.entry()) && self.is_whole(id) {
            let detail = format!(
                "the sequence has lost its end: {trace} names an entry after the newest one; {RECOVERY}: \
                 token={token} newest={}",
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

    pub(super) fn traces<'a>(&'a self, worktree: &'a WorktreeId) -> Traces<'a> {
        let repo = self.repo;
        Traces { env: &repo.env, layout: &repo.layout, repo_id: &repo.record.repo_id, worktree }
    }
}

/// How to recover lost entries.
const RECOVERY: &str = "restore .jvs/locks from a backup, or accept the loss with `jvs doctor --accept-loss`";

impl Audit {
    fn take(&mut self, stored: StoredEntry, is_good: bool) {
        if let EntryEvent::Publish { snapshot_id, content_hash, .. } = &stored.entry.event {
            self.published.insert(snapshot_id.clone(), *content_hash);
        }
        if let EntryEvent::Forget { snapshot_ids, .. } = &stored.entry.event {
            self.removed.extend(snapshot_ids.iter().cloned());
        }
        if is_good {
            self.last_good = Some(stored);
        }
    }
}

/// The fault of an entry, given the last correct entry before it. Behind a hole, or an entry that is wrong
/// itself, only the entry's own shape can be checked.
fn fault_of(stored: &StoredEntry, before: Option<&StoredEntry>) -> Option<&'static str> {
    let entry = &stored.entry;
    let follows = match &entry.event {
        EntryEvent::Resume { follows, .. } => *follows,
        _ => entry.n.0.checked_sub(1).filter(|n| *n > 0).map(EntryNumber),
    };
    let (prev, state) = match before.filter(|before| Some(before.entry.n) == follows) {
        Some(before) => (before.digest, before.entry.state.clone()),
        None if follows.is_none() => (Digest::NONE, WorktreeState::default()),
        None => return None,
    };
    match state.after(entry.n, &entry.event) {
        _ if entry.prev != prev => Some("it does not carry the hash of the entry before it"),
        Err(reason) => Some(reason),
        Ok(expected) if expected != entry.state => Some("its state does not follow"),
        Ok(_) => None,
    }
}
