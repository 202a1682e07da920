//! One shard's log, in a directory of its own.
//!
//! **Invariant.** The segment files contain all appended batches in order, each frame chained to its
//! predecessor; after the last frame there are only zeros. A frame is written only after its predecessor is
//! durable, so after a crash only the last frame can be torn.
//!
//! **What would break it.** Treating any bad frame as a torn tail: damage in the middle would silently cut
//! off everything after it. So a bad frame is cut only if no valid frame follows it in the last segment.
//! Leaving the torn bytes in place: a later, shorter frame would leave some of them after itself. So they are
//! overwritten with zeros and synced before anything else is written. Allocating space or descriptors during
//! an append: a failed append ends the process. So a spare segment is created beforehand, and both it and the
//! directory stay open.

use std::io;
use std::path::{Path, PathBuf};

use super::index::{Index, IndexEntry};
use super::reader::{DiskReader, Segments};
use super::tail::{ExpectedFrame, TornTail};
use crate::frame::{
    FRAME_HEADER, FrameHeader, PAYLOAD_MAX, SEGMENT_HEADER, SegmentHeader, decode_frame, encode_frame,
    frame_len,
};
use crate::fs::{Dir, File, Fs};
use crate::port::{
    Bounds, Damage, ErrorKind, Extent, LogCapacity, LogReader, LogStore, LsnRange, Seq, StoreError,
};

/// Options for opening a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The shard that the log belongs to.
    pub shard: u32,
    /// The store that the log belongs to.
    pub store_id: u128,
    /// The length of new segments.
    pub segment_bytes: u64,
}

impl LogOptions {
    /// The default length of a segment.
    pub const SEGMENT_BYTES: u64 = 64 << 20;
    /// The minimum length of a segment. It also limits payloads: a batch must fit into one segment.
    pub const SEGMENT_BYTES_MIN: u64 = (SEGMENT_HEADER + FRAME_HEADER + 4096) as u64;
}

/// A log on disk.
pub struct DiskLog<F: Fs> {
    fs: F,
    dir: PathBuf,
    /// `dir`, kept open so that it can be synced without a new descriptor.
    names: F::Dir,
    options: LogOptions,
    bounds: Bounds,
    /// All segments, oldest first.
    segments: Vec<Extent>,
    /// Shared with all readers.
    index: Index,
    /// The last segment.
    current: Option<CurrentSegment<F::File>>,
    /// The checksum of the last frame.
    chain: u32,
    /// A zeroed segment, ready for use.
    spare: Option<F::File>,
    /// An append failed, so the contents of the disk are unknown.
    broken: bool,
}

/// The segment that is appended to.
struct CurrentSegment<T> {
    first: Seq,
    file: T,
    /// The offset of the next frame.
    end: u64,
    /// May differ from `options.segment_bytes`, which can change between restarts.
    length: u64,
}

const SPARE: &str = "spare";
pub(super) const FLOOR: &str = "floor";
const FLOOR_TMP: &str = "floor.tmp";

impl<F: Fs> DiskLog<F> {
    /// Opens a log, or creates it. Cuts off a torn tail; any other damage is an error.
    pub fn open(
        fs: F,
        dir: &Path,
        options: LogOptions,
    ) -> Result<(DiskLog<F>, Option<TornTail>), StoreError> {
        assert!(options.segment_bytes >= LogOptions::SEGMENT_BYTES_MIN, "a segment holds at least one batch");
        fs.create_dir_durably(dir).map_err(|error| StoreError::io(&error, "creating the log directory"))?;
        let names = fs.open_dir(dir).map_err(|error| StoreError::io(&error, "opening the log directory"))?;
        let mut log = DiskLog {
            fs,
            dir: dir.to_path_buf(),
            names,
            options,
            bounds: Bounds::default(),
            segments: Vec::new(),
            index: Index::default(),
            current: None,
            chain: 0,
            spare: None,
            broken: false,
        };
        log.remove_temporary_files()?;
        let floor = log.read_floor()?;
        log.segments = log.files().extents()?;
        log.segments.iter().for_each(|segment| log.index.add_segment(segment.first));
        log.bounds = Bounds { floor, next: floor };
        let cut = log.open_last()?;
        log.drop_below_floor()?;
        Ok((log, cut))
    }

