//! The metadata of all batches above the floor. Shared by a log's writer and its readers.
//!
//! **Invariant.** Dense: one entry per batch, from the floor up to the next. Each entry is the batch that
//! became part of the log at that number, never an object put there after a truncation.
//!
//! **What would break it.** Adding an entry before it is certain that no floor is above it: after a
//! truncation, a late writer's object can have the number of a deleted batch.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::format::{ObjectHeader, WriterId, object_len};
use crate::frame::FrameHeader;
use crate::port::{Bounds, Extent, Lsn, LsnRange, Seq};

/// One batch, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) writer: WriterId,
    pub(super) begins_tenure: bool,
    pub(super) lsns: LsnRange,
    /// The checksums of its frame and of the previous one.
    pub(super) crc: u32,
    pub(super) chain: u32,
    /// The length of the object in bytes.
    pub(super) bytes: u64,
}

impl Entry {
    pub(super) fn new(header: &ObjectHeader, frame: &FrameHeader) -> Entry {
        let (writer, begins_tenure) = (header.writer, header.begins_tenure);
        let (lsns, crc, chain) = (frame.lsns, frame.crc, frame.chain);
        Entry { writer, begins_tenure, lsns, crc, chain, bytes: object_len(frame) }
    }
}

/// All entries, in order.
#[derive(Debug, Default)]
pub(super) struct Index {
    floor: Seq,
    /// The checksum of the batch before the floor, 0 if there was none.
    chain: u32,
    entries: VecDeque<Entry>,
}

impl Index {
    /// An empty index above a floor.
    pub(super) fn above(floor: Seq, chain: u32) -> Index {
        Index { floor, chain, entries: VecDeque::new() }
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds { floor: self.floor, next: Seq(self.floor.0 + self.entries.len() as u64) }
    }

    /// The checksum of the last batch.
    pub(super) fn last_crc(&self) -> u32 {
        self.entries.back().map_or(self.chain, |entry| entry.crc)
    }

    pub(super) fn push(&mut self, entry: Entry) {
        assert!(entry.chain == self.last_crc(), "a batch follows its predecessor");
        self.entries.push_back(entry);
    }

    pub(super) fn get(&self, seq: Seq) -> Option<&Entry> {
        let position = seq.0.checked_sub(self.floor.0)?;
        self.entries.get(usize::try_from(position).ok()?)
    }

    /// The batch that contains an LSN.
    pub(super) fn read_lsn(&self, lsn: Lsn) -> Option<Seq> {
        let position = self.entries.partition_point(|entry| entry.lsns.last < lsn);
        let entry = self.entries.get(position)?;
        entry.lsns.contains(lsn).then(|| Seq(self.floor.0 + position as u64))
    }

    /// Removes and returns the entries below `floor`, which must not be above the log. A lower floor than the
    /// current one changes nothing.
    pub(super) fn raise(&mut self, floor: Seq) -> Vec<(Seq, Entry)> {
        assert!(floor <= self.bounds().next, "a floor is not above the log");
        let mut dropped = Vec::new();
        while self.floor < floor {
            let entry = self.entries.pop_front().expect("the floor is within the bounds");
            self.chain = entry.crc;
            dropped.push((self.floor, entry));
            self.floor = self.floor.next();
        }
        dropped
    }

    /// The checksum of the batch before `seq`, which must be within the bounds.
    pub(super) fn chain_before(&self, seq: Seq) -> u32 {
        let before = seq.0.checked_sub(1).and_then(|before| self.get(Seq(before)));
        before.map_or(self.chain, |entry| entry.crc)
    }

    /// Groups of batches whose numbers have the same quotient by `batches`.
    pub(super) fn extents(&self, batches: u64) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (seq, entry) in (self.floor.0..).zip(&self.entries) {
            match extents.last_mut() {
                Some(last) if last.first.0 / batches == seq / batches => last.bytes += entry.bytes,
                _ => extents.push(Extent { first: Seq(seq), bytes: entry.bytes }),
            }
        }
        extents
    }

    /// The entries from `from` up to but not including `to`, with the checksum before the first; `None` if some are
    /// not in the index.
    pub(super) fn range(&self, from: Seq, to: Seq) -> Option<(u32, Vec<Entry>)> {
        if from < self.floor || to > self.bounds().next {
            return None;
        }
        let entries = (from.0..to.0).map(|seq| *self.get(Seq(seq)).expect("within the bounds")).collect();
        Some((self.chain_before(from), entries))
    }
}

/// The index that a log shares with its readers.
#[derive(Clone, Default)]
pub(super) struct SharedIndex(Arc<Mutex<Index>>);

impl SharedIndex {
    pub(super) fn new(index: Index) -> SharedIndex {
        SharedIndex(Arc::new(Mutex::new(index)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Index> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(floor: u64, batches: u32) -> Index {
        let mut index = Index::above(Seq(floor), 100);
        for n in 0..batches {
            let lsns = LsnRange::new(u64::from(n) * 10, u64::from(n) * 10 + 7);
            let (crc, chain) = (101 + n, 100 + n);
            index.push(Entry { writer: WriterId(1), begins_tenure: false, lsns, crc, chain, bytes: 96 });
        }
        index
    }

    #[test]
    fn an_lsn_is_found_only_in_its_batch() {
        let index = index(50, 4);
        let holding = |lsn| index.read_lsn(Lsn(lsn)).map(|seq| seq.0);
        assert_eq!([0, 7, 10, 37].map(holding), [50, 50, 51, 53].map(Some));
        assert_eq!([8, 9, 38, 1000].map(holding), [None; 4]);
    }

    #[test]
    fn extents_are_groups_of_batches_and_a_raised_floor_shortens_the_first() {
        let mut index = index(6, 7);
        let firsts = |index: &Index| -> Vec<(u64, u64)> {
            index.extents(4).iter().map(|extent| (extent.first.0, extent.bytes / 96)).collect()
        };
        assert_eq!(firsts(&index), [(6, 2), (8, 4), (12, 1)]);
        index.raise(Seq(9));
        assert_eq!(firsts(&index), [(9, 3), (12, 1)]);
        assert_eq!(index.range(Seq(8), Seq(10)), None, "below the floor");
        assert_eq!(index.range(Seq(9), Seq(14)), None, "above the end");
        let (chain, entries) = index.range(Seq(9), Seq(12)).expect("within the log");
        assert_eq!((chain, entries.len(), entries[0].crc), (103, 3, 104));
    }

    #[test]
    fn a_raised_floor_keeps_the_chain() {
        let mut index = index(50, 4);
        assert_eq!(index.chain_before(Seq(50)), 100);
        assert_eq!(index.chain_before(Seq(52)), 102);
        assert_eq!(index.raise(Seq(54)).len(), 4);
        assert_eq!((index.bounds().floor, index.bounds().next, index.last_crc()), (Seq(54), Seq(54), 104));
        assert_eq!(index.raise(Seq(51)), [], "it never decreases");
    }
}
