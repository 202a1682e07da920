//! Read-only access to a store: takes no lock, creates nothing, cuts nothing off, opens files for reading
//! only.
//!
//! **Invariant.** A returned batch was valid when it was read, and chained from the beginning of the segment
//! that contains the floor. This holds whether or not another process is using the store.
//!
//! **What would break it.** Trusting a single read of a log that is being appended to: a frame may be read
//! half written, and the next one complete by the time it is read; or the end of a segment may be read before
//! its last frame is written, and then the next segment. A frame is written only after its predecessor is
//! durable. So an invalid frame is read again after its successors were read, and counts as damage only if it
//! is invalid both times. Reading the clean-stop mark after the log: the log may have been appended to in
//! between. So the mark is read first.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::blobs::DiskBlobs;
use super::clean_stop::CleanStop;
use super::cut::{CutPlace, cut_place};
use super::dir::{check_key, check_map, check_no_log, read_parameters, view_map};
use super::log::LogOptions;
use super::read_only::ReadOnlyFs;
use super::reader::Segments;
use super::recovery::{SEGMENTS_MISSING_BEFORE, check_without_segments};
use super::tail::{ExpectedFrame, TornTail};
use crate::frame::{FRAME_HEADER, FrameHeader, SEGMENT_HEADER, decode_frame, frame_len};
use crate::fs::File as _;
use crate::port::{Batch, BlobStore, Damage, ErrorKind, Extent, Seq, StoreError};
use crate::slot_map::SlotMap;
use crate::store_file::{Key, StoreFile};

/// A read-only view of a store. Another process may have it open.
#[derive(Clone, Debug)]
pub struct StoreView {
    path: PathBuf,
    file: StoreFile,
}

impl StoreView {
    /// Opens the store in a directory; [`ErrorKind::Gone`] if there is none.
    pub fn open(path: &Path) -> Result<StoreView, StoreError> {
        let Some(file) = read_parameters(path)? else {
            check_no_log(path)?;
            let what = "there is no store here; pass the directory that contains the file `store`: path=";
            return Err(StoreError::new(ErrorKind::Gone, format!("{what}{}", path.display())));
        };
        Ok(StoreView { path: path.to_path_buf(), file })
    }

    /// The parameters fixed at creation.
    pub fn file(&self) -> StoreFile {
        self.file
    }

    /// The log of one shard, from its floor; empty if nothing was ever appended to it.
    pub fn log(&self, shard: u32) -> Result<LogView, StoreError> {
        if shard >= self.file.shards {
            let what = format!("no such shard: shard={shard} shards={}", self.file.shards);
            return Err(StoreError::new(ErrorKind::Refused, what));
        }
        let segments = self.segments(shard);
        // The mark first: the log may be appended to in between.
        let mark = segments.read_mark()?;
        let floor = segments.read_floor()?;
        Ok(LogView { segments, floor, mark, at: None, last: None, ended: false })
    }

    /// The segments of one shard's log, oldest first, with the lengths of their files. None if nothing was ever appended.
    pub fn extents(&self, shard: u32) -> Result<Vec<Extent>, StoreError> {
        match self.segments(shard).extents() {
            Err(error) if error.kind == ErrorKind::Gone => Ok(Vec::new()),
            found => found,
        }
    }

    /// Fails if the map of slots is missing or damaged.
    pub fn check_map(&self) -> Result<(), StoreError> {
        check_map(&self.path)
    }

    /// Fails if the store was created with another key. A store of format 1 is bound to none.
    pub fn check_key(&self, key: &Key) -> Result<(), StoreError> {
        check_key(&self.path, key)
    }

    /// The shard of each slot; fails if the map is missing or damaged.
    pub fn map(&self) -> Result<SlotMap, StoreError> {
        view_map(&self.path, self.file)
    }

    /// The place at which a damaged log can be cut; [`ErrorKind::Refused`] if there is none.
    pub fn cut_place(&self, shard: u32) -> Result<CutPlace, StoreError> {
        cut_place(&self.segments(shard))
    }

