//! Accepting the loss of entries: a damaged sequence goes on after every number that may have been used.
//!
//! **Invariant.** The number of the `resume` entry is above every token that any file names: entries, the copy of
//! the lock, renewals, sessions of this user, snapshots and intents. So no token is granted twice. Nothing is
//! removed; snapshots that lost the entry that published them are listed again.
//!
//! **What would break it.** A stale view: entries 7 and 8 exist, this mount does not show them, and the loss is
//! accepted. The resume entry's number is above all traces, so it is either taken (`EEXIST`, and nothing happens)
//! or above 8: the tenure of 8 is then fenced, and its token is never granted again.

use super::audit::Integrity;
use super::{Checkup, is_missing};
use crate::commit;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::ensure_dir;
use crate::ids::{EntryNumber, FencingToken, NumberRange, WorktreeId, random_hex};
use crate::record::{Entry, EntryEvent, FORMAT, LOST_RANGES_MAX, WorktreeState};
use crate::sequence::{AppendOutcome, Sequence};
use crate::snapshot::Descriptor;
use crate::traces;
use crate::view::View;

/// Numbers that are skipped after the largest traced one if the end of a sequence is lost: for tokens whose
/// traces are lost too, or are with other users.
const SKIPPED: u64 = 1000;

impl Checkup<'_> {
    /// Continues every damaged sequence, and lists its published snapshots again.
    pub(super) fn accept_losses(&mut self) -> Result<()> {
        let damaged: Vec<WorktreeId> = self.audits.keys().filter(|id| !self.is_whole(id)).cloned().collect();
        for id in &damaged {
            let unlisted = std::mem::take(&mut self.audits.get_mut(id).expect("audited").unlisted);
            match self.resume(id).and_then(|()| self.list_again(id, &unlisted)) {
                Ok(()) => self.mark_repaired(id, &unlisted),
                Err(error) => {
                    let detail = format!("the loss was not accepted: {}", error.detail());
                    self.note("audit_broken", id.as_str(), detail);
                    continue;
                }
            }
            let entries = self.report.entries;
            self.audits.remove(id);
            self.audit(id)?;
            self.report.entries = entries;
        }
        Ok(())
    }

    /// Appends the entry after which the sequence counts as whole.
    fn resume(&self, id: &WorktreeId) -> Result<()> {
        let repo = self.repo;
        let sequence = Sequence::new(&repo.env, &repo.layout, id);
        let dir = repo.layout.sequence(id);
        ensure_dir(&*repo.env.fs, &dir, crate::atomic::DIR_MODE).doing("create", &dir)?;
        repo.env.fs.sync_dir(&repo.layout.locks()).doing("sync", &repo.layout.locks())?;
        let entry = self.resume_entry(id, &sequence)?;
        sequence.sync()?;
        match sequence.append(&entry)? {
            AppendOutcome::Appended => Ok(()),
            AppendOutcome::NumberTaken => Err(Error::new(
                ErrorClass::LockConflict,
                format!(
                    "the sequence has entries that this mount does not show, or another process appended one; run \
                     `jvs doctor --strict` again: entry={}",
                    entry.n
                ),
            )),
        }
    }

    fn resume_entry(&self, id: &WorktreeId, sequence: &Sequence<'_>) -> Result<Entry> {
        let repo = self.repo;
        let snapshots = traces::snapshot_ids(&repo.env, &repo.layout)?;
        let traced = self.traces(id).of_snapshots(&snapshots)?.token;
        let audit = &self.audits[id];
        let used = [sequence.survey()?.newest(), audit.traced.max(traced).map(FencingToken::entry)];
        let last_used = used.into_iter().flatten().max().map_or(0, |n| n.0);
        let follows = audit.last_good.as_ref().map(|last| last.entry.n);
        let tail_lost = follows.is_none_or(|follows| follows.0 < last_used);
        let lost_publish = audit.integrity == Integrity::TailLost;
        let n = EntryNumber(last_used + if tail_lost || lost_publish { SKIPPED } else { 1 });
        let tail = NumberRange { first: follows.map_or(1, |follows| follows.next().0), last: n.0 - 1 };
        let lost = [&audit.faulty[..], &[tail][..usize::from(tail.first <= tail.last)]].concat();
        let event = EntryEvent::Resume { follows, lost: NumberRange::merged(lost, LOST_RANGES_MAX) };
        let before =
            audit.last_good.as_ref().map_or_else(WorktreeState::default, |last| last.entry.state.clone());
        let state = before.after(n, &event).map_err(|reason| Error::invalid(reason.to_owned()))?;
        let prev = audit.last_good.as_ref().map_or(crate::ids::Digest::NONE, |last| last.digest);
        let attempt = random_hex(&*repo.env.entropy, 8);
        Ok(Entry { v: FORMAT, n, prev, at: self.now, by: repo.env.process.clone(), attempt, state, event })
    }

    /// Publishes again, without moving the head, what lost its entry.
    fn list_again(&self, id: &WorktreeId, unlisted: &[Descriptor]) -> Result<()> {
        let repo = self.repo;
        for descriptor in unlisted {
            repo.stored_manifest(descriptor)?;
            let event = |view: &View| EntryEvent::Publish {
                fencing_token: None,
                snapshot_id: descriptor.snapshot_id.clone(),
                content_hash: descriptor.content_hash,
                moves_head: false,
                previous: view.state().last_publish,
            };
            match commit::commit(&repo.env, &repo.layout, id, None, |view| Ok(event(view))) {
                // A removed worktree has no history; the snapshot stays unlisted.
                Err(error) if is_missing(&error) => return Ok(()),
                other => drop(other?),
            }
        }
        Ok(())
    }

    fn mark_repaired(&mut self, id: &WorktreeId, unlisted: &[Descriptor]) {
        for finding in &mut self.report.findings {
            let of_sequence = finding.code == "audit_broken" && finding.subject == id.as_str();
            let of_snapshot = finding.code == "snapshot_unlisted"
                && unlisted.iter().any(|one| one.snapshot_id.as_str() == finding.subject);
            finding.repaired |= of_sequence || of_snapshot;
        }
    }
}
