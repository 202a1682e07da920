//! Reads a log's batches, and checks that each is the one that the index knows.
//!
//! **Invariant.** What is given out is the batch that became part of the log at its number.
//!
//! **What would break it.** To trust a name: below a floor that was raised since, a late taker's object can
//! stand where a batch was, whole and with a good checksum.

use super::index::SharedIndex;
use super::shard_objects::ShardObjects;
use crate::port::{Batch, ErrorKind, LogReader, Seq, StoreError};

/// Reads with the index that it has in common with the log.
pub(super) struct ObjectReader {
    shard: ShardObjects,
    index: SharedIndex,
}

impl ObjectReader {
    pub(super) fn new(shard: ShardObjects, index: SharedIndex) -> ObjectReader {
        ObjectReader { shard, index }
    }

    /// Something else stands at its number, or nothing: a truncation by another writer, or damage.
    fn missing(&self, seq: Seq) -> StoreError {
        match self.shard.highest_floor() {
            Ok(floor) if floor > seq => gone(seq),
            Ok(_) => self.shard.damaged(seq, "the batch is not there, or not the one that was"),
            Err(error) => error,
        }
    }
}

fn gone(seq: Seq) -> StoreError {
    StoreError::new(ErrorKind::Gone, format!("batch {} is not in the log", seq.0))
}

impl LogReader for ObjectReader {
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError> {
        let known = self.index.lock().get(seq).copied().ok_or_else(|| gone(seq))?;
        match self.shard.batch(seq)? {
            Some((entry, batch)) if entry == known => Ok(batch),
            _ => Err(self.missing(seq)),
        }
    }

    fn holding(&mut self, lsn: u64) -> Result<Batch, StoreError> {
        let found = self.index.lock().holding(lsn);
        let seq =
            found.ok_or_else(|| StoreError::new(ErrorKind::Gone, format!("lsn {lsn} is not in the log")))?;
        self.read(seq)
    }
}
