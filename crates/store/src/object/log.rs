//! One shard's log in an object store: one object per batch, fencing by conditional puts, no clock.
//!
//! **Invariant.** The writer that creates the object of the next sequence number owns the log. A writer's
//! first object begins its tenure and is never deleted. So the number at which a deposed writer continues is
//! in use for ever, and its next append fails, however long it was asleep, and even after a truncation. The
//! bytes for a number are encoded once: an append is retried with the same bytes or not at all.
//!
//! **What would break it.**
//! - Treating a timeout as a failure: the put arrives later, and a writer that has since encoded another
//!   batch for that number has replied to its clients from bytes that are not in the log.
//! - Continuing after the first put without listing the floors: a standby reads up to 6 and sleeps; the owner
//!   appends 7 to 20 and truncates below 15, so 7 is free again; the standby's 7 succeeds. There is a floor
//!   above it, created before 7 was deleted, so the standby steps down.
//! - Deleting an object that begins a tenure: a writer deposed at 7 wakes up, and its own 7 succeeds.
//! - Taking another writer's object for the log's without listing the floors: the owner's 7 succeeded and its response
//!   was lost, a successor truncated below 15, and a standby created its own 7 before it stepped down. The owner
//!   would refuse commands that are in the log.

use std::sync::Arc;

use super::format::{OBJECT_HEADER, ObjectHeader};
use super::index::{Entry, SharedIndex};
use super::index_page::IndexPage;
use super::maintenance::Maintenance;
use super::names;
use super::port::{Objects, ObjectsErrorKind, RetryPolicy};
use super::reader::ObjectReader;
use super::recent::RecentBatches;
use super::shard_objects::{ObjectOptions, ShardObjects};
use crate::frame::{FrameHeader, encode_frame};
use crate::port::{
    BATCH_MAX, Batch, Bounds, ErrorKind, Extent, LogCapacity, LogReader, LogStore, LsnRange, Preparation,
    Seq, StoreError,
};

/// A log in an object store.
pub struct ObjectLog {
    shard: ShardObjects,
    index: SharedIndex,
    role: WriterRole,
    pending: Option<PendingAppend>,
    maintenance: Maintenance,
    recent: RecentBatches,
}

/// This writer's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterRole {
    /// It has read the log; its first append takes the log over.
    Reader,
    /// Another writer created the object of its first append: it has to catch up with
    /// [`ObjectLog::catch_up`].
    Behind,
    /// It owned the log when it last checked.
    Owner,
    /// Another writer has taken the log over: reopen it.
    Deposed,
}

/// An append whose outcome is unknown.
struct PendingAppend {
    seq: Seq,
    bytes: Vec<u8>,
    entry: Entry,
}

/// The outcome of one attempt to create an object.
enum PutOutcome {
    Ours,
    /// Created by this other writer.
    Theirs(String),
    /// Undecided, for this reason.
    Unknown(String),
}

impl ObjectLog {
    /// Reads the log to its end. Writes nothing: the first append takes the log over.
    pub fn open(
        objects: Arc<dyn Objects>,
        options: ObjectOptions,
        policy: RetryPolicy,
    ) -> Result<ObjectLog, StoreError> {
        let shard = ShardObjects { objects, options, policy };
        let is_valid = (1..=IndexPage::BATCHES_MAX).contains(&options.index_batches);
        assert!(is_valid, "an index object describes some batches, and not too many");
        let (index, indexed) = shard.scan()?;
        let index = SharedIndex::new(index);
        let maintenance = Maintenance::new(shard.clone(), index.clone(), indexed);
        let recent = RecentBatches::new(options.recent_bytes);
        Ok(ObjectLog { shard, index, role: WriterRole::Reader, pending: None, maintenance, recent })
    }

    /// This writer's role.
    pub fn role(&self) -> WriterRole {
        self.role
    }

    /// The checksum of the batch before the floor, 0 if there was none, and that of the last batch.
    pub fn checksums(&self) -> (u32, u32) {
        let index = self.index.lock();
        (index.chain_before(index.bounds().floor), index.last_crc())
    }

    /// See [`LogStore::catch_up`]. For a writer that does not own the log: a standby, or one whose first append failed with
    /// [`ErrorKind::Taken`].
    fn read_appended(&mut self) -> Result<Bounds, StoreError> {
        if !matches!(self.role, WriterRole::Reader | WriterRole::Behind) || self.pending.is_some() {
            let what = "this writer may own the log, so it cannot catch up; reopen the log to follow another";
            return Err(StoreError::new(ErrorKind::Refused, what));
        }
        let (next, chain) = (self.bounds().next, self.index.lock().last_crc());
        let (entries, floor) = self.shard.scan_appended(next, chain)?;
        let mut index = self.index.lock();
        for entry in entries {
            index.push(entry);
        }
        index.raise(floor);
        self.role = WriterRole::Reader;
        Ok(index.bounds())
    }

    fn check_not_deposed(&self) -> Result<(), StoreError> {
        match self.role {
            WriterRole::Deposed => {
                Err(StoreError::new(ErrorKind::Taken, "another writer owns the log; reopen it to follow"))
            }
            _ => Ok(()),
        }
    }

