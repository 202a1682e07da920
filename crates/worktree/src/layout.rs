//! Paths. The only module that spells a name under `.jvs`.
//!
//! ```text
//! .jvs/
//!   repo.json                        the repository: id, format, policy
//!   worktrees/<worktree_id>.json     a worktree: path, mode, policy
//!   locks/<worktree_id>.d/<n>        entry n of the worktree's sequence
//!   locks/<worktree_id>.d/<n>.renew  the latest renewal of the lock that entry n granted
//!   locks/<worktree_id>.lock         a copy of the current lock, for readers; decides nothing
//!   intents/<snapshot_id>.json       an unfinished snapshot; removed after its publish
//!   snapshots/<snapshot_id>/tree     its files
//!   snapshots/<snapshot_id>/manifest its paths, modes and hashes
//!   snapshots/<snapshot_id>/READY.json  its descriptor; written last, when all else is durable
//!   restores/<worktree_id>/<maker>.<restore_id>/  the stage of a restore
//!   restores/<worktree_id>/<maker>.<random>.taken/  a stage that `maker` took over from another process
//!   snapshots/<snapshot_id>/manifest.delta  instead of the manifest: how it differs from the base's
//!   index/<worktree_id>              the metadata that the files had at the last snapshot; a cache
//!   removals/<snapshot_id>.json      a snapshot that is being removed
//!   uses/<snapshot_id>.<maker>.<random>  a process that reads a snapshot
//!   tags/<name>.json                 a name for a snapshot
//!   pins/<snapshot_id>.json          a snapshot that is kept
//!   waiters/<worktree_id>/<maker>.<number>  a process that waits for the lock
//!   rescued/<worktree_id>/<restore_id>/  files that a restore replaced, and that changed after it was committed
//!   trash/<time>-<random>.<name>     what `doctor --repair` removed, until `doctor --purge`
//!   tmp/                             temporary files, later linked or renamed to a name above
//! ```

use std::path::{Path, PathBuf};

use crate::holder::Maker;
use crate::ids::{EntryNumber, FencingToken, RestoreId, SnapshotId, TagName, WorktreeId};