    /// Removes temporary files that a crash may have left behind.
    fn remove_temporary_files(&self) -> Result<(), StoreError> {
        for name in [SPARE, FLOOR_TMP] {
            match self.fs.remove(&self.dir.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::io(&error, "removing a file").with(format_args!("name={name}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn open_last(&mut self) -> Result<Option<TornTail>, StoreError> {
        let Some(Extent { first, .. }) = self.segments.last().copied() else { return Ok(None) };
        let path = self.files().path(first);
        let (file, bytes) = self.files().read_whole(first)?;
        let header = self.files().check_header(first, &bytes)?;
        let mut at = SEGMENT_HEADER;
        (self.bounds.next, self.chain) = (header.first, header.chain);
        while let Some((frame, _)) =
            decode_frame(&bytes[at..]).filter(|(frame, _)| self.expected().matches(frame))
        {
            let FrameHeader { seq, lsns, chain, length, .. } = frame;
            let entry = IndexEntry { seq, lsn: lsns.first, offset: at as u64, chain };
            self.index.add_frame(first, entry, frame_len(length) as u64);
            at += frame_len(length);
            (self.bounds.next, self.chain) = (frame.seq.next(), frame.crc);
        }
        let cut = self.expected().classify_tail(&path, at as u64, &bytes[at..])?;
        if cut.is_some() && !planted!(TornTailKept) {
            let zeros = vec![0; bytes.len() - at];
            let wipe = file.write_at(&zeros, at as u64).and_then(|()| file.sync());
            wipe.map_err(|error| StoreError::io(&error, "cutting off a torn tail"))?;
        }
        if self.bounds.next < self.bounds.floor {
            let what = "the log ends before its floor";
            return Err(Damage { file: path, offset: at as u64, what }.into());
        }
        self.current = Some(CurrentSegment { first, file, end: at as u64, length: bytes.len() as u64 });
        Ok(cut)
    }

    fn expected(&self) -> ExpectedFrame {
        ExpectedFrame { seq: self.bounds.next, chain: self.chain }
    }

    /// The largest payload that fits into an empty segment.
    fn payload_max(&self) -> u64 {
        payload_within(self.options.segment_bytes - SEGMENT_HEADER as u64)
    }

    /// The free bytes in the last segment.
    fn free_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.length.saturating_sub(current.end))
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
        self.chain = crc;
        self.bounds.next = seq.next();
        Ok(())
    }

    /// The header is durable before the segment gets its name, so a named segment always has a valid header.
    fn begin_segment(&mut self, first: Seq) -> io::Result<()> {
        let LogOptions { shard, store_id, segment_bytes } = self.options;
        let header = SegmentHeader { shard, store_id, first, chain: self.chain }.encode();
        let file = self.spare.take().expect("the caller has created one");
        file.write_at(&header, 0)?;
        if !planted!(SegmentHeaderUnsynced) {
            file.sync()?;
        }
        self.fs.rename(&self.dir.join(SPARE), &self.files().path(first))?;
        if !planted!(SegmentNameUnsynced) {
            self.names.sync()?;
        }
        self.index.add_segment(first);
        self.segments.push(Extent { first, bytes: segment_bytes });
        self.current =
            Some(CurrentSegment { first, file, end: SEGMENT_HEADER as u64, length: segment_bytes });
        Ok(())
    }

    /// Zeroed and synced, so that an append changes neither the file's length nor its allocation.
    fn create_spare(&mut self) -> Result<(), StoreError> {
        if self.spare.is_some() {
            return Ok(());
        }
        let created = self.recreate(SPARE).and_then(|file| {
            fill_with_zeros(&file, self.options.segment_bytes)?;
            Ok(file)
        });
        match created {
            Ok(file) => self.spare = Some(file),
            Err(error) => {
                // A partial spare uses up the space that is missing.
                let _ = self.fs.remove(&self.dir.join(SPARE));
                return Err(StoreError::io(&error, "preallocating a log segment"));
            }
        }
        Ok(())
    }

    /// Creates a file, replacing a leftover of a failed attempt.
    fn recreate(&self, name: &str) -> io::Result<F::File> {
        let path = self.dir.join(name);
        match self.fs.create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.fs.remove(&path)?;
                self.fs.create(&path)
            }
            other => other,
        }
    }