    fn depose(&mut self, kind: ErrorKind, why: impl Into<String>) -> StoreError {
        self.role = WriterRole::Deposed;
        self.pending = None;
        StoreError::new(kind, why)
    }

    /// Encodes an append, or returns the pending one if its bytes are the same. A retry never changes bytes.
    fn prepare(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<PendingAppend, StoreError> {
        let append = self.encode(seq, lsns, payload);
        match self.pending.take() {
            None => Ok(append),
            Some(_) if planted!(ObjectReformed) => Ok(append),
            Some(pending) if pending.bytes == append.bytes => Ok(pending),
            Some(pending) => {
                let what = "the outcome of an append is unknown; retry it with the same bytes";
                let error = StoreError::new(ErrorKind::Refused, format!("{what}: seq={}", pending.seq.0));
                self.pending = Some(pending);
                Err(error)
            }
        }
    }

    fn encode(&self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> PendingAppend {
        let ObjectOptions { shard, store_id, writer, .. } = self.shard.options;
        let begins_tenure = self.role != WriterRole::Owner;
        let header = ObjectHeader { shard, store_id, writer, begins_tenure };
        let (frame, _) = encode_frame(seq, lsns, payload, self.index.lock().last_crc());
        let bytes = header.encode(&frame);
        let frame = FrameHeader::decode(&bytes[OBJECT_HEADER..]).expect("it was just encoded");
        PendingAppend { seq, bytes, entry: Entry::new(&header, &frame) }
    }

    /// Retries until the outcome is known, or the retry policy gives up.
    fn decide(&mut self, append: PendingAppend) -> Result<(), StoreError> {
        let mut failed = 0;
        loop {
            let why = match self.try_once(&append) {
                PutOutcome::Ours => return self.won(append),
                PutOutcome::Theirs(writer) => return Err(self.lost(append, &writer)),
                PutOutcome::Unknown(why) => why,
            };
            failed += 1;
            if !self.shard.policy.backoff(failed) {
                let what = "the batch may or may not be in the log; append the same bytes again";
                let what = format!("{what}: {why} seq={}", append.seq.0);
                self.pending = Some(append);
                return Err(StoreError::new(ErrorKind::Undecided, what));
            }
        }
    }

    fn try_once(&self, append: &PendingAppend) -> PutOutcome {
        let name = names::batch(self.shard.options.shard, append.seq);
        match self.shard.objects.put_if_absent(&name, &append.bytes) {
            Ok(()) => PutOutcome::Ours,
            Err(error) if error.kind == ObjectsErrorKind::Taken && planted!(ObjectNotReadBack) => {
                PutOutcome::Theirs("unknown".into())
            }
            // Some stores report a name that is in use as a conflict.
            Err(error)
                if matches!(
                    error.kind,
                    ObjectsErrorKind::Taken | ObjectsErrorKind::Conflict | ObjectsErrorKind::TimedOut
                ) =>
            {
                self.read_back(&name, append)
            }
            Err(error) => PutOutcome::Unknown(error.to_string()),
        }
    }

    /// Finds out who created the object: an earlier attempt of ours that seemed to fail, or another writer.
    /// An unreadable object proves nothing.
    fn read_back(&self, name: &str, append: &PendingAppend) -> PutOutcome {
        let bytes = match self.shard.objects.get(name) {
            Ok(bytes) if bytes == append.bytes => return PutOutcome::Ours,
            Ok(bytes) => bytes,
            Err(error) => return PutOutcome::Unknown(error.to_string()),
        };
        match self.shard.decode_batch(append.seq, &bytes) {
            Ok((entry, _)) => PutOutcome::Theirs(format!("{:032x}", entry.writer.0)),
            Err(error) => PutOutcome::Unknown(error.to_string()),
        }
    }

    fn won(&mut self, append: PendingAppend) -> Result<(), StoreError> {
        if append.entry.begins_tenure && !planted!(FloorsUnlisted) {
            match self.shard.highest_floor() {
                Ok(floor) if floor > append.seq => {
                    let what = "the log was truncated by its owner during the takeover; reopen it";
                    let what = format!("{what}: seq={} floor={}", append.seq.0, floor.0);
                    return Err(self.depose(ErrorKind::Gone, what));
                }
                Ok(floor) => drop(self.index.lock().raise(floor)),
                Err(error) => {
                    self.pending = Some(append);
                    return Err(StoreError::new(ErrorKind::Undecided, error.what));
                }
            }
        }
        self.index.lock().push(append.entry);
        self.role = WriterRole::Owner;
        Ok(())
    }

    /// Raises the floor. Batches below it are deleted in the background.
    fn truncate(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.check_not_deposed()?;
        let bounds = self.bounds();
        if floor > bounds.next {
            let what =
                format!("the floor is above the end of the log: floor={} next={}", floor.0, bounds.next.0);
            return Err(StoreError::new(ErrorKind::Refused, what));
        }
        if floor <= bounds.floor {
            return Ok(());
        }
        if planted!(DeleteBeforeFloor) {
            let below: Vec<_> = (bounds.floor.0..floor.0).map(Seq).collect();
            let entries = below.iter().map(|seq| (*seq, *self.index.lock().get(*seq).expect("in the log")));
            self.maintenance.dropped(&entries.collect::<Vec<_>>());
            self.maintenance.delete_batches()?;
        }
        self.maintenance.create_floor(floor)?;
        let dropped = self.index.lock().raise(floor);
        self.maintenance.dropped(&dropped);
        Ok(())
    }

    fn lost(&mut self, append: PendingAppend, writer: &str) -> StoreError {
        let seq = append.seq.0;
        let what = format!("another writer has this sequence number: seq={seq} writer={writer}");
        if self.role == WriterRole::Reader {
            self.role = WriterRole::Behind;
            return StoreError::new(ErrorKind::Taken, what);
        }
        match self.shard.highest_floor() {
            Ok(floor) if floor > append.seq && !planted!(AnothersBelowFloor) => {
                let what =
                    "the log was truncated past an append of unknown outcome, which may have been in it";
                self.depose(ErrorKind::Gone, format!("{what}; reopen it: seq={seq} floor={}", floor.0))
            }
            Ok(_) => self.depose(ErrorKind::Taken, what),
            Err(error) => {
                self.pending = Some(append);
                StoreError::new(ErrorKind::Undecided, error.what)
            }
        }
    }
}

impl LogStore for ObjectLog {
    fn bounds(&self) -> Bounds {
        self.index.lock().bounds()
    }

    /// After [`ErrorKind::Undecided`] the batch may be in the log: append it again with the same bytes. Any other
    /// batch is [`ErrorKind::Refused`] until that one is decided.
    ///
    /// [`ErrorKind::Taken`] at the first append: another writer was faster, call [`ObjectLog::catch_up`]. At a
    /// later append: another writer has taken the log over, and the batch is not in it. [`ErrorKind::Gone`]: the log was
    /// truncated past this writer's position, reopen it. The batch of a first append is not in the log then; that of a
    /// later append may be.
    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        self.check_not_deposed()?;
        let next = self.bounds().next;
        if seq != next || self.role == WriterRole::Behind {
            let what = format!("not the next sequence number: seq={} next={}", seq.0, next.0);
            return Err(StoreError::new(ErrorKind::Taken, what));
        }
        if payload.len() > BATCH_MAX {
            let what = format!("batch too large: bytes={}", payload.len());
            return Err(StoreError::new(ErrorKind::TooLarge, what));
        }
        let append = self.prepare(seq, lsns, payload)?;
        self.decide(append)?;
        self.recent.push(Batch { seq, lsns, payload: payload.to_vec() });
        Ok(())
    }

    fn is_remote(&self) -> bool {
        true
    }

    /// Nothing to do: a bucket needs no preallocation.
    fn reserve(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn capacity(&self) -> LogCapacity {
        LogCapacity { bytes: BATCH_MAX as u64, spare: true }
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.truncate(floor)
    }

    /// The batches that one index object describes are an extent.
    fn extents(&self) -> Vec<Extent> {
        self.index.lock().extents(self.shard.options.index_batches)
    }

    /// Creates index objects, and deletes what is below the floor.
    fn preparation(&mut self) -> Option<Preparation> {
        if self.role != WriterRole::Owner || !self.maintenance.begin() {
            return None;
        }
        let maintenance = self.maintenance.clone();
        Some(Box::new(move || maintenance.run()))
    }

    fn confirm(&mut self) -> Result<(), StoreError> {
        self.check_not_deposed()?;
        if self.pending.is_some() {
            return Err(StoreError::new(
                ErrorKind::Io,
                "the outcome of an append is unknown; retry it first",
            ));
        }
        if self.role != WriterRole::Owner {
            return Err(StoreError::new(ErrorKind::Refused, "only the owner of a log can confirm it"));
        }
        if planted!(ConfirmBlindly) {
            return Ok(());
        }
        let name = names::batch(self.shard.options.shard, self.bounds().next);
        match self.shard.policy.retry(|| self.shard.objects.head(&name)) {
            Ok(_) => Err(self.depose(ErrorKind::Taken, "another writer has taken the log over; reopen it")),
            Err(error) if error.kind == ObjectsErrorKind::NotFound => Ok(()),
            Err(error) => {
                let error = error.into_store_error("confirming the log", &name);
                Err(StoreError::new(ErrorKind::Undecided, error.what))
            }
        }
    }

    fn has_grown(&self) -> Result<bool, StoreError> {
        let name = names::batch(self.shard.options.shard, self.bounds().next);
        match self.shard.policy.retry(|| self.shard.objects.head(&name)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ObjectsErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into_store_error("looking for the next batch", &name)),
        }
    }

    fn catch_up(&mut self) -> Result<Bounds, StoreError> {
        self.read_appended()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        Box::new(ObjectReader::new(self.shard.clone(), self.index.clone(), self.recent.clone()))
    }
}

#[cfg(test)]
mod tests;
