//! One shard's log, in a directory of its own.
//!
//! **Invariant.** The segment files contain all appended batches in order, each frame chained to its
//! predecessor; after the last frame there are only zeros. A frame is written only after its predecessor is
//! durable, so after a crash only the last frame can be torn, and a segment is durable before the next one
//! is begun.
//!
//! **What would break it.** Treating any bad frame as a torn tail, or accepting a frame only because it can
//! be read: see [`tail`](super::tail) and [`recovery`](super::recovery). Allocating space or descriptors
//! during an append: a failed append ends the process. So a spare segment is created beforehand, and both it
//! and the directory stay open.

use std::io;
use std::path::Path;

use super::backup_lock::DeletionGuard;
use super::clean_stop::{self, CleanStop};
use super::floor;
use super::index::{Index, IndexEntry};
use super::reader::{DiskReader, Segments};
use super::recovery::{LastSegment, OpenedSegment, check_first_segment, check_without_segments};
use super::spare::{self, Spare, Spares};
use super::tail::TornTail;
use crate::frame::{FRAME_HEADER, SEGMENT_HEADER, SegmentHeader, encode_frame};
use crate::fs::{Dir, File, Fs};
use crate::port::{
    BATCH_MAX, Bounds, Damage, ErrorKind, Extent, LogCapacity, LogReader, LogStore, LsnRange, Preparation,
    Seq, StoreError,
};

/// Options for opening a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The shard that the log belongs to.
    pub shard: u32,
    /// The store that the log belongs to.
    pub store_id: u128,
    /// The maximum length of new segments. They begin at [`LogOptions::SEGMENT_BYTES_FIRST`], and double.
    pub segment_bytes: u64,
}

impl LogOptions {
    /// The default maximum length of a segment.
    pub const SEGMENT_BYTES: u64 = 64 << 20;
    /// The length of a log's first segment, and of the first after a restart, if the maximum is not lower.
    pub const SEGMENT_BYTES_FIRST: u64 = 4 << 20;
    /// The lowest maximum. It also limits payloads: a batch must fit into one segment.
    pub const SEGMENT_BYTES_MIN: u64 = (SEGMENT_HEADER + FRAME_HEADER + 4096) as u64;

    pub(super) fn first_segment_bytes(&self) -> u64 {
        self.segment_bytes.min(LogOptions::SEGMENT_BYTES_FIRST)
    }

    /// The length of the segment after one of this length.
    fn next_segment_bytes(&self, length: u64) -> u64 {
        length.saturating_mul(2).clamp(self.first_segment_bytes(), self.segment_bytes)
    }
}

/// A log on disk.
pub struct DiskLog<F: Fs> {
    files: Segments<F>,
    /// The directory, kept open so that it can be synced without a new descriptor.
    names: F::Dir,
    bounds: Bounds,
    /// All segments, oldest first.
    segments: Vec<Extent>,
    /// Shared with all readers.
    index: Index,
    /// The last segment.
    current: Option<OpenedSegment<F::File>>,
    /// The checksum of the last frame.
    chain: u32,
    /// The LSNs of the last batch, if it is in the last segment.
    last: Option<LsnRange>,
    spares: Spares<F::File>,
    deletions: DeletionGuard,
    /// It was new, or its last writer has stopped cleanly.
    was_clean: bool,
    /// An append failed, so the contents of the disk are unknown.
    broken: bool,
}

impl<F: Fs> DiskLog<F> {
    /// Opens a log, or creates it. Cuts off a torn tail, and makes durable what it accepts; any damage is an error.
    pub fn open(
        fs: F,
        dir: &Path,
        options: LogOptions,
    ) -> Result<(DiskLog<F>, Option<TornTail>), StoreError> {
        DiskLog::open_guarded(fs, dir, options, DeletionGuard::default())
    }

    /// Like [`DiskLog::open`]; keeps segments while a backup reads them.
    pub(super) fn open_guarded(
        fs: F,
        dir: &Path,
        options: LogOptions,
        deletions: DeletionGuard,
    ) -> Result<(DiskLog<F>, Option<TornTail>), StoreError> {
        assert!(options.segment_bytes >= LogOptions::SEGMENT_BYTES_MIN, "a segment holds at least one batch");
        let failed = |error: &io::Error, doing: &str| {
            StoreError::io(error, doing).with(format_args!("path={}", dir.display()))
        };
        fs.create_dir_durably(dir).map_err(|error| failed(&error, "creating the log directory"))?;
        let names = fs.open_dir(dir).map_err(|error| failed(&error, "opening the log directory"))?;
        let mut log = DiskLog {
            files: Segments { fs, dir: dir.to_path_buf(), options },
            names,
            bounds: Bounds::default(),
            segments: Vec::new(),
            index: Index::default(),
            current: None,
            chain: 0,
            last: None,
            spares: Spares::new(),
            deletions,
            was_clean: true,
            broken: false,
        };
        log.remove_temporary_files()?;
        let torn = log.open_last()?;
        log.drop_below_floor()?;
        Ok((log, torn))
    }

