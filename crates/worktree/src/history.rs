//! The published snapshots of a worktree, newest first.

use std::collections::BTreeSet;

use crate::env::Env;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::{SnapshotId, TagName, WorktreeId};
use crate::layout::Layout;
use crate::publishes::Publishes;
use crate::repo::Repo;
use crate::sequence::Sequence;
use crate::snapshot::Descriptor;
use crate::worktree::Worktree;

/// The published snapshots of a worktree, as far as they can be read.
#[derive(Clone, Debug)]
pub struct HistoryListing {
    /// The snapshots, newest first.
    pub snapshots: Vec<Descriptor>,
    /// The worktree's head, as of the newest entry that could be read.
    pub head: Option<SnapshotId>,
    /// The records that could not be read.
    pub damaged: Vec<DamagedRecord>,
}

/// A record that could not be read.
#[derive(Clone, Debug)]
pub struct DamagedRecord {
    /// The worktree or snapshot.
    pub subject: String,
    /// Why it could not be read, and what to do next.
    pub error: Error,
}

impl Repo {
    /// The published snapshots of `worktree`, newest first, at most `limit`; refused if one is damaged.
    pub fn history(&self, worktree: &Worktree, limit: usize) -> Result<Vec<Descriptor>> {
        let listing = self.history_listing(worktree, limit)?;
        match listing.damaged.into_iter().next() {
            None => Ok(listing.snapshots),
            Some(damaged) => Err(damaged.error),
        }
    }

    /// The published snapshots of `worktree`, newest first, at most `limit`, and the records that could not be
    /// read: a damaged one hides only itself.
    pub fn history_listing(&self, worktree: &Worktree, limit: usize) -> Result<HistoryListing> {
        let mut publishes = self.publishes(&worktree.worktree_id)?;
        let head = publishes.head().cloned();
        let mut listing = HistoryListing { snapshots: Vec::new(), head, damaged: Vec::new() };
        let removed = self.removed_snapshots(&worktree.worktree_id)?;
        let kept = publishes.by_ref().filter(|publish| !removed.contains(&publish.snapshot_id));
        for publish in kept.take(limit) {
            match self.ready(&publish.snapshot_id) {
                Ok(descriptor) => listing.snapshots.push(descriptor),
                Err(error) => {
                    listing.damaged.push(DamagedRecord { subject: publish.snapshot_id.to_string(), error });
                }
            }
        }
        if let Some(error) = publishes.into_damage() {
            let subject = worktree.worktree_id.to_string();
            listing.damaged.push(DamagedRecord { subject, error });
        }
        Ok(listing)
    }

    /// The head of `worktree`, if it has one.
    pub fn head(&self, worktree: &Worktree) -> Result<Option<SnapshotId>> {
        Ok(self.lock(worktree).view()?.state().head.clone())
    }

    /// The published snapshot named by an id, a unique prefix of an id, a tag, or `head`.
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
        if let Ok(tag) = name.parse::<TagName>()
            && let Some(tag) = self.tag(&tag)?
        {
            return self.visible(&tag.snapshot_id);
        }
        let known = self.known_snapshots()?;
        let exact = known.iter().filter(|id| id.as_str() == name);
        let longer = known.iter().filter(|id| id.as_str().starts_with(name));
        let matching: Vec<&SnapshotId> = exact.take(1).chain(longer).collect();
        match matching.as_slice() {
            [id] => self.visible(id),
            [id, ..] if id.as_str() == name => self.visible(id),
            [] => Err(match self.all_removed_snapshots()?.iter().find(|id| id.as_str().starts_with(name)) {
                Some(id) => gone(id),
                None => {
                    Error::not_found(format!("no such snapshot; `jvs history` lists them: snapshot={name}"))
                }
            }),
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
            let removed = self.all_removed_snapshots()?.contains(id);
            return Err(if removed { gone(id) } else { partial(id) });
        }
        let descriptor = self.ready(id)?;
        if self.removed_snapshots(&descriptor.worktree_id)?.contains(id) {
            return Err(gone(id));
        }
        if self.is_published(&descriptor.worktree_id, id)? { Ok(descriptor) } else { Err(partial(id)) }
    }

    /// Whether an entry of the worktree's sequence publishes `id`.
    pub(crate) fn is_published(&self, worktree: &WorktreeId, id: &SnapshotId) -> Result<bool> {
        is_published(&self.env, &self.layout, worktree, id)
    }

    /// The publishes of a worktree's sequence, newest first.
    pub(crate) fn publishes<'a>(&'a self, worktree: &'a WorktreeId) -> Result<Publishes<'a>> {
        Publishes::of(Sequence::new(&self.env, &self.layout, worktree))
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

    /// The descriptor of a READY snapshot.
    pub(crate) fn ready(&self, id: &SnapshotId) -> Result<Descriptor> {
        let path = self.layout.snapshot_ready(id);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
        let bytes =
            bytes.ok_or_else(|| Error::damaged(&path, "a published snapshot has lost its descriptor"))?;
        serde_json::from_slice(&bytes).map_err(|cause| Error::damaged(&path, cause))
    }
}

/// Whether an entry of the worktree's sequence publishes `id`; refused if a damaged sequence cannot show it.
pub(crate) fn is_published(
    env: &Env,
    layout: &Layout,
    worktree: &WorktreeId,
    id: &SnapshotId,
) -> Result<bool> {
    let mut publishes = Publishes::of(Sequence::new(env, layout, worktree))?;
    if publishes.by_ref().any(|published| published.snapshot_id == *id) {
        return Ok(true);
    }
    publishes.into_damage().map_or(Ok(false), Err)
}

fn gone(id: &SnapshotId) -> Error {
    Error::not_found(format!("the snapshot was removed; `jvs history` lists the others: snapshot={id}"))
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
