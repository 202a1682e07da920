//! Reads a log's segments, and verifies everything that it reads. A segment ends where the next begins.
//!
//! **Invariant.** A returned batch was durable, matches its checksum, and follows its predecessor by sequence
//! number and by chained checksum, starting at an entry of the [`Index`]. Any other batch is reported as
//! gone, because the log dropped it or never had it, or as damaged.
//!
//! **What would break it.** Reporting a concurrently dropped batch as damaged, or a damaged one as dropped:
//! the log may drop a segment at any time. So a missing file or batch counts as damage only while the log
//! still has the segment.

use std::io;
use std::path::{Path, PathBuf};

use super::clean_stop::{self, CleanStop};
use super::floor;
use super::index::{Index, IndexEntry};
use super::log::LogOptions;
use crate::frame::{FRAME_HEADER, FrameHeader, SEGMENT_HEADER, SegmentHeader, decode_frame, frame_len};
use crate::fs::{File, Fs};
use crate::port::{Batch, Damage, ErrorKind, Extent, LogReader, Lsn, Seq, StoreError};

/// The segment files of one log.
#[derive(Clone)]
pub(super) struct Segments<F: Fs> {
    pub(super) fs: F,
    pub(super) dir: PathBuf,
    pub(super) options: LogOptions,
}

impl<F: Fs> Segments<F> {
    pub(super) fn path(&self, first: Seq) -> PathBuf {
        self.dir.join(format!("{:016x}.seg", first.0))
    }

    /// The first batch of each segment, in order.
    pub(super) fn list(&self) -> Result<Vec<Seq>, StoreError> {
        let names =
            self.fs.list(&self.dir).map_err(|error| StoreError::io(&error, "listing log segments"))?;
        let hex = names.iter().filter_map(|name| name.strip_suffix(".seg"));
        Ok(hex.filter_map(|hex| u64::from_str_radix(hex, 16).ok()).map(Seq).collect())
    }

    /// All segments, in order, with their lengths.
    pub(super) fn extents(&self) -> Result<Vec<Extent>, StoreError> {
        let extent = |first| Ok(Extent { first, bytes: length_of(&self.open(first)?)? });
        self.list()?.into_iter().map(extent).collect()
    }

    pub(super) fn open(&self, first: Seq) -> Result<F::File, StoreError> {
        let path = self.path(first);
        self.fs.open(&path).map_err(|error| {
            StoreError::io(&error, "opening a file").with(format_args!("file={}", path.display()))
        })
    }

    pub(super) fn read_whole(&self, first: Seq) -> Result<(F::File, Vec<u8>), StoreError> {
        let file = self.open(first)?;
        let length = length_of(&file)?;
        let mut bytes = vec![0; usize::try_from(length).expect("a segment fits into memory")];
        file.read_at(&mut bytes, 0).map_err(|error| StoreError::io(&error, "reading a segment"))?;
        Ok((file, bytes))
    }

    /// The floor of the log.
    pub(super) fn read_floor(&self) -> Result<Seq, StoreError> {
        let path = self.dir.join(floor::NAME);
        floor::decode(&path, self.read_small(&path, floor::BYTES)?.as_deref())
    }

    /// The mark of the last clean stop, if there is one.
    pub(super) fn read_mark(&self) -> Result<Option<CleanStop>, StoreError> {
        let path = self.dir.join(clean_stop::NAME);
        CleanStop::decode(&path, self.read_small(&path, clean_stop::BYTES)?.as_deref())
    }

    /// The contents of a file of `length` bytes, with one byte more if it is longer; `None` if there is no file.
    fn read_small(&self, path: &Path, length: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let mut bytes = vec![0; length + 1];
        let read = match self.fs.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.and_then(|file| file.read_at(&mut bytes, 0)),
        };
        bytes.truncate(read.map_err(|error| {
            StoreError::io(&error, "reading a file").with(format_args!("file={}", path.display()))
        })?);
        Ok(Some(bytes))
    }

    /// Checks that the header is valid and belongs to this log and to the segment's file name.
    pub(super) fn check_header(&self, first: Seq, bytes: &[u8]) -> Result<SegmentHeader, StoreError> {
        let damaged = |what| Err(Damage { file: self.path(first), offset: 0, what }.into());
        let Some(bytes) = bytes.first_chunk() else { return damaged("the segment has no header") };
        match SegmentHeader::decode(bytes) {
            Err(what) => damaged(what),
            Ok(header) if header.first != first => {
                damaged("the segment's header does not match its file name")
            }
            Ok(header) if (header.shard, header.store_id) != (self.options.shard, self.options.store_id) => {
                damaged("the segment belongs to another log")
            }
            Ok(header) => Ok(header),
        }
    }
}

