//! A store in memory: `mem://`. It has a new key at each start, and ends with the process.

use std::sync::Arc;

use store::memory::{MemoryBlobs, MemoryLog};
use store::{ErrorKind, LogStore, SlotMap, StoreError};

use super::{StoreBackend, StoreParts, StoreUrl, random_bytes};
use crate::backend::boot_error::BootError;
use crate::backend::credential::StoreKey;
use crate::backend::open_options::OpenOptions;

/// A store in memory.
pub(super) struct MemoryBackend;

impl MemoryBackend {
    /// Parses the rest of `mem:`, which may be `//`.
    pub(super) fn parse(location: &str) -> Option<StoreUrl> {
        matches!(location, "" | "//").then(StoreUrl::memory)
    }
}

impl StoreBackend for MemoryBackend {
    fn open(&self, options: &OpenOptions, random: &dyn Fn(&mut [u8])) -> Result<StoreParts, BootError> {
        let log = |_| -> Box<dyn LogStore> { Box::new(MemoryLog::default()) };
        let too_many =
            || StoreError::new(ErrorKind::Refused, format!("not a number of shards: {}", options.shards));
        Ok(StoreParts {
            map: SlotMap::ranges(options.shards).ok_or_else(too_many)?,
            logs: (0..options.shards).map(log).collect(),
            shared: None,
            blobs: Arc::new(MemoryBlobs::default()),
            key: StoreKey::new(random_bytes(random)),
            torn_tails: Vec::new(),
            object_requests: None,
            guard: Box::new(()),
        })
    }

    fn url(&self) -> String {
        "mem://".to_string()
    }

    fn is_volatile(&self) -> bool {
        true
    }
}
