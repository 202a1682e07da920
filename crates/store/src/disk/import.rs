//! Writes a log that was copied from another kind of store, from any floor on.
//!
//! **Invariant.** The batches have the numbers, the LSNs and the checksums that they had. The log gets its mark of a clean
//! stop when it is complete, so that one without its end is found damaged.
//!
//! **What would break it.** Beginning the chain of checksums anew: the copy could then not be compared with its original,
//! nor continue in a log that was copied back.

use std::path::{Path, PathBuf};

use super::clean_stop::{self, CleanStop};
use super::copy::CopiedFile;
use super::floor;
use super::log::LogOptions;
use crate::frame::{SEGMENT_HEADER, SegmentHeader, encode_frame};
use crate::port::{Batch, ErrorKind, Seq, StoreError};

/// A log that is being imported.
pub struct LogImport {
    dir: PathBuf,
    shard: u32,
    store_id: u128,
    floor: Seq,
    next: Seq,
    /// The checksum of the batch before `next`.
    chain: u32,
    /// The last segment, and its length.
    open: Option<(CopiedFile, u64)>,
    last: Option<CleanStop>,
}

impl LogImport {
    /// Begins the log of a shard in the store below `store`. `chain` is the checksum of the batch before `floor`, 0 if there
    /// was none.
    pub fn begin(store: &Path, shard: u32, store_id: u128, floor: Seq, chain: u32) -> LogImport {
        let dir = store.join("log").join(shard.to_string());
        LogImport { dir, shard, store_id, floor, next: floor, chain, open: None, last: None }
    }

    /// Appends the next batch.
    pub fn append(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if batch.seq != self.next {
            let what =
                format!("not the next batch of a copied log: seq={} next={}", batch.seq.0, self.next.0);
            return Err(StoreError::new(ErrorKind::Damaged, what));
        }
        let (frame, crc) = encode_frame(batch.seq, batch.lsns, &batch.payload, self.chain);
        let length = frame.len() as u64;
        let is_full =
            |(_, written): &(CopiedFile, u64)| written.saturating_add(length) > LogOptions::SEGMENT_BYTES;
        if self.open.as_ref().is_none_or(is_full) {
            self.begin_segment()?;
        }
        let (file, written) = self.open.as_mut().expect("it was just opened");
        file.write(&frame)?;
        *written += length;
        (self.next, self.chain) = (batch.seq.next(), crc);
        self.last = Some(CleanStop { seq: batch.seq, lsns: batch.lsns, crc });
        Ok(())
    }

    /// Completes the log, and returns the checksum of its last batch.
    pub fn finish(mut self) -> Result<u32, StoreError> {
        // A log that was never appended to has no files.
        if self.next == Seq(0) {
            return Ok(self.chain);
        }
        if self.open.is_none() {
            self.begin_segment()?;
        }
        self.close_segment()?;
        self.write_small(floor::NAME, &floor::encode(self.floor))?;
        if let Some(mark) = self.last {
            self.write_small(clean_stop::NAME, &mark.encode())?;
        }
        Ok(self.chain)
    }

    fn begin_segment(&mut self) -> Result<(), StoreError> {
        self.close_segment()?;
        let mut file = CopiedFile::create(&self.dir.join(format!("{:016x}.seg", self.next.0)))?;
        let header =
            SegmentHeader { shard: self.shard, store_id: self.store_id, first: self.next, chain: self.chain };
        file.write(&header.encode())?;
        self.open = Some((file, SEGMENT_HEADER as u64));
        Ok(())
    }

    fn close_segment(&mut self) -> Result<(), StoreError> {
        self.open.take().map_or(Ok(()), |(file, _)| file.finish().map(drop))
    }

    fn write_small(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut file = CopiedFile::create(&self.dir.join(name))?;
        file.write(bytes)?;
        file.finish().map(drop)
    }
}
