//! Traces: files outside the sequence that name a token, and so prove that its entry existed.
//!
//! **Invariant.** A grant is refused while a trace that this process can read names a token after the newest
//! entry. Otherwise that token, or a smaller one, would be granted a second time.
//!
//! The copy of the lock and the names of renewals are checked at every read of a sequence (`sequence`). The
//! traces here cost more to read, so they are checked by acquire, by `worktree add` and by `doctor`:
//!
//! - the sessions of this user;
//! - snapshots and intents, which carry the token they were taken under. A snapshot that has a descriptor and no
//!   intent was published, because the intent is removed after the publish.
//!
//! **What would break it.** Reading the sequence before the trace: an entry appended in between would look lost.
//! So callers read traces first. An acquire reads only the latest snapshots ([`RECENT_MAX`]), since older ones were
//! published before entries that still exist; `doctor --strict` reads all.

use crate::clock::UnixMs;
use crate::env::Env;
use crate::error::{ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::{FencingToken, RepoId, SnapshotId, WorktreeId};
use crate::layout::Layout;
use crate::snapshot::{Descriptor, SnapshotIntent};

/// Snapshots that an acquire reads at most.
const RECENT_MAX: usize = 16;

/// The files in which traces are searched.
pub(crate) struct Traces<'a> {
    pub(crate) env: &'a Env,
    pub(crate) layout: &'a Layout,
    pub(crate) repo_id: &'a RepoId,
    pub(crate) worktree: &'a WorktreeId,
}

/// Snapshots that entries of the worktree must have published.
#[derive(Debug, Default)]
pub(crate) struct SnapshotTraces {
    /// The largest token that a snapshot or an intent carries.
    pub(crate) token: Option<FencingToken>,
    /// Snapshots with a descriptor and without an intent.
    pub(crate) published: Vec<Descriptor>,
}

impl Traces<'_> {
    /// The largest token of this user's sessions.
    pub(crate) fn of_sessions(&self) -> Result<Option<FencingToken>> {
        let sessions = &self.env.sessions;
        let instance = crate::session::RepoInstance::of(&*self.env.fs, self.layout)?;
        let mut largest = None;
        for id in sessions.ids()? {
            let Ok(session) = sessions.load(&id) else { continue };
            let ours = session.repo_id == *self.repo_id
                && session.worktree_id == *self.worktree
                && session.is_of(&instance);
            if ours && session.fencing_token > FencingToken(0) {
                largest = largest.max(Some(session.fencing_token));
            }
        }
        Ok(largest)
    }

    /// The traces of the latest snapshots that were begun after `since`, by the filesystem's clock.
    pub(crate) fn of_recent_snapshots(&self, since: UnixMs) -> Result<SnapshotTraces> {
        let begun = SnapshotId::earliest_at(&since.rfc3339());
        let mut ids = snapshot_ids(self.env, self.layout)?;
        ids.retain(|id| id.as_str() >= begun.as_str());
        ids.sort_unstable_by(|one, other| other.cmp(one));
        ids.truncate(RECENT_MAX);
        self.of_snapshots(&ids)
    }

    /// The traces of the given snapshots, as far as they belong to this worktree.
    pub(crate) fn of_snapshots(&self, ids: &[SnapshotId]) -> Result<SnapshotTraces> {
        let mut traces = SnapshotTraces::default();
        for id in ids {
            // The intent before the descriptor: discarding a snapshot removes them in the other order.
            let path = self.layout.intent(id);
            if let Some(bytes) = absent_is_none(self.env.fs.read(&path)).doing("read", &path)? {
                let intent = serde_json::from_slice::<SnapshotIntent>(&bytes).ok();
                let ours = intent.filter(|intent| intent.worktree_id == *self.worktree);
                traces.token = traces.token.max(ours.and_then(|intent| intent.fencing_token));
            } else if let Some(descriptor) = descriptor(self.env, self.layout, id)?
                && descriptor.worktree_id == *self.worktree
            {
                traces.token = traces.token.max(descriptor.fencing_token);
                traces.published.push(descriptor);
            }
        }
        Ok(traces)
    }
}

/// The ids of all directories of snapshots.
pub(crate) fn snapshot_ids(env: &Env, layout: &Layout) -> Result<Vec<SnapshotId>> {
    let dir = layout.snapshots();
    let names = env.fs.list(&dir).doing("list", &dir)?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// The descriptor of a snapshot, if it can be read and is the snapshot's own.
pub(crate) fn descriptor(env: &Env, layout: &Layout, id: &SnapshotId) -> Result<Option<Descriptor>> {
    let path = layout.snapshot_ready(id);
    let bytes = match env.fs.read(&path) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotADirectory => None,
        other => absent_is_none(other).doing("read", &path)?,
    };
    let descriptor = bytes.and_then(|bytes| serde_json::from_slice::<Descriptor>(&bytes).ok());
    Ok(descriptor.filter(|descriptor| descriptor.snapshot_id == *id))
}
