//! Reads one shard's objects, with retries, and scans for the end of its log.
//!
//! **Invariant.** A scan returns the log: no sequence number in it was written twice. Batches are deleted
//! only below a floor that was created before, so the batches read are the batches appended if no floor above
//! them is listed *after* reading them.
//!
//! **What would break it.** Listing the floors only before reading: the owner continues, truncates and
//! deletes batch 7; a standby that has been asleep creates its own 7, finds the floor and steps down; a scan
//! that started with the old floor reads that 7 as part of the log.

use std::sync::Arc;

use super::format::{OBJECT_HEAD, ObjectHeader, WriterId, decode_head, decode_object};
use super::index::{Entry, Index};
use super::index_page::{INDEX_PAGE_MAX, IndexPage};
use super::names;
use super::port::{ObjectRange, Objects, ObjectsError, ObjectsErrorKind, RetryPolicy};
use crate::frame::{FrameHeader, SegmentHeader};
use crate::port::{Batch, Damage, ErrorKind, Seq, StoreError};

/// Options for opening a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectOptions {
    /// The shard that the log belongs to.
    pub shard: u32,
    /// The store that the log belongs to.
    pub store_id: u128,
    /// The writer that opens it: a new id for every opening.
    pub writer: WriterId,
    /// The number of batches that one index object describes: at least 1.
    pub index_batches: u64,
    /// The size of the batches that are kept in memory after they were appended, in bytes.
    pub recent_bytes: usize,
}

impl ObjectOptions {
    /// The usual number of batches that one index object describes.
    pub const INDEX_BATCHES: u64 = 1024;

    /// Options with the usual index, and without batches in memory.
    pub const fn new(shard: u32, store_id: u128, writer: WriterId) -> ObjectOptions {
        ObjectOptions {
            shard,
            store_id,
            writer,
            index_batches: ObjectOptions::INDEX_BATCHES,
            recent_bytes: 0,
        }
    }
}

/// More than the length of any object of a batch, in bytes.
const BATCH_OBJECT_MAX: usize = 8 << 20;
/// Maximum number of requests that a scan sends at once.
const HEADS_MAX: usize = 1024;

/// The objects of one shard's log.
#[derive(Clone)]
pub(super) struct ShardObjects {
    pub(super) objects: Arc<dyn Objects>,
    pub(super) options: ObjectOptions,
    pub(super) policy: RetryPolicy,
}

/// The result of a scan: valid batches, and the damage at which it stopped, if any.
struct Scan {
    entries: Vec<Entry>,
    error: Option<StoreError>,
}

impl ShardObjects {
    /// The whole log, as of one moment during this call, and the number up to which index objects describe it.
    pub(super) fn scan(&self) -> Result<(Index, Seq), StoreError> {
        let mut rounds = 0;
        loop {
            let floor = self.highest_floor()?;
            let scanned = self.chain_at(floor)?.map(|chain| (chain, self.scan_above(floor, chain)));
            if planted!(SurveyTrusting) || self.highest_floor()? == floor {
                let (chain, scan) =
                    scanned.ok_or_else(|| self.damaged_floor(floor, "the floor object is missing"))?;
                let (scan, indexed) = scan?;
                let mut index = Index::above(floor, chain);
                for entry in scan.into_entries()? {
                    index.push(entry);
                }
                return Ok((index, indexed));
            }
            rounds += 1;
            if !self.policy.backoff(rounds) {
                let what = "the log was truncated during each attempt to read it; retry";
                return Err(StoreError::new(ErrorKind::Io, what));
            }
        }
    }

    /// The batches appended from `next`, whose predecessor has the checksum `chain`, and the current floor.
    /// [`ErrorKind::Gone`] if some of them are below the floor.
    pub(super) fn scan_appended(&self, next: Seq, chain: u32) -> Result<(Vec<Entry>, Seq), StoreError> {
        let scan = self.scan_from(next, chain);
        let floor = self.highest_floor()?;
        if floor > next {
            let what = "the log was truncated past the position of this reader; reopen it";
            let what = format!("{what}: next={} floor={}", next.0, floor.0);
            return Err(StoreError::new(ErrorKind::Gone, what));
        }
        Ok((scan?.into_entries()?, floor))
    }