    /// The blobs of all shards. Only reads succeed.
    pub fn blobs(&self) -> impl BlobStore + use<> {
        DiskBlobs::view(ReadOnlyFs, &self.path.join("blob"))
    }

    fn segments(&self, shard: u32) -> Segments<ReadOnlyFs> {
        // `segment_bytes` is unused here: a segment is as long as its file.
        let options = LogOptions { shard, store_id: self.file.store_id, segment_bytes: 0 };
        Segments { fs: ReadOnlyFs, dir: self.path.join("log").join(shard.to_string()), options }
    }
}

/// The next item of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogItem {
    /// A batch.
    Batch(Batch),
    /// An incomplete last batch: a crash interrupted its append, or it is being written now. It was never
    /// acknowledged.
    Torn(TornTail),
    /// The end of the log.
    End,
}

/// Iterates over the batches of a log, from the floor to the end.
pub struct LogView {
    segments: Segments<ReadOnlyFs>,
    floor: Seq,
    mark: Option<CleanStop>,
    at: Option<Cursor>,
    last: Option<FramePlace>,
    ended: bool,
}

/// The place of the frame that was read last; at first, of the one before the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct FramePlace {
    /// The first batch of its segment.
    pub(super) segment: Seq,
    /// The checksum of its predecessor.
    pub(super) chain: u32,
    /// Its own checksum, and the batch that follows it.
    pub(super) crc: u32,
    pub(super) next: Seq,
}

/// A position between two frames.
struct Cursor {
    first: Seq,
    file: File,
    /// The first batch of the next segment, if there was one when this one was opened: this one ends there.
    successor: Option<Seq>,
    offset: u64,
    /// The batch that begins here, and the checksum of its predecessor.
    next: Seq,
    chain: u32,
    /// The bytes read last, and their offset.
    window: Vec<u8>,
    window_at: u64,
}

impl LogView {
    /// The first batch that can be read.
    pub fn floor(&self) -> Seq {
        self.floor
    }

    /// The last batch at the last clean stop, if there was one.
    pub fn clean_stop(&self) -> Option<Seq> {
        self.mark.map(|mark| mark.seq)
    }

    /// The place of the last frame that was read, below the floor or not. `None` if the log has no segment.
    pub(super) fn last(&self) -> Option<FramePlace> {
        self.last
    }

    /// The checksums of the frame that was read last, below the floor or not: of its predecessor, and its own. `None` if
    /// the log has no segment, or nothing was read.
    pub fn checksums(&self) -> Option<(u32, u32)> {
        self.last.map(|place| (place.chain, place.crc))
    }

    pub(super) fn mark(&self) -> Option<CleanStop> {
        self.mark
    }

    /// The next item. After [`LogItem::Torn`] or [`LogItem::End`], always [`LogItem::End`].
    pub fn read_next(&mut self) -> Result<LogItem, StoreError> {
        while !self.ended {
            let found = self.step()?;
            self.ended = !matches!(found, LogItem::Batch(_));
            match found {
                LogItem::Batch(batch) if batch.seq < self.floor => {}
                found => return Ok(found),
            }
        }
        Ok(LogItem::End)
    }

    fn step(&mut self) -> Result<LogItem, StoreError> {
        let Some(mut cursor) = self.at.take().map_or_else(|| self.begin(), |cursor| Ok(Some(cursor)))? else {
            return check_without_segments(&self.segments, self.floor, self.mark).map(|()| LogItem::End);
        };
        self.last.get_or_insert_with(|| cursor.place(cursor.chain));
        loop {
            if cursor.successor == Some(cursor.next) {
                cursor = self.continue_in(&cursor, cursor.next)?;
            }
            let (offset, chain) = (cursor.offset, cursor.chain);
            if let Some(batch) = cursor.take_frame()? {
                self.check_mark(&batch, &cursor, offset)?;
                self.last = Some(cursor.place(chain));
                self.at = Some(cursor);
                return Ok(LogItem::Batch(batch));
            }
            match self.after_last_frame(&mut cursor)? {
                Continuation::ReadAgain => {}
                Continuation::Segment(next) => cursor = *next,
                Continuation::Nothing(found) => return Ok(found),
            }
        }
    }

