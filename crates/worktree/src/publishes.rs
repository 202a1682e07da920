//! The publishes of a sequence, newest first.
//!
//! Each publish names the one before it, so that the history costs as many reads as it has snapshots. Every
//! entry also carries the number of the newest publish, so a missing or damaged entry hides only its own
//! publish: the walk goes on from the entry below it, and keeps the damage for its caller.

use crate::error::{Error, ErrorClass, Result};
use crate::ids::{EntryNumber, NumberRange, SnapshotId};
use crate::record::{Entry, EntryEvent, WorktreeState};
use crate::sequence::{Sequence, StoredEntry};

/// A publish, as its entry has it.
#[derive(Clone, Debug)]
pub(crate) struct PublishEntry {
    pub(crate) snapshot_id: SnapshotId,
}

/// A walk over the publishes of one sequence.
pub(crate) struct Publishes<'a> {
    sequence: Sequence<'a>,
    at: Option<EntryNumber>,
    /// Existing numbers, read once they are needed.
    numbers: Option<Vec<u64>>,
    lost: Vec<NumberRange>,
    head: Option<SnapshotId>,
    damage: Option<Error>,
}

impl<'a> Publishes<'a> {
    /// From the newest entry that can be read.
    pub(crate) fn of(sequence: Sequence<'a>) -> Result<Self> {
        let (newest, damage) = match sequence.end() {
            Ok(newest) => (newest, None),
            Err(error) if error.class() == ErrorClass::Damaged => (sequence.last_readable()?, Some(error)),
            Err(error) => return Err(error),
        };
        let state = newest.map_or_else(WorktreeState::default, |StoredEntry { entry, .. }| entry.state);
        let WorktreeState { last_publish: at, lost, head, .. } = state;
        Ok(Self { sequence, at, numbers: None, lost, head, damage })
    }

    /// The worktree's head, as of the newest entry that can be read.
    pub(crate) fn head(&self) -> Option<&SnapshotId> {
        self.head.as_ref()
    }

    /// The first damage that was found; a publish that was not visited may be behind it.
    pub(crate) fn into_damage(self) -> Option<Error> {
        self.damage
    }

    fn publish_at(&self, n: EntryNumber) -> Result<(PublishEntry, Option<EntryNumber>)> {
        let entry = self.sequence.read(n)?.entry;
        match entry.event {
            EntryEvent::Publish { snapshot_id, previous, .. }
                if previous.is_none_or(|previous| previous < n) =>
            {
                Ok((PublishEntry { snapshot_id }, previous))
            }
            _ => Err(self.sequence.wrong_entry(n, "it should publish a snapshot, and does not")),
        }
    }

    /// The newest publish at or below the highest readable entry under `n`.
    fn publish_below(&mut self, n: EntryNumber) -> Option<EntryNumber> {
        if self.numbers.is_none() {
            self.numbers = Some(self.sequence.survey().map(|survey| survey.numbers).unwrap_or_default());
        }
        let numbers = self.numbers.as_deref().unwrap_or_default();
        let below = numbers.iter().rev().skip_while(|number| **number >= n.0);
        let entry =
            below.filter_map(|n| self.sequence.read(EntryNumber(*n)).ok()).map(|it| it.entry).next()?;
        newest_publish(&entry).filter(|at| *at < n)
    }
}

impl Iterator for Publishes<'_> {
    type Item = PublishEntry;

    fn next(&mut self) -> Option<PublishEntry> {
        loop {
            let n = self.at?;
            match self.publish_at(n) {
                Ok((publish, previous)) => {
                    self.at = previous;
                    return Some(publish);
                }
                Err(error) => {
                    if !self.lost.iter().any(|range| range.has(n.0)) {
                        self.damage.get_or_insert(error);
                    }
                    self.at = self.publish_below(n);
                }
            }
        }
    }
}

/// The newest publish as of `entry`.
fn newest_publish(entry: &Entry) -> Option<EntryNumber> {
    match entry.event {
        EntryEvent::Publish { .. } => Some(entry.n),
        _ => entry.state.last_publish,
    }
}
