//! A store in a bucket, as a copy or a check sees it: it is only read, but for the upload into an empty one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use engine::internals::recovery::recover_from;
use kernel::Shard;
use store::object::{
    ObjectBlobs, ObjectLog, ObjectLogCheck, ObjectOptions, ObjectStoreRoot, Objects, RetryPolicy,
    UploadOptions, WriterId, check_log,
};
use store::{BlobStore, ErrorKind, Key, StoreError};
use system::random;

use crate::error::BackupError;
use crate::recovered::blobs;

/// A store in a bucket, and how it is reached.
#[derive(Clone)]
pub struct BucketStore {
    /// The objects below its prefix.
    pub objects: Arc<dyn Objects>,
    /// The retries of requests.
    pub policy: RetryPolicy,
    /// How blobs are uploaded.
    pub uploads: UploadOptions,
    /// Its URL, for messages.
    pub url: String,
}

/// The blobs that no state refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlobUse {
    /// All blobs.
    pub blobs: u64,
    /// Blobs that are neither a snapshot nor a document of the state.
    pub unreferenced: u64,
    /// Their size in bytes.
    pub unreferenced_bytes: u64,
}

impl BucketStore {
    /// The parameters of the store. `key` is needed if the bucket has none.
    pub fn root(&self, key: Option<&Key>) -> Result<ObjectStoreRoot, BackupError> {
        ObjectStoreRoot::read(&self.objects, &self.policy, key)?.ok_or_else(|| {
            let what = format!("there is no store at this location: store={}", self.url);
            BackupError::Store(StoreError::new(ErrorKind::Gone, what))
        })
    }

    /// Fails unless there are no objects below the prefix.
    pub fn check_empty(&self) -> Result<(), BackupError> {
        ObjectStoreRoot::check_empty(&self.objects, &self.policy).map_err(|error| self.refused(error))
    }

    /// A refusal, with the location.
    pub(crate) fn refused(&self, error: StoreError) -> BackupError {
        match error.kind {
            ErrorKind::Refused => BackupError::Refused(format!("{} store={}", error.what, self.url)),
            _ => error.into(),
        }
    }

    pub(crate) fn blobs(&self) -> ObjectBlobs {
        ObjectBlobs::new(Arc::clone(&self.objects), self.policy.clone(), self.uploads)
    }

    /// Reads the log of a shard to its end. Nothing is appended.
    pub(crate) fn log(&self, shard: u32, store_id: u128) -> Result<ObjectLog, StoreError> {
        let options = ObjectOptions::new(shard, store_id, writer());
        ObjectLog::open(Arc::clone(&self.objects), options, self.policy.clone())
    }

    /// Compares the objects of a log with each other.
    pub fn check_log(&self, shard: u32, store_id: u128) -> Result<ObjectLogCheck, BackupError> {
        let options = ObjectOptions::new(shard, store_id, writer());
        Ok(check_log(Arc::clone(&self.objects), options, self.policy.clone())?)
    }

    /// Counts the blobs that no shard refers to. A server that runs deletes them, or is about to refer to them.
    pub fn blob_use(&self, root: &ObjectStoreRoot) -> Result<BlobUse, BackupError> {
        let store = self.blobs();
        let listed = store.list("")?;
        let mut referenced = BTreeSet::new();
        for shard in 0..root.file.shards {
            let log = self.log(shard, root.file.store_id)?;
            let recovered = recover_from(&log, &store, Shard(shard), &mut |_| {});
            let recovered = recovered.map_err(|error| BackupError::recovery(shard, error))?;
            referenced.extend(blobs(&recovered.kernel).map(|(blob, _)| blob.name()));
        }
        let is_free =
            |name: &&store::BlobName| !name.as_str().starts_with("snapshot/") && !referenced.contains(*name);
        let mut found = BlobUse { blobs: listed.len() as u64, ..BlobUse::default() };
        for name in listed.iter().filter(is_free) {
            match store.len(name) {
                Ok(bytes) => {
                    found.unreferenced += 1;
                    found.unreferenced_bytes += bytes;
                }
                // A server has deleted it meanwhile.
                Err(error) if error.kind == ErrorKind::Gone => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }
}

impl fmt::Debug for BucketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketStore").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A new writer: one opening of a log, or one copy.
pub(crate) fn writer() -> WriterId {
    WriterId(u128::from_le_bytes(random::bytes::<16>()))
}