fn length_of(file: &impl File) -> Result<u64, StoreError> {
    file.length().map_err(|error| StoreError::io(&error, "reading a segment"))
}

/// Reads sequentially if batches are requested in order, and otherwise seeks through the index.
pub(super) struct DiskReader<F: Fs> {
    segments: Segments<F>,
    index: Index,
    floor: Seq,
    at: Option<Position<F>>,
}

/// A position between two frames.
struct Position<F: Fs> {
    /// The segment's first batch.
    first: Seq,
    file: F::File,
    window: Window,
    offset: u64,
    /// The batch that begins here, and the checksum of its predecessor.
    next: Seq,
    chain: u32,
}

impl<F: Fs> DiskReader<F> {
    pub(super) fn new(segments: Segments<F>, index: Index, floor: Seq) -> DiskReader<F> {
        DiskReader { segments, index, floor, at: None }
    }

    fn begin(&self, first: Seq) -> Result<Position<F>, StoreError> {
        let file = self.segments.open(first).map_err(|error| match error.kind {
            ErrorKind::Gone if self.index.contains(first) => {
                Damage { file: self.segments.path(first), offset: 0, what: "the segment file is missing" }
                    .into()
            }
            _ => error,
        })?;
        let mut bytes = [0; SEGMENT_HEADER];
        let read = file.read_at(&mut bytes, 0);
        let read = read.map_err(|error| StoreError::io(&error, "reading a segment"))?;
        let header = self.segments.check_header(first, &bytes[..read])?;
        let (offset, next, chain) = (SEGMENT_HEADER as u64, header.first, header.chain);
        Ok(Position { first, file, window: Window::default(), offset, next, chain })
    }

    /// Moves to an index entry in a segment, or to the segment's beginning.
    fn jump(&mut self, first: Seq, entry: Option<IndexEntry>) -> Result<(), StoreError> {
        let here = self.at.take().filter(|position| position.first == first && entry.is_some());
        let mut position = here.map_or_else(|| self.begin(first), Ok)?;
        if let Some(IndexEntry { seq, offset, chain, .. }) = entry {
            (position.offset, position.next, position.chain) = (offset, seq, chain);
        }
        self.at = Some(position);
        Ok(())
    }

    fn seek(&mut self, seq: Seq) -> Result<(), StoreError> {
        let first = self.index.segment_with(seq).ok_or_else(|| no_batch(seq))?;
        self.jump(first, self.index.entry_before(first, seq))
    }

