//! Documents that are too long for the log: streamed into a blob, and then committed by reference.
//!
//! **Invariant.** A blob goes only if no durable state refers to it and nobody is about to make one that does.
//!
//! **What would break it.** To sweep away what no state refers to: a slow upload has finished its blob, and its
//! commit waits in the queue; the blob goes, and then the commit makes it the document. So whoever uploads
//! keeps a [`Pin`] until the commit's answer is known, and a sweep looks at the pins before it looks at the
//! state: a blob that had no pin then was committed before, or never will be.
//!
//! Whoever reads a blob part by part takes a [`Hold`] first: superseded meanwhile, the blob stays until the read is over, and goes
//! with a later sweep.
//!
//! What superseded blobs leave behind, in a crash between the commit and the deletion too, is found by the next sweep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel::Shard;
use store::{BlobStore, BlobWriter, StoreError};

use crate::documents::BlobId;

/// The blobs of one tenure.
#[derive(Clone)]
pub struct Uploads {
    blobs: Arc<dyn BlobStore>,
    shard: Shard,
    term: u64,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    pinned: BTreeSet<BlobId>,
    /// How many read each.
    held: BTreeMap<BlobId, usize>,
}

/// A document on its way. Dropped before it is finished, it leaves nothing behind.
pub struct Upload {
    writer: Box<dyn BlobWriter>,
    pin: Pin,
}

/// Keeps a blob while its commit is on its way. To be held by whatever waits for the commit's answer, and dropped
/// when that is known.
#[derive(Debug)]
pub struct Pin {
    blob: BlobId,
    kept: Arc<Mutex<Kept>>,
}

/// Keeps a blob while it is read.
#[derive(Debug)]
pub struct Hold {
    blob: BlobId,
    kept: Arc<Mutex<Kept>>,
}

impl Uploads {
    /// Those of a tenure that has just been opened.
    pub fn new(blobs: Arc<dyn BlobStore>, shard: Shard, term: u64) -> Uploads {
        Uploads { blobs, shard, term, kept: Arc::default() }
    }

    /// Begins one.
    pub fn begin(&self) -> Result<Upload, StoreError> {
        let pin = self.pin();
        let writer = self.blobs.create(&pin.blob.name(self.shard))?;
        Ok(Upload { writer, pin })
    }

    fn pin(&self) -> Pin {
        let mut kept = lock(&self.kept);
        let blob = BlobId { term: self.term, number: kept.next };
        kept.next += 1;
        kept.pinned.insert(blob);
        Pin { blob, kept: Arc::clone(&self.kept) }
    }

    /// Keeps a blob, if it is there, until the hold is dropped. What is read after this is there to its end.
    pub fn hold(&self, blob: BlobId) -> Hold {
        *lock(&self.kept).held.entry(blob).or_default() += 1;
        Hold { blob, kept: Arc::clone(&self.kept) }
    }

    /// Removes a blob whose commit was refused, or was a repetition of an earlier one: no record refers to it, and none will.
    pub fn discard(&self, pin: &Pin) -> Result<(), StoreError> {
        self.delete(pin.blob)
    }

    /// Removes a blob that a durable record has superseded; one that is being read is left to a sweep.
    pub fn delete(&self, blob: BlobId) -> Result<(), StoreError> {
        if lock(&self.kept).held.contains_key(&blob) {
            return Ok(());
        }
        self.blobs.delete(&blob.name(self.shard))
    }

    /// Removes blobs that nobody refers to, and says how many. `referred` reads the state, after the pins were
    /// looked at: whatever stands all the while must be in what it returns.
    pub fn sweep(&self, referred: impl FnOnce() -> Option<BTreeSet<BlobId>>) -> Result<usize, StoreError> {
        let listed = self.blobs.list(&BlobId::prefix(self.shard))?;
        let mut blobs: Vec<BlobId> =
            listed.iter().filter_map(|name| BlobId::parse(name, self.shard)).collect();
        let mut pinned = lock(&self.kept).pinned.clone();
        if planted!(PinsIgnored | PinsLate) {
            pinned.clear();
        }
        blobs.retain(|blob| blob.term <= self.term && !pinned.contains(blob));
        if blobs.is_empty() {
            return Ok(0);
        }
        let Some(referred) = referred() else { return Ok(0) };
        if planted!(PinsLate) {
            blobs.retain(|blob| !lock(&self.kept).pinned.contains(blob));
        }
        blobs.retain(|blob| !referred.contains(blob) && !lock(&self.kept).held.contains_key(blob));
        blobs.iter().try_for_each(|blob| self.delete(*blob))?;
        Ok(blobs.len())
    }
}

impl Upload {
    /// The next bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.writer.write(bytes)
    }

    /// Makes it durable; it may be committed now.
    pub fn finish(self) -> Result<Pin, StoreError> {
        self.writer.finish()?;
        Ok(self.pin)
    }
}

impl Pin {
    /// The blob, to be committed.
    pub fn blob(&self) -> BlobId {
        self.blob
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        lock(&self.kept).pinned.remove(&self.blob);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut kept = lock(&self.kept);
        let readers = kept.held.get_mut(&self.blob).expect("it is counted");
        *readers -= 1;
        if *readers == 0 {
            kept.held.remove(&self.blob);
        }
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} begun, {} pinned", self.next, self.pinned.len())
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
