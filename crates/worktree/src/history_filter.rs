//! Searching the history by note, by changed path and by tag.

use crate::diff::TreeDifferences;
use crate::error::Result;
use crate::repo::Repo;
use crate::snapshot::Descriptor;
use crate::tree::RelPath;

/// Conditions that a snapshot must all meet.
#[derive(Clone, Debug, Default)]
pub struct HistoryFilter {
    /// Text that the note contains, in any case.
    pub note: Option<String>,
    /// A path that differs from the snapshot before, itself or below it.
    pub path: Option<RelPath>,
    /// Whether the snapshot has a tag.
    pub tagged: bool,
}

impl HistoryFilter {
    /// Whether every snapshot meets it.
    pub fn is_empty(&self) -> bool {
        self.note.is_none() && self.path.is_none() && !self.tagged
    }
}

impl Repo {
    /// Those of `history`, which is sorted newest first, that meet the filter; at most `limit`.
    pub fn filtered(
        &self,
        history: &[Descriptor],
        filter: &HistoryFilter,
        limit: usize,
    ) -> Result<Vec<Descriptor>> {
        let tags = if filter.tagged { self.tags()? } else { Vec::new() };
        let mut found = Vec::new();
        for (at, snapshot) in history.iter().enumerate() {
            let has_note = filter.note.as_deref().is_none_or(|text| mentions(snapshot, text));
            let has_tag = !filter.tagged || tags.iter().any(|tag| tag.snapshot_id == snapshot.snapshot_id);
            if has_note && has_tag && self.changes(snapshot, history.get(at + 1), filter.path.as_ref())? {
                found.push(snapshot.clone());
            }
            if found.len() >= limit {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Whether `path` differs from the snapshot before; in the first snapshot, whether it is there.
    fn changes(
        &self,
        snapshot: &Descriptor,
        before: Option<&Descriptor>,
        path: Option<&RelPath>,
    ) -> Result<bool> {
        let Some(path) = path else { return Ok(true) };
        let after = self.stored_manifest(snapshot)?;
        let before = match before {
            Some(before) => self.stored_manifest(before)?,
            None => after.emptied(),
        };
        Ok(TreeDifferences::between(&before, &after).touches(&path.to_string()))
    }
}

fn mentions(snapshot: &Descriptor, text: &str) -> bool {
    snapshot.note.as_deref().is_some_and(|note| note.to_lowercase().contains(&text.to_lowercase()))
}
