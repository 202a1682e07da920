//! Names for snapshots: tags, which people choose, and pins, which only keep a snapshot.
//!
//! **Invariant.** A tag names one snapshot for as long as it exists: it is created by `link` and never
//! overwritten. A tag begins with a letter, so it is never mistaken for a snapshot id. A snapshot with a tag or a
//! pin is not removed.

use serde::{Deserialize, Serialize};

use crate::atomic::DIR_MODE;
use crate::clock::UnixMs;
use crate::error::{Error, ErrorContext, Result};
use crate::fs::{absent_is_none, ensure_dir};
use crate::holder::HolderId;
use crate::ids::{SnapshotId, TagName};
use crate::probe;
use crate::record::{FORMAT, known_format};
use crate::repo::{Repo, create_json};
use crate::snapshot::Descriptor;

/// A tag: the content of `tags/<name>.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tag {
    /// The version of this shape.
    #[serde(deserialize_with = "known_format")]
    pub v: u32,
    /// Its name.
    pub tag: TagName,
    /// The snapshot that it names.
    pub snapshot_id: SnapshotId,
    /// When it was created.
    pub created_at: UnixMs,
    /// The process that created it.
    pub by: HolderId,
}

/// A pin: the content of `pins/<snapshot_id>.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pin {
    /// The version of this shape.
    #[serde(deserialize_with = "known_format")]
    pub v: u32,
    /// The snapshot that it keeps.
    pub snapshot_id: SnapshotId,
    /// When it was created.
    pub created_at: UnixMs,
    /// The process that created it.
    pub by: HolderId,
}

impl Repo {
    /// Names a snapshot; refused if the tag exists.
    pub fn add_tag(&self, tag: &TagName, snapshot: &Descriptor) -> Result<Tag> {
        let _use = self.use_snapshot(&snapshot.snapshot_id)?;
        ensure_dir(&*self.env.fs, &self.layout.tags(), DIR_MODE).doing("create", &self.layout.tags())?;
        if let Some(existing) = self.tag(tag)? {
            return Err(Error::invalid(format!(
                "the tag exists; remove it with `jvs tag rm {tag}` first: tag={tag} snapshot={}",
                existing.snapshot_id
            )));
        }
        let record = Tag {
            v: FORMAT,
            tag: tag.clone(),
            snapshot_id: snapshot.snapshot_id.clone(),
            created_at: probe::read(&self.env, &self.layout)?.now.fs,
            by: self.env.process.clone(),
        };
        create_json(&self.env, &self.layout, &self.layout.tag(tag), &record)?;
        Ok(record)
    }

    /// Removes a tag; its snapshot stays.
    pub fn remove_tag(&self, tag: &TagName) -> Result<Tag> {
        let Some(existing) = self.tag(tag)? else {
            return Err(Error::not_found(format!("no such tag; `jvs tag list` lists them: tag={tag}")));
        };
        self.remove_record(&self.layout.tag(tag), &self.layout.tags())?;
        Ok(existing)
    }

    /// The tag `tag`, if it exists.
    pub fn tag(&self, tag: &TagName) -> Result<Option<Tag>> {
        self.record_at(&self.layout.tag(tag))
    }

    /// All tags, by name.
    pub fn tags(&self) -> Result<Vec<Tag>> {
        let mut tags = Vec::new();
        for name in self.record_names(&self.layout.tags())? {
            if let Ok(tag) = name.parse::<TagName>() {
                tags.extend(self.tag(&tag)?);
            }
        }
        Ok(tags)
    }

    /// Keeps a snapshot until it is unpinned; pinning it again changes nothing.
    pub fn pin(&self, snapshot: &Descriptor) -> Result<Pin> {
        let id = &snapshot.snapshot_id;
        let _use = self.use_snapshot(id)?;
        ensure_dir(&*self.env.fs, &self.layout.pins(), DIR_MODE).doing("create", &self.layout.pins())?;
        if let Some(existing) = self.pin_of(id)? {
            return Ok(existing);
        }
        let created_at = probe::read(&self.env, &self.layout)?.now.fs;
        let pin = Pin { v: FORMAT, snapshot_id: id.clone(), created_at, by: self.env.process.clone() };
        create_json(&self.env, &self.layout, &self.layout.pin(id), &pin)?;
        Ok(pin)
    }

    /// Removes a pin; the snapshot stays until it is removed.
    pub fn unpin(&self, id: &SnapshotId) -> Result<Pin> {
        let Some(existing) = self.pin_of(id)? else {
            return Err(Error::not_found(format!(
                "the snapshot is not pinned; `jvs pin list` lists the pins: snapshot={id}"
            )));
        };
        self.remove_record(&self.layout.pin(id), &self.layout.pins())?;
        Ok(existing)
    }

    /// All pins, oldest snapshot first.
    pub fn pins(&self) -> Result<Vec<Pin>> {
        let mut pins = Vec::new();
        for name in self.record_names(&self.layout.pins())? {
            if let Ok(id) = name.parse::<SnapshotId>() {
                pins.extend(self.pin_of(&id)?);
            }
        }
        Ok(pins)
    }

    /// The pin of a snapshot, if it has one.
    pub fn pin_of(&self, id: &SnapshotId) -> Result<Option<Pin>> {
        self.record_at(&self.layout.pin(id))
    }

    fn record_at<T: for<'de> Deserialize<'de>>(&self, path: &std::path::Path) -> Result<Option<T>> {
        let bytes = absent_is_none(self.env.fs.read(path)).doing("read", path)?;
        let parse =
            |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(|cause| Error::damaged(path, cause));
        bytes.map(parse).transpose()
    }

    /// The sorted names of the records in `dir`, without `.json`.
    fn record_names(&self, dir: &std::path::Path) -> Result<Vec<String>> {
        let names = absent_is_none(self.env.fs.list(dir)).doing("list", dir)?.unwrap_or_default();
        let stem = |name: &std::ffi::OsString| Some(name.to_str()?.strip_suffix(".json")?.to_owned());
        let mut names: Vec<String> = names.iter().filter_map(stem).collect();
        names.sort();
        Ok(names)
    }

    fn remove_record(&self, path: &std::path::Path, dir: &std::path::Path) -> Result<()> {
        absent_is_none(self.env.fs.remove_file(path)).doing("remove", path)?;
        self.env.fs.sync_dir(dir).doing("sync", dir)
    }
}
