//! Marks of processes that read a stored snapshot, so that it is not removed under them.
//!
//! **Invariant.** A reader writes its mark first, and then checks that the snapshot is neither removed nor being
//! removed. A remover writes its intent first, and then checks that there is no mark (`retention`). Whatever the
//! order, at least one of the two sees the other, and gives way.
//!
//! A mark is a file, `uses/<snapshot_id>.<maker>.<random>`. The mark of a process that has ended does not count,
//! nor one of another host that is older than a day.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::atomic::{DIR_MODE, FILE_MODE};
use crate::clock::{Millis, UnixMs};
use crate::error::{Error, ErrorContext, Result};
use crate::fs::{Durability, Fs, absent_is_none, ensure_dir};
use crate::holder::Maker;
use crate::ids::{SnapshotId, random_hex};
use crate::probe;
use crate::repo::Repo;

/// Keeps a snapshot from being removed until it is dropped.
#[derive(Debug)]
pub(crate) struct SnapshotUse {
    fs: Arc<dyn Fs>,
    /// None where nothing can be written.
    path: Option<PathBuf>,
}

impl Drop for SnapshotUse {
    fn drop(&mut self) {
        // A mark that stays behind does not count once this process has ended.
        if let Some(path) = &self.path {
            drop(self.fs.remove_file(path));
        }
    }
}

impl Repo {
    /// Marks a snapshot as in use; refused if it is being removed. On a read-only mount there can be no mark: a
    /// removal from elsewhere then shows as files that are missing.
    pub(crate) fn use_snapshot(&self, id: &SnapshotId) -> Result<SnapshotUse> {
        let (fs, dir) = (self.env.fs.clone(), self.layout.uses());
        let path = dir.join(format!("{id}.{}.{}", self.env.maker, random_hex(&*self.env.entropy, 4)));
        let marked = ensure_dir(&*fs, &dir, DIR_MODE)
            .and_then(|()| fs.write_new(&path, b"", FILE_MODE, Durability::Lazy));
        let path = match marked {
            Err(cause) if cause.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                return Ok(SnapshotUse { fs, path: None });
            }
            other => other.map(|_| path.clone()).doing("mark as in use with", &path)?,
        };
        let in_use = SnapshotUse { fs, path: Some(path) };
        if self.is_being_removed(id)? {
            return Err(Error::not_found(format!(
                "the snapshot is being removed; `jvs history` lists the others: snapshot={id}"
            )));
        }
        Ok(in_use)
    }

    /// The snapshots that live processes use. Marks that no longer count are removed.
    pub(crate) fn used_snapshots(&self) -> Result<BTreeSet<SnapshotId>> {
        let dir = self.layout.uses();
        let names = absent_is_none(self.env.fs.list(&dir)).doing("list", &dir)?.unwrap_or_default();
        let now = self.time_for_marks()?;
        let mut used = BTreeSet::new();
        for name in names {
            let Some((id, maker)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
            let Ok(id) = id.parse::<SnapshotId>() else { continue };
            let path = dir.join(&name);
            let Some(meta) = absent_is_none(self.env.fs.meta(&path)).doing("stat", &path)? else { continue };
            if self.is_over(maker, meta.modified, now) {
                // Fails on a read-only mount, and does no harm.
                drop(self.env.fs.remove_file(&path));
            } else {
                used.insert(id);
            }
        }
        Ok(used)
    }

    /// The filesystem's time; where nothing can be written, and so nothing is removed, that of this machine.
    pub(crate) fn time_for_marks(&self) -> Result<UnixMs> {
        match probe::read(&self.env, &self.layout) {
            Err(error) if error.facts().contains_key("read_only") => Ok(self.env.clock.wall()),
            other => Ok(other?.now.fs),
        }
    }

    /// Whether the process `maker` has ended, or is on another host and its file is older than a day.
    pub(crate) fn is_over(&self, maker: &str, modified: UnixMs, now: UnixMs) -> bool {
        let gone = Maker::from_name(maker).and_then(|maker| maker.is_gone(&self.env.maker));
        gone.unwrap_or_else(|| now.since(modified) > DAY_MS)
    }
}

const DAY_MS: Millis = 24 * 3600 * 1000;
