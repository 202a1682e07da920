//! Verifying a stored snapshot against its hashes.

use serde::Serialize;

use crate::error::{Error, ErrorClass, Result};
use crate::ids::{Digest, SnapshotId};
use crate::manifest_chain::ManifestChain;
use crate::repo::Repo;
use crate::snapshot::Descriptor;
use crate::tree::{self, Progress, ReadMode, TreeManifest};

/// A snapshot whose files were all read and match.
#[derive(Clone, Debug, Serialize)]
pub struct VerifiedSnapshot {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The content hash, as published and as found.
    pub content_hash: Digest,
    /// The number of files.
    pub files: u64,
    /// The total size of the files, in bytes.
    pub bytes: u64,
}

impl Repo {
    /// Reads all files of a snapshot, and compares them with its manifest and its descriptor.
    pub fn verify(&self, descriptor: &Descriptor, progress: &dyn Progress) -> Result<VerifiedSnapshot> {
        let stored = self.stored_manifest(descriptor)?;
        let _use = self.use_snapshot(&descriptor.snapshot_id)?;
        let stored_tree = self.stored_tree(&descriptor.snapshot_id)?;
        let hashed = tree::hash(&*self.env.fs, &stored_tree, &stored_tree.items, ReadMode::Strict, progress)?;
        let found = TreeManifest::new(&hashed.records);
        refuse_differences(&descriptor.snapshot_id, &stored, &found)?;
        Ok(VerifiedSnapshot {
            snapshot_id: descriptor.snapshot_id.clone(),
            content_hash: descriptor.content_hash,
            files: descriptor.files,
            bytes: descriptor.bytes,
        })
    }

    /// The manifest of a snapshot, checked against the hash that was published.
    pub(crate) fn stored_manifest(&self, descriptor: &Descriptor) -> Result<TreeManifest> {
        Ok(self.checked_chain(descriptor, None)?.manifest)
    }

    /// The manifest of a snapshot with its layers, checked against the hash that was published.
    pub(crate) fn checked_chain(
        &self,
        descriptor: &Descriptor,
        known: Option<&ManifestChain>,
    ) -> Result<ManifestChain> {
        let path = self.layout.snapshot_manifest(&descriptor.snapshot_id);
        let chain = self.manifest_chain_over(&descriptor.snapshot_id, known)?;
        if chain.manifest.content_hash() == descriptor.content_hash {
            return Ok(chain);
        }
        Err(Error::damaged(&path, "the manifest does not match the published content hash"))
    }
}

/// Refuses a tree that differs from the snapshot's manifest.
pub(crate) fn refuse_differences(id: &SnapshotId, stored: &TreeManifest, found: &TreeManifest) -> Result<()> {
    let differences = stored.differences(found);
    let Some(first) = differences.first() else { return Ok(()) };
    Err(Error::new(
        ErrorClass::Damaged,
        format!(
            "the snapshot's files are not those that were published; restore another one: snapshot={id} \
             differing={} first={first}",
            differences.len()
        ),
    )
    .with("differing", &differences[..differences.len().min(100)]))
}
