//! A sparse index of a log's segments: one entry per 64 KiB of frames. Shared by the log and all its readers.
//!
//! **Invariant.** A segment is indexed from its beginning up to `end`: every frame before `end` has been
//! verified, and begins less than [`SPACING`] after an entry. The last segment is indexed up to its last
//! durable frame; nothing beyond that may be read.
//!
//! **What would break it.** Indexing a frame beyond `end`: the frames in between would have no entry, and in
//! the last segment they may be half written. So only the log moves the end of the last segment. Indexing a
//! frame of a dropped segment: entries would pile up for deleted files. So only the log adds segments, and it
//! removes them from the index before it deletes the file.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::frame::SEGMENT_HEADER;
use crate::port::{Lsn, Seq};

/// The maximum number of bytes to scan from an entry to a batch. A segment of default length has about a
/// thousand entries.
const SPACING: u64 = 64 << 10;

/// The position of a frame, with what is needed to verify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) seq: Seq,
    /// The first LSN in the batch.
    pub(super) lsn: Lsn,
    pub(super) offset: u64,
    /// The checksum of the previous frame.
    pub(super) chain: u32,
}

/// Clones share one index. Segments are keyed by their first batch.
#[derive(Clone, Default)]
pub(super) struct Index(Arc<Mutex<BTreeMap<Seq, SegmentIndex>>>);

struct SegmentIndex {
    entries: Vec<IndexEntry>,
    end: u64,
}

impl Index {
    /// Adds a segment, not indexed yet.
    pub(super) fn add_segment(&self, first: Seq) {
        self.segments().insert(first, SegmentIndex { entries: Vec::new(), end: SEGMENT_HEADER as u64 });
    }

    /// Removes a segment.
    pub(super) fn remove_segment(&self, first: Seq) {
        self.segments().remove(&first);
    }

    /// Records a verified frame of `length` bytes. Ignored unless it begins at the segment's `end`.
    pub(super) fn add_frame(&self, first: Seq, entry: IndexEntry, length: u64) {
        let mut segments = self.segments();
        let Some(known) = segments.get_mut(&first).filter(|known| known.end == entry.offset) else { return };
        known.end += length;
        if known.entries.last().is_none_or(|last| entry.offset - last.offset >= SPACING) {
            known.entries.push(entry);
        }
    }

    /// Whether the log has this segment.
    pub(super) fn contains(&self, first: Seq) -> bool {
        self.segments().contains_key(&first)
    }

    /// The log's segments, newest first.
    pub(super) fn newest_first(&self) -> Vec<Seq> {
        self.segments().keys().rev().copied().collect()
    }

    /// The segment that would contain a batch.
    pub(super) fn segment_with(&self, seq: Seq) -> Option<Seq> {
        self.segments().range(..=seq).next_back().map(|(first, _)| *first)
    }

    /// The segment after `first`, whether or not `first` still exists.
    pub(super) fn after(&self, first: Seq) -> Option<Seq> {
        self.segments().range(first.next()..).next().map(|(first, _)| *first)
    }

    /// Whether the log's last durable frame ends at or before this position.
    pub(super) fn ends_at(&self, first: Seq, offset: u64) -> bool {
        let segments = self.segments();
        segments.last_key_value().is_some_and(|(last, known)| *last == first && known.end <= offset)
    }

    /// The first entry of a segment.
    pub(super) fn first_entry(&self, first: Seq) -> Option<IndexEntry> {
        self.segments().get(&first)?.entries.first().copied()
    }

    /// The last entry at or before a batch.
    pub(super) fn entry_before(&self, first: Seq, seq: Seq) -> Option<IndexEntry> {
        self.last_entry(first, |entry| entry.seq <= seq)
    }

    /// The last entry at or before the batch that contains an LSN.
    pub(super) fn entry_before_lsn(&self, first: Seq, lsn: Lsn) -> Option<IndexEntry> {
        self.last_entry(first, |entry| entry.lsn <= lsn)
    }

    fn last_entry(&self, first: Seq, reaches: impl Fn(&IndexEntry) -> bool) -> Option<IndexEntry> {
        let segments = self.segments();
        let entries = &segments.get(&first)?.entries;
        let beyond = entries.partition_point(reaches);
        beyond.checked_sub(1).map(|at| entries[at])
    }

    fn segments(&self) -> MutexGuard<'_, BTreeMap<Seq, SegmentIndex>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Seq = Seq(100);

    /// A segment of 64 MiB with frames of this length; every tenth is long.
    fn filled(length: u64) -> (Index, Vec<IndexEntry>) {
        let index = Index::default();
        index.add_segment(FIRST);
        let (mut offset, mut frames) = (SEGMENT_HEADER as u64, Vec::new());
        for n in 0.. {
            let long = if n % 10 == 9 { length * 7 } else { length };
            if offset + long > 64 << 20 {
                return (index, frames);
            }
            frames.push(IndexEntry { seq: Seq(100 + n), lsn: Lsn(n * 3), offset, chain: 0 });
            index.add_frame(FIRST, frames[frames.len() - 1], long);
            offset += long;
        }
        unreachable!("every segment fills up")
    }

    #[test]
    fn every_frame_is_near_an_entry_and_entries_are_few() {
        for length in [48, 4096, 65_528, 65_536, 400_000] {
            let (index, frames) = filled(length);
            assert!(index.segments()[&FIRST].entries.len() <= 1024);
            for frame in frames.iter().step_by(97).chain(frames.last()) {
                let entry = index.entry_before(FIRST, frame.seq).expect("known");
                assert!(entry.offset <= frame.offset && frame.offset - entry.offset < SPACING);
                assert_eq!(index.entry_before_lsn(FIRST, Lsn(frame.lsn.0 + 2)), Some(entry));
            }
        }
    }

    #[test]
    fn a_frame_is_indexed_once_and_never_after_a_gap_or_in_a_dropped_segment() {
        let (index, frames) = filled(SPACING);
        let known = || index.segments().get(&FIRST).map(|known| (known.entries.len(), known.end));
        let before = known();
        let beyond = IndexEntry { offset: 65 << 20, ..frames[0] };
        for entry in [frames[0], frames[frames.len() - 1], beyond] {
            index.add_frame(FIRST, entry, SPACING);
        }
        assert_eq!(known(), before);
        index.remove_segment(FIRST);
        index.add_frame(FIRST, frames[0], SPACING);
        assert!(known().is_none() && !index.contains(FIRST));
    }
}
