//! An operator's cut: ends a damaged log before its first damaged frame.
//!
//! **Invariant.** Only the place that an opening or a reader reports as damaged can be cut, and everything that is cut
//! stays beside the log in `cut-<segment>-<offset>` files, which no process reads or removes. An interrupted cut leaves
//! the log damaged at the same place, and can be repeated.
//!
//! **What would break it.** Cutting at a valid frame, or a torn tail: the first would lose acknowledged batches for
//! nothing, and the second is cut by the next opening, which knows that it was never acknowledged.

use std::io;
use std::path::{Path, PathBuf};

use super::clean_stop::{self, CleanStop};
use super::log::LogOptions;
use super::reader::Segments;
use super::tail::ExpectedFrame;
use crate::frame::{FrameHeader, PAYLOAD_MAX, SEGMENT_HEADER, decode_frame, frame_len};
use crate::fs::{File, Fs};
use crate::port::{ErrorKind, LsnRange, Seq, StoreError};

/// A planned cut. Nothing is changed before [`LogCut::apply`].
pub struct LogCut<F: Fs> {
    /// The damaged segment.
    pub file: PathBuf,
    /// The offset of the damaged frame; 0 if the segment is damaged as a whole.
    pub offset: u64,
    /// The first batch that is removed.
    pub seq: Seq,
    /// The LSNs that are removed, as far as they can be read.
    pub lsns: Option<LsnRange>,
    /// The number of bytes that are removed, up to the last that is not zero.
    pub bytes: u64,
    segments: Segments<F>,
    /// The damaged segment.
    damaged: Seq,
    /// The segments after it, which are removed as a whole.
    later: Vec<Seq>,
    /// The bytes of the damaged segment that are removed.
    tail: Vec<u8>,
    removes_mark: bool,
}

/// Plans to cut the log in `dir` at the damage in `file` at `offset`. [`ErrorKind::Refused`] if the log is not damaged
/// there. The caller must have locked the store.
pub fn cut<F: Fs>(
    fs: F,
    dir: &Path,
    options: LogOptions,
    file: &Path,
    offset: u64,
) -> Result<LogCut<F>, StoreError> {
    let segments = Segments { fs, dir: dir.to_path_buf(), options };
    let log = DamagedLog::read(&segments)?;
    let damaged_file = segments.path(log.place.segment);
    let is_there = file.file_name() == damaged_file.file_name() && offset == log.place.offset;
    if !is_there && !planted!(CutAnywhere) {
        let found = damaged_file.display();
        return Err(refused(format!(
            "the log is not damaged there, but elsewhere: file={found} offset={}",
            log.place.offset
        )));
    }
    log.check_above_floor()?;
    let DamagedLog { mark, place, firsts, .. } = log;
    let later: Vec<Seq> = firsts.iter().copied().filter(|first| *first > place.segment).collect();
    plan(segments, &place, later, mark)
}

/// The only place at which a damaged log can be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPlace {
    /// The damaged segment.
    pub file: PathBuf,
    /// The offset of the damaged frame; 0 if the segment is damaged as a whole.
    pub offset: u64,
    /// The first batch that a cut removes.
    pub seq: Seq,
}

/// The place at which a damaged log can be cut; [`ErrorKind::Refused`] if there is none.
pub(super) fn cut_place<F: Fs>(segments: &Segments<F>) -> Result<CutPlace, StoreError> {
    let log = DamagedLog::read(segments)?;
    if !planted!(CutPlaceBelowFloor) {
        log.check_above_floor()?;
    }
    let DamagedPlace { segment, offset, expected } = log.place;
    Ok(CutPlace { file: segments.path(segment), offset, seq: expected.seq })
}

/// A log with its first damage.
struct DamagedLog {
    floor: Seq,
    mark: Option<CleanStop>,
    firsts: Vec<Seq>,
    place: DamagedPlace,
}