/// The paths of one repository.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The repository whose `.jvs` is in `root`, which must be absolute.
    pub fn new(root: PathBuf) -> Self {
        assert!(root.is_absolute(), "a relative root would change its meaning with the working directory");
        Self { root }
    }

    /// The directory that holds `.jvs`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the repository's own records.
    pub fn jvs(&self) -> PathBuf {
        self.root.join(".jvs")
    }

    /// The repository's record.
    pub fn repo_file(&self) -> PathBuf {
        self.jvs().join("repo.json")
    }

    /// The records of worktrees.
    pub fn worktrees(&self) -> PathBuf {
        self.jvs().join("worktrees")
    }

    /// The record of one worktree.
    pub fn worktree_file(&self, id: &WorktreeId) -> PathBuf {
        self.worktrees().join(format!("{id}.json"))
    }

    /// The sequences and the copies of current locks.
    pub fn locks(&self) -> PathBuf {
        self.jvs().join("locks")
    }

    /// The sequence of one worktree.
    pub fn sequence(&self, id: &WorktreeId) -> PathBuf {
        self.locks().join(format!("{id}.d"))
    }

    /// One entry of one sequence.
    pub fn entry(&self, id: &WorktreeId, n: EntryNumber) -> PathBuf {
        self.sequence(id).join(n.to_string())
    }

    /// The latest renewal of one lock.
    pub fn renewal(&self, id: &WorktreeId, token: FencingToken) -> PathBuf {
        self.sequence(id).join(format!("{token}.renew"))
    }

    /// The copy of the current lock.
    pub fn lock_copy(&self, id: &WorktreeId) -> PathBuf {
        self.locks().join(format!("{id}.lock"))
    }

    /// Temporary files.
    pub fn tmp(&self) -> PathBuf {
        self.jvs().join("tmp")
    }

    /// Intents of unfinished snapshots.
    pub fn intents(&self) -> PathBuf {
        self.jvs().join("intents")
    }

    /// The intent of one snapshot.
    pub fn intent(&self, id: &SnapshotId) -> PathBuf {
        self.intents().join(format!("{id}.json"))
    }

    /// All snapshots, finished or not.
    pub fn snapshots(&self) -> PathBuf {
        self.jvs().join("snapshots")
    }

    /// One snapshot, finished or not.
    pub fn snapshot(&self, id: &SnapshotId) -> PathBuf {
        self.snapshots().join(id.as_str())
    }

    /// A snapshot's files.
    pub fn snapshot_tree(&self, id: &SnapshotId) -> PathBuf {
        self.snapshot(id).join("tree")
    }

    /// A snapshot's paths, modes and hashes.
    pub fn snapshot_manifest(&self, id: &SnapshotId) -> PathBuf {
        self.snapshot(id).join("manifest")
    }

    /// A snapshot's descriptor; the snapshot is READY once it exists.
    pub fn snapshot_ready(&self, id: &SnapshotId) -> PathBuf {
        self.snapshot(id).join("READY.json")
    }

    /// Stages of restores, of all worktrees.
    pub fn all_restores(&self) -> PathBuf {
        self.jvs().join("restores")
    }

    /// Stages of restores of one worktree.
    pub fn restores(&self, id: &WorktreeId) -> PathBuf {
        self.all_restores().join(id.as_str())
    }

    /// The stage of one restore. Its name contains its maker, as those of temporary files do.
    pub fn restore(&self, id: &WorktreeId, maker: &Maker, restore: &RestoreId) -> PathBuf {
        self.restores(id).join(format!("{maker}.{restore}"))
    }

    /// The name under which `maker` takes over a stage; `unique` is random, so no other process knows it.
    pub fn taken_restore(&self, id: &WorktreeId, maker: &Maker, unique: &str) -> PathBuf {
        self.restores(id).join(format!("{maker}.{unique}.taken"))
    }

    /// The difference of a snapshot's manifest from its base's.
    pub fn snapshot_delta(&self, id: &SnapshotId) -> PathBuf {
        self.snapshot(id).join("manifest.delta")
    }

    /// The indexes of worktrees.
    pub fn indexes(&self) -> PathBuf {
        self.jvs().join("index")
    }

    /// The index of one worktree.
    pub fn index(&self, id: &WorktreeId) -> PathBuf {
        self.indexes().join(id.as_str())
    }

    /// Intents of removals.
    pub fn removals(&self) -> PathBuf {
        self.jvs().join("removals")
    }

    /// The intent to remove one snapshot.
    pub fn removal(&self, id: &SnapshotId) -> PathBuf {
        self.removals().join(format!("{id}.json"))
    }

    /// Marks of processes that read snapshots.
    pub fn uses(&self) -> PathBuf {
        self.jvs().join("uses")
    }

    /// Tags of snapshots.
    pub fn tags(&self) -> PathBuf {
        self.jvs().join("tags")
    }

    /// One tag.
    pub fn tag(&self, tag: &TagName) -> PathBuf {
        self.tags().join(format!("{tag}.json"))
    }

    /// Pins of snapshots.
    pub fn pins(&self) -> PathBuf {
        self.jvs().join("pins")
    }

    /// The pin of one snapshot.
    pub fn pin(&self, id: &SnapshotId) -> PathBuf {
        self.pins().join(format!("{id}.json"))
    }

    /// Tickets of waiting processes, of all worktrees.
    pub fn all_waiters(&self) -> PathBuf {
        self.jvs().join("waiters")
    }

    /// Tickets of the processes that wait for the lock of one worktree.
    pub fn waiters(&self, id: &WorktreeId) -> PathBuf {
        self.all_waiters().join(id.as_str())
    }

    /// Files that `doctor --repair` removed. Created when it is needed.
    pub fn trash(&self) -> PathBuf {
        self.jvs().join("trash")
    }

    /// Files that restores replaced and kept, of all worktrees. Created when it is needed.
    pub fn all_rescued(&self) -> PathBuf {
        self.jvs().join("rescued")
    }

    /// The files that one restore replaced and kept.
    pub fn rescued(&self, id: &WorktreeId, restore: &str) -> PathBuf {
        self.all_rescued().join(id.as_str()).join(restore)
    }

    /// The directories that `init` creates, parents first.
    pub fn directories(&self) -> Vec<PathBuf> {
        vec![
            self.jvs(),
            self.worktrees(),
            self.locks(),
            self.intents(),
            self.snapshots(),
            self.all_restores(),
            self.indexes(),
            self.removals(),
            self.uses(),
            self.tags(),
            self.pins(),
            self.all_waiters(),
            self.tmp(),
        ]
    }
}
