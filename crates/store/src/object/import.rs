//! Writes a log that was copied from another store, from any floor on.
//!
//! **Invariant.** The batches have the numbers, the LSNs and the checksums that they had. All are of one writer, which is
//! new, and the first of them begins its tenure. No server reads the log before the store has its parameters, which the
//! copy creates last: so the order in which the batches arrive does not matter.
//!
//! **What would break it.** Accepting a name that is in use with other contents: two copies into one prefix would mix.

use std::sync::Arc;

use super::format::{OBJECT_HEADER, ObjectHeader};
use super::index::{Entry, Index, SharedIndex};
use super::maintenance::Maintenance;
use super::names;
use super::port::{NewObject, Objects, ObjectsError, ObjectsErrorKind, RetryPolicy};
use super::root::concurrent_writer;
use super::shard_objects::{ObjectOptions, ShardObjects};
use crate::frame::{FrameHeader, encode_frame};
use crate::port::{Batch, ErrorKind, Seq, StoreError};

/// Maximum number of objects that are put at once.
const PENDING_MAX: usize = 128;
/// Maximum size of these objects, in bytes.
const PENDING_BYTES: usize = 8 << 20;

/// A log that is being imported.
pub struct ObjectImport {
    shard: ShardObjects,
    floor: Seq,
    index: SharedIndex,
    pending: Vec<NewObject>,
    pending_bytes: usize,
}

impl ObjectImport {
    /// Begins a log that has no objects. `chain` is the checksum of the batch before `floor`, 0 if there was none.
    pub fn begin(
        objects: Arc<dyn Objects>,
        options: ObjectOptions,
        policy: RetryPolicy,
        floor: Seq,
        chain: u32,
    ) -> Result<ObjectImport, StoreError> {
        let shard = ShardObjects { objects, options, policy };
        let index = SharedIndex::new(Index::above(floor, chain));
        let mut import = ObjectImport { shard, floor, index, pending: Vec::new(), pending_bytes: 0 };
        if floor > Seq(0) {
            let bytes = import.shard.encode_floor(floor, chain).to_vec();
            import.add(NewObject { name: names::floor(options.shard, floor), bytes });
            import.flush()?;
        }
        Ok(import)
    }

    /// The checksum of the last batch, before the first that of the batch before the floor.
    pub fn last_checksum(&self) -> u32 {
        self.index.lock().last_crc()
    }

