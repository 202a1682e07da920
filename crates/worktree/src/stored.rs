//! Reading one name of a stored snapshot: the bytes of a file, the names of a directory, the target of a link.
//!
//! **Invariant.** Bytes are compared with the hash that was published: damage is reported, although the bytes
//! before it have been written by then.

use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use serde::Serialize;

use crate::diff::{NodeKind, StoredLine};
use crate::error::{Error, ErrorContext, Result};
use crate::ids::Digest;
use crate::repo::Repo;
use crate::snapshot::Descriptor;
use crate::tree::{RelPath, TreeSource};

/// A name in a snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct StoredName {
    /// The escaped path.
    pub path: String,
    /// Its kind; a hard link is shown as the file that it names.
    pub kind: NodeKind,
    /// Permission bits, in octal; none for symbolic links.
    pub mode: Option<String>,
    /// The size of the file, in bytes.
    pub bytes: Option<u64>,
    /// The BLAKE3 of the file's bytes.
    pub digest: Option<Digest>,
    /// The escaped target of a symbolic link.
    pub target: Option<String>,
}

impl Repo {
    /// The name at `path` in the snapshot.
    pub fn stored_name(&self, snapshot: &Descriptor, path: &RelPath) -> Result<StoredName> {
        let manifest = self.stored_manifest(snapshot)?;
        let wanted = path.to_string();
        let find = |path: &str| StoredLine::all(&manifest).find(|line| line.path == path);
        let found = find(&wanted).map(|line| match line.kind {
            NodeKind::HardLink => find(line.content).unwrap_or(line),
            _ => line,
        });
        let line = found.ok_or_else(|| {
            Error::not_found(format!(
                "the snapshot has no such name; `jvs show SNAPSHOT` lists its names: snapshot={} path={wanted}",
                snapshot.snapshot_id
            ))
        })?;
        Ok(StoredName { path: wanted.clone(), ..describe(&line) })
    }

    /// The names directly below `path`, sorted; none if it is not a directory.
    pub fn stored_names(&self, snapshot: &Descriptor, path: &RelPath) -> Result<Vec<StoredName>> {
        let manifest = self.stored_manifest(snapshot)?;
        let below = if *path == RelPath::ROOT { String::new() } else { format!("{path}/") };
        let is_child = |line: &StoredLine<'_>| {
            let rest = line.path.strip_prefix(below.as_str());
            line.path != "." && rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
        };
        Ok(StoredLine::all(&manifest).filter(is_child).map(|line| describe(&line)).collect())
    }

    /// Writes the bytes of a file of the snapshot to `sink`, and compares them with the published hash.
    pub fn write_stored(
        &self,
        snapshot: &Descriptor,
        path: &RelPath,
        sink: &mut dyn Write,
    ) -> Result<StoredName> {
        let name = self.stored_name(snapshot, path)?;
        let Some(expected) = name.digest else {
            return Err(Error::invalid(format!("the name is not a file: kind={:?} path={path}", name.kind)));
        };
        let file = self.open_stored(snapshot, path)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let len = rustix::io::read(&file, &mut buffer).doing("read", path.to_string().as_ref())?;
            if len == 0 {
                break;
            }
            hasher.update(&buffer[..len]);
            sink.write_all(&buffer[..len]).doing("write", "standard output".as_ref())?;
        }
        if Digest::from(hasher.finalize()) == expected {
            return Ok(name);
        }
        Err(Error::damaged(
            &self.layout.snapshot_tree(&snapshot.snapshot_id),
            format!("the bytes of the file are not those that were published: file={path}"),
        ))
    }

    fn open_stored(&self, snapshot: &Descriptor, path: &RelPath) -> Result<OwnedFd> {
        let tree = self.stored_tree(&snapshot.snapshot_id)?;
        let item = tree.items.iter().find(|item| item.path == *path).ok_or_else(|| {
            let dir = self.layout.snapshot_tree(&snapshot.snapshot_id);
            Error::damaged(&dir, format!("a file of the snapshot is missing: file={path}"))
        })?;
        tree.root_of(item)
            .open_at(path, OFlags::RDONLY | OFlags::NONBLOCK)
            .doing("open", path.to_string().as_ref())
    }
}

fn describe(line: &StoredLine<'_>) -> StoredName {
    StoredName {
        path: line.path.to_owned(),
        kind: line.kind,
        mode: (!line.mode.is_empty()).then(|| line.mode.to_owned()),
        bytes: line.bytes,
        digest: line.content.parse().ok().filter(|_| line.kind == NodeKind::File),
        target: (line.kind == NodeKind::Symlink).then(|| line.content.to_owned()),
    }
}
