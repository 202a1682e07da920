//! Opening a log: reads its last segment, and makes durable what it accepts.
//!
//! **Invariant.** Every batch that an open log contains is durable before anything is appended after it. What can be
//! read is not: a process that died between write and sync leaves its last batch in the page cache, and after a failed
//! sync the pages count as clean, so that syncing again proves nothing. So the last frame, as it was read, is copied to
//! a fresh segment of its own number, synced, and named; only then is it appended to. All earlier frames were
//! durable before the last one was written. A segment ends where the next begins, so the original is superseded.
//!
//! Nothing is copied if the clean-stop mark names the last batch and only zeros follow it: then its sync has succeeded.
//! A segment of few bytes is copied as a whole and replaced, so that restarts do not leave a segment each.
//!
//! **What would break it.** Appending to a segment whose name may not be durable: its process may have died before it
//! synced the directory. So a last segment without any frame is replaced too.

use std::io;

use super::clean_stop::CleanStop;
use super::index::{Index, IndexEntry};
use super::reader::{DiskReader, Segments};
use super::spare::Spare;
use super::tail::{ExpectedFrame, TornTail};
use crate::frame::{FrameHeader, SEGMENT_HEADER, SegmentHeader, decode_frame, frame_len};
use crate::fs::{Dir, File, Fs};
use crate::port::{Damage, Seq, StoreError};

/// A last segment that uses up to this part of a first segment's length is copied as a whole: 1 MiB of 4 MiB. A server
/// that is killed and restarted in a loop logs about 500 bytes each time, so thousands of restarts share one segment.
const COPIED_PART: u64 = 4;

/// The last segment of a log, as it was read. All its frames but the last are in the index.
pub(super) struct LastSegment<T> {
    pub(super) header: SegmentHeader,
    file: T,
    bytes: Vec<u8>,
    /// The offset at which the valid frames end.
    pub(super) end: usize,
    last: Option<LastFrame>,
    pub(super) torn: Option<TornTail>,
}

/// The last valid frame.
#[derive(Clone, Copy)]
pub(super) struct LastFrame {
    pub(super) header: FrameHeader,
    offset: usize,
}

impl LastFrame {
    fn mark(&self) -> CleanStop {
        CleanStop { seq: self.header.seq, lsns: self.header.lsns, crc: self.header.crc }
    }

    fn entry(&self, offset: usize) -> IndexEntry {
        let FrameHeader { seq, lsns, chain, .. } = self.header;
        IndexEntry { seq, lsn: lsns.first, offset: offset as u64, chain }
    }

    fn add_to(&self, index: &Index, first: Seq, offset: usize) {
        index.add_frame(first, self.entry(offset), frame_len(self.header.length) as u64);
    }
}

/// The segment that an opened log continues in.
pub(super) struct OpenedSegment<T> {
    pub(super) first: Seq,
    pub(super) file: T,
    pub(super) end: u64,
    pub(super) length: u64,
}

impl<T: File> LastSegment<T> {
    pub(super) fn read<F: Fs<File = T>>(
        files: &Segments<F>,
        first: Seq,
        index: &Index,
    ) -> Result<LastSegment<T>, StoreError> {
        let (file, bytes) = files.read_whole(first)?;
        let header = files.check_header(first, &bytes)?;
        let mut segment = LastSegment { header, file, bytes, end: SEGMENT_HEADER, last: None, torn: None };
        while let Some((frame, _)) =
            decode_frame(&segment.bytes[segment.end..]).filter(|(frame, _)| segment.expected().matches(frame))
        {
            let last = LastFrame { header: frame, offset: segment.end };
            if let Some(previous) = segment.last.replace(last) {
                previous.add_to(index, first, previous.offset);
            }
            segment.end += frame_len(frame.length);
        }
        let tail = &segment.bytes[segment.end..];
        segment.torn = segment.expected().classify_tail(&files.path(first), segment.end as u64, tail)?;
        Ok(segment)
    }

    /// The sequence number after the last frame, and the last frame's checksum.
    pub(super) fn expected(&self) -> ExpectedFrame {
        match self.last {
            Some(LastFrame { header, .. }) => ExpectedFrame { seq: header.seq.next(), chain: header.crc },
            None => ExpectedFrame { seq: self.header.first, chain: self.header.chain },
        }
    }

    pub(super) fn last_frame(&self) -> Option<FrameHeader> {
        self.last.map(|last| last.header)
    }

