//! The audit: is every sequence the one that was written, and does each entry follow from the last?

use super::{Checkup, is_missing};
use crate::error::Result;
use crate::ids::{Digest, EntryNumber};
use crate::record::State;
use crate::sequence::Sequence;
use crate::worktree::Worktree;

impl Checkup<'_> {
    /// Checks numbers, hashes and states of one sequence, up to the first that is wrong.
    pub(super) fn look_at_audit(&mut self, worktree: &Worktree) -> Result<()> {
        let repo = self.repo;
        let id = &worktree.worktree_id;
        let sequence = Sequence::new(&repo.env, &repo.layout, id);
        let Some(newest) = sequence.newest()? else {
            self.note(
                "audit_broken",
                id.as_str(),
                "the worktree's sequence is gone; restore .jvs/locks from a backup",
            );
            return Ok(());
        };
        let (mut prev, mut state) = (Digest::NONE, State::default());
        for n in (1..=newest.0).map(EntryNumber) {
            let read = self.damage_is_a_finding("audit_broken", id.as_str(), sequence.read(n))?;
            let Some(stored) = read else { return Ok(()) };
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
                return Ok(());
            }
            (prev, state) = (stored.digest, stored.entry.state);
        }
        if !state.open {
            let detail = "the worktree was removed, but its record is still there";
            self.note_or_mend("half_removed", id.as_str(), detail, |repo| {
                repo.remove_worktree(id)
                    .map(drop)
                    .or_else(|error| if is_missing(&error) { Ok(()) } else { Err(error) })
            });
        }
        Ok(())
    }

    /// Looks for published snapshots that have gone, or whose manifest is not the one that was published.
    pub(super) fn look_at_published(&mut self, worktree: &Worktree) -> Result<()> {
        let repo = self.repo;
        let mut published = Vec::new();
        let walked = repo.each_published(&worktree.worktree_id, |id| {
            published.push(id.clone());
            Ok(true)
        });
        // The audit has said so already.
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
}
