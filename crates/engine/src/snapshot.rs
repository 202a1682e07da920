//! The snapshot format: a kernel's whole state as a stream of bytes.
//!
//! **Invariant.** Checksums cover every byte, and the encoding is canonical: a snapshot that decodes would be
//! encoded as the same bytes. Neither the writer nor the reader buffers more than a few chunks.
//!
//! **What would break it.** Trusting the bytes: a state from a damaged snapshot would be used for ever, and
//! the log that could disprove it is deleted by then. So chunks are chained by their checksums, the end entry
//! has the number of entries of each kind, nothing may follow it, and names, counts and the order of entries
//! are validated like untrusted input.
//!
//! All integers of the fixed parts are little-endian. First a header:
//!
//! ```text
//!  0  8  magic "lockdsnp"
//!  8  4  format version, 2
//! 12  4  shard
//! 16  4  number of shards, 0 before the log was first opened
//! 20  8  hash seed
//! 28  8  sequence number of the first batch that is not included
//! 36  8  last LSN that is included
//! 44  8  kernel time of that record
//! 52  8  state hash after that record
//! 60  8  version floor of the shard
//! 68  4  1 if the clocks are known, else 0; all of them are 0 then
//! 72 16  boot identity of the writer of the last batch that is included
//! 88  8  its time since boot when it sealed that batch, in milliseconds
//! 96  8  its wall clock then, in milliseconds since 1970
//! 104 4  CRC32C of the preceding 104 bytes
//! 108    chunks back to back
//! ```
//!
//! A chunk consists of whole entries:
//!
//! ```text
//!  0  4  CRC32C of the rest of the chunk
//!  4  4  checksum of the previous chunk, or of the header
//!  8  4  length of the payload
//! 12     payload: entries back to back
//! ```
//!
//! An entry is a tag, then its fields in the order in which `encode.rs` writes them, encoded like the fields
//! of [records](crate::record). Entries are grouped by kind, and within a kind in the kernel's canonical
//! order. The last entry is the end, with the number of entries of each kind.
//!
//! [`legacy`] reads the header of format 1; the entries that differ there are decoded by their [`Format`].

mod chunk;
mod decode;
mod encode;
mod legacy;
#[cfg(test)]
mod tests;

use std::fmt;

use kernel::{ClockReading, Lsn, Shard, Snapshot, Span, Store, Time, Version};
use store::{Seq, StoreError};

use crate::record::DecodeError;
use crate::wire::Format;

/// The format version that this build writes.
pub const SNAPSHOT_VERSION: u32 = 2;
/// Bytes per read of a snapshot.
pub const RANGE_BYTES: usize = 1 << 20;
/// Maximum bytes per write of a snapshot: a chunk is closed at 64 KiB, and no entry is longer than 80 KiB.
pub const PIECE_MAX: usize = chunk::HEADER + chunk::PAYLOAD_MAX;

/// Receives the encoded bytes, piece by piece; usually [`store::BlobWriter::write`].
pub type Output<'a> = dyn FnMut(&[u8]) -> Result<(), StoreError> + 'a;
/// Reads from an offset at most the given number of bytes, none only at the end; usually
/// [`store::BlobStore::read`].
pub type Input<'a> = dyn FnMut(u64, usize) -> Result<Vec<u8>, StoreError> + 'a;

