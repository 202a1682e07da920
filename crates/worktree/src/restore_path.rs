//! Restoring single paths from a snapshot, while the rest of the worktree stays.
//!
//! The path is staged whole, and then exchanged with the one in the worktree, or moved to where there is none. So
//! each path is the old one or the new one. The head does not move: afterwards the worktree has changes that are
//! in no snapshot.
//!
//! **Invariant.** Without `discard_changes` nothing is replaced that differs from the head. The replaced files are
//! removed only if they are still those that were compared; otherwise they are moved to `rescued`, and the caller
//! learns where.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, RenameFlags, mkdirat, renameat_with, statat};
use rustix::io::Errno;

use crate::atomic::{DIR_MODE, OWNER_ONLY, parent};
use crate::diff::TreeDifferences;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::ensure_dir;
use crate::ids::RestoreId;
use crate::repo::Repo;
use crate::restore::RestoreRequest;
use crate::session::LockSession;
use crate::snapshot::Descriptor;
use crate::tree::{self, Item, LayeredTree, ReadMode, RelPath, Root, Shape, TreeManifest, manifest_path};
use crate::worktree::{Mode as WorktreeMode, Worktree};

/// A restored path.
#[derive(Clone, Debug)]
pub struct RestoredPath {
    /// Whether the worktree had the path before.
    pub replaced: bool,
    /// Where the replaced files are, if they changed while the restore ran.
    pub rescued: Option<PathBuf>,
}

