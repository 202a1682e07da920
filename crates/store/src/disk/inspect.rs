//! Looks at a store without touching it: no lock, nothing created, nothing cut off, files open for reading.
//!
//! **Invariant.** What is given out was whole and in its place when it was read, chained from the beginning
//! of the oldest segment. Whether the store is in use meanwhile makes no difference.
//!
//! **What would break it.** To believe the first look at a log that somebody is appending to: a frame may be
//! seen half written, with the next one whole behind it by the time that is read; and the end of a segment
//! may be seen before its last frame, and the segment after it next. A frame is written when the one before
//! it is durable. So whatever looks wrong is looked at once more after the look at what follows it, and only
//! what is wrong both times is.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::dir::{StoreFile, decode_store};
use super::log::{FLOOR, LogOptions, decode_floor};
use super::reader::Segments;
use super::tail::{Cut, Expected};
use crate::frame::{FRAME_HEADER, FrameHeader, SEGMENT_HEADER, decode_frame, frame_len};
use crate::fs::{File as _, RealFs};
use crate::port::{Batch, Damage, ErrorKind, Seq, StoreError};

/// A store that is only looked at. Another process may have it open.
#[derive(Clone, Debug)]
pub struct StoreView {
    path: PathBuf,
    file: StoreFile,
}

impl StoreView {
    /// The store in a directory; [`ErrorKind::Gone`] if there is none.
    pub fn open(path: &Path) -> Result<StoreView, StoreError> {
        let name = path.join("store");
        match std::fs::read(&name) {
            Ok(bytes) => {
                let what = "not the file of a store that this build knows";
                let file = decode_store(&bytes).ok_or(Damage { file: name, offset: 0, what })?;
                Ok(StoreView { path: path.to_path_buf(), file })
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                let what = "there is no store here; name the directory that holds the file `store`: path=";
                Err(StoreError::new(ErrorKind::Gone, format!("{what}{}", path.display())))
            }
            Err(error) => Err(StoreError::io(&error, format!("reading {}", name.display()))),
        }
    }

    /// What was fixed when the store was made.
    pub fn file(&self) -> StoreFile {
        self.file
    }

    /// The log of one shard, from its floor on; an empty one if nothing was ever appended to it.
    pub fn log(&self, shard: u32) -> Result<LogView, StoreError> {
        if shard >= self.file.shards {
            let what = format!("the store has no such shard: shard={shard} shards={}", self.file.shards);
            return Err(StoreError::new(ErrorKind::Refused, what));
        }
        // A segment's length is the file's; this one is not looked at.
        let options = LogOptions { shard, store_id: self.file.store_id, segment_bytes: 0 };
        let dir = self.path.join("log").join(shard.to_string());
        let segments = Segments { fs: RealFs, dir, options };
        let floor = read_floor(&segments)?;
        Ok(LogView { segments, floor, at: None, ended: false })
    }
}

/// What is next in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A batch.
    Batch(Batch),
    /// A batch that is not whole, and nothing behind it: the power failed while it was written, or it is
    /// being written now. Nobody was told that it is durable.
    Torn(Cut),
    /// Nothing more.
    End,
}

/// Goes through the batches of a log once, from the floor to the end.
pub struct LogView {
    segments: Segments<RealFs>,
    floor: Seq,
    at: Option<Place>,
    ended: bool,
}

/// Between two frames.
struct Place {
    first: Seq,
    file: File,
    offset: u64,
    /// The batch that begins here, and the checksum of the one before it.
    next: Seq,
    chain: u32,
    /// What was read last, and where it begins.
    window: Vec<u8>,
    window_at: u64,
}

impl LogView {
    /// The next batch, or what there is instead. After a torn one, or the end, there is only the end.
    pub fn read_next(&mut self) -> Result<Found, StoreError> {
        while !self.ended {
            let found = self.step()?;
            self.ended = !matches!(found, Found::Batch(_));
            match found {
                Found::Batch(batch) if batch.seq < self.floor => {}
                found => return Ok(found),
            }
        }
        Ok(Found::End)
    }

    fn step(&mut self) -> Result<Found, StoreError> {
        let Some(mut place) = self.at.take().map_or_else(|| self.begin(), |place| Ok(Some(place)))? else {
            return Ok(Found::End);
        };
        loop {
            if let Some(batch) = place.frame()? {
                self.at = Some(place);
                return Ok(Found::Batch(batch));
            }
            match self.after(&mut place)? {
                After::LookAgain => {}
                After::Segment(next) => place = *next,
                After::Nothing(found) => return Ok(found),
            }
        }
    }

