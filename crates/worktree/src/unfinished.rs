//! Snapshots that were begun and never finished: their process was interrupted while it copied, and what it had copied
//! occupies disk space.
//!
//! **Invariant.** Only a snapshot without a descriptor is removed here: the descriptor is durable before the entry that
//! publishes, so such a snapshot was never published. Its process has certainly ended, so it gets no descriptor any
//! more; that is read first.
//!
//! Left out: snapshots of other hosts, and finished ones whose publish is missing. `doctor --repair` moves them to the
//! trash once the sequence shows that they are abandoned.

use crate::atomic;
use crate::error::{ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::SnapshotId;
use crate::repo::Repo;
use crate::snapshot::SnapshotIntent;

impl Repo {
    /// The unfinished snapshots of processes of this host that have ended.
    pub fn unfinished_snapshots(&self) -> Result<Vec<SnapshotId>> {
        let dir = self.layout.intents();
        let names = self.env.fs.list(&dir).doing("list", &dir)?;
        let ids = names.iter().filter_map(|name| name.to_str()?.strip_suffix(".json")?.parse().ok());
        let mut unfinished = Vec::new();
        for id in ids {
            if self.is_unfinished(&id)? {
                unfinished.push(id);
            }
        }
        unfinished.sort_unstable();
        Ok(unfinished)
    }

    fn is_unfinished(&self, id: &SnapshotId) -> Result<bool> {
        let path = self.layout.intent(id);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
        let intent = bytes.and_then(|bytes| serde_json::from_slice::<SnapshotIntent>(&bytes).ok());
        let Some(intent) = intent.filter(|intent| intent.snapshot_id == *id) else { return Ok(false) };
        if atomic::maker_is_gone(&self.env, &intent.maker) != Some(true) {
            return Ok(false);
        }
        let ready = self.layout.snapshot_ready(id);
        if absent_is_none(self.env.fs.meta(&ready)).doing("stat", &ready)?.is_some() {
            return Ok(false);
        }
        // A published snapshot that has lost its descriptor is damage.
        Ok(self.publishes(&intent.worktree_id)?.all(|publish| publish.snapshot_id != *id))
    }
}
