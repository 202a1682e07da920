//! The trash: files that `doctor --repair` removes are moved here, and stay until `doctor --purge`.
//!
//! Nothing in the trash has an effect. A move is one rename, so it costs no time and no disk space.

use std::path::Path;

use serde::Serialize;

use crate::atomic::{DIR_MODE, parent};
use crate::clock::UnixMs;
use crate::error::{ErrorContext, Result};
use crate::fs::{absent_is_none, ensure_dir};
use crate::ids::random_hex;
use crate::repo::Repo;
use crate::tree;

/// The content of the trash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrashContent {
    /// The number of files and directories at its top.
    pub items: u64,
}

impl Repo {
    /// Moves `path` to the trash; a name that no longer exists is skipped.
    pub(crate) fn move_to_trash(&self, path: &Path, now: UnixMs) -> Result<()> {
        let trash = self.layout.trash();
        ensure_dir(&*self.env.fs, &trash, DIR_MODE).doing("create", &trash)?;
        let name = path.file_name().expect("every path here has a name").to_string_lossy();
        let time = now.rfc3339().replace(':', "");
        let target = trash.join(format!("{time}-{}.{name}", random_hex(&*self.env.entropy, 4)));
        let moved = absent_is_none(self.env.fs.rename(path, &target)).doing("move to the trash", path)?;
        if moved.is_some() {
            self.env.fs.sync_dir(parent(path)).doing("sync", parent(path))?;
        }
        Ok(())
    }

    /// The content of the trash.
    pub fn trash_content(&self) -> Result<TrashContent> {
        let trash = self.layout.trash();
        let names = absent_is_none(self.env.fs.list(&trash)).doing("list", &trash)?.unwrap_or_default();
        Ok(TrashContent { items: names.len() as u64 })
    }

    /// Deletes everything in the trash, for good.
    pub(crate) fn purge_trash(&self) -> Result<TrashContent> {
        let trash = self.layout.trash();
        let names = absent_is_none(self.env.fs.list(&trash)).doing("list", &trash)?.unwrap_or_default();
        for name in &names {
            tree::remove(&*self.env.fs, &trash.join(name))?;
        }
        Ok(TrashContent { items: names.len() as u64 })
    }
}