    /// The batches from `floor`: those that index objects describe, then the rest, one by one. The number is the end of
    /// the index objects.
    fn scan_above(&self, floor: Seq, chain: u32) -> Result<(Scan, Seq), StoreError> {
        let mut entries = self.scan_pages(floor, chain)?;
        let indexed = Seq(floor.0 + entries.len() as u64);
        let chain = entries.last().map_or(chain, |entry| entry.crc);
        let mut scan = self.scan_from(indexed, chain)?;
        entries.append(&mut scan.entries);
        Ok((Scan { entries, ..scan }, indexed))
    }

    /// The batches from `floor` that index objects describe without a gap. A damaged index object ends them: what it
    /// described is then scanned.
    fn scan_pages(&self, floor: Seq, mut chain: u32) -> Result<Vec<Entry>, StoreError> {
        let pages = self.index_pages()?;
        // The last page that begins at the floor or before has the batch at the floor.
        let from = pages.partition_point(|first| *first <= floor).saturating_sub(1);
        let mut entries = Vec::new();
        for read in self.read_pages(&pages[from..])? {
            let next = Seq(floor.0 + entries.len() as u64);
            let Some(page) = read.filter(|page| page.first <= next) else { return Ok(entries) };
            let skipped = usize::try_from(next.0 - page.first.0).unwrap_or(usize::MAX);
            let rest = page.entries.get(skipped..).unwrap_or_default();
            if rest.first().is_some_and(|entry| entry.chain != chain) {
                return Ok(entries);
            }
            chain = rest.last().map_or(chain, |entry| entry.crc);
            entries.extend_from_slice(rest);
        }
        Ok(entries)
    }

    /// Reads index objects; `None` for one that is missing, damaged or of another log.
    pub(super) fn read_pages(&self, firsts: &[Seq]) -> Result<Vec<Option<IndexPage>>, StoreError> {
        let range = |first: &Seq| {
            let name = names::index_page(self.options.shard, *first);
            ObjectRange { name, offset: 0, length: INDEX_PAGE_MAX }
        };
        let ranges: Vec<ObjectRange> = firsts.iter().map(range).collect();
        let mut pages = Vec::new();
        for (first, bytes) in firsts.iter().zip(self.get_ranges(&ranges)) {
            let page = bytes?.and_then(|bytes| IndexPage::decode(&bytes));
            let ours = (self.options.shard, self.options.store_id, *first);
            pages.push(page.filter(|page| (page.shard, page.store_id, page.first) == ours));
        }
        Ok(pages)
    }

    fn scan_from(&self, from: Seq, mut chain: u32) -> Result<Scan, StoreError> {
        let mut scan = Scan { entries: Vec::new(), error: None };
        let mut next = from;
        for seqs in self.batches_from(from)?.chunks(HEADS_MAX) {
            for (seq, head) in seqs.iter().zip(self.heads(seqs)) {
                let head = if *seq == next { head? } else { None };
                let Some(entry) = head else {
                    scan.error = Some(self.damaged(next, "a batch is missing, and later ones exist"));
                    return Ok(scan);
                };
                if entry.chain != chain {
                    scan.error = Some(self.damaged(next, "a batch does not follow its predecessor"));
                    return Ok(scan);
                }
                chain = entry.crc;
                scan.entries.push(entry);
                next = next.next();
            }
        }
        Ok(scan)
    }

    /// The highest floor, 0 if there is none.
    pub(super) fn highest_floor(&self) -> Result<Seq, StoreError> {
        Ok(self.floors()?.last().copied().unwrap_or_default())
    }

