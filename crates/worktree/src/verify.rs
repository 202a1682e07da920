//! Whether a stored snapshot is still what was hashed.

use serde::Serialize;

use crate::error::{Class, Context, Error, Result};
use crate::ids::{Digest, SnapshotId};
use crate::repo::Repo;
use crate::snapshot::Descriptor;
use crate::tree::{self, Manifest, Progress, ReadMode, Root};

/// A snapshot that was read again, whole.
#[derive(Clone, Debug, Serialize)]
pub struct VerifiedSnapshot {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// Its content hash, as it was published and as it is.
    pub content_hash: Digest,
    /// How many files it holds.
    pub files: u64,
    /// How many bytes they hold.
    pub bytes: u64,
}

impl Repo {
    /// Reads all of a snapshot again, and compares it with its manifest and its descriptor.
    pub fn verify(&self, descriptor: &Descriptor, progress: &dyn Progress) -> Result<VerifiedSnapshot> {
        let stored = self.stored_manifest(descriptor)?;
        let root = Root::open(&self.layout.snapshot_tree(&descriptor.snapshot_id))?;
        let found = self.manifest_of(&root, progress)?;
        refuse_differences(&descriptor.snapshot_id, &stored, &found)?;
        Ok(VerifiedSnapshot {
            snapshot_id: descriptor.snapshot_id.clone(),
            content_hash: descriptor.content_hash,
            files: descriptor.files,
            bytes: descriptor.bytes,
        })
    }

    /// The manifest of a snapshot, checked against the hash that was published.
    pub(crate) fn stored_manifest(&self, descriptor: &Descriptor) -> Result<Manifest> {
        let path = self.layout.snapshot_manifest(&descriptor.snapshot_id);
        let bytes = self.env.fs.read(&path).doing("read", &path)?;
        let text = String::from_utf8(bytes).map_err(|cause| Error::damaged(&path, cause))?;
        let manifest = Manifest::from_text(text);
        if manifest.content_hash() == descriptor.content_hash {
            return Ok(manifest);
        }
        Err(Error::damaged(&path, "the manifest does not have the content hash that was published"))
    }

    /// The manifest of the tree below `root`, as it is now.
    pub(crate) fn manifest_of(&self, root: &Root, progress: &dyn Progress) -> Result<Manifest> {
        let items = tree::scan(root)?;
        let hashed = tree::hash(&*self.env.fs, root, &items, ReadMode::Strict, progress)?;
        Ok(Manifest::new(&hashed.records))
    }
}

/// Refuses a tree that is not what the snapshot's manifest says.
pub(crate) fn refuse_differences(id: &SnapshotId, stored: &Manifest, found: &Manifest) -> Result<()> {
    let differences = stored.differences(found);
    let Some(first) = differences.first() else { return Ok(()) };
    Err(Error::new(
        Class::Damaged,
        format!(
            "the snapshot's files are not what was published; restore from another one: snapshot={id} \
             differing={} first={first}",
            differences.len()
        ),
    )
    .with("differing", &differences[..differences.len().min(100)]))
}
