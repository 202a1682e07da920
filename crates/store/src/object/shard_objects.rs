//! One shard's objects, asked with patience; and the survey that finds where its log ends.
//!
//! **Invariant.** A survey is of the log: no number in it has been given twice. Batches are deleted only below
//! a floor that was made before, so what was read is what was appended if no floor above it is listed
//! *after* the reading.
//!
//! **What would break it.** To list the floors only before: the owner goes on, truncates and deletes batch 7;
//! a stand-by that had slept since before creates its own 7, finds the floor and stands down; whoever
//! surveys now and began with the old floor reads that 7 as if it were the log's.

use std::sync::Arc;

use super::format::{OBJECT_HEAD, ObjectHeader, WriterId, decode_head, decode_object};
use super::index::{Entry, Index};
use super::names;
use super::port::{Answer, Objects, ObjectsError, Patience};
use crate::frame::{FrameHeader, SegmentHeader};
use crate::port::{Batch, Damage, ErrorKind, Seq, StoreError};

/// What a log is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectOptions {
    /// Which shard's log it is.
    pub shard: u32,
    /// Which store it belongs to.
    pub store_id: u128,
    /// Who opens it: another one at every opening.
    pub writer: WriterId,
}

/// The objects of one log.
#[derive(Clone)]
pub(super) struct ShardObjects {
    pub(super) objects: Arc<dyn Objects>,
    pub(super) options: ObjectOptions,
    pub(super) patience: Patience,
}

/// The batches from a number on, and what stood in the way of reading further, if anything did.
struct Survey {
    entries: Vec<Entry>,
    trouble: Option<StoreError>,
}

impl ShardObjects {
    /// The whole log, as it was at one moment of this call.
    pub(super) fn survey(&self) -> Result<Index, StoreError> {
        let mut rounds = 0;
        loop {
            let floor = self.highest_floor()?;
            let found = self.chain_at(floor)?.map(|chain| (chain, self.survey_from(floor, chain)));
            if planted!(SurveyTrusting) || self.highest_floor()? == floor {
                let (chain, survey) = found.ok_or_else(|| self.damaged_floor(floor, "the floor is gone"))?;
                let mut index = Index::above(floor, chain);
                for entry in survey?.into_entries()? {
                    index.push(entry);
                }
                return Ok(index);
            }
            rounds += 1;
            if !self.patience.again(rounds) {
                return Err(StoreError::new(ErrorKind::Io, "the log is truncated while it is read"));
            }
        }
    }

    /// What has been appended from `next` on, behind a batch with this checksum, and the floor now.
    /// [`ErrorKind::Gone`] if some of it is below the floor.
    pub(super) fn survey_on(&self, next: Seq, chain: u32) -> Result<(Vec<Entry>, Seq), StoreError> {
        let survey = self.survey_from(next, chain);
        let floor = self.highest_floor()?;
        if floor > next {
            let what = "the log was truncated beyond what was read of it; open it again";
            let what = format!("{what}: next={} floor={}", next.0, floor.0);
            return Err(StoreError::new(ErrorKind::Gone, what));
        }
        Ok((survey?.into_entries()?, floor))
    }

    fn survey_from(&self, from: Seq, mut chain: u32) -> Result<Survey, StoreError> {
        let mut survey = Survey { entries: Vec::new(), trouble: None };
        let mut next = from;
        for seq in self.batches_from(from)? {
            let head = if seq == next { self.head(seq)? } else { None };
            let Some(entry) = head else {
                survey.trouble = Some(self.damaged(next, "a batch is missing, and others are behind it"));
                return Ok(survey);
            };
            if entry.chain != chain {
                survey.trouble = Some(self.damaged(next, "a batch that does not follow the one before it"));
                return Ok(survey);
            }
            chain = entry.crc;
            survey.entries.push(entry);
            next = next.next();
        }
        Ok(survey)
    }

    /// The highest floor that was made.
    pub(super) fn highest_floor(&self) -> Result<Seq, StoreError> {
        Ok(self.floors()?.last().copied().unwrap_or_default())
    }

    /// All floors, in order.
    pub(super) fn floors(&self) -> Result<Vec<Seq>, StoreError> {
        self.numbers(&names::floors(self.options.shard), String::new(), |_| true)
    }

    /// The numbers of the batches that are there, from one on, in order.
    pub(super) fn batches_from(&self, from: Seq) -> Result<Vec<Seq>, StoreError> {
        let shard = self.options.shard;
        let after = from.0.checked_sub(1).map_or(String::new(), |before| names::batch(shard, Seq(before)));
        self.numbers(&names::batches(shard), after, |_| true)
    }