    /// All floors, sorted.
    pub(super) fn floors(&self) -> Result<Vec<Seq>, StoreError> {
        self.numbers(&names::floors(self.options.shard), String::new(), |_| true)
    }

    /// The first batches of the existing index objects, sorted.
    pub(super) fn index_pages(&self) -> Result<Vec<Seq>, StoreError> {
        self.numbers(&names::index_pages(self.options.shard), String::new(), |_| true)
    }

    /// The sequence numbers of the existing batches at or above `from`, sorted.
    pub(super) fn batches_from(&self, from: Seq) -> Result<Vec<Seq>, StoreError> {
        let shard = self.options.shard;
        let after = from.0.checked_sub(1).map_or(String::new(), |before| names::batch(shard, Seq(before)));
        self.numbers(&names::batches(shard), after, |_| true)
    }

    /// The sequence numbers of the existing batches below `to`, sorted.
    pub(super) fn batches_below(&self, to: Seq) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = self.numbers(&names::batches(self.options.shard), String::new(), |seq| seq < to)?;
        seqs.retain(|seq| *seq < to);
        Ok(seqs)
    }

    /// Lists page by page, as long as `go_on` accepts the last number of a page.
    fn numbers(
        &self,
        prefix: &str,
        mut after: String,
        go_on: impl Fn(Seq) -> bool,
    ) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = Vec::new();
        loop {
            let page = self.policy.retry(|| self.objects.list(prefix, &after));
            let page = page.map_err(|error| error.into_store_error("listing objects", prefix))?;
            seqs.extend(page.names.iter().filter_map(|name| names::number(prefix, name)));
            match page.names.into_iter().next_back() {
                Some(last) if page.more && seqs.last().is_none_or(|seq| go_on(*seq)) => after = last,
                _ => return Ok(seqs),
            }
        }
    }

    /// The checksum of the batch before a floor. A floor object is the header of a segment that begins there.
    fn chain_at(&self, floor: Seq) -> Result<Option<u32>, StoreError> {
        if floor == Seq(0) {
            return Ok(Some(0));
        }
        let name = names::floor(self.options.shard, floor);
        let Some(bytes) = optional(self.policy.retry(|| self.objects.get(&name)), &name)? else {
            return Ok(None);
        };
        let bytes = bytes.as_slice().try_into();
        let bytes = bytes.map_err(|_| self.damaged_floor(floor, "not a floor object"))?;
        let header = SegmentHeader::decode(bytes).map_err(|what| self.damaged_floor(floor, what))?;
        let ours = (self.options.shard, self.options.store_id, floor);
        if (header.shard, header.store_id, header.first) != ours {
            return Err(self.damaged_floor(floor, "the floor belongs to another log"));
        }
        Ok(Some(header.chain))
    }

    /// The contents of a floor object.
    pub(super) fn encode_floor(&self, floor: Seq, chain: u32) -> [u8; crate::frame::SEGMENT_HEADER] {
        let ObjectOptions { shard, store_id, .. } = self.options;
        SegmentHeader { shard, store_id, first: floor, chain }.encode()
    }

    /// The metadata of batches, without their payloads; `None` for an object that does not exist.
    pub(super) fn heads(&self, seqs: &[Seq]) -> Vec<Result<Option<Entry>, StoreError>> {
        let range = |seq: &Seq| {
            let name = names::batch(self.options.shard, *seq);
            ObjectRange { name, offset: 0, length: OBJECT_HEAD }
        };
        let ranges: Vec<ObjectRange> = seqs.iter().map(range).collect();
        let decode = |(bytes, seq): (Result<Option<Vec<u8>>, StoreError>, &Seq)| {
            let Some(bytes) = bytes? else { return Ok(None) };
            let (header, frame) = decode_head(&bytes).map_err(|what| self.damaged(*seq, what))?;
            self.check(*seq, &header, &frame)?;
            Ok(Some(Entry::new(&header, &frame)))
        };
        self.get_ranges(&ranges).into_iter().zip(seqs).map(decode).collect()
    }

    /// Batches; `None` for an object that does not exist.
    pub(super) fn batches(&self, seqs: &[Seq]) -> Vec<Result<Option<(Entry, Batch)>, StoreError>> {
        let range = |seq: &Seq| {
            let name = names::batch(self.options.shard, *seq);
            ObjectRange { name, offset: 0, length: BATCH_OBJECT_MAX }
        };
        let ranges: Vec<ObjectRange> = seqs.iter().map(range).collect();
        let decode = |(bytes, seq): (Result<Option<Vec<u8>>, StoreError>, &Seq)| match bytes? {
            Some(bytes) => self.decode_batch(*seq, &bytes).map(Some),
            None => Ok(None),
        };
        self.get_ranges(&ranges).into_iter().zip(seqs).map(decode).collect()
    }

    /// A batch; `None` if there is no such object.
    pub(super) fn batch(&self, seq: Seq) -> Result<Option<(Entry, Batch)>, StoreError> {
        let name = names::batch(self.options.shard, seq);
        let bytes = self.policy.retry(|| self.objects.get(&name));
        let Some(bytes) = optional(bytes, &name)? else { return Ok(None) };
        self.decode_batch(seq, &bytes).map(Some)
    }

    /// A part of a batch's payload, unverified; `None` if there is no such object.
    pub(super) fn payload_part(
        &self,
        seq: Seq,
        offset: usize,
        length: usize,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let name = names::batch(self.options.shard, seq);
        let offset = (OBJECT_HEAD + offset) as u64;
        optional(self.policy.retry(|| self.objects.get_range(&name, offset, length)), &name)
    }

    /// Reads ranges at once; those that fail for the moment are retried one by one.
    fn get_ranges(&self, ranges: &[ObjectRange]) -> Vec<Result<Option<Vec<u8>>, StoreError>> {
        let read = |(result, range): (Result<Vec<u8>, ObjectsError>, &ObjectRange)| {
            let ObjectRange { name, offset, length } = range;
            let mut first = Some(result);
            let result = self
                .policy
                .retry(|| first.take().unwrap_or_else(|| self.objects.get_range(name, *offset, *length)));
            optional(result, name)
        };
        self.objects.get_ranges(ranges).into_iter().zip(ranges).map(read).collect()
    }

    /// Decodes a batch from its object.
    pub(super) fn decode_batch(&self, seq: Seq, bytes: &[u8]) -> Result<(Entry, Batch), StoreError> {
        let (header, frame, batch) = decode_object(bytes).map_err(|what| self.damaged(seq, what))?;
        self.check(seq, &header, &frame)?;
        Ok((Entry::new(&header, &frame), batch))
    }

    fn check(&self, seq: Seq, header: &ObjectHeader, frame: &FrameHeader) -> Result<(), StoreError> {
        if (header.shard, header.store_id) != (self.options.shard, self.options.store_id) {
            return Err(self.damaged(seq, "the batch belongs to another log"));
        }
        if frame.seq != seq {
            return Err(self.damaged(seq, "the batch does not match its object name"));
        }
        Ok(())
    }

    pub(super) fn damaged(&self, seq: Seq, what: &'static str) -> StoreError {
        Damage { file: names::batch(self.options.shard, seq).into(), offset: 0, what }.into()
    }

    fn damaged_floor(&self, floor: Seq, what: &'static str) -> StoreError {
        Damage { file: names::floor(self.options.shard, floor).into(), offset: 0, what }.into()
    }
}

impl Scan {
    fn into_entries(self) -> Result<Vec<Entry>, StoreError> {
        self.error.map_or(Ok(self.entries), Err)
    }
}

/// Turns "not found" into `None`.
fn optional<T>(result: Result<T, ObjectsError>, name: &str) -> Result<Option<T>, StoreError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind == ObjectsErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into_store_error("reading an object", name)),
    }
}