    /// The beginning of the segment that holds the floor.
    fn begin(&self) -> Result<Option<Place>, StoreError> {
        let firsts = match self.segments.list() {
            Err(error) if error.kind == ErrorKind::Gone => return Ok(None),
            other => other?,
        };
        let Some(oldest) = firsts.first().copied() else { return Ok(None) };
        let Some(first) = firsts.into_iter().rfind(|first| *first <= self.floor) else {
            let path = self.segments.path(oldest);
            if read_floor(&self.segments)? >= oldest {
                return Err(dropped(&path));
            }
            return Err(
                Damage { file: path, offset: 0, what: "the segments before this one are missing" }.into()
            );
        };
        self.open(first).map(Some)
    }

    fn open(&self, first: Seq) -> Result<Place, StoreError> {
        let path = self.segments.path(first);
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => dropped(&path),
            _ => StoreError::io(&error, format!("opening {}", path.display())),
        })?;
        let mut header = vec![0; SEGMENT_HEADER];
        let read = read_at(&file, &mut header, 0)?;
        let header = self.segments.check_header(first, &header[..read])?;
        Ok(Place {
            first,
            file,
            offset: SEGMENT_HEADER as u64,
            next: header.first,
            chain: header.chain,
            window: Vec::new(),
            window_at: 0,
        })
    }

    /// There is no whole frame here. Is it the end of the segment, of the log, or damage?
    fn after(&self, place: &mut Place) -> Result<After, StoreError> {
        let path = self.segments.path(place.first);
        let later = self.segments.list()?.into_iter().find(|first| *first > place.first);
        let tail = if later.is_none() { place.tail()? } else { Vec::new() };
        // Whatever follows was written after this frame was whole, if it ever was.
        if place.read_anew()? {
            return Ok(After::LookAgain);
        }
        let Some(later) = later else {
            if place.next < self.floor {
                let what = "the log ends before its floor";
                return Err(Damage { file: path, offset: place.offset, what }.into());
            }
            let torn = place.expected().judge(&path, place.offset, &tail)?;
            return Ok(After::Nothing(torn.map_or(Found::End, Found::Torn)));
        };
        let next = self.open(later)?;
        if (next.next, next.chain) == (place.next, place.chain) {
            return Ok(After::Segment(Box::new(next)));
        }
        if read_floor(&self.segments)? > place.next {
            return Err(dropped(&path));
        }
        let what = "a damaged frame, or a segment that does not go on where this one ends";
        Err(Damage { file: path, offset: place.offset, what }.into())
    }
}

enum After {
    /// Somebody was writing it: there is a frame now.
    LookAgain,
    Segment(Box<Place>),
    Nothing(Found),
}

impl Place {
    /// The frame here, if it is whole and follows the one before it; goes on behind it.
    fn frame(&mut self) -> Result<Option<Batch>, StoreError> {
        let Some((header, batch)) = self.look()? else { return Ok(None) };
        self.offset += frame_len(header.length) as u64;
        (self.next, self.chain) = (header.seq.next(), header.crc);
        Ok(Some(batch))
    }

    fn look(&mut self) -> Result<Option<(FrameHeader, Batch)>, StoreError> {
        let Some(header) = FrameHeader::decode(self.bytes(FRAME_HEADER)?) else { return Ok(None) };
        let found = decode_frame(self.bytes(frame_len(header.length))?);
        Ok(found.filter(|(header, _)| self.expected().is(header)))
    }

    fn expected(&self) -> Expected {
        Expected { seq: self.next, chain: self.chain }
    }

    /// Forgets what was read before; is there a frame now?
    fn read_anew(&mut self) -> Result<bool, StoreError> {
        self.window.clear();
        Ok(self.look()?.is_some())
    }

    /// So many bytes from here on, or as many as there are. Small frames do not cost a call each.
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

    /// All that is left of the segment.
    fn tail(&self) -> Result<Vec<u8>, StoreError> {
        let length = self.file.length().map_err(|error| StoreError::io(&error, "reading a segment"))?;
        let left = usize::try_from(length.saturating_sub(self.offset)).expect("a segment fits into memory");
        let mut tail = vec![0; left];
        let read = read_at(&self.file, &mut tail, self.offset)?;
        tail.truncate(read);
        Ok(tail)
    }
}

/// A store in use drops what it no longer needs.
fn dropped(path: &Path) -> StoreError {
    let what = "the beginning of the log was dropped while it was read; start again: file=";
    StoreError::new(ErrorKind::Gone, format!("{what}{}", path.display()))
}

fn read_floor(segments: &Segments<RealFs>) -> Result<Seq, StoreError> {
    let path = segments.dir.join(FLOOR);
    match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Seq(0)),
        Err(error) => Err(StoreError::io(&error, format!("reading {}", path.display()))),
        Ok(bytes) => decode_floor(&bytes)
            .ok_or_else(|| Damage { file: path, offset: 0, what: "a damaged floor" }.into()),
    }
}

fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<usize, StoreError> {
    crate::fs::File::read_at(file, bytes, offset).map_err(|error| StoreError::io(&error, "reading a segment"))
}
