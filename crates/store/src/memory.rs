//! An in-memory store, for tests and throw-away servers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::frame::frame_len;
use crate::port::{
    BATCH_MAX, Batch, BlobName, BlobStore, BlobWriter, Bounds, ErrorKind, Extent, LogCapacity, LogReader,
    LogStore, Lsn, LsnRange, Seq, StoreError,
};

/// A log in memory. Clones share their contents, like two handles of one log.
#[derive(Clone, Default)]
pub struct MemoryLog(Arc<Mutex<LogState>>);

#[derive(Default)]
struct LogState {
    /// Dense, from the floor.
    batches: VecDeque<Batch>,
    bounds: Bounds,
}

impl LogState {
    fn at(&self, seq: Seq) -> Option<&Batch> {
        let index = seq.0.checked_sub(self.bounds.floor.0)?;
        self.batches.get(usize::try_from(index).ok()?)
    }
}

impl MemoryLog {
    fn state(&self) -> std::sync::MutexGuard<'_, LogState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogStore for MemoryLog {
    fn bounds(&self) -> Bounds {
        self.state().bounds
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        let mut state = self.state();
        if seq != state.bounds.next {
            return Err(StoreError::new(
                ErrorKind::Taken,
                format!("not the next sequence number: seq={} next={}", seq.0, state.bounds.next.0),
            ));
        }
        if payload.len() > BATCH_MAX {
            return Err(StoreError::new(
                ErrorKind::TooLarge,
                format!("batch too large: bytes={}", payload.len()),
            ));
        }
        state.batches.push_back(Batch { seq, lsns, payload: payload.to_vec() });
        state.bounds.next = seq.next();
        Ok(())
    }

    fn is_instant(&self) -> bool {
        true
    }

    fn reserve(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn capacity(&self) -> LogCapacity {
        LogCapacity { bytes: BATCH_MAX as u64, spare: true }
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        let mut state = self.state();
        if floor > state.bounds.next {
            return Err(StoreError::new(
                ErrorKind::Refused,
                format!(
                    "the floor is above the end of the log: floor={} next={}",
                    floor.0, state.bounds.next.0
                ),
            ));
        }
        state.bounds.floor = state.bounds.floor.max(floor);
        while state.batches.front().is_some_and(|batch| batch.seq < state.bounds.floor) {
            state.batches.pop_front();
        }
        Ok(())
    }

    /// Each batch is an extent, of the size that it has on disk.
    fn extents(&self) -> Vec<Extent> {
        let extent =
            |batch: &Batch| Extent { first: batch.seq, bytes: frame_len(batch.payload.len()) as u64 };
        self.state().batches.iter().map(extent).collect()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        Box::new(self.clone())
    }
}

impl LogReader for MemoryLog {
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError> {
        let found = self.state().at(seq).cloned();
        found.ok_or_else(|| StoreError::new(ErrorKind::Gone, format!("batch not in the log: seq={}", seq.0)))
    }

    fn read_lsn(&mut self, lsn: Lsn) -> Result<Batch, StoreError> {
        let state = self.state();
        let before = state.batches.partition_point(|batch| batch.lsns.last < lsn);
        let found = state.batches.get(before).filter(|batch| batch.lsns.contains(lsn)).cloned();
        found.ok_or_else(|| StoreError::new(ErrorKind::Gone, format!("record not in the log: lsn={lsn}")))
    }
}

/// Blobs in memory. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryBlobs(Arc<Mutex<BTreeMap<BlobName, Arc<[u8]>>>>);

impl MemoryBlobs {
    fn blobs(&self) -> std::sync::MutexGuard<'_, BTreeMap<BlobName, Arc<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, name: &BlobName) -> Result<Arc<[u8]>, StoreError> {
        let found = self.blobs().get(name).cloned();
        found.ok_or_else(|| StoreError::new(ErrorKind::Gone, format!("no such blob: name={name}")))
    }
}

impl BlobStore for MemoryBlobs {
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError> {
        Ok(Box::new(MemoryWriter { blobs: self.clone(), name: name.clone(), bytes: Vec::new() }))
    }

    fn len(&self, name: &BlobName) -> Result<u64, StoreError> {
        Ok(self.get(name)?.len() as u64)
    }

    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let bytes = self.get(name)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(length).min(bytes.len());
        Ok(bytes[from..to].to_vec())
    }

    fn delete(&self, name: &BlobName) -> Result<(), StoreError> {
        self.blobs().remove(name);
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<BlobName>, StoreError> {
        Ok(self.blobs().keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect())
    }
}

struct MemoryWriter {
    blobs: MemoryBlobs,
    name: BlobName,
    bytes: Vec<u8>,
}

impl BlobWriter for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<u64, StoreError> {
        let MemoryWriter { blobs, name, bytes } = *self;
        let length = bytes.len() as u64;
        let mut blobs = blobs.blobs();
        if blobs.contains_key(&name) {
            return Err(StoreError::new(ErrorKind::Taken, format!("the blob exists already: name={name}")));
        }
        blobs.insert(name, bytes.into());
        Ok(length)
    }
}
