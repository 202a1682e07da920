//! Reads a log's segments, and checks everything that it reads.

use std::path::PathBuf;

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

/// Goes through batches in order. Out of order it has to begin at the start of a segment.
pub(super) struct DiskReader<F: Fs> {
    segments: Segments<F>,
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
    pub(super) fn new(segments: Segments<F>, floor: Seq) -> DiskReader<F> {
        DiskReader { segments, floor, at: None }
    }

    fn begin(&self, first: Seq) -> Result<Position<F>, StoreError> {
        let file = self.segments.open(first)?;
        let mut window = Window::default();
        let bytes = window.bytes(&file, 0, SEGMENT_HEADER, false)?;
        let header = self.segments.check_header(first, bytes)?;
        let (offset, next, chain) = (SEGMENT_HEADER as u64, header.first, header.chain);
        Ok(Position { first, file, window, offset, next, chain })
    }

    /// The segment that would hold `seq`, read from its beginning.
    fn seek(&mut self, seq: Seq) -> Result<(), StoreError> {
        let list = self.segments.list()?;
        let gone = || StoreError::new(ErrorKind::Gone, format!("batch {} is not in the log", seq.0));
        let first = list.into_iter().rfind(|first| *first <= seq).ok_or_else(gone)?;
        self.at = Some(self.begin(first)?);
        Ok(())
    }

    /// The next segment, if there is one: it must go on exactly where this one ends.
    fn step_over(&self, position: &Position<F>) -> Result<Option<Position<F>>, StoreError> {
        let list = self.segments.list()?;
        let Some(first) = list.into_iter().find(|first| *first > position.first) else { return Ok(None) };
        let next = self.begin(first)?;
        if (next.next, next.chain) != (position.next, position.chain) {
            let what = "the segment does not go on where the one before it ends";
            return Err(Damage { file: self.segments.path(first), offset: 0, what }.into());
        }
        Ok(Some(next))
    }

    fn damaged(&self, position: &Position<F>, what: &'static str) -> StoreError {
        Damage { file: self.segments.path(position.first), offset: position.offset, what }.into()
    }

    fn next(&mut self) -> Result<Batch, StoreError> {
        let mut position = self.at.take().expect("the caller has sought");
        let found = position.frame()?;
        let (header, batch) = match found {
            Some(found) => found,
            None => match self.step_over(&position)? {
                Some(next) => {
                    position = next;
                    position.frame()?.ok_or_else(|| self.damaged(&position, "a damaged frame"))?
                }
                None => return Err(self.damaged(&position, "a damaged frame, or none where one was")),
            },
        };
        if (header.seq, header.chain) != (position.next, position.chain) {
            return Err(self.damaged(&position, "a frame that does not follow the one before it"));
        }
        position.offset += frame_len(header.length) as u64;
        (position.next, position.chain) = (header.seq.next(), header.crc);
        self.at = Some(position);
        Ok(batch)
    }
}

impl<F: Fs> LogReader for DiskReader<F> {
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError> {
        if seq < self.floor {
            return Err(StoreError::new(ErrorKind::Gone, format!("batch {} is below the floor", seq.0)));
        }
        if self.at.as_ref().is_none_or(|position| position.next > seq) {
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
        for first in self.segments.list()?.into_iter().rev() {
            let mut position = self.begin(first)?;
            if position.frame()?.is_none_or(|(header, _)| header.lsns.first > lsn) {
                continue;
            }
            self.at = Some(position);
            let mut batch = self.next()?;
            while batch.lsns.last < lsn {
                batch = self.next()?;
            }
            let found = batch.lsns.holds(lsn) && batch.seq >= self.floor;
            return if found { Ok(batch) } else { Err(gone()) };
        }
        Err(gone())
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
}

impl Window {
    const BYTES: usize = 1 << 20;

    /// So many bytes from an offset on, or as many as there are; read anew if asked to.
    fn bytes(
        &mut self,
        file: &impl File,
        offset: u64,
        length: usize,
        anew: bool,
    ) -> Result<&[u8], StoreError> {
        let end = self.offset + self.bytes.len() as u64;
        if anew || offset < self.offset || offset + length as u64 > end {
            self.bytes.resize(length.max(Window::BYTES), 0);
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
