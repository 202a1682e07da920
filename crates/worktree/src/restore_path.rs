//! Restoring single paths from a snapshot, while the rest of the worktree stays.
//!
//! The path is staged whole, and then exchanged with the one in the worktree, or moved to where there is none. So
//! each path is the old one or the new one. The head does not move: afterwards the worktree has changes that are
//! in no snapshot.
//!
//! **Invariant.** Without `discard_changes` nothing is replaced that differs from the head, and no attribute is dropped
//! that the manifest does not know. The replaced files are removed only if they are still those that were compared;
//! otherwise they are moved to `rescued`, and the caller learns where. The stage has a record of what it replaces, so
//! that the process that removes an abandoned one compares too.
//!
//! **What would break it.** Removing the stage after any error: the exchange may have succeeded and only its sync
//! failed, and then the stage has the files of the worktree. Creating the directories above a path as new ones: they
//! would be more open than those of the snapshot. So the topmost missing one is moved, with its mode.

mod selection;

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, RenameFlags, renameat_with, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::atomic::{DIR_MODE, FILE_MODE, OWNER_ONLY, parent};
use crate::error::{Error, ErrorContext, Result};
use crate::fs::{Durability, absent_is_none, ensure_dir};
use crate::ids::{Digest, RestoreId, SnapshotId};
use crate::repo::Repo;
use crate::restore::{RestoreRequest, RestoreState};
use crate::snapshot::Descriptor;
use crate::tree::{self, Item, LayeredTree, ReadMode, RelPath, Root, TreeManifest, unescape};
use crate::worktree::Worktree;

use selection::{contents, differing, with_ancestors, without_times_of_move};

/// A restored path.
#[derive(Clone, Debug)]
pub struct RestoredPath {
    /// Whether the worktree had the path before.
    pub replaced: bool,
    /// Where the replaced files are, if they changed while the restore ran.
    pub rescued: Option<PathBuf>,
}

/// The content of `path.json`: what the stage of a path replaces.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PathRecord {
    /// The snapshot that the path is restored from.
    pub(crate) snapshot_id: SnapshotId,
    /// The name that is moved, escaped: the path, or the topmost missing directory above it.
    moved: String,
    /// The inode of the staged name, which shows whether it was swapped in.
    staged_inode: u64,
    /// The fingerprint of the files that are replaced.
    replaces: Digest,
}

/// A path that is ready to be swapped in.
struct StagedPath {
    payload: Root,
    staged: Root,
    moved: RelPath,
    record: PathRecord,
}

impl StagedPath {
    fn is_swapped_in(&self) -> Result<bool> {
        Ok(inode_of(&self.payload, &self.moved)? == Some(self.record.staged_inode))
    }
}

impl Repo {
    /// Replaces `path` in the worktree's files, with everything below it, by that of the snapshot. The lease is renewed
    /// until the old files are removed, and a lock that was lost in the meantime is an error.
    pub fn restore_path(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        path: &RelPath,
        request: &RestoreRequest<'_>,
    ) -> Result<RestoredPath> {
        if *path == RelPath::ROOT {
            return Err(Error::invalid("the path is the worktree itself; run `jvs restore` without --path"));
        }
        let session = self.restorer(worktree, request)?;
        let _use = self.use_snapshot(&snapshot.snapshot_id)?;
        let restored = self.while_held(worktree, session.as_ref(), || {
            self.replace_path(worktree, snapshot, path, request)
        })?;
        self.require_still_held(worktree, session.as_ref())?;
        Ok(restored)
    }

    fn replace_path(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        path: &RelPath,
        request: &RestoreRequest<'_>,
    ) -> Result<RestoredPath> {
        let restore_id = RestoreId::random(&*self.env.entropy);
        let stage = self.layout.restore(&worktree.worktree_id, &self.env.maker, &restore_id);
        let staged = self.prepare_path(worktree, snapshot, path, &stage, request).inspect_err(|_| {
            // It has no files but copies.
            drop(tree::remove(&*self.env.fs, &stage));
        });
        let staged = staged.map_err(|error| RestoreState::NotCommitted.mark(error))?;
        let swapped = self.swap_path(&staged, path);
        // Whether it was swapped in, even after an error, shows in the stage.
        let kept = self.finish_path(&stage, &staged.record, worktree);
        match (swapped, kept) {
            (Ok(replaced), Ok(rescued)) => Ok(RestoredPath { replaced, rescued }),
            (Ok(_), Err(error)) => {
                let detail = "some of the replaced files could not be removed or kept; `jvs doctor --strict` lists them";
                Err(RestoreState::Done.mark(error.and(detail)))
            }
            (Err(error), _) => Err(match staged.is_swapped_in() {
                Ok(true) => RestoreState::Done.mark(error),
                _ => RestoreState::NotCommitted.mark(error),
            }),
        }
    }

