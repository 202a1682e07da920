//! Options of opening a store.

use std::path::PathBuf;
use std::time::Duration;

use bucket::BucketOptions;
use engine::Options;

use crate::backend::memory_plan::ShardLimits;

/// Options of opening a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The number of shards of a new store; an existing store keeps its own.
    pub shards: u32,
    /// Limits of the kernel in each shard, until the next start.
    pub limits: ShardLimits,
    /// Maintenance of the store.
    pub engine: Options,
    /// Allows a network filesystem.
    pub allow_network: bool,
    /// The store key, if it is kept outside of the store.
    pub store_key_file: Option<PathBuf>,
    /// How long an owner of a shard is silent before another server takes the shard over.
    pub takeover_silence: Duration,
    /// Where parts of long documents wait until they are sent to a bucket. Created if it is missing.
    pub spool_dir: PathBuf,
    /// The most memory that the writer of one blob may have, in bytes.
    pub writer_bytes_max: u64,
    /// How a bucket is reached.
    pub bucket: BucketOptions,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            shards: 1,
            limits: ShardLimits::default(),
            engine: Options::default(),
            allow_network: false,
            store_key_file: None,
            takeover_silence: Duration::from_secs(3),
            spool_dir: std::env::temp_dir(),
            writer_bytes_max: u64::MAX,
            bucket: BucketOptions::default(),
        }
    }
}