    /// The newest segment that begins at or before this LSN.
    fn segment_of_lsn(&self, lsn: Lsn) -> Result<Option<Seq>, StoreError> {
        for first in self.index.newest_first() {
            if self.first_lsn(first)?.is_some_and(|first_lsn| first_lsn <= lsn) {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// The first LSN in a segment, if it contains a valid frame.
    fn first_lsn(&self, first: Seq) -> Result<Option<Lsn>, StoreError> {
        if let Some(entry) = self.index.first_entry(first) {
            return Ok(Some(entry.lsn));
        }
        if self.index.ends_at(first, SEGMENT_HEADER as u64) {
            return Ok(None);
        }
        let batch = self.take(&mut self.begin(first)?)?;
        Ok(batch.map(|batch| batch.lsns.first))
    }

    /// Reads the batch at the position, if it is valid, and advances past it.
    fn take(&self, position: &mut Position<F>) -> Result<Option<Batch>, StoreError> {
        if self.index.ends_at(position.first, position.offset) {
            return Err(no_batch(position.next));
        }
        let Some((header, batch)) = position.frame()? else { return Ok(None) };
        let follows = header.chain == position.chain || planted!(ChainUnchecked);
        if header.seq != position.next || !follows {
            return Err(self.damaged(position, "a frame does not follow its predecessor"));
        }
        let FrameHeader { seq, lsns, chain, .. } = header;
        let (entry, length) = (
            IndexEntry { seq, lsn: lsns.first, offset: position.offset, chain },
            frame_len(header.length) as u64,
        );
        self.index.add_frame(position.first, entry, length);
        position.offset += length;
        (position.next, position.chain) = (seq.next(), header.crc);
        Ok(Some(batch))
    }

    /// Fails if the log holds another batch than the one that a clean stop named.
    pub(super) fn check_mark(&mut self, mark: CleanStop) -> Result<(), StoreError> {
        let Batch { seq, lsns, payload } = self.read(mark.seq)?;
        let position = self.at.as_ref().expect("a batch was just read");
        let found = CleanStop { seq, lsns, crc: position.chain };
        let offset = position.offset - frame_len(payload.len()) as u64;
        mark.check_batch(found, &self.segments.path(position.first), offset)
    }

    /// Opens the next segment, which must continue exactly where this one ends.
    fn next_segment(&self, position: &Position<F>) -> Result<Position<F>, StoreError> {
        let Some(first) = self.index.after(position.first).filter(|first| *first == position.next) else {
            let dropped = self.index.segment_with(position.next).is_none();
            let what = "a frame is damaged or missing";
            return Err(if dropped { no_batch(position.next) } else { self.damaged(position, what) });
        };
        let next = self.begin(first)?;
        if next.chain != position.chain && !planted!(ChainUnchecked) {
            let what = "the segment does not continue its predecessor";
            return Err(Damage { file: self.segments.path(first), offset: 0, what }.into());
        }
        Ok(next)
    }

    fn damaged(&self, position: &Position<F>, what: &'static str) -> StoreError {
        Damage { file: self.segments.path(position.first), offset: position.offset, what }.into()
    }

    fn next(&mut self) -> Result<Batch, StoreError> {
        let mut position = self.at.take().expect("the caller has seeked");
        let is_superseded = self.index.after(position.first) == Some(position.next);
        if is_superseded && !planted!(SupersededRead) {
            position = self.next_segment(&position)?;
        }
        let mut found = self.take(&mut position)?;
        if found.is_none() {
            position = self.next_segment(&position)?;
            found = self.take(&mut position)?;
        }
        let batch = found.ok_or_else(|| self.damaged(&position, "a frame is damaged"))?;
        self.at = Some(position);
        Ok(batch)
    }
}

fn no_batch(seq: Seq) -> StoreError {
    StoreError::new(ErrorKind::Gone, format!("batch not in the log: seq={}", seq.0))
}

impl<F: Fs> LogReader for DiskReader<F> {
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError> {
        if seq < self.floor {
            let what = format!("batch below the floor of the log: seq={} floor={}", seq.0, self.floor.0);
            return Err(StoreError::new(ErrorKind::Gone, what));
        }
        if self.at.as_ref().is_none_or(|position| position.next != seq) {
            self.seek(seq)?;
        }
        loop {
            let batch = self.next()?;
            if batch.seq == seq {
                return Ok(batch);
            }
        }
    }

    fn read_lsn(&mut self, lsn: Lsn) -> Result<Batch, StoreError> {
        let gone = || StoreError::new(ErrorKind::Gone, format!("record not in the log: lsn={lsn}"));
        let first = self.segment_of_lsn(lsn)?.ok_or_else(gone)?;
        self.jump(first, self.index.entry_before_lsn(first, lsn))?;
        let mut batch = self.next()?;
        while batch.lsns.last < lsn {
            batch = self.next()?;
        }
        let found = batch.lsns.contains(lsn) && batch.seq >= self.floor;
        if found { Ok(batch) } else { Err(gone()) }
    }
}

impl<F: Fs> Position<F> {
    /// The frame at the position, if it is valid. The window may predate the frame: if so, reads it again.
    fn frame(&mut self) -> Result<Option<(FrameHeader, Batch)>, StoreError> {
        for refresh in [false, true] {
            let bytes = self.window.bytes(&self.file, self.offset, FRAME_HEADER, refresh)?;
            let Some(header) = FrameHeader::decode(bytes) else { continue };
            let bytes = self.window.bytes(&self.file, self.offset, frame_len(header.length), refresh)?;
            if let Some(found) = decode_frame(bytes) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// A read-ahead buffer over a file, so that small frames do not cost a system call each.
#[derive(Default)]
struct Window {
    offset: u64,
    bytes: Vec<u8>,
    /// The size of the last read.
    read_ahead: usize,
}

impl Window {
    /// Reads are short after a seek, and double while reading is sequential.
    const READ_AHEAD_MIN: usize = 16 << 10;
    const READ_AHEAD_MAX: usize = 1 << 20;

    /// `length` bytes from `offset`, fewer only at the end of the file. `refresh` discards what was buffered.
    fn bytes(
        &mut self,
        file: &impl File,
        offset: u64,
        length: usize,
        refresh: bool,
    ) -> Result<&[u8], StoreError> {
        let buffered = self.offset..=self.offset + self.bytes.len() as u64;
        let sequential = buffered.contains(&offset) && !refresh;
        if !sequential || offset + length as u64 > *buffered.end() {
            let doubled = (self.read_ahead * 2).clamp(Window::READ_AHEAD_MIN, Window::READ_AHEAD_MAX);
            self.read_ahead = if sequential { doubled } else { Window::READ_AHEAD_MIN };
            self.bytes.resize(length.max(self.read_ahead), 0);
            let read = file.read_at(&mut self.bytes, offset);
            let read = read.map_err(|error| StoreError::io(&error, "reading a segment"))?;
            self.bytes.truncate(read);
            self.offset = offset;
        }
        let from = usize::try_from(offset - self.offset).expect("within the window");
        let to = (from + length).min(self.bytes.len());
        Ok(&self.bytes[from..to])
    }
}