/// The reason why a snapshot cannot be read.
#[derive(Debug)]
pub enum SnapshotError {
    /// The store failed to read.
    Store(StoreError),
    /// The snapshot is damaged, or of a format that this build does not support.
    Damaged {
        /// The offset in bytes.
        offset: u64,
        /// A description of the damage.
        what: String,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Store(error) => error.fmt(f),
            SnapshotError::Damaged { offset, what } => write!(
                f,
                "the snapshot cannot be read: {what}; restore the store from a backup with `lockd restore`: \
                 offset={offset}"
            ),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<StoreError> for SnapshotError {
    fn from(error: StoreError) -> SnapshotError {
        SnapshotError::Store(error)
    }
}

impl From<DecodeError> for SnapshotError {
    fn from(error: DecodeError) -> SnapshotError {
        SnapshotError::Damaged { offset: error.offset as u64, what: error.what }
    }
}

fn damaged<T>(offset: u64, what: impl Into<String>) -> Result<T, SnapshotError> {
    Err(SnapshotError::Damaged { offset, what: what.into() })
}

/// Encodes a snapshot of all batches before `next`, and returns its length in bytes.
pub fn write(snapshot: &Snapshot, next: Seq, out: &mut Output<'_>) -> Result<u64, StoreError> {
    let header = Header {
        format: Format::Two,
        store: store_of(snapshot),
        next,
        last: snapshot.last,
        now: snapshot.now,
        clocks: snapshot.clocks,
        state_hash: snapshot.state_hash,
        floor: snapshot.floor,
    };
    let mut chunks = chunk::ChunkWriter::begin(&header.encode(), out)?;
    encode::entries(snapshot, &mut chunks)?;
    chunks.finish()
}

/// Decodes a snapshot, and the first batch that is not in it.
///
/// The result is well formed; [`kernel::Kernel::restore`] checks whether it is a valid kernel state.
pub fn read(input: &mut Input<'_>) -> Result<(Snapshot, Seq), SnapshotError> {
    let mut chunks = chunk::ChunkReader::new(input);
    let header = chunks.begin()?;
    let snapshot = decode::entries(&header, &mut chunks)?;
    chunks.end()?;
    Ok((snapshot, header.next))
}

/// The store's parameters, the same in every `open` of a log; the default before the first.
fn store_of(snapshot: &Snapshot) -> Store {
    snapshot.tenure.as_ref().map(|tenure| tenure.open.store).unwrap_or_default()
}

const MAGIC: &[u8; 8] = b"lockdsnp";

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    format: Format,
    store: Store,
    next: Seq,
    last: Lsn,
    now: Time,
    clocks: Option<ClockReading>,
    state_hash: u64,
    floor: Version,
}

impl Header {
    const BYTES: usize = 108;
    /// Magic and version, and at least as much as a header of any version has.
    const PREFIX: usize = legacy::HEADER_BYTES;

    /// The length of the header that begins like this.
    fn length(bytes: &[u8]) -> Result<usize, SnapshotError> {
        if !bytes.starts_with(MAGIC) {
            return damaged(0, "not a snapshot");
        }
        match u32_at(bytes, 8) {
            legacy::SNAPSHOT_VERSION => Ok(legacy::HEADER_BYTES),
            SNAPSHOT_VERSION => Ok(Header::BYTES),
            version => damaged(8, format!("snapshot format not supported by this build: version={version}")),
        }
    }

    fn encode(&self) -> [u8; Header::BYTES] {
        let mut bytes = [0; Header::BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.store.shard.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.store.shards.to_le_bytes());
        let words =
            [self.store.hash_seed, self.next.0, self.last.0, self.now.0, self.state_hash, self.floor.0];
        for (field, word) in bytes[20..68].chunks_exact_mut(8).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        let clocks = self.clocks.unwrap_or_default();
        bytes[68..72].copy_from_slice(&u32::from(self.clocks.is_some()).to_le_bytes());
        bytes[72..88].copy_from_slice(&clocks.boot.to_le_bytes());
        bytes[88..96].copy_from_slice(&clocks.boot_clock.0.to_le_bytes());
        bytes[96..104].copy_from_slice(&clocks.unix_ms.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..104]);
        bytes[104..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header of the length that [`Header::length`] returned.
    fn decode(bytes: &[u8]) -> Result<Header, SnapshotError> {
        let (rest, crc) = bytes.split_at(bytes.len() - 4);
        if u32_at(crc, 0) != crc32c::crc32c(rest) {
            return damaged(0, "the header does not match its checksum");
        }
        let shard = Shard(u32_at(bytes, 12));
        let is_legacy = bytes.len() == legacy::HEADER_BYTES;
        Ok(Header {
            format: if is_legacy { Format::One(shard) } else { Format::Two },
            store: Store { shard, shards: u32_at(bytes, 16), hash_seed: u64_at(bytes, 20) },
            next: Seq(u64_at(bytes, 28)),
            last: Lsn(u64_at(bytes, 36)),
            now: Time(u64_at(bytes, 44)),
            clocks: if is_legacy { None } else { decode_clocks(bytes)? },
            state_hash: u64_at(bytes, 52),
            floor: Version(u64_at(bytes, 60)),
        })
    }
}

fn decode_clocks(bytes: &[u8]) -> Result<Option<ClockReading>, SnapshotError> {
    let clocks = ClockReading {
        boot: u128::from_le_bytes(bytes[72..88].try_into().expect("sixteen bytes")),
        boot_clock: Span(u64_at(bytes, 88)),
        unix_ms: u64_at(bytes, 96),
    };
    match u32_at(bytes, 68) {
        0 if clocks == ClockReading::default() => Ok(None),
        1 => Ok(Some(clocks)),
        other => damaged(68, format!("clocks are neither known nor unknown: flag={other}")),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
