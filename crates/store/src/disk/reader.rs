//! Reads a log's segments, and checks everything that it reads.
//!
//! **Invariant.** What is handed out was durable, matches its checksum, and follows the frame before it, by
//! number and by chain, from the last place that the [`Index`] knows. What is not handed out is gone,
//! because the log has dropped it or never had it, or it is damage.
//!
//! **What would break it.** To take what was dropped meanwhile for damage, or the other way round: the log
//! may drop a segment at any time. So a file or a batch that is missing is damage only as long as the log
//! has its segment.

use std::path::PathBuf;

use super::index::{Index, Place};
use super::log::LogOptions;
use crate::frame::{FRAME_HEADER, FrameHeader, SEGMENT_HEADER, SegmentHeader, decode_frame, frame_len};
use crate::fs::{File, Fs};
use crate::port::{Batch, Damage, ErrorKind, Extent, LogReader, Seq, StoreError};

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

    /// The first batches of all segments, in order.
    pub(super) fn list(&self) -> Result<Vec<Seq>, StoreError> {
        let names =
            self.fs.list(&self.dir).map_err(|error| StoreError::io(&error, "listing the log's segments"))?;
        let hex = names.iter().filter_map(|name| name.strip_suffix(".seg"));
        Ok(hex.filter_map(|hex| u64::from_str_radix(hex, 16).ok()).map(Seq).collect())
    }

    /// All segments, in order, with their lengths.
    pub(super) fn extents(&self) -> Result<Vec<Extent>, StoreError> {
        let measured = |first| Ok(Extent { first, bytes: length_of(&self.open(first)?)? });
        self.list()?.into_iter().map(measured).collect()
    }

    pub(super) fn open(&self, first: Seq) -> Result<F::File, StoreError> {
        let path = self.path(first);
        self.fs.open(&path).map_err(|error| StoreError::io(&error, format!("opening {}", path.display())))
    }

    pub(super) fn read_whole(&self, first: Seq) -> Result<(F::File, Vec<u8>), StoreError> {
        let file = self.open(first)?;
        let length = length_of(&file)?;
        let mut bytes = vec![0; usize::try_from(length).expect("a segment fits into memory")];
        file.read_at(&mut bytes, 0).map_err(|error| StoreError::io(&error, "reading a segment"))?;
        Ok((file, bytes))
    }

    /// The header must be whole, of this log, and of the segment that its name says.
    pub(super) fn check_header(&self, first: Seq, bytes: &[u8]) -> Result<SegmentHeader, StoreError> {
        let damaged = |what| Err(Damage { file: self.path(first), offset: 0, what }.into());
        let Some(bytes) = bytes.first_chunk() else { return damaged("a segment without a header") };
        match SegmentHeader::decode(bytes) {
            Err(what) => damaged(what),
            Ok(header) if header.first != first => damaged("a segment under another one's name"),
            Ok(header) if (header.shard, header.store_id) != (self.options.shard, self.options.store_id) => {
                damaged("a segment of another log")
            }
            Ok(header) => Ok(header),
        }
    }
}

fn length_of(file: &impl File) -> Result<u64, StoreError> {
    file.length().map_err(|error| StoreError::io(&error, "reading a segment"))
}

/// Goes through batches in order, and otherwise from place to place.
pub(super) struct DiskReader<F: Fs> {
    segments: Segments<F>,
    index: Index,
    floor: Seq,
    at: Option<Position<F>>,
}

/// Between two frames.
struct Position<F: Fs> {
    /// The segment.
    first: Seq,
    file: F::File,
    window: Window,
    offset: u64,
    /// The batch that begins here, and the checksum of the one before it.
    next: Seq,
    chain: u32,
}

impl<F: Fs> DiskReader<F> {
    pub(super) fn new(segments: Segments<F>, index: Index, floor: Seq) -> DiskReader<F> {
        DiskReader { segments, index, floor, at: None }
    }

