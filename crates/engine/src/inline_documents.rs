//! Reads documents that are stored in the log, from a bucket without the rest of their batch.
//!
//! **Invariant.** Bytes that were read alone are returned only if they have the document's hash. Otherwise the whole batch is
//! read, which has a checksum: that finds the document, or reports the damage.
//!
//! **What would break it.** Trusting a position: neither the checksum of the batch nor its length is checked when a part of it
//! is read, and below a floor another writer's object may have the batch's name.
//!
//! A location names the record of a document, not its offset. The offset is known for documents that this process has
//! written, and for all documents of a batch once one of them was read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel::{Document, Lsn};
use store::{ErrorKind, LogReader, LogStore, StoreError};

use crate::documents::document_of_batch;
use crate::record::document_ends;

/// Positions in one generation. There are two, so a shard knows at most twice as many.
const GENERATION_MAX: usize = 16 << 10;
/// Readers of a log on a device, where each read is short.
const LOCAL_READERS: usize = 4;
/// Readers of a log in a bucket, where each read takes as long as a request.
const REMOTE_READERS: usize = 16;

/// Where inline documents end within the payload of their batch, by the LSN of their record: hints in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct DocumentPositions(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: BTreeMap<Lsn, usize>,
    old: BTreeMap<Lsn, usize>,
}

impl DocumentPositions {
    /// Notes where the document of a record ends.
    pub(crate) fn note(&self, lsn: Lsn, end: usize) {
        let mut generations = self.lock();
        if generations.young.len() >= GENERATION_MAX {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(lsn, end);
    }

    fn end(&self, lsn: Lsn) -> Option<usize> {
        let generations = self.lock();
        generations.young.get(&lsn).or_else(|| generations.old.get(&lsn)).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pool of log readers.
pub(crate) struct InlineReaders {
    readers: Vec<Mutex<Box<dyn LogReader>>>,
    next: AtomicUsize,
    /// `None` if the log reads whole batches only.
    positions: Option<Arc<DocumentPositions>>,
}

impl InlineReaders {
    pub(crate) fn new(log: &dyn LogStore) -> InlineReaders {
        let remote = log.is_remote();
        let count = if remote { REMOTE_READERS } else { LOCAL_READERS };
        InlineReaders {
            readers: (0..count).map(|_| Mutex::new(log.reader())).collect(),
            next: AtomicUsize::new(0),
            positions: remote.then(Arc::default),
        }
    }

    /// Where the decider notes the positions of documents, if they are of use.
    pub(crate) fn positions(&self) -> Option<Arc<DocumentPositions>> {
        self.positions.clone()
    }

    /// Reads the document in the record at `lsn`. [`ErrorKind::Gone`] if it has been relocated since.
    pub(crate) fn read(&self, lsn: Lsn, document: &Document) -> Result<Vec<u8>, StoreError> {
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.readers.len();
        let mut reader = self.readers[index].lock().unwrap_or_else(PoisonError::into_inner);
        let end = self.positions.as_ref().and_then(|positions| positions.end(lsn));
        if let Some(bytes) = end.and_then(|end| read_alone(&mut **reader, lsn, document, end).transpose()) {
            return bytes;
        }
        let batch = reader.read_lsn(store::Lsn(lsn.0))?;
        if let Some(positions) = &self.positions {
            document_ends(&batch.payload).for_each(|(lsn, end)| positions.note(lsn, end));
        }
        document_of_batch(&batch, lsn)
    }
}

/// Reads a document without the rest of its batch; `None` if the bytes there are not the document.
fn read_alone(
    reader: &mut dyn LogReader,
    lsn: Lsn,
    document: &Document,
    end: usize,
) -> Result<Option<Vec<u8>>, StoreError> {
    let Ok(length) = usize::try_from(document.bytes) else { return Ok(None) };
    let Some(offset) = end.checked_sub(length) else { return Ok(None) };
    match reader.read_part(store::Lsn(lsn.0), offset, length) {
        Ok(bytes) => Ok(bytes.filter(|bytes| *blake3::hash(bytes).as_bytes() == document.etag.0)),
        // The whole batch shows whether it was dropped or is damaged.
        Err(error) if error.kind == ErrorKind::Gone => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_positions_are_known_in_bounded_memory() {
        let positions = DocumentPositions::default();
        for lsn in 0..100_000 {
            positions.note(Lsn(lsn), 7);
        }
        let known = (0..100_000).filter(|lsn| positions.end(Lsn(*lsn)).is_some()).count();
        assert!((GENERATION_MAX..=2 * GENERATION_MAX).contains(&known), "{known}");
        assert_eq!((positions.end(Lsn(0)), positions.end(Lsn(99_999))), (None, Some(7)));
    }
}