impl Repo {
    /// Replaces `path` in the worktree's files, with everything below it, by that of the snapshot.
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
        let session = self.path_restorer(worktree, request)?;
        let _use = self.use_snapshot(&snapshot.snapshot_id)?;
        let stage = self.layout.restore(
            &worktree.worktree_id,
            &self.env.maker,
            &RestoreId::random(&*self.env.entropy),
        );
        let work = || self.stage_and_swap(worktree, snapshot, path, &stage, request);
        let restored = match &session {
            Some(session) => self.while_renewing(worktree, session, work),
            None => work(),
        };
        drop(tree::remove(&*self.env.fs, &stage));
        restored
    }

    fn path_restorer(
        &self,
        worktree: &Worktree,
        request: &RestoreRequest<'_>,
    ) -> Result<Option<LockSession>> {
        let lock = self.lock(worktree);
        match (worktree.mode, &request.session) {
            (WorktreeMode::Shared, _) => Ok(None),
            (WorktreeMode::Exclusive, Some(id)) => {
                let session = lock.session(id)?;
                lock.check(&session)?;
                Ok(Some(session))
            }
            (WorktreeMode::Exclusive, None) => Err(Error::new(
                ErrorClass::LockNotHeld,
                "a restore needs the lock; run `jvs lock acquire` and pass its --session-id",
            )),
        }
    }

    fn stage_and_swap(
        &self,
        worktree: &Worktree,
        snapshot: &Descriptor,
        path: &RelPath,
        stage: &Path,
        request: &RestoreRequest<'_>,
    ) -> Result<RestoredPath> {
        self.settle(worktree)?;
        let payload = Root::open_below(self.layout.root(), worktree.path.as_path())?;
        let before = below(tree::scan(&payload)?, path);
        if !request.discard_changes {
            self.refuse_unsaved_path(worktree, path, request)?;
        }
        let staged = self.stage_path(snapshot, path, stage, request)?;
        if let Some(id) = &request.session {
            let lock = self.lock(worktree);
            lock.check(&lock.session(id)?)?;
        }
        let replaced = self.swap_path(&payload, &staged, path)?;
        let after = below(tree::scan(&staged)?, path);
        let unchanged = tree::first_difference(&before, &after).is_none();
        let rescued =
            if replaced && !unchanged { Some(self.rescue_path(worktree, stage, path)?) } else { None };
        Ok(RestoredPath { replaced, rescued })
    }

    /// Refuses if the path has changes that are in no snapshot.
    fn refuse_unsaved_path(
        &self,
        worktree: &Worktree,
        path: &RelPath,
        request: &RestoreRequest<'_>,
    ) -> Result<()> {
        let head = self.head(worktree)?.map(|head| self.ready(&head)).transpose()?;
        let TreeDifferences { changes } = self.diff_files(worktree, head.as_ref(), request.progress)?;
        let text = path.to_string();
        let inside = |one: &&str| **one == text || one.starts_with(&format!("{text}/"));
        let unsaved: Vec<&str> = changes.iter().map(|one| one.path.as_str()).filter(inside).collect();
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
        let tree = stage.join("tree");
        for (dir, mode) in [(stage, DIR_MODE), (&tree, OWNER_ONLY)] {
            fs.make_dir(dir, mode).doing("create", dir)?;
        }
        let target = Root::open(&tree)?;
        tree::require_capacity(fs, &target, &items)?;
        let copied = tree::copy(fs, &source, &target, &items, ReadMode::Strict, request.progress)?;
        let found = TreeManifest::new(&copied.as_read());
        let lines: Vec<&str> = manifest.as_text().lines().collect();
        if let Some(line) = found.as_text().lines().find(|line| !lines.contains(line)) {
            return Err(Error::damaged(
                &self.layout.snapshot_tree(&snapshot.snapshot_id),
                format!("a file is not the one that was published: file={}", manifest_path(line)),
            ));
        }
        tree::make_durable(fs, &target, &items)?;
        Ok(target)
    }

    /// Exchanges the path of both trees, or moves it. Returns whether the worktree had it.
    fn swap_path(&self, payload: &Root, staged: &Root, path: &RelPath) -> Result<bool> {
        let shown = PathBuf::from(path.to_string());
        let above = path.parent().unwrap_or(RelPath::ROOT);
        self.make_missing_dirs(payload, &above)?;
        let ours = payload.open_dir(&above).doing("open the directory of", &shown)?;
        let theirs = staged.open_dir(&above).doing("open the staged directory of", &shown)?;
        let there = match statat(&ours, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => false,
            other => other.map(|_| true).doing("stat", &shown)?,
        };
        self.env.fs.step().doing("swap", &shown)?;
        let flags = if there { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        renameat_with(&theirs, path.name(), &ours, path.name(), flags).doing("swap in", &shown)?;
        rustix::fs::fsync(&ours).doing("sync the directory of", &shown)?;
        Ok(there)
    }

    /// Moves the replaced files to where no repair removes them.
    fn rescue_path(&self, worktree: &Worktree, stage: &Path, path: &RelPath) -> Result<PathBuf> {
        let fs = &*self.env.fs;
        let unique = RestoreId::random(&*self.env.entropy);
        let target = self.layout.rescued(&worktree.worktree_id, unique.as_str());
        for dir in [self.layout.all_rescued(), parent(&target).to_owned()] {
            ensure_dir(fs, &dir, DIR_MODE).doing("create", &dir)?;
        }
        let old = stage.join("tree").join(path.to_path());
        fs.rename(&old, &target).doing("keep", &old)?;
        fs.sync_dir(parent(&target)).doing("sync", parent(&target))?;
        Ok(target)
    }

    fn make_missing_dirs(&self, payload: &Root, dir: &RelPath) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = Some(dir.clone());
        while let Some(path) = at.filter(|path| payload.open_dir(path).is_err()) {
            at = path.parent();
            missing.push(path);
        }
        for path in missing.iter().rev() {
            self.env.fs.step().doing("create", path.to_string().as_ref())?;
            mkdirat(payload, path.as_bytes(), Mode::from_raw_mode(DIR_MODE))
                .doing("create", path.to_string().as_ref())?;
        }
        Ok(())
    }
}

/// The items at and below `path`. Moving a name changes times of its inode, so those of `path` itself are left out,
/// except for the modification time of a file.
fn below(items: Vec<Item>, path: &RelPath) -> Vec<Item> {
    let mut items: Vec<Item> = items.into_iter().filter(|item| item.path.is_at_or_below(path)).collect();
    if let Some(top) = items.first_mut() {
        top.print.changed = (0, 0);
        if top.shape == Shape::Dir {
            top.print.modified = (0, 0);
        }
    }
    items
}

/// The items at and below `path`, and the directories above it.
fn with_ancestors(items: &[Item], path: &RelPath) -> Vec<Item> {
    let wanted = |item: &&Item| item.path.is_at_or_below(path) || path.is_at_or_below(&item.path);
    items.iter().filter(wanted).cloned().collect()
}
