//! The store's interface, independent of the backend.
//!
//! **The log.** A write-ahead log of batches with dense sequence numbers. An append names the number that it
//! expects to be next. When it returns, the batch is durable, or another writer has the number, or the append
//! failed. Batches below the floor are dropped; the floor never decreases. A batch is written only after its
//! predecessor is durable, so only the last batch can be torn.
//!
//! **Blobs.** Written once as a stream, atomically, never changed, read in ranges.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// The sequence number of a batch in its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The following sequence number.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// The log sequence number of a record. Batches carry a range of them; the store gives them no further
/// meaning. (This crate depends on no other, so it has its own type for the kernel's `Lsn`.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The LSNs of the records in a batch, inclusive. Part of the frame header, so that a torn batch can be
/// reported with its LSNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LsnRange {
    /// The first record's LSN.
    pub first: Lsn,
    /// The last record's LSN.
    pub last: Lsn,
}

impl LsnRange {
    /// The range from `first` to `last`, both included.
    pub fn new(first: u64, last: u64) -> LsnRange {
        LsnRange { first: Lsn(first), last: Lsn(last) }
    }

    /// Whether `lsn` is in the range.
    pub fn contains(self, lsn: Lsn) -> bool {
        (self.first..=self.last).contains(&lsn)
    }
}

/// The largest payload that a log accepts in an append, in bytes. Logs may contain larger batches of earlier versions.
pub const BATCH_MAX: usize = 2 << 20;

/// The unit of append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The batch's sequence number.
    pub seq: Seq,
    /// The LSNs of its records.
    pub lsns: LsnRange,
    /// The encoded records.
    pub payload: Vec<u8>,
}

/// The readable range of a log: from `floor`, up to but not including `next`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The lowest sequence number that can be read.
    pub floor: Seq,
    /// The sequence number of the next append.
    pub next: Seq,
}

/// The capacity for appends that allocate neither disk space nor descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCapacity {
    /// The largest payload that certainly fits now: an append of 1 to `bytes` bytes never fails for lack of
    /// space, a larger one may. At 0 not even an empty batch is certain to fit.
    pub bytes: u64,
    /// A whole spare segment is preallocated.
    pub spare: bool,
}

/// A contiguous part of a log, the unit of truncation: freed as a whole once the floor has passed all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first batch in the extent.
    pub first: Seq,
    /// Its size in the store.
    pub bytes: u64,
}

/// Work that a log leaves to another thread, such as the preallocation of its next segment.
pub type Preparation = Box<dyn FnOnce() -> Result<(), StoreError> + Send>;

/// An ordered log of batches, with one writer.
pub trait LogStore: Send {
    /// The readable range.
    fn bounds(&self) -> Bounds;

    /// Makes a batch durable at `seq`.
    ///
    /// If it fails with [`ErrorKind::Taken`], [`ErrorKind::TooLarge`] or [`ErrorKind::NoSpace`], nothing was
    /// written. After any other error the batch may or may not be durable, and the log accepts no further
    /// appends.
    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError>;

    /// Whether an append never blocks on a device or another machine. If so, a submitting thread may append.
    fn is_instant(&self) -> bool {
        false
    }

    /// Whether an append is a request to another machine, which takes as long for a large batch as for a small one.
    /// Batches are then limited by their bytes, and not by the number of their commands.
    fn is_remote(&self) -> bool {
        false
    }

    /// Ensures that the next append fits, of any size up to the maximum. Returns at once while there is capacity,
    /// and otherwise preallocates a spare segment.
    ///
    /// After success, the next append allocates neither disk space nor descriptors: it only writes, renames
    /// and syncs files that are already open. ([`ErrorKind::TooLarge`] still applies.)
    ///
    /// Fails with [`ErrorKind::NoSpace`] and no side effects; may be retried at any time. Until it succeeds,
    /// appends continue within [`LogStore::capacity`].
    fn reserve(&mut self) -> Result<(), StoreError>;

    /// Work to be done on another thread, so that a later [`LogStore::reserve`] returns at once; `None` if there is none
    /// to do, or it is being done. Its failure has no side effects and may be ignored: `reserve` then does the work.
    fn preparation(&mut self) -> Option<Preparation> {
        None
    }

    /// How much can be appended without another [`LogStore::reserve`].
    fn capacity(&self) -> LogCapacity;

    /// Truncates the log: batches below `floor` can no longer be read, and extents entirely below it are
    /// freed: on disk by a later call, if a backup reads the store.
    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError>;

