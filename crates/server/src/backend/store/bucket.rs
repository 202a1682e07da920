//! A store in a bucket: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
//!
//! **Invariant.** Any number of processes may open the same bucket: the one whose `open` record is the next object of a log
//! owns it, and the others follow. So there is no lock, and no guard.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;

use bucket::probe::{ProbeDepth, probe};
use bucket::{Bucket, BucketUrl};
use store::object::{
    KeySource, ObjectBlobs, ObjectLog, ObjectOptions, ObjectStoreRoot, Objects, RetryPolicy, Spool, WriterId,
};
use store::{ErrorKind, StoreError, StoreFile};

use super::{LogOpener, SharedStore, StoreBackend, StoreParts, StoreUrl, outside_key, random_bytes};
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

impl BucketBackend {
    /// Refuses an object store that would let two servers own one log.
    fn check_fitness(&self, depth: ProbeDepth, options: &OpenOptions) -> Result<(), BootError> {
        let report = probe(&self.url, &options.bucket, &[], depth, "", &mut |_| ()).map_err(refused)?;
        for warning in report.warnings() {
            tracing::warn!(check = %warning.name, "{}", warning.what);
        }
        if report.is_fit() {
            return Ok(());
        }
        let what =
            "the object store is not fit for a log, or its policy is not enough; see `lockd store probe`";
        Err(refused(format!("{what}: {}", report.verdict())))
    }
}

/// Parts of long documents wait in a file. Without one they are in memory, and that must be enough.
fn open_spool(options: &OpenOptions) -> Result<Option<Spool>, BootError> {
    let directory = &options.spool_dir;
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let error = match created.and_then(|()| Spool::open(directory)) {
        Ok(spool) => return Ok(Some(spool)),
        Err(error) => error,
    };
    if options.bucket.uploads().buffered_bytes() as u64 > options.writer_bytes_max {
        return Err(refused(format!(
            "parts of long documents can neither be spooled nor be held in memory: {error}; make the data directory \
             writable, or raise --memory-max: path={}",
            directory.display()
        )));
    }
    tracing::warn!(%error, path = %directory.display(), "parts of long documents are held in memory");
    Ok(None)
}

impl StoreBackend for BucketBackend {
    fn open(&self, options: &OpenOptions, random: &dyn Fn(&mut [u8])) -> Result<StoreParts, BootError> {
        let outside = options.store_key_file.as_deref().map(outside_key).transpose()?;
        let client = Bucket::new(&self.url, &options.bucket).map_err(refused)?;
        let (objects, policy): (Arc<dyn Objects>, _) = (Arc::new(client.clone()), client.retry_policy());
        // A store is created only where every check passes. Later starts repeat what a few requests can show.
        let is_new = ObjectStoreRoot::is_missing(&*objects);
        self.check_fitness(if is_new { ProbeDepth::Full } else { ProbeDepth::Short }, options)?;
        let fresh = StoreFile { store_id: u128::from_le_bytes(random_bytes(random)), shards: options.shards };
        let drawn = random_bytes(random);
        let source =
            outside.as_ref().map_or(KeySource::Bucket(&drawn), |key| KeySource::Outside(key.as_bytes()));
        let root = ObjectStoreRoot::open(&objects, &policy, fresh, source)?;
        let open_log = log_opener(&objects, root.file, policy.clone());
        let blobs = ObjectBlobs::new(Arc::clone(&objects), policy, options.bucket.uploads());
        let blobs = Arc::new(blobs.with_spool(open_spool(options)?));
        Ok(StoreParts {
            logs: Vec::new(),
            shared: Some(SharedStore { objects, open_log }),
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

/// Opens logs, each time as another writer: an object of an earlier time must not be taken for one of this.
fn log_opener(objects: &Arc<dyn Objects>, file: StoreFile, policy: RetryPolicy) -> LogOpener {
    let objects = Arc::clone(objects);
    let recent_bytes = RECENT_BYTES / file.shards.max(1) as usize;
    Arc::new(move |shard| {
        let writer = WriterId(u128::from_le_bytes(random_bytes(&system::random::fill)));
        let options = ObjectOptions { recent_bytes, ..ObjectOptions::new(shard, file.store_id, writer) };
        Ok(Box::new(ObjectLog::open(Arc::clone(&objects), options, policy.clone())?))
    })
}

fn refused(what: String) -> BootError {
    BootError::Store(StoreError::new(ErrorKind::Refused, what))
}
