//! Reads a log's batches, and checks each against the index.
//!
//! **Invariant.** A returned batch is the one that became part of the log at its sequence number.
//!
//! **What would break it.** Trusting the object name: below a floor that was raised since, a late writer's
//! object can replace a deleted batch, complete and with a valid checksum.

use super::index::SharedIndex;
use super::shard_objects::ShardObjects;
use crate::port::{Batch, ErrorKind, LogReader, Lsn, Seq, StoreError};

/// Reads with the index that it shares with the log.
pub(super) struct ObjectReader {
    shard: ShardObjects,
    index: SharedIndex,
}

impl ObjectReader {
    pub(super) fn new(shard: ShardObjects, index: SharedIndex) -> ObjectReader {
        ObjectReader { shard, index }
    }

    /// The object is missing or is not the indexed batch: another writer truncated the log, or it is damaged.
    fn missing(&self, seq: Seq) -> StoreError {
        match self.shard.highest_floor() {
            Ok(floor) if floor > seq => gone(seq),
            Ok(_) => self.shard.damaged(seq, "the batch is missing or was replaced"),
            Err(error) => error,
        }
    }
}

fn gone(seq: Seq) -> StoreError {
    StoreError::new(ErrorKind::Gone, format!("batch not in the log: seq={}", seq.0))
}

impl LogReader for ObjectReader {
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError> {
        let known = self.index.lock().get(seq).copied().ok_or_else(|| gone(seq))?;
        match self.shard.batch(seq)? {
            Some((entry, batch)) if entry == known => Ok(batch),
            _ => Err(self.missing(seq)),
        }
    }

    fn read_lsn(&mut self, lsn: Lsn) -> Result<Batch, StoreError> {
        let found = self.index.lock().read_lsn(lsn);
        let seq = found
            .ok_or_else(|| StoreError::new(ErrorKind::Gone, format!("record not in the log: lsn={lsn}")))?;
        self.read(seq)
    }
}