    /// Fails if the log has lost the batch that a clean stop named, or holds another in its place.
    pub(super) fn check_mark<F: Fs<File = T>>(
        &self,
        mark: CleanStop,
        files: &Segments<F>,
        index: &Index,
        floor: Seq,
    ) -> Result<(), StoreError> {
        let path = files.path(self.header.first);
        mark.check_end(self.expected().seq, &path, self.end as u64)?;
        match self.last {
            Some(last) if last.header.seq == mark.seq => {
                mark.check_batch(last.mark(), &path, last.offset as u64)
            }
            _ if mark.seq < floor || mark.seq >= self.expected().seq => Ok(()),
            _ => DiskReader::new(files.clone(), index.clone(), floor).check_mark(mark),
        }
    }

    /// Whether the mark of a clean stop names the last batch, and only zeros follow it.
    pub(super) fn is_clean(&self, mark: Option<CleanStop>) -> bool {
        self.torn.is_none() && mark.is_some() && mark == self.last.map(|last| last.mark())
    }

    /// Makes the last frame durable, unless the mark says that it is, and returns the segment to append to.
    pub(super) fn make_durable<F: Fs<File = T>>(
        self,
        mark: Option<CleanStop>,
        files: &Segments<F>,
        names: &F::Dir,
        index: &Index,
    ) -> Result<OpenedSegment<T>, StoreError> {
        let (first, length) = (self.header.first, self.bytes.len() as u64);
        let is_durable = match self.torn {
            Some(_) => planted!(TornTailKept),
            None => self.is_clean(mark) || planted!(RecoveryUncopied),
        };
        if is_durable {
            self.last.iter().for_each(|last| last.add_to(index, first, last.offset));
            return Ok(OpenedSegment { first, file: self.file, end: self.end as u64, length });
        }
        self.copy(files, names, index).map_err(|error| {
            StoreError::io(&error, "copying the end of the log to a fresh segment")
                .with(format_args!("file={}", files.path(first).display()))
        })
    }

    fn copy<F: Fs<File = T>>(
        self,
        files: &Segments<F>,
        names: &F::Dir,
        index: &Index,
    ) -> io::Result<OpenedSegment<T>> {
        let length = files.options.first_segment_bytes();
        let (first, bytes) = self.copied_bytes(length / COPIED_PART);
        let length = length.max(bytes.len() as u64);
        let Spare { name, file, length } = Spare::create(files, length)?;
        file.write_at(&bytes, 0)?;
        file.sync()?;
        files.fs.rename(&files.dir.join(name), &files.path(first))?;
        names.sync()?;
        let end = bytes.len();
        if first == self.header.first {
            self.last.iter().for_each(|last| last.add_to(index, first, last.offset));
        } else {
            index.add_segment(first);
            self.last.iter().for_each(|last| last.add_to(index, first, SEGMENT_HEADER));
            self.shorten();
        }
        Ok(OpenedSegment { first, file, end: end as u64, length })
    }

    /// The first batch and the contents of the fresh segment: a copy of the whole segment if it is short, or of its
    /// last frame. In the first case it replaces the segment.
    fn copied_bytes(&self, whole_max: u64) -> (Seq, Vec<u8>) {
        let is_short = self.end as u64 <= whole_max && !planted!(SegmentPerRestart);
        match self.last {
            Some(LastFrame { header, offset }) if !is_short && header.seq != self.header.first => {
                let copy = SegmentHeader { first: header.seq, chain: header.chain, ..self.header };
                (header.seq, [&copy.encode()[..], &self.bytes[offset..self.end]].concat())
            }
            _ => (self.header.first, self.bytes[..self.end].to_vec()),
        }
    }

    /// Frees the part of a superseded segment that will not be used. It is not needed, so a failure is harmless.
    fn shorten(&self) {
        if planted!(RemainderKept) {
            return;
        }
        let used = self.last.map_or(self.end, |last| last.offset);
        let _ = self.file.truncate(used as u64).and_then(|()| self.file.sync());
    }
}

/// A log that has a floor or a mark, and no segment.
pub(super) fn check_without_segments<F: Fs>(
    files: &Segments<F>,
    floor: Seq,
    mark: Option<CleanStop>,
) -> Result<(), StoreError> {
    if floor == Seq(0) && mark.is_none() {
        return Ok(());
    }
    Err(Damage { file: files.path(floor), offset: 0, what: "the log's segments are missing" }.into())
}

/// A log whose oldest segment begins after the floor. Truncation makes the floor durable before it removes a segment, so this is
/// no crash.
pub(super) fn check_first_segment<F: Fs>(
    files: &Segments<F>,
    oldest: Seq,
    floor: Seq,
) -> Result<(), StoreError> {
    if oldest <= floor {
        return Ok(());
    }
    Err(Damage { file: files.path(oldest), offset: 0, what: SEGMENTS_MISSING_BEFORE }.into())
}

/// What is wrong with a log that has lost its first segments.
pub(super) const SEGMENTS_MISSING_BEFORE: &str = "the segments before this one are missing";