impl DamagedLog {
    /// [`ErrorKind::Refused`] if the log is not damaged.
    fn read<F: Fs>(segments: &Segments<F>) -> Result<DamagedLog, StoreError> {
        let (floor, mark) = (segments.read_floor()?, segments.read_mark()?);
        let firsts = segments.list()?;
        let walk = Walk { segments, mark, firsts: &firsts };
        let what = "the log is not damaged; a torn tail is cut by the next start of the server";
        let place = walk.first_damage(floor)?.ok_or_else(|| refused(what.into()))?;
        Ok(DamagedLog { floor, mark, firsts, place })
    }

    fn check_above_floor(&self) -> Result<(), StoreError> {
        let DamagedLog { floor, firsts, place, .. } = self;
        let is_oldest = firsts.first() == Some(&place.segment);
        if place.expected.seq < *floor || (is_oldest && place.offset == 0) {
            return Err(refused(format!(
                "the log would end before its floor; restore the store from a backup with `lockd restore`: seq={} floor={}",
                place.expected.seq.0, floor.0
            )));
        }
        Ok(())
    }
}

fn refused(what: String) -> StoreError {
    StoreError::new(ErrorKind::Refused, what)
}

fn plan<F: Fs>(
    segments: Segments<F>,
    place: &DamagedPlace,
    later: Vec<Seq>,
    mark: Option<CleanStop>,
) -> Result<LogCut<F>, StoreError> {
    let mut tail = segments.read_whole(place.segment)?.1;
    tail.drain(..usize::try_from(place.offset).expect("within the segment").min(tail.len()));
    tail.truncate(used(&tail));
    let header = FrameHeader::decode(&tail).filter(|header| place.expected.matches(header));
    let mut lsns: Vec<LsnRange> = header.map(|header| header.lsns).into_iter().collect();
    lsns.extend(lsns_in(&tail));
    let mut bytes = tail.len();
    for first in &later {
        let segment = segments.read_whole(*first)?.1;
        bytes += used(&segment);
        lsns.extend(lsns_in(&segment));
    }
    let ends = |range: LsnRange, more: &LsnRange| LsnRange {
        first: range.first.min(more.first),
        last: range.last.max(more.last),
    };
    Ok(LogCut {
        file: segments.path(place.segment),
        offset: place.offset,
        seq: place.expected.seq,
        lsns: lsns.first().map(|first| lsns.iter().fold(*first, ends)),
        bytes: bytes as u64,
        segments,
        damaged: place.segment,
        later,
        tail,
        removes_mark: mark.is_some_and(|mark| mark.seq >= place.expected.seq),
    })
}

impl<F: Fs> LogCut<F> {
    /// The files that will hold what is cut.
    pub fn copies(&self) -> Vec<PathBuf> {
        let tail = (!self.tail.is_empty()).then(|| self.copy_of(self.damaged, self.offset));
        tail.into_iter().chain(self.later.iter().map(|first| self.copy_of(*first, 0))).collect()
    }

    /// Cuts the log.
    pub fn apply(self) -> Result<(), StoreError> {
        self.cut().map_err(|error| {
            StoreError::io(&error, "cutting the log; run the command again")
                .with(format_args!("file={}", self.file.display()))
        })
    }

    fn copy_of(&self, first: Seq, offset: u64) -> PathBuf {
        self.segments.dir.join(format!("cut-{:016x}-{offset}", first.0))
    }

    /// The damaged frame goes last: until then the log is damaged where it was.
    fn cut(&self) -> io::Result<()> {
        let Segments { fs, dir, .. } = &self.segments;
        if self.removes_mark {
            fs.remove(&dir.join(clean_stop::NAME))?;
            fs.sync_dir(dir)?;
        }
        for first in self.later.iter().rev() {
            fs.rename(&self.segments.path(*first), &self.copy_of(*first, 0))?;
            fs.sync_dir(dir)?;
        }
        if self.offset == 0 {
            fs.rename(&self.file, &self.copy_of(self.damaged, 0))?;
            return fs.sync_dir(dir);
        }
        if !self.tail.is_empty() {
            self.copy_tail()?;
        }
        let file = fs.open(&self.file)?;
        file.truncate(self.offset)?;
        file.sync()
    }