    /// Compares a batch that ends at the cursor with the clean-stop mark.
    fn check_mark(&self, batch: &Batch, cursor: &Cursor, offset: u64) -> Result<(), StoreError> {
        let found = CleanStop { seq: batch.seq, lsns: batch.lsns, crc: cursor.chain };
        let path = self.segments.path(cursor.first);
        self.mark.map_or(Ok(()), |mark| mark.check_batch(found, &path, offset))
    }

    /// The beginning of the segment that contains the floor.
    fn begin(&self) -> Result<Option<Cursor>, StoreError> {
        let firsts = match self.segments.list() {
            Err(error) if error.kind == ErrorKind::Gone => return Ok(None),
            other => other?,
        };
        let Some(oldest) = firsts.first().copied() else { return Ok(None) };
        let Some(first) = firsts.into_iter().rfind(|first| *first <= self.floor) else {
            let path = self.segments.path(oldest);
            if self.segments.read_floor()? >= oldest {
                return Err(truncated(&path));
            }
            return Err(Damage { file: path, offset: 0, what: SEGMENTS_MISSING_BEFORE }.into());
        };
        self.open(first).map(Some)
    }

    fn open(&self, first: Seq) -> Result<Cursor, StoreError> {
        let path = self.segments.path(first);
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => truncated(&path),
            _ => StoreError::io(&error, "opening a file").with(format_args!("file={}", path.display())),
        })?;
        let mut header = vec![0; SEGMENT_HEADER];
        let read = read_at(&file, &mut header, 0)?;
        let header = self.segments.check_header(first, &header[..read])?;
        Ok(Cursor {
            first,
            file,
            successor: self.successor(first)?,
            offset: SEGMENT_HEADER as u64,
            next: header.first,
            chain: header.chain,
            window: Vec::new(),
            window_at: 0,
        })
    }

    /// The first batch of the segment after this one.
    fn successor(&self, first: Seq) -> Result<Option<Seq>, StoreError> {
        Ok(self.segments.list()?.into_iter().find(|later| *later > first))
    }

    /// There is no valid frame at the cursor: is it the end of the segment, the end of the log, or damage?
    fn after_last_frame(&self, cursor: &mut Cursor) -> Result<Continuation, StoreError> {
        let later = self.successor(cursor.first)?;
        let tail = if later.is_none() { cursor.tail()? } else { Vec::new() };
        // Anything after this frame was written after the frame was complete, if it ever was.
        if cursor.refresh()? {
            return Ok(Continuation::ReadAgain);
        }
        if let Some(later) = later {
            let next = self.continue_in(cursor, later)?;
            return Ok(Continuation::Segment(Box::new(next)));
        }
        let path = self.segments.path(cursor.first);
        if cursor.next < self.floor {
            let what = "the log ends before its floor";
            return Err(Damage { file: path, offset: cursor.offset, what }.into());
        }
        let torn = match cursor.expected().classify_tail(&path, cursor.offset, &tail) {
            Err(_) if cursor.is_being_written()? => return Ok(Continuation::ReadAgain),
            other => other?,
        };
        self.mark.map_or(Ok(()), |mark| mark.check_end(cursor.next, &path, cursor.offset))?;
        Ok(Continuation::Nothing(torn.map_or(LogItem::End, LogItem::Torn)))
    }

    /// Opens the next segment, which must continue exactly at the cursor.
    fn continue_in(&self, cursor: &Cursor, later: Seq) -> Result<Cursor, StoreError> {
        let path = self.segments.path(cursor.first);
        let next = self.open(later)?;
        if (next.next, next.chain) == (cursor.next, cursor.chain) {
            return Ok(next);
        }
        let is_reopened = later < cursor.next;
        if is_reopened || self.segments.read_floor()? > cursor.next {
            return Err(truncated(&path));
        }
        let what = "a frame is damaged, or the next segment does not continue this one";
        Err(Damage { file: path, offset: cursor.offset, what }.into())
    }
}