    /// Stages the path, checks that nothing would be lost, and records what is replaced.
    fn prepare_path(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        path: &RelPath,
        stage: &Path,
        request: &RestoreRequest<'_>,
    ) -> Result<StagedPath> {
        self.settle(worktree)?;
        let payload = Root::open_below(self.layout.root(), worktree.path.as_path())?;
        let before = tree::scan_at(&payload, path)?;
        if !request.discard_changes {
            self.refuse_unsaved_path(worktree, &payload, &before, path, request)?;
        }
        let staged = self.stage_path(snapshot, path, stage, request)?;
        if !request.discard_changes {
            self.refuse_attribute_changes(worktree, &before, stage)?;
        }
        let moved = topmost_missing(&payload, path)?;
        let record = PathRecord {
            snapshot_id: snapshot.snapshot_id.clone(),
            moved: moved.to_string(),
            staged_inode: inode_of(&staged, &moved)?.unwrap_or(0),
            replaces: tree::fingerprint(&without_times_of_move(before)),
        };
        self.write_path_record(stage, &record)?;
        if let Some(id) = &request.session {
            let lock = self.lock(worktree);
            lock.check(&lock.session(id)?)?;
        }
        Ok(StagedPath { payload, staged, moved, record })
    }

    /// Refuses if the path has changes that are in no snapshot; names that snapshots leave out are such changes too.
    fn refuse_unsaved_path(
        &self,
        worktree: &Worktree,
        payload: &Root,
        items: &[Item],
        path: &RelPath,
        request: &RestoreRequest<'_>,
    ) -> Result<()> {
        let hashed = tree::hash(&*self.env.fs, payload, items, ReadMode::Strict, request.progress)?;
        let found = TreeManifest::new(&hashed.records);
        let saved = match self.head(worktree)? {
            Some(head) => self.stored_manifest(&self.ready(&head)?)?,
            None => TreeManifest::from_text(String::new()),
        };
        // A path that is not there has nothing to lose.
        let unsaved = if items.is_empty() {
            Vec::new()
        } else {
            differing(&contents(&saved, path), &contents(&found, path))
        };
        let Some(first) = unsaved.first() else { return Ok(()) };
        Err(Error::invalid(format!(
            "the path has changes that are in no snapshot; take a snapshot, or pass --discard-changes: \
             differing={} first={first}",
            unsaved.len()
        )))
    }

    /// Copies the path and the directories above it into the stage.
    fn stage_path(
        &self,
        snapshot: &Descriptor,
        path: &RelPath,
        stage: &Path,
        request: &RestoreRequest<'_>,
    ) -> Result<Root> {
        let fs = &*self.env.fs;
        let manifest = self.stored_manifest(snapshot)?;
        let source: LayeredTree = self.stored_tree(&snapshot.snapshot_id)?;
        let items: Vec<Item> = with_ancestors(&source.items, path);
        if !items.iter().any(|item| item.path == *path) {
            return Err(Error::not_found(format!(
                "the snapshot has no such path; `jvs show SNAPSHOT` lists its names: snapshot={} path={path}",
                snapshot.snapshot_id
            )));
        }
        ensure_dir(fs, parent(stage), DIR_MODE).doing("create", stage)?;
        let tree = stage.join(TREE);
        for (dir, mode) in [(stage, DIR_MODE), (&tree, OWNER_ONLY)] {
            fs.make_dir(dir, mode).doing("create", dir)?;
        }
        let target = Root::open(&tree)?;
        tree::require_capacity(fs, &target, &items)?;
        let copied = tree::copy(fs, &source, &target, &items, ReadMode::Strict, request.progress)?;
        let found = TreeManifest::new(&copied.as_read());
        if let Some(first) = differing(&contents(&manifest, path), &contents(&found, path)).first() {
            return Err(Error::damaged(
                &self.layout.snapshot_tree(&snapshot.snapshot_id),
                format!("a file is not the one that was published: file={first}"),
            ));
        }
        tree::make_durable(fs, &target, &items)?;
        Ok(target)
    }

    fn write_path_record(&self, stage: &Path, record: &PathRecord) -> Result<()> {
        let (fs, path) = (&*self.env.fs, stage.join(RECORD));
        let bytes = serde_json::to_vec(record).expect("a record is plain data");
        fs.write_new(&path, &bytes, FILE_MODE, Durability::Synced).doing("write", &path)?;
        for dir in [stage, parent(stage), parent(parent(stage))] {
            fs.sync_dir(dir).doing("sync", dir)?;
        }
        Ok(())
    }