    fn copy_tail(&self) -> io::Result<()> {
        let Segments { fs, dir, .. } = &self.segments;
        let path = self.copy_of(self.damaged, self.offset);
        match fs.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // A leftover of an interrupted cut.
            _ => {}
        }
        let copy = fs.create(&path)?;
        copy.write_at(&self.tail, 0)?;
        copy.sync()?;
        fs.sync_dir(dir)
    }
}

/// Reads a log from its floor, for its first damage.
struct Walk<'a, F: Fs> {
    segments: &'a Segments<F>,
    mark: Option<CleanStop>,
    firsts: &'a [Seq],
}

/// The first damage in a log.
struct DamagedPlace {
    segment: Seq,
    offset: u64,
    /// The frame that should be there.
    expected: ExpectedFrame,
}

impl<F: Fs> Walk<'_, F> {
    fn first_damage(&self, floor: Seq) -> Result<Option<DamagedPlace>, StoreError> {
        let begin = self.firsts.iter().rposition(|first| *first <= floor).unwrap_or(0);
        let mut expected: Option<ExpectedFrame> = None;
        for (n, first) in self.firsts.iter().enumerate().skip(begin) {
            let bytes = self.segments.read_whole(*first)?.1;
            let beginning = match self.segments.check_header(*first, &bytes) {
                Ok(header) => Some(ExpectedFrame { seq: header.first, chain: header.chain }),
                Err(error) if error.kind == ErrorKind::Damaged => None,
                Err(error) => return Err(error),
            };
            let before = expected.unwrap_or(ExpectedFrame { seq: *first, chain: 0 });
            let Some(beginning) = beginning.filter(|found| expected.is_none_or(|wanted| wanted == *found))
            else {
                return Ok(Some(DamagedPlace { segment: *first, offset: 0, expected: before }));
            };
            let (end, offset, is_damaged) =
                self.read_segment(*first, &bytes, beginning, self.firsts.get(n + 1))?;
            if is_damaged {
                return Ok(Some(DamagedPlace { segment: *first, offset: offset as u64, expected: end }));
            }
            expected = Some(end);
        }
        Ok(None)
    }

    /// Reads the frames of a segment. Returns the frame that should follow, its offset, and whether there is damage.
    fn read_segment(
        &self,
        first: Seq,
        bytes: &[u8],
        mut expected: ExpectedFrame,
        successor: Option<&Seq>,
    ) -> Result<(ExpectedFrame, usize, bool), StoreError> {
        let (path, mut at) = (self.segments.path(first), SEGMENT_HEADER);
        while successor != Some(&expected.seq) {
            let Some((header, _)) = decode_frame(&bytes[at..]).filter(|(header, _)| expected.matches(header))
            else {
                let is_damaged = match successor {
                    Some(_) => true,
                    None => self.is_end_damaged(expected, &path, at, bytes)?,
                };
                return Ok((expected, at, is_damaged));
            };
            let found = CleanStop { seq: header.seq, lsns: header.lsns, crc: header.crc };
            if self.mark.is_some_and(|mark| mark.check_batch(found, &path, at as u64).is_err()) {
                return Ok((expected, at, true));
            }
            at += frame_len(header.length);
            expected = ExpectedFrame { seq: header.seq.next(), chain: header.crc };
        }
        Ok((expected, at, false))
    }

    fn is_end_damaged(
        &self,
        expected: ExpectedFrame,
        path: &Path,
        at: usize,
        bytes: &[u8],
    ) -> Result<bool, StoreError> {
        let classified = expected.classify_tail(path, at as u64, &bytes[at..]);
        let checked = classified
            .and_then(|_| self.mark.map_or(Ok(()), |mark| mark.check_end(expected.seq, path, at as u64)));
        match checked {
            Ok(()) => Ok(false),
            Err(error) if error.kind == ErrorKind::Damaged => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// The length without the zeros at the end.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// The LSNs of the valid frames, which begin at multiples of eight. Zeros at the end of the last one may be missing.
fn lsns_in(bytes: &[u8]) -> Vec<LsnRange> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len() + frame_len(PAYLOAD_MAX), 0);
    let frames = (0..bytes.len()).step_by(8).filter_map(|at| decode_frame(&padded[at..]));
    frames.map(|(header, _)| header.lsns).collect()
}