    /// Adds the next batch. It is durable once the import is finished.
    pub fn append(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let next = self.index.lock().bounds().next;
        if batch.seq != next {
            let what = format!("not the next batch of a copied log: seq={} next={}", batch.seq.0, next.0);
            return Err(StoreError::new(ErrorKind::Damaged, what));
        }
        let ObjectOptions { shard, store_id, writer, .. } = self.shard.options;
        let header = ObjectHeader { shard, store_id, writer, begins_tenure: batch.seq == self.floor };
        let (frame, _) = encode_frame(batch.seq, batch.lsns, &batch.payload, self.last_checksum());
        let bytes = header.encode(&frame);
        let frame = FrameHeader::decode(&bytes[OBJECT_HEADER..]).expect("it was just encoded");
        self.index.lock().push(Entry::new(&header, &frame));
        self.add(NewObject { name: names::batch(shard, batch.seq), bytes });
        if self.pending.len() >= PENDING_MAX || self.pending_bytes >= PENDING_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Makes all batches durable, and creates the index objects.
    pub fn finish(mut self) -> Result<(), StoreError> {
        self.flush()?;
        Maintenance::new(self.shard.clone(), self.index.clone(), self.floor).run()
    }

    fn add(&mut self, object: NewObject) {
        self.pending_bytes += object.bytes.len();
        self.pending.push(object);
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let pending = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        let results = self.shard.objects.put_all_if_absent(&pending);
        pending.iter().zip(results).try_for_each(|(object, result)| self.decide(object, result))
    }

    /// Retries a put until its outcome is known. After an attempt without a response, the object may be ours.
    fn decide(&self, object: &NewObject, first: Result<(), ObjectsError>) -> Result<(), StoreError> {
        let NewObject { name, bytes } = object;
        let (objects, policy) = (&self.shard.objects, &self.shard.policy);
        let mut first = Some(first);
        let put = policy.retry(|| first.take().unwrap_or_else(|| objects.put_if_absent(name, bytes)));
        let error = match put {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        // Some stores report a name that is in use as a conflict.
        let may_exist = matches!(
            error.kind,
            ObjectsErrorKind::Taken | ObjectsErrorKind::Conflict | ObjectsErrorKind::TimedOut
        );
        match policy.retry(|| objects.get(name)) {
            Ok(existing) if may_exist && existing == *bytes => Ok(()),
            Ok(_) if may_exist => Err(concurrent_writer(name)),
            _ => Err(error.into_store_error("creating an object", name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{MemoryObjects, ObjectLog, WriterId};
    use crate::port::{LogStore, LsnRange};

    fn options(writer: u128) -> ObjectOptions {
        ObjectOptions { index_batches: 4, ..ObjectOptions::new(0, 7, WriterId(writer)) }
    }

    fn batch(seq: u64) -> Batch {
        Batch { seq: Seq(seq), lsns: LsnRange::new(seq * 10, seq * 10 + 3), payload: vec![b'x'; 50] }
    }

    fn open(objects: &MemoryObjects) -> ObjectLog {
        ObjectLog::open(Arc::new(objects.clone()), options(2), RetryPolicy::without_pause(1)).expect("a log")
    }

    #[test]
    fn a_log_is_imported_above_a_floor_with_its_index_objects_and_continues() {
        let objects = MemoryObjects::default();
        let policy = RetryPolicy::without_pause(1);
        let shared: Arc<dyn Objects> = Arc::new(objects.clone());
        let mut import = ObjectImport::begin(shared, options(1), policy, Seq(6), 99).expect("no objects");
        (6..17).for_each(|seq| import.append(&batch(seq)).expect("the next one"));
        assert!(import.append(&batch(20)).is_err(), "a gap");
        let last = import.last_checksum();
        import.finish().expect("space");
        let mut log = open(&objects);
        assert_eq!((log.bounds().floor, log.bounds().next), (Seq(6), Seq(17)));
        assert_eq!(log.checksums(), (99, last));
        let mut reader = log.reader();
        (6..17).for_each(|seq| assert_eq!(reader.read(Seq(seq)).expect("imported"), batch(seq)));
        let pages = objects.list("index/0/", "").expect("a page").names;
        assert_eq!(pages, [6, 8, 12].map(|first| format!("index/0/{first:016x}")));
        log.append(Seq(17), LsnRange::new(200, 200), b"next").expect("it is ours");
        log.raise_floor(Seq(12)).expect("within the log");
        assert_eq!(open(&objects).bounds().floor, Seq(12));
    }

    #[test]
    fn an_empty_log_with_a_floor_is_imported_and_another_copy_is_noticed() {
        let objects = MemoryObjects::default();
        let shared: Arc<dyn Objects> = Arc::new(objects.clone());
        let begin = |writer, floor| {
            ObjectImport::begin(shared.clone(), options(writer), RetryPolicy::without_pause(1), floor, 5)
        };
        begin(1, Seq(3)).expect("no objects").finish().expect("nothing to do");
        assert_eq!(open(&objects).bounds().next, Seq(3));
        let mut other = begin(3, Seq(3)).expect("the same floor");
        other.append(&batch(3)).expect("pending");
        other.finish().expect("space");
        let mut late = begin(4, Seq(3)).expect("the same floor");
        late.append(&batch(3)).expect("pending");
        let refused = late.finish().expect_err("in use");
        assert!(refused.what.contains("another process writes"), "{refused}");
    }
}
