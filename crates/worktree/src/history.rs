//! The published snapshots of a worktree, newest first.

use std::collections::BTreeSet;

use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::{SnapshotId, WorktreeId};
use crate::record::EntryEvent;
use crate::repo::Repo;
use crate::sequence::Sequence;
use crate::snapshot::Descriptor;
use crate::worktree::Worktree;

impl Repo {
    /// The published snapshots of `worktree`, newest first, at most `limit`.
    pub fn history(&self, worktree: &Worktree, limit: usize) -> Result<Vec<Descriptor>> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        self.each_published(&worktree.worktree_id, |id| {
            found.push(self.ready(id)?);
            Ok(found.len() < limit)
        })?;
        Ok(found)
    }

    /// The head of `worktree`, if it has one.
    pub fn head(&self, worktree: &Worktree) -> Result<Option<SnapshotId>> {
        Ok(self.lock(worktree).view()?.state().head.clone())
    }

    /// The published snapshot named by an id, a unique prefix of an id, or `head`.
    pub fn find(&self, worktree: &Worktree, name: &str) -> Result<Descriptor> {
        if name == "head" {
            let head = self.head(worktree)?.ok_or_else(|| {
                Error::not_found(format!(
                    "the worktree has no head yet; take a snapshot: worktree={}",
                    worktree.worktree_id
                ))
            })?;
            return self.ready(&head);
        }
        let known = self.known_snapshots()?;
        let exact = known.iter().filter(|id| id.as_str() == name);
        let longer = known.iter().filter(|id| id.as_str().starts_with(name));
        let matching: Vec<&SnapshotId> = exact.take(1).chain(longer).collect();
        match matching.as_slice() {
            [id] => self.visible(id),
            [id, ..] if id.as_str() == name => self.visible(id),
            [] => {
                Err(Error::not_found(format!("no such snapshot; `jvs history` lists them: snapshot={name}")))
            }
            several => Err(Error::invalid(format!(
                "the prefix matches several snapshots; pass a longer one: snapshot={name} matching={}",
                several.len()
            ))),
        }
    }

    /// The descriptor of a snapshot; refused as partial unless it is published.
    pub fn visible(&self, id: &SnapshotId) -> Result<Descriptor> {
        let ready = self.layout.snapshot_ready(id);
        if absent_is_none(self.env.fs.meta(&ready)).doing("stat", &ready)?.is_none() {
            return Err(partial(id));
        }
        let descriptor = self.ready(id)?;
        if self.is_published(&descriptor.worktree_id, id)? { Ok(descriptor) } else { Err(partial(id)) }
    }

    /// Whether an entry of the worktree's sequence publishes `id`.
    pub(crate) fn is_published(&self, worktree: &WorktreeId, id: &SnapshotId) -> Result<bool> {
        let mut found = false;
        self.each_published(worktree, |published| {
            found = published == id;
            Ok(!found)
        })?;
        Ok(found)
    }

    /// Whether any worktree, removed ones included, publishes `id`: for a snapshot without a readable
    /// descriptor.
    pub(crate) fn is_published_anywhere(&self, id: &SnapshotId) -> Result<bool> {
        let locks = self.layout.locks();
        for name in self.env.fs.list(&locks).doing("list", &locks)? {
            let worktree = name.to_str().and_then(|name| name.strip_suffix(".d")?.parse().ok());
            if worktree.is_some_and(|worktree| self.is_published(&worktree, id).unwrap_or(true)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Every name in `snapshots/` and `intents/`, sorted.
    pub(crate) fn known_snapshots(&self) -> Result<BTreeSet<SnapshotId>> {
        let (snapshots, intents) = (self.layout.snapshots(), self.layout.intents());
        let mut ids = BTreeSet::new();
        for name in self.env.fs.list(&snapshots).doing("list", &snapshots)? {
            ids.extend(name.to_str().and_then(|name| name.parse().ok()));
        }
        for name in self.env.fs.list(&intents).doing("list", &intents)? {
            ids.extend(name.to_str().and_then(|name| name.strip_suffix(".json")?.parse().ok()));
        }
        Ok(ids)
    }

    /// Visits the publishes of a sequence from the newest on, while `visit` returns true.
    pub(crate) fn each_published(
        &self,
        worktree: &WorktreeId,
        mut visit: impl FnMut(&SnapshotId) -> Result<bool>,
    ) -> Result<()> {
        let sequence = Sequence::new(&self.env, &self.layout, worktree);
        let Some(newest) = sequence.newest()? else { return Ok(()) };
        let mut at = sequence.read(newest)?.entry.state.last_publish;
        while let Some(n) = at {
            let EntryEvent::Publish { snapshot_id, previous, .. } = sequence.read(n)?.entry.event else {
                let path = self.layout.entry(worktree, n);
                return Err(Error::damaged(&path, "the entry should publish a snapshot, and does not"));
            };
            if !visit(&snapshot_id)? {
                return Ok(());
            }
            at = previous;
        }
        Ok(())
    }

    /// The descriptor of a READY snapshot.
    pub(crate) fn ready(&self, id: &SnapshotId) -> Result<Descriptor> {
        let path = self.layout.snapshot_ready(id);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
        let bytes =
            bytes.ok_or_else(|| Error::damaged(&path, "a published snapshot has lost its descriptor"))?;
        serde_json::from_slice(&bytes).map_err(|cause| Error::damaged(&path, cause))
    }
}

fn partial(id: &SnapshotId) -> Error {
    Error::new(
        ErrorClass::PartialSnapshot,
        format!(
            "the snapshot is not published: it is unfinished, or the entry that published it is lost; run \
             `jvs doctor --strict`: snapshot={id}"
        ),
    )
}
