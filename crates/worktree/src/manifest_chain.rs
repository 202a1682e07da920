//! Stored manifests. A snapshot without a base has a whole manifest; one with a base has the lines that differ
//! from its base's.
//!
//! ```text
//! base 20261116t002902483z-ef0d6e14
//! - path-that-is-gone
//! + f 0644 12 <hash of the bytes> path-that-is-new-or-changed
//! ```
//!
//! **Invariant.** The content hash in the descriptor is that of the whole manifest, so damage anywhere in the
//! chain is noticed. A chain ends: each base was taken before the snapshot that names it, and there are at most
//! [`LAYERS_MAX`] of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use crate::error::{Error, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::SnapshotId;
use crate::repo::Repo;
use crate::tree::{LayeredTree, Root, TreeManifest, manifest_key, manifest_path, sort_key};

/// Layers of a snapshot at most. A snapshot beyond it has the oldest layer as its base: it stores again what
/// changed since that one, and nothing else.
pub(crate) const LAYERS_MAX: usize = 64;

/// A snapshot's whole manifest, and the snapshots that have its files.
pub(crate) struct ManifestChain {
    pub(crate) manifest: TreeManifest,
    /// Oldest first; the snapshot itself is the last.
    pub(crate) layers: Vec<SnapshotId>,
}

impl Repo {
    /// Reads the manifest of `id` and those below it.
    pub(crate) fn manifest_chain(&self, id: &SnapshotId) -> Result<ManifestChain> {
        self.manifest_chain_over(id, None)
    }

    /// Reads the manifest of `id` and those below it, down to the snapshot of `known`, if it is one of them: a reader
    /// of all snapshots passes the one before, and so reads each manifest once instead of [`LAYERS_MAX`] times.
    pub(crate) fn manifest_chain_over(
        &self,
        id: &SnapshotId,
        known: Option<&ManifestChain>,
    ) -> Result<ManifestChain> {
        let (mut layers, mut deltas) = (vec![id.clone()], Vec::new());
        let whole = loop {
            let at = layers.last().expect("it begins with one");
            if let Some(known) = known.filter(|known| known.layers.last() == Some(at)) {
                layers.extend(known.layers.iter().rev().skip(1).cloned());
                break known.manifest.as_text().to_owned();
            }
            let path = self.layout.snapshot_manifest(at);
            if let Some(bytes) = absent_is_none(self.env.fs.read(&path)).doing("read", &path)? {
                break String::from_utf8(bytes).map_err(|cause| Error::damaged(&path, cause))?;
            }
            let path = self.layout.snapshot_delta(at);
            let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
            let bytes = bytes.ok_or_else(|| Error::damaged(&path, "the snapshot has no manifest"))?;
            let delta = String::from_utf8(bytes).map_err(|cause| Error::damaged(&path, cause))?;
            let base = delta.lines().next().and_then(|line| line.strip_prefix("base ")?.parse().ok());
            let base: SnapshotId = base.ok_or_else(|| Error::damaged(&path, "the manifest names no base"))?;
            if layers.len() > LAYERS_MAX || layers.contains(&base) {
                return Err(Error::damaged(&path, "the manifests have no end"));
            }
            deltas.push(delta);
            layers.push(base);
        };
        layers.reverse();
        Ok(ManifestChain { manifest: applied(whole, &deltas), layers })
    }

    /// The stored tree of a snapshot.
    pub(crate) fn stored_tree(&self, id: &SnapshotId) -> Result<LayeredTree> {
        let ManifestChain { manifest, layers } = self.manifest_chain(id)?;
        let open = |id: &SnapshotId| Root::open(&self.layout.snapshot_tree(id));
        LayeredTree::open(layers.iter().map(open).collect::<Result<_>>()?, &manifest)
    }
}

/// The manifest after all deltas, of which the oldest is the last.
fn applied(whole: String, deltas: &[String]) -> TreeManifest {
    if deltas.is_empty() {
        return TreeManifest::from_text(whole);
    }
    // The line of each changed path; none if it is gone.
    let mut changes: BTreeMap<Cow<'_, [u8]>, Option<&str>> = BTreeMap::new();
    for change in deltas.iter().rev().flat_map(|delta| delta.lines().skip(1)) {
        match change.split_at_checked(2) {
            Some(("- ", path)) => drop(changes.insert(sort_key(path), None)),
            Some(("+ ", line)) => drop(changes.insert(manifest_key(line), Some(line))),
            // The content hash shows it.
            _ => {}
        }
    }
    let mut changes = changes.into_iter().peekable();
    let mut text = String::with_capacity(whole.len());
    let mut push = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    for line in whole.lines() {
        let key = manifest_key(line);
        while let Some((_, new)) = changes.next_if(|(path, _)| *path < key) {
            new.map(&mut push);
        }
        match changes.next_if(|(path, _)| *path == key) {
            Some((_, new)) => drop(new.map(&mut push)),
            None => push(line),
        }
    }
    changes.filter_map(|(_, new)| new).for_each(push);
    TreeManifest::from_text(text)
}

/// The lines of `after` that `base` does not have, and the paths that it has beyond them.
pub(crate) fn delta(base_id: &SnapshotId, base: &TreeManifest, after: &TreeManifest) -> String {
    let (mut removed, mut added) = (String::new(), String::new());
    let mut ours = base.as_text().lines().peekable();
    let mut remove = |line: &str| writeln!(removed, "- {}", manifest_path(line)).expect("a string");
    for line in after.as_text().lines() {
        let key = manifest_key(line);
        while let Some(gone) = ours.next_if(|ours| manifest_key(ours) < key) {
            remove(gone);
        }
        if ours.next_if(|ours| manifest_key(ours) == key) != Some(line) {
            writeln!(added, "+ {line}").expect("a string");
        }
    }
    ours.for_each(remove);
    format!("base {base_id}\n{removed}{added}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_and_its_base_make_the_whole_again_byte_by_byte() {
        let manifest = |text: &str| TreeManifest::from_text(text.to_owned());
        let base = manifest("d 0755 .\nf 0644 1 aa a-b\nf 0644 1 aa gone\nl x%20y link\n");
        let after = manifest("d 0755 .\nf 0644 1 bb a%20b\nf 0600 1 aa a-b\nd 0700 a%c3%a9\nl x%20y link\n");
        let id = "20261116t002902483z-ef0d6e14".parse().expect("an id");
        let text = delta(&id, &base, &after);
        assert_eq!(
            text,
            "base 20261116t002902483z-ef0d6e14\n- gone\n+ f 0644 1 bb a%20b\n+ f 0600 1 aa a-b\n+ d 0700 a%c3%a9\n"
        );
        assert_eq!(applied(base.as_text().to_owned(), &[text]), after);
        assert_eq!(delta(&id, &after, &after).lines().count(), 1, "nothing changed");
    }
}
