//! Where to begin reading: the segments of a log, and in each a place for every 64 KiB of its frames. The
//! log and all its readers share it.
//!
//! **Invariant.** A segment is known from its beginning up to some `end`: every frame before that has been
//! seen whole, and begins less than [`STEP`] behind a place. The last segment is known up to its last
//! durable frame, so nothing beyond may be read.
//!
//! **What would break it.** To note a frame beyond `end`: what lies between would have no place, and in the
//! last segment it may be half written. So only the log moves the end of the last segment. To note a frame
//! of a segment that was dropped: places would pile up for files that are gone. So only the log names
//! segments, and it takes the name away before the file.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::frame::SEGMENT_HEADER;
use crate::port::Seq;

/// The most that has to be read to get from a place to a batch. A segment of the usual length has about a
/// thousand places.
const STEP: u64 = 64 << 10;

/// Where a frame begins, and what has to be known to check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its batch.
    pub(super) seq: Seq,
    /// The first LSN in it.
    pub(super) lsn: u64,
    pub(super) offset: u64,
    /// The checksum of the frame before it.
    pub(super) chain: u32,
}

/// Clones are the same index.
#[derive(Clone, Default)]
pub(super) struct Index(Arc<Mutex<BTreeMap<Seq, Known>>>);

struct Known {
    places: Vec<Place>,
    end: u64,
}

impl Index {
    /// A segment that nothing is known of yet.
    pub(super) fn name(&self, first: Seq) {
        self.segments().insert(first, Known { places: Vec::new(), end: SEGMENT_HEADER as u64 });
    }

    /// A segment goes.
    pub(super) fn forget(&self, first: Seq) {
        self.segments().remove(&first);
    }

    /// A whole frame of so many bytes is at this place.
    pub(super) fn pass(&self, first: Seq, place: Place, length: u64) {
        let mut segments = self.segments();
        let Some(known) = segments.get_mut(&first).filter(|known| known.end == place.offset) else { return };
        known.end += length;
        if known.places.last().is_none_or(|last| place.offset - last.offset >= STEP) {
            known.places.push(place);
        }
    }

    /// Has the log this segment?
    pub(super) fn has(&self, first: Seq) -> bool {
        self.segments().contains_key(&first)
    }

    /// The log's segments, newest first.
    pub(super) fn newest_first(&self) -> Vec<Seq> {
        self.segments().keys().rev().copied().collect()
    }

    /// The segment that would hold a batch.
    pub(super) fn segment_of(&self, seq: Seq) -> Option<Seq> {
        self.segments().range(..=seq).next_back().map(|(first, _)| *first)
    }

    /// The segment after this one, whether this one is still there or not.
    pub(super) fn after(&self, first: Seq) -> Option<Seq> {
        self.segments().range(first.next()..).next().map(|(first, _)| *first)
    }

    /// Do all durable frames of the log end here, or before?
    pub(super) fn ends_at(&self, first: Seq, offset: u64) -> bool {
        let segments = self.segments();
        segments.last_key_value().is_some_and(|(last, known)| *last == first && known.end <= offset)
    }

    /// The first place in a segment.
    pub(super) fn first_place(&self, first: Seq) -> Option<Place> {
        self.segments().get(&first)?.places.first().copied()
    }

    /// The last place in a segment from which a batch can be reached.
    pub(super) fn place_before(&self, first: Seq, seq: Seq) -> Option<Place> {
        self.last_place(first, |place| place.seq <= seq)
    }

    /// The last place in a segment from which the batch that holds an LSN can be reached.
    pub(super) fn place_before_lsn(&self, first: Seq, lsn: u64) -> Option<Place> {
        self.last_place(first, |place| place.lsn <= lsn)
    }

    fn last_place(&self, first: Seq, reaches: impl Fn(&Place) -> bool) -> Option<Place> {
        let segments = self.segments();
        let places = &segments.get(&first)?.places;
        let beyond = places.partition_point(reaches);
        beyond.checked_sub(1).map(|at| places[at])
    }

    fn segments(&self) -> MutexGuard<'_, BTreeMap<Seq, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Seq = Seq(100);

    /// A segment of 64 MiB with frames of this length; every tenth is long.
    fn filled(length: u64) -> (Index, Vec<Place>) {
        let index = Index::default();
        index.name(FIRST);
        let (mut offset, mut frames) = (SEGMENT_HEADER as u64, Vec::new());
        for n in 0.. {
            let long = if n % 10 == 9 { length * 7 } else { length };
            if offset + long > 64 << 20 {
                return (index, frames);
            }
            frames.push(Place { seq: Seq(100 + n), lsn: n * 3, offset, chain: 0 });
            index.pass(FIRST, frames[frames.len() - 1], long);
            offset += long;
        }
        unreachable!("a segment is full some day")
    }

    #[test]
    fn every_frame_is_near_a_place_and_places_are_few() {
        for length in [48, 4096, 65_528, 65_536, 400_000] {
            let (index, frames) = filled(length);
            assert!(index.segments()[&FIRST].places.len() <= 1024);
            for frame in frames.iter().step_by(97).chain(frames.last()) {
                let place = index.place_before(FIRST, frame.seq).expect("known");
                assert!(place.offset <= frame.offset && frame.offset - place.offset < STEP);
                assert_eq!(index.place_before_lsn(FIRST, frame.lsn + 2), Some(place));
            }
        }
    }

    #[test]
    fn a_frame_is_noted_once_and_never_across_a_gap_or_in_a_segment_that_is_gone() {
        let (index, frames) = filled(STEP);
        let known = || index.segments().get(&FIRST).map(|known| (known.places.len(), known.end));
        let before = known();
        let beyond = Place { offset: 65 << 20, ..frames[0] };
        for place in [frames[0], frames[frames.len() - 1], beyond] {
            index.pass(FIRST, place, STEP);
        }
        assert_eq!(known(), before);
        index.forget(FIRST);
        index.pass(FIRST, frames[0], STEP);
        assert!(known().is_none() && !index.has(FIRST));
    }
}
