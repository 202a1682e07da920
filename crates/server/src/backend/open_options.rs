//! Options of opening a store.

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
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let (limits, engine) = (ShardLimits::default(), Options::default());
        OpenOptions { shards: 1, limits, engine, allow_network: false }
    }
}