    fn drop_below_floor(&mut self) -> Result<(), StoreError> {
        let mut dropped = false;
        while self.segments.get(1).is_some_and(|second| second.first <= self.bounds.floor) {
            let first = self.segments[0].first;
            self.index.remove_segment(first);
            self.fs
                .remove(&self.files().path(first))
                .map_err(|error| StoreError::io(&error, "dropping a segment"))?;
            self.segments.remove(0);
            dropped = true;
        }
        if dropped {
            self.names.sync().map_err(|error| StoreError::io(&error, "syncing the log directory"))?;
        }
        Ok(())
    }

    fn read_floor(&self) -> Result<Seq, StoreError> {
        let path = self.dir.join(FLOOR);
        let mut bytes = [0; FLOOR_BYTES];
        let read = match self.fs.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Seq(0)),
            other => other.and_then(|file| file.read_at(&mut bytes, 0)),
        };
        let read = read.map_err(|error| StoreError::io(&error, "reading the log floor"))?;
        decode_floor(&bytes[..read])
            .ok_or_else(|| Damage { file: path, offset: 0, what: "the floor file is damaged" }.into())
    }

    fn write_floor(&self, floor: Seq) -> io::Result<()> {
        let file = self.recreate(FLOOR_TMP)?;
        file.write_at(&encode_floor(floor), 0)?;
        if !planted!(FloorUnsynced) {
            file.sync()?;
        }
        self.fs.rename(&self.dir.join(FLOOR_TMP), &self.dir.join(FLOOR))?;
        self.names.sync()
    }

    fn files(&self) -> Segments<F> {
        Segments { fs: self.fs.clone(), dir: self.dir.clone(), options: self.options }
    }
}

impl<F: Fs> LogStore for DiskLog<F> {
    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        if self.broken {
            return Err(StoreError::new(ErrorKind::Io, "an earlier append failed; reopen the log"));
        }
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
        self.create_spare()
    }

    fn capacity(&self) -> LogCapacity {
        let spare = self.spare.is_some();
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
        self.write_floor(floor).map_err(|error| StoreError::io(&error, "raising the log floor"))?;
        self.bounds.floor = floor;
        self.drop_below_floor()
    }

    fn extents(&self) -> Vec<Extent> {
        self.segments.clone()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        Box::new(DiskReader::new(self.files(), self.index.clone(), self.bounds.floor))
    }
}

/// The largest payload whose frame, with header and padding, fits into `bytes`.
fn payload_within(bytes: u64) -> u64 {
    let unpadded = bytes / 8 * 8;
    unpadded.saturating_sub(FRAME_HEADER as u64).min(PAYLOAD_MAX as u64)
}

/// A failure during an append is never [`ErrorKind::NoSpace`], even if the operating system reports a full
/// disk: that kind promises that nothing was written.
fn uncertain(error: &io::Error, doing: &str, seq: Seq) -> StoreError {
    StoreError::new(ErrorKind::Io, format!("{doing}: {error}: seq={}", seq.0))
}

/// Syncs after each part, so that few unsynced bytes pile up: an append's sync on the same disk may wait for
/// them.
fn fill_with_zeros(file: &impl File, length: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < length {
        let part = usize::try_from(length - at).unwrap_or(usize::MAX).min(zeros.len());
        file.write_at(&zeros[..part], at)?;
        file.sync()?;
        at += part as u64;
    }
    Ok(())
}

/// Magic, version, sequence number, CRC32C of all these.
const FLOOR_BYTES: usize = 24;
const FLOOR_MAGIC: &[u8; 8] = b"lockdflr";
const FLOOR_VERSION: u32 = 1;

fn encode_floor(floor: Seq) -> [u8; FLOOR_BYTES] {
    let mut bytes = [0; FLOOR_BYTES];
    bytes[..8].copy_from_slice(FLOOR_MAGIC);
    bytes[8..12].copy_from_slice(&FLOOR_VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&floor.0.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..20]);
    bytes[20..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

pub(super) fn decode_floor(bytes: &[u8]) -> Option<Seq> {
    let bytes: &[u8; FLOOR_BYTES] = bytes.try_into().ok()?;
    let floor = Seq(u64::from_le_bytes(bytes[12..20].try_into().expect("eight bytes")));
    (*bytes == encode_floor(floor)).then_some(floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These bytes are on users' disks. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_bytes_of_the_floor() {
        let bytes = encode_floor(Seq(0x0102));
        let hex = bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        assert_eq!(hex, "6c6f636b64666c7201000000020100000000000088e5cdcb");
        assert_eq!(decode_floor(&bytes), Some(Seq(0x0102)));
    }
}