    /// Removes temporary files that a crash may have left behind.
    fn remove_temporary_files(&self) -> Result<(), StoreError> {
        let Segments { fs, dir, .. } = &self.files;
        let names = fs.list(dir).map_err(|error| {
            StoreError::io(&error, "listing the log directory").with(format_args!("path={}", dir.display()))
        })?;
        let is_temporary = |name: &str| name.starts_with(spare::PREFIX) || name.ends_with(TMP);
        for name in names.iter().filter(|name| is_temporary(name)) {
            fs.remove(&dir.join(name)).map_err(|error| {
                StoreError::io(&error, "removing a file")
                    .with(format_args!("file={}", dir.join(name).display()))
            })?;
        }
        Ok(())
    }

    fn open_last(&mut self) -> Result<Option<TornTail>, StoreError> {
        let (floor, mark) = (self.files.read_floor()?, self.files.read_mark()?);
        self.bounds = Bounds { floor, next: floor };
        let firsts = self.files.list()?;
        let Some(first) = firsts.last().copied() else {
            return check_without_segments(&self.files, floor, mark).map(|()| None);
        };
        check_first_segment(&self.files, firsts[0], floor)?;
        for first in &firsts {
            self.index.add_segment(*first);
        }
        let last = LastSegment::read(&self.files, first, &self.index)?;
        if last.expected().seq < floor {
            let (file, offset) = (self.files.path(first), last.end as u64);
            return Err(Damage { file, offset, what: "the log ends before its floor" }.into());
        }
        if let Some(mark) = mark {
            last.check_mark(mark, &self.files, &self.index, floor)?;
        }
        (self.bounds.next, self.chain) = (last.expected().seq, last.expected().chain);
        self.last = last.last_frame().map(|frame| frame.lsns);
        let torn = last.torn.clone();
        self.was_clean = last.is_clean(mark);
        self.current = Some(last.make_durable(mark, &self.files, &self.names, &self.index)?);
        self.segments = self.files.extents()?;
        Ok(torn)
    }

    fn check_not_broken(&self) -> Result<(), StoreError> {
        if self.broken {
            return Err(StoreError::new(ErrorKind::Io, "an earlier append failed; reopen the log"));
        }
        Ok(())
    }

    /// The largest payload that fits into an empty segment of any length.
    fn payload_max(&self) -> u64 {
        payload_within(self.files.options.first_segment_bytes() - SEGMENT_HEADER as u64)
    }

    /// The free bytes in the last segment.
    fn free_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.length.saturating_sub(current.end))
    }

    /// Whether the largest batch fits into the last segment.
    fn fits_any_batch(&self) -> bool {
        self.current.is_some() && payload_within(self.free_bytes()) >= self.payload_max()
    }

    /// The length of the next segment.
    fn next_segment_bytes(&self) -> u64 {
        let options = self.files.options;
        self.current
            .as_ref()
            .map_or(options.first_segment_bytes(), |current| options.next_segment_bytes(current.length))
    }

    fn write_frame(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        let (bytes, crc) = encode_frame(seq, lsns, payload, self.chain);
        if bytes.len() as u64 > self.free_bytes() {
            self.create_spare()?;
            self.begin_segment(seq).map_err(|error| uncertain(&error, "beginning a segment", seq))?;
        }
        let current = self.current.as_mut().expect("free bytes, or a segment was just begun");
        let sync_if = |wanted: bool| if wanted { current.file.sync() } else { Ok(()) };
        let written = sync_if(planted!(SyncBeforeWrite))
            .and_then(|()| current.file.write_at(&bytes, current.end))
            .and_then(|()| sync_if(!planted!(SyncBeforeWrite | AppendUnsynced)));
        written.map_err(|error| uncertain(&error, "appending a batch", seq))?;
        let entry = IndexEntry { seq, lsn: lsns.first, offset: current.end, chain: self.chain };
        self.index.add_frame(current.first, entry, bytes.len() as u64);
        current.end += bytes.len() as u64;
        (self.chain, self.last) = (crc, Some(lsns));
        self.bounds.next = seq.next();
        Ok(())
    }

    /// The header is durable before the segment gets its name, so a named segment always has a valid header.
    fn begin_segment(&mut self, first: Seq) -> io::Result<()> {
        let LogOptions { shard, store_id, .. } = self.files.options;
        let header = SegmentHeader { shard, store_id, first, chain: self.chain }.encode();
        let Spare { name, file, length } = self.spares.take().expect("the caller has created one");
        file.write_at(&header, 0)?;
        if !planted!(SegmentHeaderUnsynced) {
            file.sync()?;
        }
        self.files.fs.rename(&self.files.dir.join(name), &self.files.path(first))?;
        if !planted!(SegmentNameUnsynced) {
            self.names.sync()?;
        }
        self.index.add_segment(first);
        self.segments.push(Extent { first, bytes: length });
        self.current = Some(OpenedSegment { first, file, end: SEGMENT_HEADER as u64, length });
        Ok(())
    }

    fn create_spare(&mut self) -> Result<(), StoreError> {
        let length = self.next_segment_bytes();
        self.spares.create(&self.files, length)
    }

    fn drop_below_floor(&mut self) -> Result<(), StoreError> {
        if self.segments.get(1).is_none_or(|second| second.first > self.bounds.floor) {
            return Ok(());
        }
        // Postponed: the next truncation removes them.
        let Some(_permit) = self.deletions.permit() else { return Ok(()) };
        while self.segments.get(1).is_some_and(|second| second.first <= self.bounds.floor) {
            let first = self.segments[0].first;
            self.index.remove_segment(first);
            self.files
                .fs
                .remove(&self.files.path(first))
                .map_err(|error| StoreError::io(&error, "dropping a segment"))?;
            self.segments.remove(0);
        }
        self.names.sync().map_err(|error| StoreError::io(&error, "syncing the log directory"))
    }

    /// Replaces a small file atomically: written under a temporary name, synced, renamed.
    fn replace(&self, name: &str, bytes: &[u8], is_synced: bool) -> io::Result<()> {
        let Segments { fs, dir, .. } = &self.files;
        let tmp = dir.join(format!("{name}{TMP}"));
        let file = match fs.create(&tmp) {
            // A leftover of a failed attempt.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs.remove(&tmp)?;
                fs.create(&tmp)?
            }
            created => created?,
        };
        file.write_at(bytes, 0)?;
        if is_synced {
            file.sync()?;
        }
        fs.rename(&tmp, &dir.join(name))?;
        self.names.sync()
    }
}

