//! Reads a log's batches, and checks each against the index.
//!
//! **Invariant.** A returned batch is the one that became part of the log at its sequence number.
//!
//! **What would break it.** Trusting the object name: below a floor that was raised since, a late writer's
//! object can replace a deleted batch, complete and with a valid checksum.
//!
//! A reader that goes from one batch to the next reads ahead: many batches at once, since each request takes as long as
//! a hundred of them.

use std::collections::VecDeque;

use super::index::SharedIndex;
use super::recent::RecentBatches;
use super::shard_objects::ShardObjects;
use crate::port::{Batch, ErrorKind, LogReader, Lsn, Seq, StoreError};

/// Maximum number of batches that are read ahead.
const AHEAD_MAX: usize = 256;
/// Maximum size of the batches that are read ahead, in bytes.
const AHEAD_BYTES: u64 = 4 << 20;

/// Reads with the index that it shares with the log.
pub(super) struct ObjectReader {
    shard: ShardObjects,
    index: SharedIndex,
    recent: RecentBatches,
    /// The batch that was read last.
    last: Option<Seq>,
    /// Batches read ahead, in order.
    ahead: VecDeque<Batch>,
}

impl ObjectReader {
    pub(super) fn new(shard: ShardObjects, index: SharedIndex, recent: RecentBatches) -> ObjectReader {
        ObjectReader { shard, index, recent, last: None, ahead: VecDeque::new() }
    }

    /// The batch that contains an LSN.
    fn find(&self, lsn: Lsn) -> Result<Seq, StoreError> {
        let found = self.index.lock().read_lsn(lsn);
        found.ok_or_else(|| StoreError::new(ErrorKind::Gone, format!("record not in the log: lsn={lsn}")))
    }

    /// The object is missing or is not the indexed batch: another writer truncated the log, or it is damaged.
    fn missing(&self, seq: Seq) -> StoreError {
        match self.shard.highest_floor() {
            Ok(floor) if floor > seq => gone(seq),
            Ok(_) => self.shard.damaged(seq, "the batch is missing or was replaced"),
            Err(error) => error,
        }
    }

    /// The batches that one read ahead of `seq` covers, `seq` first.
    fn next_batches(&self, seq: Seq) -> Vec<Seq> {
        let index = self.index.lock();
        let (mut seqs, mut bytes) = (vec![seq], 0);
        while let Some(entry) = index.get(Seq(seq.0 + seqs.len() as u64)) {
            bytes += entry.bytes;
            if seqs.len() >= AHEAD_MAX || bytes > AHEAD_BYTES {
                break;
            }
            seqs.push(Seq(seq.0 + seqs.len() as u64));
        }
        seqs
    }

    /// Reads batches ahead, as far as they can be read. What fails is read again when it is needed.
    fn read_ahead(&mut self, seq: Seq) {
        let seqs = self.next_batches(seq);
        for (seq, read) in seqs.iter().zip(self.shard.batches(&seqs)) {
            let known = self.index.lock().get(*seq).copied();
            match read {
                Ok(Some((entry, batch))) if known == Some(entry) => self.ahead.push_back(batch),
                _ => return,
            }
        }
    }
}

fn gone(seq: Seq) -> StoreError {
    StoreError::new(ErrorKind::Gone, format!("batch not in the log: seq={}", seq.0))
}

impl LogReader for ObjectReader {
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError> {
        let known = self.index.lock().get(seq).copied().ok_or_else(|| gone(seq))?;
        if let Some(batch) = self.recent.get(seq) {
            return Ok(batch);
        }
        let is_next = self.last.replace(seq).is_some_and(|last| last.next() == seq);
        if is_next && self.ahead.is_empty() {
            self.read_ahead(seq);
        }
        match self.ahead.pop_front() {
            Some(batch) if batch.seq == seq => return Ok(batch),
            _ => self.ahead.clear(),
        }
        match self.shard.batch(seq)? {
            Some((entry, batch)) if entry == known => Ok(batch),
            _ => Err(self.missing(seq)),
        }
    }

    fn read_lsn(&mut self, lsn: Lsn) -> Result<Batch, StoreError> {
        let seq = self.find(lsn)?;
        self.read(seq)
    }

    fn read_part(&mut self, lsn: Lsn, offset: usize, length: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let seq = self.find(lsn)?;
        match self.recent.part(seq, offset, length) {
            Some(part) => Ok(Some(part)),
            None => self.shard.payload_part(seq, offset, length),
        }
    }
}
