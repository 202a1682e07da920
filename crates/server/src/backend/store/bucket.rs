//! A store in a bucket: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
//!
//! **Invariant.** Two processes may open the same bucket: the one whose `open` record is the next object of a log owns it,
//! and the other ends at its next append. So there is no lock, and no guard.

use std::sync::Arc;

use bucket::{Bucket, BucketUrl};
use store::object::{KeySource, ObjectBlobs, ObjectLog, ObjectOptions, ObjectStoreRoot, Objects, WriterId};
use store::{ErrorKind, LogStore, StoreError, StoreFile};

use super::{StoreBackend, StoreParts, StoreUrl, outside_key, random_bytes};
use crate::backend::boot_error::BootError;
use crate::backend::credential::StoreKey;
use crate::backend::open_options::OpenOptions;

/// Memory for the last batches of all shards: documents just written are read without a request.
const RECENT_BYTES: usize = 16 << 20;

/// A store in a bucket.
pub(super) struct BucketBackend {
    url: BucketUrl,
}

impl BucketBackend {
    /// Parses a whole URL.
    pub(super) fn parse(text: &str) -> Option<StoreUrl> {
        BucketUrl::parse(text).map(|url| StoreUrl::new(BucketBackend { url }))
    }
}

impl StoreBackend for BucketBackend {
    fn open(&self, options: &OpenOptions, random: &dyn Fn(&mut [u8])) -> Result<StoreParts, BootError> {
        let outside = options.store_key_file.as_deref().map(outside_key).transpose()?;
        let client = Bucket::new(&self.url, &options.bucket).map_err(refused)?;
        let (objects, policy): (Arc<dyn Objects>, _) = (Arc::new(client.clone()), client.retry_policy());
        let fresh = StoreFile { store_id: u128::from_le_bytes(random_bytes(random)), shards: options.shards };
        let drawn = random_bytes(random);
        let source =
            outside.as_ref().map_or(KeySource::Bucket(&drawn), |key| KeySource::Outside(key.as_bytes()));
        let root = ObjectStoreRoot::open(&objects, &policy, fresh, source)?;
        let recent_bytes = RECENT_BYTES / root.file.shards.max(1) as usize;
        let open_log = |shard| -> Result<Box<dyn LogStore>, StoreError> {
            let writer = WriterId(u128::from_le_bytes(random_bytes(random)));
            let usual = ObjectOptions::new(shard, root.file.store_id, writer);
            let options = ObjectOptions { recent_bytes, ..usual };
            Ok(Box::new(ObjectLog::open(Arc::clone(&objects), options, policy.clone())?))
        };
        let logs = (0..root.file.shards).map(open_log).collect::<Result<_, _>>()?;
        let blobs = Arc::new(ObjectBlobs::new(objects, policy, options.bucket.uploads()));
        Ok(StoreParts {
            logs,
            blobs,
            key: StoreKey::new(root.key),
            map: root.map,
            torn_tails: Vec::new(),
            object_requests: Some(client.counts()),
            guard: Box::new(()),
        })
    }

    fn url(&self) -> String {
        self.url.to_string()
    }

    fn is_remote(&self) -> bool {
        true
    }
}

fn refused(what: String) -> BootError {
    BootError::Store(StoreError::new(ErrorKind::Refused, what))
}