/// The names of temporary files end with this.
const TMP: &str = ".tmp";

impl<F: Fs> LogStore for DiskLog<F> {
    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        self.check_not_broken()?;
        if seq != self.bounds.next {
            let what = format!("not the next sequence number: seq={} next={}", seq.0, self.bounds.next.0);
            return Err(StoreError::new(ErrorKind::Taken, what));
        }
        if payload.len() as u64 > self.payload_max() {
            return Err(StoreError::new(
                ErrorKind::TooLarge,
                format!("batch too large: bytes={}", payload.len()),
            ));
        }
        let done = self.write_frame(seq, lsns, payload);
        self.broken = done.as_ref().is_err_and(|error| error.kind != ErrorKind::NoSpace);
        done
    }

    /// A spare segment fits any batch.
    fn reserve(&mut self) -> Result<(), StoreError> {
        self.spares.adopt();
        if self.fits_any_batch() { Ok(()) } else { self.create_spare() }
    }

    /// Due once less than half of the last segment is free.
    fn preparation(&mut self) -> Option<Preparation> {
        let current = self.current.as_ref()?;
        let is_due = self.free_bytes() < current.length / 2;
        let length = self.next_segment_bytes();
        if is_due { self.spares.preparation(self.files.clone(), length) } else { None }
    }

    fn capacity(&self) -> LogCapacity {
        let spare = self.spares.is_ready();
        let bytes = if spare {
            self.payload_max()
        } else {
            payload_within(self.free_bytes()).min(self.payload_max())
        };
        LogCapacity { bytes, spare }
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        if floor <= self.bounds.floor {
            // Retry segments that could not be removed last time.
            return self.drop_below_floor();
        }
        if floor > self.bounds.next {
            let what = format!(
                "the floor is above the end of the log: floor={} next={}",
                floor.0, self.bounds.next.0
            );
            return Err(StoreError::new(ErrorKind::Refused, what));
        }
        self.replace(floor::NAME, &floor::encode(floor), !planted!(FloorUnsynced))
            .map_err(|error| StoreError::io(&error, "raising the log floor"))?;
        self.bounds.floor = floor;
        self.drop_below_floor()
    }

    fn extents(&self) -> Vec<Extent> {
        self.segments.clone()
    }

    /// Writes nothing if the last segment has no batch: the next opening replaces it in any case.
    fn was_clean(&self) -> bool {
        self.was_clean
    }

    fn mark_clean_stop(&mut self) -> Result<(), StoreError> {
        self.check_not_broken()?;
        let Some(lsns) = self.last else { return Ok(()) };
        let mark = CleanStop { seq: Seq(self.bounds.next.0 - 1), lsns, crc: self.chain };
        self.replace(clean_stop::NAME, &mark.encode(), true)
            .map_err(|error| StoreError::io(&error, "marking a clean stop"))
    }

    fn reader(&self) -> Box<dyn LogReader> {
        Box::new(DiskReader::new(self.files.clone(), self.index.clone(), self.bounds.floor))
    }
}

/// The largest payload whose frame, with header and padding, fits into `bytes`.
fn payload_within(bytes: u64) -> u64 {
    let unpadded = bytes / 8 * 8;
    unpadded.saturating_sub(FRAME_HEADER as u64).min(BATCH_MAX as u64)
}

/// A failure during an append is never [`ErrorKind::NoSpace`], even if the operating system reports a full
/// disk: that kind promises that nothing was written.
fn uncertain(error: &io::Error, doing: &str, seq: Seq) -> StoreError {
    StoreError::new(ErrorKind::Io, format!("{doing}: {error}: seq={}", seq.0))
}