    /// The numbers of the batches that are there below another, in order.
    pub(super) fn batches_below(&self, to: Seq) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = self.numbers(&names::batches(self.options.shard), String::new(), |seq| seq < to)?;
        seqs.retain(|seq| *seq < to);
        Ok(seqs)
    }

    /// Page after page, as long as the last number of one is wanted.
    fn numbers(
        &self,
        prefix: &str,
        mut after: String,
        go_on: impl Fn(Seq) -> bool,
    ) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = Vec::new();
        loop {
            let page = self.patience.keep_trying(|| self.objects.list(prefix, &after));
            let page = page.map_err(|error| error.while_doing(format!("listing {prefix}")))?;
            seqs.extend(page.names.iter().filter_map(|name| names::number(prefix, name)));
            match page.names.into_iter().next_back() {
                Some(last) if page.more && seqs.last().is_none_or(|seq| go_on(*seq)) => after = last,
                _ => return Ok(seqs),
            }
        }
    }

    /// The checksum before a floor: a floor is the header of the segment that would begin there.
    fn chain_at(&self, floor: Seq) -> Result<Option<u32>, StoreError> {
        if floor == Seq(0) {
            return Ok(Some(0));
        }
        let name = names::floor(self.options.shard, floor);
        let Some(bytes) = found(self.patience.keep_trying(|| self.objects.get(&name)), &name)? else {
            return Ok(None);
        };
        let bytes = bytes.as_slice().try_into();
        let bytes = bytes.map_err(|_| self.damaged_floor(floor, "not a floor"))?;
        let header = SegmentHeader::decode(bytes).map_err(|what| self.damaged_floor(floor, what))?;
        let ours = (self.options.shard, self.options.store_id, floor);
        if (header.shard, header.store_id, header.first) != ours {
            return Err(self.damaged_floor(floor, "a floor of another log"));
        }
        Ok(Some(header.chain))
    }

    /// The bytes of a floor.
    pub(super) fn encode_floor(&self, floor: Seq, chain: u32) -> [u8; crate::frame::SEGMENT_HEADER] {
        let ObjectOptions { shard, store_id, .. } = self.options;
        SegmentHeader { shard, store_id, first: floor, chain }.encode()
    }

    /// What a batch says of itself; `None` if there is none.
    pub(super) fn head(&self, seq: Seq) -> Result<Option<Entry>, StoreError> {
        let name = names::batch(self.options.shard, seq);
        let bytes = self.patience.keep_trying(|| self.objects.get_range(&name, 0, OBJECT_HEAD));
        let Some(bytes) = found(bytes, &name)? else { return Ok(None) };
        let (header, frame) = decode_head(&bytes).map_err(|what| self.damaged(seq, what))?;
        self.check(seq, &header, &frame)?;
        Ok(Some(Entry::new(&header, &frame)))
    }

    /// A batch; `None` if there is none.
    pub(super) fn batch(&self, seq: Seq) -> Result<Option<(Entry, Batch)>, StoreError> {
        let name = names::batch(self.options.shard, seq);
        let bytes = self.patience.keep_trying(|| self.objects.get(&name));
        let Some(bytes) = found(bytes, &name)? else { return Ok(None) };
        self.judge(seq, &bytes).map(Some)
    }

    /// A batch from the bytes of its object.
    pub(super) fn judge(&self, seq: Seq, bytes: &[u8]) -> Result<(Entry, Batch), StoreError> {
        let (header, frame, batch) = decode_object(bytes).map_err(|what| self.damaged(seq, what))?;
        self.check(seq, &header, &frame)?;
        Ok((Entry::new(&header, &frame), batch))
    }

    fn check(&self, seq: Seq, header: &ObjectHeader, frame: &FrameHeader) -> Result<(), StoreError> {
        if (header.shard, header.store_id) != (self.options.shard, self.options.store_id) {
            return Err(self.damaged(seq, "a batch of another log"));
        }
        if frame.seq != seq {
            return Err(self.damaged(seq, "a batch under another one's name"));
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

impl Survey {
    fn into_entries(self) -> Result<Vec<Entry>, StoreError> {
        self.trouble.map_or(Ok(self.entries), Err)
    }
}

/// An object that is not there is no failure.
fn found<T>(answer: Result<T, ObjectsError>, name: &str) -> Result<Option<T>, StoreError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.answer == Answer::NotFound => Ok(None),
        Err(error) => Err(error.while_doing(format!("reading {name}"))),
    }
}
