//! Documents that are too long for the log: streamed into a blob, and then committed by reference.
//!
//! **Invariant.** A blob is deleted only if no durable state references it and no pending commit will.
//!
//! **What would break it.** Deleting every unreferenced blob: a slow upload has finished its blob, and its
//! commit is still queued; the blob is deleted, and then the commit makes it the document. So an upload keeps
//! a [`Pin`] until the outcome of its commit is known, and garbage collection reads the pins before it reads
//! the state: a blob that was not pinned then is already committed, or never will be.
//!
//! A reader that reads a blob in parts takes a [`ReadHold`] first: if the blob is superseded, it stays until the
//! read is over, and a later garbage collection deletes it. A hold on a blob that is being deleted waits until it is
//! gone: otherwise its first part could be read, and the rest not.
//!
//! Superseded blobs that were not deleted, for example because of a crash between commit and deletion, are
//! found by the next garbage collection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use kernel::Shard;
use store::{BlobStore, BlobWriter, StoreError};

use crate::documents::{BlobId, Term};

/// The uploads of one tenure. Clones share their state.
#[derive(Clone)]
pub struct Uploads {
    blobs: Arc<dyn BlobStore>,
    shard: Shard,
    term: Term,
    state: Arc<Mutex<UploadState>>,
    /// Notified when a deletion has ended.
    deleted: Arc<Condvar>,
}

#[derive(Default)]
struct UploadState {
    next: u64,
    pinned: BTreeSet<BlobId>,
    /// The number of readers of each blob.
    held: BTreeMap<BlobId, usize>,
    /// Blobs that are being deleted; a blob is never in both maps.
    deleting: BTreeSet<BlobId>,
}

/// A document being uploaded. Dropped before it is finished, it leaves nothing behind.
pub struct Upload {
    writer: Box<dyn BlobWriter>,
    pin: Pin,
}

/// Protects a blob from garbage collection until its commit is decided. Drop it once the outcome is known.
#[derive(Debug)]
pub struct Pin {
    blob: BlobId,
    state: Arc<Mutex<UploadState>>,
}

/// Protects a blob from deletion while it is read.
#[derive(Debug)]
pub struct ReadHold {
    blob: BlobId,
    state: Arc<Mutex<UploadState>>,
}

impl Uploads {
    /// Starts with a tenure that has just been opened.
    pub fn new(blobs: Arc<dyn BlobStore>, shard: Shard, term: Term) -> Uploads {
        Uploads { blobs, shard, term, state: Arc::default(), deleted: Arc::default() }
    }

    /// The most bytes that an upload has in memory, beside those of the call in progress.
    pub fn memory_of_one(&self) -> usize {
        self.blobs.writer_memory()
    }

    /// Begins an upload, with random bits drawn for it.
    pub fn begin(&self, random: u64) -> Result<Upload, StoreError> {
        let pin = self.pin(random);
        let writer = self.blobs.create(&pin.blob.name())?;
        Ok(Upload { writer, pin })
    }

    fn pin(&self, random: u64) -> Pin {
        let mut state = lock(&self.state);
        // 0 is for blobs of format 1.
        let random = if planted!(BlobNameGuessable) { 1 } else { random.max(1) };
        let blob = BlobId { shard: self.shard, term: self.term, number: state.next, random };
        state.next += 1;
        state.pinned.insert(blob);
        Pin { blob, state: Arc::clone(&self.state) }
    }

    /// Protects a blob until the hold is dropped. If the first read afterwards succeeds, so will the rest. Waits for
    /// a deletion of this blob that has begun.
    pub fn hold(&self, blob: BlobId) -> ReadHold {
        let mut state = lock(&self.state);
        while state.deleting.contains(&blob) && !planted!(HoldWhileDeleting) {
            state = self.deleted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        *state.held.entry(blob).or_default() += 1;
        ReadHold { blob, state: Arc::clone(&self.state) }
    }

    /// Deletes a blob whose commit was refused or was a replay of an earlier one: no record will ever
    /// reference it.
    pub fn discard(&self, pin: &Pin) -> Result<(), StoreError> {
        self.delete(pin.blob)
    }

    /// Deletes a blob that a durable record has superseded. A blob being read is left to garbage collection.
    pub fn delete(&self, blob: BlobId) -> Result<(), StoreError> {
        {
            let mut state = lock(&self.state);
            // Held, or another thread is deleting it.
            let is_held = state.held.contains_key(&blob) && !planted!(ReadHoldIgnored);
            if is_held || !state.deleting.insert(blob) {
                return Ok(());
            }
        }
        let result = self.blobs.delete(&blob.name());
        lock(&self.state).deleting.remove(&blob);
        self.deleted.notify_all();
        result
    }

    /// Garbage collection: deletes unreferenced blobs and returns their number. `referenced` reads the state,
    /// after the pins: it must return every blob that is referenced during the whole call, or `None` to give
    /// up.
    pub fn sweep(&self, referenced: impl FnOnce() -> Option<BTreeSet<BlobId>>) -> Result<usize, StoreError> {
        let listed = self.blobs.list(&BlobId::prefix(self.shard))?;
        let mut blobs: Vec<BlobId> =
            listed.iter().filter_map(|name| BlobId::parse(name, self.shard)).collect();
        let mut pinned = lock(&self.state).pinned.clone();
        if planted!(PinsIgnored | PinsLate) {
            pinned.clear();
        }
        let is_ours = |blob: &BlobId| blob.term <= self.term || planted!(NewerTermSwept);
        blobs.retain(|blob| is_ours(blob) && !pinned.contains(blob));
        if blobs.is_empty() {
            return Ok(0);
        }
        let Some(referenced) = referenced() else { return Ok(0) };
        if planted!(PinsLate) {
            blobs.retain(|blob| !lock(&self.state).pinned.contains(blob));
        }
        blobs.retain(|blob| !referenced.contains(blob) && !lock(&self.state).held.contains_key(blob));
        blobs.iter().try_for_each(|blob| self.delete(*blob))?;
        Ok(blobs.len())
    }
}

impl Upload {
    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.writer.write(bytes)
    }

    /// Makes the blob durable. It can be committed now.
    pub fn finish(self) -> Result<Pin, StoreError> {
        self.writer.finish()?;
        if planted!(UnpinnedEarly) {
            lock(&self.pin.state).pinned.remove(&self.pin.blob);
        }
        Ok(self.pin)
    }
}

impl Pin {
    /// The blob to commit.
    pub fn blob(&self) -> BlobId {
        self.blob
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        lock(&self.state).pinned.remove(&self.blob);
    }
}

impl Drop for ReadHold {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let readers = state.held.get_mut(&self.blob).expect("it is counted");
        *readers -= 1;
        if *readers == 0 || planted!(ReadHoldShared) {
            state.held.remove(&self.blob);
        }
    }
}

impl std::fmt::Debug for UploadState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} begun, {} pinned", self.next, self.pinned.len())
    }
}

fn lock(state: &Mutex<UploadState>) -> MutexGuard<'_, UploadState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