    fn begin(&self, first: Seq) -> Result<Position<F>, StoreError> {
        let file = self.segments.open(first).map_err(|error| match error.kind {
            ErrorKind::Gone if self.index.has(first) => {
                Damage { file: self.segments.path(first), offset: 0, what: "a segment is missing" }.into()
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

    /// To a place in a segment, or to its beginning.
    fn jump(&mut self, first: Seq, place: Option<Place>) -> Result<(), StoreError> {
        let here = self.at.take().filter(|position| position.first == first && place.is_some());
        let mut position = here.map_or_else(|| self.begin(first), Ok)?;
        if let Some(Place { seq, offset, chain, .. }) = place {
            (position.offset, position.next, position.chain) = (offset, seq, chain);
        }
        self.at = Some(position);
        Ok(())
    }

    fn seek(&mut self, seq: Seq) -> Result<(), StoreError> {
        let first = self.index.segment_of(seq).ok_or_else(|| no_batch(seq))?;
        self.jump(first, self.index.place_before(first, seq))
    }

    /// The newest segment that does not begin after this LSN.
    fn segment_of_lsn(&self, lsn: u64) -> Result<Option<Seq>, StoreError> {
        for first in self.index.newest_first() {
            if self.first_lsn(first)?.is_some_and(|least| least <= lsn) {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// The first LSN in a segment, if there is a whole frame.
    fn first_lsn(&self, first: Seq) -> Result<Option<u64>, StoreError> {
        if let Some(place) = self.index.first_place(first) {
            return Ok(Some(place.lsn));
        }
        if self.index.ends_at(first, SEGMENT_HEADER as u64) {
            return Ok(None);
        }
        let batch = self.take(&mut self.begin(first)?)?;
        Ok(batch.map(|batch| batch.lsns.first))
    }

    /// The batch here, if there is a whole one; the position is behind it then.
    fn take(&self, position: &mut Position<F>) -> Result<Option<Batch>, StoreError> {
        if self.index.ends_at(position.first, position.offset) {
            return Err(no_batch(position.next));
        }
        let Some((header, batch)) = position.frame()? else { return Ok(None) };
        let follows = header.chain == position.chain || planted!(ChainUnchecked);
        if header.seq != position.next || !follows {
            return Err(self.damaged(position, "a frame that does not follow the one before it"));
        }
        let FrameHeader { seq, lsns, chain, .. } = header;
        let (place, length) =
            (Place { seq, lsn: lsns.first, offset: position.offset, chain }, frame_len(header.length) as u64);
        self.index.pass(position.first, place, length);
        position.offset += length;
        (position.next, position.chain) = (seq.next(), header.crc);
        Ok(Some(batch))
    }

    /// The next segment: it must go on exactly where this one ends.
    fn step_over(&self, position: &Position<F>) -> Result<Position<F>, StoreError> {
        let Some(first) = self.index.after(position.first).filter(|first| *first == position.next) else {
            let dropped = self.index.segment_of(position.next).is_none();
            let what = "a damaged frame, or none where one was";
            return Err(if dropped { no_batch(position.next) } else { self.damaged(position, what) });
        };
        let next = self.begin(first)?;
        if next.chain != position.chain && !planted!(ChainUnchecked) {
            let what = "the segment does not go on where the one before it ends";
            return Err(Damage { file: self.segments.path(first), offset: 0, what }.into());
        }
        Ok(next)
    }

    fn damaged(&self, position: &Position<F>, what: &'static str) -> StoreError {
        Damage { file: self.segments.path(position.first), offset: position.offset, what }.into()
    }

    fn next(&mut self) -> Result<Batch, StoreError> {
        let mut position = self.at.take().expect("the caller has sought");
        let mut found = self.take(&mut position)?;
        if found.is_none() {
            position = self.step_over(&position)?;
            found = self.take(&mut position)?;
        }
        let batch = found.ok_or_else(|| self.damaged(&position, "a damaged frame"))?;
        self.at = Some(position);
        Ok(batch)
    }
}

fn no_batch(seq: Seq) -> StoreError {
    StoreError::new(ErrorKind::Gone, format!("batch {} is not in the log", seq.0))
}

impl<F: Fs> LogReader for DiskReader<F> {
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError> {
        if seq < self.floor {
            return Err(StoreError::new(ErrorKind::Gone, format!("batch {} is below the floor", seq.0)));
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

    fn holding(&mut self, lsn: u64) -> Result<Batch, StoreError> {
        let gone = || StoreError::new(ErrorKind::Gone, format!("lsn {lsn} is not in the log"));
        let first = self.segment_of_lsn(lsn)?.ok_or_else(gone)?;
        self.jump(first, self.index.place_before_lsn(first, lsn))?;
        let mut batch = self.next()?;
        while batch.lsns.last < lsn {
            batch = self.next()?;
        }
        let found = batch.lsns.holds(lsn) && batch.seq >= self.floor;
        if found { Ok(batch) } else { Err(gone()) }
    }
}

impl<F: Fs> Position<F> {
    /// The frame here, if there is a whole one. What was read before may be older than the frame.
    fn frame(&mut self) -> Result<Option<(FrameHeader, Batch)>, StoreError> {
        for again in [false, true] {
            let bytes = self.window.bytes(&self.file, self.offset, FRAME_HEADER, again)?;
            let Some(header) = FrameHeader::decode(bytes) else { continue };
            let bytes = self.window.bytes(&self.file, self.offset, frame_len(header.length), again)?;
            if let Some(found) = decode_frame(bytes) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// A part of a file in memory, so that small frames do not cost a call each.
#[derive(Default)]
struct Window {
    offset: u64,
    bytes: Vec<u8>,
    /// How much was read the last time.
    ahead: usize,
}

impl Window {
    /// After a jump little is read, and more and more as long as reading goes on.
    const LEAST: usize = 16 << 10;
    const MOST: usize = 1 << 20;

    /// So many bytes from an offset on, or as many as there are; read anew if asked to.
    fn bytes(
        &mut self,
        file: &impl File,
        offset: u64,
        length: usize,
        anew: bool,
    ) -> Result<&[u8], StoreError> {
        let within = self.offset..=self.offset + self.bytes.len() as u64;
        let goes_on = within.contains(&offset) && !anew;
        if !goes_on || offset + length as u64 > *within.end() {
            self.ahead =
                if goes_on { (self.ahead * 2).clamp(Window::LEAST, Window::MOST) } else { Window::LEAST };
            self.bytes.resize(length.max(self.ahead), 0);
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