/// How often, and after which pause each time, a frame that looks damaged is read again: its writer may have been
/// interrupted in the middle of it.
const WRITING_TRIES: u32 = 5;
const WRITING_PAUSE: Duration = Duration::from_millis(4);

/// What follows a cursor without a valid frame.
enum Continuation {
    /// The frame was being written: it is valid now.
    ReadAgain,
    /// The next segment.
    Segment(Box<Cursor>),
    /// No further batch.
    Nothing(LogItem),
}

impl Cursor {
    /// The frame at the cursor, if it is valid and follows its predecessor. Advances past it.
    fn take_frame(&mut self) -> Result<Option<Batch>, StoreError> {
        let Some((header, batch)) = self.frame()? else { return Ok(None) };
        self.offset += frame_len(header.length) as u64;
        (self.next, self.chain) = (header.seq.next(), header.crc);
        Ok(Some(batch))
    }

    fn frame(&mut self) -> Result<Option<(FrameHeader, Batch)>, StoreError> {
        let Some(header) = FrameHeader::decode(self.bytes(FRAME_HEADER)?) else { return Ok(None) };
        let found = decode_frame(self.bytes(frame_len(header.length))?);
        Ok(found.filter(|(header, _)| self.expected().matches(header)))
    }

    /// The place of the frame before the cursor; `chain` is the checksum of its predecessor.
    fn place(&self, chain: u32) -> FramePlace {
        FramePlace { segment: self.first, chain, crc: self.chain, next: self.next }
    }

    fn expected(&self) -> ExpectedFrame {
        ExpectedFrame { seq: self.next, chain: self.chain }
    }

    /// Discards the buffer and reads again. Whether there is a valid frame now.
    fn refresh(&mut self) -> Result<bool, StoreError> {
        self.window.clear();
        Ok(self.frame()?.is_some())
    }

    /// Whether the frame at the cursor becomes valid within a moment. A frame may be read while it is written, and then
    /// looks damaged: all of its sectors are there, and some are of before.
    #[expect(clippy::disallowed_methods, reason = "20 ms at most, in a tool that reads")]
    fn is_being_written(&mut self) -> Result<bool, StoreError> {
        for _ in 0..WRITING_TRIES {
            std::thread::sleep(WRITING_PAUSE);
            if self.refresh()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `length` bytes from the cursor, fewer only at the end of the file. Buffered, so that small frames do
    /// not cost a system call each.
    fn bytes(&mut self, length: usize) -> Result<&[u8], StoreError> {
        const WINDOW: usize = 1 << 20;
        let end = self.window_at + self.window.len() as u64;
        if self.window.is_empty() || self.offset + length as u64 > end {
            self.window.resize(length.max(WINDOW), 0);
            let read = read_at(&self.file, &mut self.window, self.offset)?;
            self.window.truncate(read);
            self.window_at = self.offset;
        }
        let from = usize::try_from(self.offset - self.window_at).expect("within the window");
        Ok(&self.window[from..self.window.len().min(from + length)])
    }

    /// The rest of the segment.
    fn tail(&self) -> Result<Vec<u8>, StoreError> {
        let length = self.file.length().map_err(|error| StoreError::io(&error, "reading a segment"))?;
        let left = usize::try_from(length.saturating_sub(self.offset)).expect("a segment fits into memory");
        let mut tail = vec![0; left];
        let read = read_at(&self.file, &mut tail, self.offset)?;
        tail.truncate(read);
        Ok(tail)
    }
}

/// A store in use truncates its log, and a restart copies its end to another segment.
fn truncated(path: &Path) -> StoreError {
    let what = "the log was truncated or reopened while it was read; run the command again: file=";
    StoreError::new(ErrorKind::Gone, format!("{what}{}", path.display()))
}

fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<usize, StoreError> {
    crate::fs::File::read_at(file, bytes, offset).map_err(|error| StoreError::io(&error, "reading a segment"))
}