    /// Exchanges the name of both trees, or moves it. Returns whether the worktree had the path.
    fn swap_path(&self, staged: &StagedPath, path: &RelPath) -> Result<bool> {
        let (moved, shown) = (&staged.moved, PathBuf::from(path.to_string()));
        let above = moved.parent().unwrap_or(RelPath::ROOT);
        let ours = staged.payload.open_dir(&above).doing("open the directory of", &shown)?;
        let theirs = staged.staged.open_dir(&above).doing("open the staged directory of", &shown)?;
        let there = match statat(&ours, moved.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => false,
            other => other.map(|_| true).doing("stat", &shown)?,
        };
        self.env.fs.step().doing("swap", &shown)?;
        let flags = if there { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        let swapped = renameat_with(&theirs, moved.name(), &ours, moved.name(), flags);
        swapped.map_err(|cause| unswappable(cause, &shown))?;
        rustix::fs::fsync(&ours).doing("sync the directory of", &shown)?;
        Ok(there)
    }

    /// The record of a stage, if it is that of a path.
    pub(crate) fn path_record(&self, stage: &Path) -> Result<Option<PathRecord>> {
        let path = stage.join(RECORD);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Removes the stage of a path. The replaced files in it are kept if they changed; returns where.
    pub(crate) fn finish_path(
        &self,
        stage: &Path,
        record: &PathRecord,
        worktree: &Worktree,
    ) -> Result<Option<PathBuf>> {
        let moved = RelPath::ROOT.join(&unescape(&record.moved));
        let staged = Root::open(&stage.join(TREE))?;
        let inode = inode_of(&staged, &moved)?;
        let was_replaced = inode.is_some_and(|inode| inode != record.staged_inode);
        // Files that cannot be read any more have changed.
        let is_same = || {
            let now = tree::scan_at(&staged, &moved);
            now.is_ok_and(|now| tree::fingerprint(&without_times_of_move(now)) == record.replaces)
        };
        let rescued =
            if was_replaced && !is_same() { Some(self.rescue_path(worktree, stage, &moved)?) } else { None };
        tree::remove(&*self.env.fs, stage)?;
        Ok(rescued)
    }

    /// Moves the replaced files to where no repair removes them.
    fn rescue_path(&self, worktree: &Worktree, stage: &Path, moved: &RelPath) -> Result<PathBuf> {
        let fs = &*self.env.fs;
        let unique = RestoreId::random(&*self.env.entropy);
        let target = self.layout.rescued(&worktree.worktree_id, unique.as_str());
        for dir in [self.layout.all_rescued(), parent(&target).to_owned()] {
            ensure_dir(fs, &dir, DIR_MODE).doing("create", &dir)?;
        }
        let old = stage.join(TREE).join(moved.to_path());
        fs.rename(&old, &target).doing("keep", &old)?;
        fs.sync_dir(parent(&target)).doing("sync", parent(&target))?;
        Ok(target)
    }
}

const TREE: &str = "tree";
const RECORD: &str = "path.json";

/// `path`, or the topmost of the directories above it that the worktree lacks.
fn topmost_missing(payload: &Root, path: &RelPath) -> Result<RelPath> {
    let mut moved = path.clone();
    while let Some(above) = moved.parent().filter(|above| *above != RelPath::ROOT) {
        match payload.open_dir(&above) {
            Err(Errno::NOENT) => moved = above,
            Ok(_) => break,
            Err(cause) => return Err(cause).doing("open the directory", above.to_string().as_ref()),
        }
    }
    Ok(moved)
}

fn inode_of(root: &Root, path: &RelPath) -> Result<Option<u64>> {
    let above = match root.open_dir(&path.parent().unwrap_or(RelPath::ROOT)) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        other => other.doing("open the directory of", path.to_string().as_ref())?,
    };
    match statat(&above, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        other => Ok(Some(other.doing("stat", path.to_string().as_ref())?.st_ino)),
    }
}

fn unswappable(cause: Errno, shown: &Path) -> Error {
    let reason = match cause {
        Errno::XDEV => "it is on another filesystem or mount than .jvs, or in the lower layer of an overlay",
        Errno::BUSY => "it is a mount point, or in use as one",
        Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => "this filesystem cannot exchange two names",
        _ => return Error::io("swap in", shown, &cause.into()),
    };
    Error::io("swap in", shown, &cause.into())
        .and(&format!("{reason}; write the file with `jvs show SNAPSHOT:PATH` instead"))
}
