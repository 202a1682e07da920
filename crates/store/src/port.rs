//! What a store does, whatever it is made of.
//!
//! **The log.** Batches at dense numbers. An append names the number that it expects to be next, and is
//! either durable when it returns, or somebody else's, or failed. Batches below the floor are gone;
//! the floor never sinks. A batch is written only when its predecessor is durable, so only the last
//! one can ever be torn.
//!
//! **Blobs.** Written once as a stream, whole or not at all, never changed, read in ranges.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The number of a batch in its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// The first and the last LSN in a batch: kept beside it, so that a torn one can be named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lsns {
    /// Of the first record.
    pub first: u64,
    /// Of the last record.
    pub last: u64,
}

impl Lsns {
    /// Is it among them?
    pub fn holds(self, lsn: u64) -> bool {
        (self.first..=self.last).contains(&lsn)
    }
}

/// One append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its number.
    pub seq: Seq,
    /// What is in it.
    pub lsns: Lsns,
    /// The bytes.
    pub payload: Vec<u8>,
}

/// What a log holds: from `floor`, up to but not including `next`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The lowest number that can be read.
    pub floor: Seq,
    /// The number of the next append.
    pub next: Seq,
}

/// What can be appended without asking anybody for space or descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The largest payload that fits now: an append of one byte up to so many never fails for space, one of
    /// more may. At 0 nothing is sure to fit, not even a batch without bytes.
    pub bytes: u64,
    /// A whole further segment is ready besides.
    pub spare: bool,
}

/// A piece of a log: its room is given back as a whole, when the floor has passed all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first batch in it.
    pub first: Seq,
    /// What it takes up.
    pub bytes: u64,
}

/// An ordered log of batches, with one writer.
pub trait LogStore: Send {
    /// What the log holds.
    fn bounds(&self) -> Bounds;

    /// Makes a batch durable at `seq`.
    ///
    /// An error of kind [`ErrorKind::Taken`], [`ErrorKind::TooLarge`] or [`ErrorKind::NoSpace`] has written
    /// nothing. After any other nobody knows whether the batch is there: the log takes no further appends.
    fn append(&mut self, seq: Seq, lsns: Lsns, payload: &[u8]) -> Result<(), StoreError>;

    /// Does an append wait for nobody, no device and no other machine? Then whoever has a command may do it.
    fn is_instant(&self) -> bool {
        false
    }

    /// Preallocates a spare segment, so that the next append fits whatever its size.
    ///
    /// After success, the next append allocates neither disk space nor descriptors: it only writes, renames
    /// and syncs files that are already open. ([`ErrorKind::TooLarge`] still applies.)
    ///
    /// Fails with [`ErrorKind::NoSpace`] and no side effects; may be retried at any time. Until it succeeds,
    /// appends continue within [`LogStore::room`].
    fn reserve(&mut self) -> Result<(), StoreError>;

    /// What can be appended without another [`LogStore::reserve`].
    fn room(&self) -> Room;

    /// Drops what is below `floor`, in so far as it can be dropped; nothing below it can be read again.
    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError>;

    /// The pieces that the log is kept in, oldest first. A floor at the first batch of one makes all pieces
    /// before it go.
    fn extents(&self) -> Vec<Extent>;

    /// Returns once it is certain that the log was still this writer's at some moment after the call began: then
    /// what is known of it may be told, though nothing was appended. Where nobody else can take the log, that
    /// is certain.
    fn confirm(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// A reader of its own, for another thread.
    fn reader(&self) -> Box<dyn LogReader>;
}

/// Reads a log's batches while others are appended.
pub trait LogReader: Send {
    /// The batch at `seq`; [`ErrorKind::Gone`] if it was dropped, or is not durable yet. A reader knows the
    /// floor of when it was made: what is below a later one may still be there for a while.
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError>;

    /// The batch that holds the record at this LSN; [`ErrorKind::Gone`] if none does, any more or yet.
    fn holding(&mut self, lsn: u64) -> Result<Batch, StoreError>;
}

/// Immutable blobs by name.
pub trait BlobStore: Send + Sync {
    /// Begins a blob. Nothing can be seen of it until it is finished.
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError>;

    /// How long a blob is.
    fn len(&self, name: &BlobName) -> Result<u64, StoreError>;

    /// Reads at most `length` bytes from `offset` on; fewer only at the end.
    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError>;

    /// Removes a blob; it is fine if there is none.
    fn delete(&self, name: &BlobName) -> Result<(), StoreError>;

    /// The names that begin with `prefix`, in order.
    fn list(&self, prefix: &str) -> Result<Vec<BlobName>, StoreError>;
}

/// A blob under way. Dropped before it is finished, it leaves nothing behind.
pub trait BlobWriter: Send {
    /// The next bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes the blob durable under its name, and says how long it is. [`ErrorKind::Taken`] if the name
    /// is in use: blobs are written once.
    fn finish(self: Box<Self>) -> Result<u64, StoreError>;
}

/// The name of a blob: up to 200 of `a-z`, `0-9`, `-`, `.` and `/`, in parts that are not empty and do not
/// begin with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName(String);

impl BlobName {
    /// `None` if it is no name.
    pub fn new(name: &str) -> Option<BlobName> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'/');
        let parts = name.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
        (parts && name.len() <= 200 && name.bytes().all(plain)).then(|| BlobName(name.to_string()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What went wrong, as far as callers act differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Somebody else was first: another writer has this number, or this name.
    Taken,
    /// There is no room: disk or quota full, or no descriptors left. Nothing was harmed.
    NoSpace,
    /// Larger than one batch may be.
    TooLarge,
    /// Below the floor, or no such blob.
    Gone,
    /// The bytes are not what was written. Nothing may be built on them.
    Damaged,
    /// Another process has the store, or it is no place for one.
    Refused,
    /// Anything else that a disk or a network can do.
    Io,
}

/// A failure of a store.
#[derive(Debug)]
pub struct StoreError {
    /// What callers look at.
    pub kind: ErrorKind,
    /// What people read.
    pub what: String,
}

/// Where bytes are not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// From where on.
    pub offset: u64,
    /// What is wrong there.
    pub what: &'static str,
}

impl StoreError {
    /// A failure of a kind, in words.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> StoreError {
        StoreError { kind, what: what.into() }
    }

    /// What the operating system said, and what was being done.
    pub fn io(error: &io::Error, doing: impl fmt::Display) -> StoreError {
        StoreError::new(kind_of(error), format!("{doing}: {error}"))
    }
}

impl From<Damage> for StoreError {
    fn from(damage: Damage) -> StoreError {
        let Damage { file, offset, what } = damage;
        let advice = "restore the store from a backup, or a stand-by's copy; do not delete the file";
        StoreError::new(
            ErrorKind::Damaged,
            format!("{what}; {advice}: file={} offset={offset}", file.display()),
        )
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
    fn blob_names_are_plain_and_stay_inside() {
        for good in ["a", "doc/7-12", "snapshot/0/00ff.bin"] {
            assert!(BlobName::new(good).is_some(), "{good}");
        }
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "A", "a b", "ä", &"x".repeat(201)] {
            assert!(BlobName::new(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn what_a_full_disk_says_is_no_space() {
        for code in [28, 122, 24, 23] {
            let error = StoreError::io(&io::Error::from_raw_os_error(code), "writing");
            assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
        }
        assert_eq!(StoreError::io(&io::Error::from_raw_os_error(5), "writing").kind, ErrorKind::Io);
    }
}