    /// The log's extents, oldest first. A floor at the first batch of an extent frees all extents before it.
    fn extents(&self) -> Vec<Extent>;

    /// Confirms ownership: succeeds only if this writer still owned the log at some moment after the call
    /// began. A snapshot read may then be returned even though nothing was appended. Backends with exclusive
    /// access always succeed.
    fn confirm(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether another writer may have appended since the log was last read: a cheap check, which may miss a log that was
    /// truncated past its known end. Always false for logs with exclusive access.
    fn has_grown(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Reads what other writers have appended, for a process that does not own the log. Returns the new bounds.
    ///
    /// [`ErrorKind::Gone`] if the log was truncated past its known end: reopen it.
    fn catch_up(&mut self) -> Result<Bounds, StoreError> {
        Ok(self.bounds())
    }

    /// Records that the log is complete, after the last append of a clean stop. At the next opening, a log without its
    /// last batch is then known to be damaged, and not torn by a crash.
    fn mark_clean_stop(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether the log was complete when it was opened: it was new, or its last writer has stopped cleanly.
    fn was_clean(&self) -> bool {
        true
    }

    /// A new independent reader, for another thread.
    fn reader(&self) -> Box<dyn LogReader>;
}

/// Reads batches concurrently with appends.
pub trait LogReader: Send {
    /// The batch at `seq`; [`ErrorKind::Gone`] if it was dropped, or is not durable yet. A reader uses the
    /// floor as of its creation: batches below a later floor may stay readable for a while.
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError>;

    /// The batch with the record at `lsn`; [`ErrorKind::Gone`] if no batch in the log contains it.
    fn read_lsn(&mut self, lsn: Lsn) -> Result<Batch, StoreError>;

    /// Reads a part of the payload of the batch with the record at `lsn`, **unverified**: fewer bytes, or others, if the
    /// batch is damaged or `offset` is wrong. For a caller that knows a hash of them. `None` if the backend reads whole batches
    /// only, and verifies them.
    fn read_part(&mut self, lsn: Lsn, offset: usize, length: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let _ = (lsn, offset, length);
        Ok(None)
    }
}

/// Immutable blobs by name.
pub trait BlobStore: Send + Sync {
    /// Begins a blob. It stays invisible until it is finished.
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError>;

    /// The most bytes that one writer has in memory, beside those of the call in progress.
    fn writer_memory(&self) -> usize {
        0
    }

    /// The length of a blob in bytes.
    fn len(&self, name: &BlobName) -> Result<u64, StoreError>;

    /// Reads at most `length` bytes from `offset`; fewer only at the end.
    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError>;

    /// Prepares to read a range of a blob from its beginning to its end; `None` if the backend has no better way to do that than
    /// [`BlobStore::read`].
    fn open_range(&self, name: &BlobName, range: Range<u64>) -> Option<Box<dyn BlobReader>> {
        let _ = (name, range);
        None
    }

    /// Drops a durable blob from the caches of this machine, so that the next reads come from the device. Best
    /// effort; backends without such a cache do nothing.
    fn evict(&self, name: &BlobName) {
        let _ = name;
    }

    /// Deletes a blob; succeeds if there is none. On disk it is postponed while a backup reads the store: a later
    /// garbage collection has to delete it.
    fn delete(&self, name: &BlobName) -> Result<(), StoreError>;

    /// Removes what writers that have ended since left unfinished, a day ago or earlier, where the backend does not do that
    /// by itself. Returns the number of blobs.
    fn abort_old_uploads(&self) -> Result<usize, StoreError> {
        Ok(0)
    }

    /// The names with this prefix, sorted.
    fn list(&self, prefix: &str) -> Result<Vec<BlobName>, StoreError>;
}

/// A range of a blob that is read from its beginning to its end.
pub trait BlobReader: Send {
    /// The next bytes, at most `length`; fewer only at the end.
    fn read(&mut self, length: usize) -> Result<Vec<u8>, StoreError>;
}

/// A blob being written. Dropped before it is finished, it leaves nothing behind.
pub trait BlobWriter: Send {
    /// Appends bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes the blob durable under its name, and returns its length in bytes. [`ErrorKind::Taken`] if the
    /// name is in use: blobs are written once.
    fn finish(self: Box<Self>) -> Result<u64, StoreError>;
}

/// The name of a blob: up to 200 characters of `a-z`, `0-9`, `-`, `.` and `/`, in non-empty parts that do not
/// begin with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName(String);

impl BlobName {
    /// `None` if the name is not valid.
    pub fn new(name: &str) -> Option<BlobName> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'/');
        let valid_parts = name.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
        (valid_parts && name.len() <= 200 && name.bytes().all(plain)).then(|| BlobName(name.to_string()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kinds of failure that callers handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Lost the race: another writer has this sequence number, or the blob name is in use.
    Taken,
    /// Disk or quota full, or no descriptors left. Nothing was changed.
    NoSpace,
    /// Exceeds the maximum size of a batch or blob.
    TooLarge,
    /// Below the floor, not durable yet, or no such blob.
    Gone,
    /// The bytes differ from what was written. Do not build on them.
    Damaged,
    /// Whether the batch was appended, or the log is still owned, is not known: append the same bytes again, or confirm
    /// again, until it is.
    Undecided,
    /// The store cannot be used like this: opened by another process, on a network filesystem, or in the
    /// wrong state for the call.
    Refused,
    /// Any other disk or network failure.
    Io,
}

/// A store failure.
#[derive(Debug)]
pub struct StoreError {
    /// For callers that handle failures differently.
    pub kind: ErrorKind,
    /// The message for people.
    pub what: String,
    /// The damaged bytes, if the kind is [`ErrorKind::Damaged`] and they are known.
    pub damage: Option<Box<Damage>>,
}

/// The position of bytes that differ from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The damaged file or object.
    pub file: PathBuf,
    /// The offset in bytes at which the damage begins.
    pub offset: u64,
    /// A description of the damage.
    pub what: &'static str,
}

impl StoreError {
    /// A failure with a message.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> StoreError {
        StoreError { kind, what: what.into(), damage: None }
    }

    /// An error from the operating system, with the operation that failed, and with what to do about a file that this
    /// process may not access.
    pub fn io(error: &io::Error, doing: impl fmt::Display) -> StoreError {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        let advice = if is_denied { "; run this as the user that owns the store" } else { "" };
        StoreError::new(kind_of(error), format!("{doing}: {error}{advice}"))
    }

    /// Appends `key=value` details to the message.
    #[must_use]
    pub(crate) fn with(self, details: impl fmt::Display) -> StoreError {
        StoreError { what: format!("{}: {details}", self.what), ..self }
    }
}

impl From<Damage> for StoreError {
    fn from(damage: Damage) -> StoreError {
        let Damage { file, offset, what } = &damage;
        let is_segment = file.extension().is_some_and(|extension| extension == "seg");
        let cut = match (is_segment, offset) {
            (false, _) => "",
            // A segment that is damaged as a whole: the oldest one cannot be cut off.
            (true, 0) => ", or see with `lockd store check` whether the log can be cut there",
            (true, _) => ", or cut the log there with `lockd store cut`",
        };
        let advice = "restore the store from a backup with `lockd restore`";
        let place = format_args!("file={} offset={offset}", file.display());
        let what = format!("{what}; {advice}{cut}; do not delete the file: {place}");
        StoreError { kind: ErrorKind::Damaged, what, damage: Some(Box::new(damage)) }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for StoreError {}

fn kind_of(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            ErrorKind::NoSpace
        }
        io::ErrorKind::NotFound => ErrorKind::Gone,
        io::ErrorKind::AlreadyExists => ErrorKind::Taken,
        _ if matches!(error.raw_os_error(), Some(TOO_MANY_OPEN_FILES | TOO_MANY_OPEN_FILES_IN_SYSTEM)) => {
            ErrorKind::NoSpace
        }
        _ => ErrorKind::Io,
    }
}

const TOO_MANY_OPEN_FILES: i32 = 24;
const TOO_MANY_OPEN_FILES_IN_SYSTEM: i32 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_names_cannot_escape_their_directory() {
        for good in ["a", "doc/7-12", "snapshot/0/00ff.bin"] {
            assert!(BlobName::new(good).is_some(), "{good}");
        }
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "A", "a b", "ä", &"x".repeat(201)] {
            assert!(BlobName::new(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn full_disks_quotas_and_descriptor_tables_are_no_space() {
        for code in [28, 122, 24, 23] {
            let error = StoreError::io(&io::Error::from_raw_os_error(code), "writing");
            assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
        }
        assert_eq!(StoreError::io(&io::Error::from_raw_os_error(5), "writing").kind, ErrorKind::Io);
    }
}
