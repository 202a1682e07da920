//! A kernel's whole state as a stream of bytes, and back.
//!
//! **Invariant.** Every byte is under a checksum, and everything has one spelling: what is read is what was
//! written, and would be written again as the same bytes. Neither side holds more of the stream than a few
//! chunks at a time.
//!
//! **What would break it.** To believe the bytes: a state that was read from a damaged snapshot would be
//! built on for ever, and the log that could have told otherwise is gone by then. So chunks are chained by
//! their checksums, the end says how many entries of each kind there were, nothing may follow it, and names,
//! counts and the order of entries are checked as if somebody had made them up.
//!
//! All numbers of the fixed parts are little-endian. First a header:
//!
//! ```text
//!  0  8  magic "lockdsnp"
//!  8  4  format version, 1
//! 12  4  shard
//! 16  4  number of shards, 0 before the log was first opened
//! 20  8  hash seed
//! 28  8  number of the first batch that is not in it
//! 36  8  last LSN in it
//! 44  8  kernel time of that record
//! 52  8  state hash after that record
//! 60  8  version floor of the shard
//! 68  4  CRC32C of the 68 bytes before
//! 72     chunks, one after the other
//! ```
//!
//! A chunk is a number of whole entries:
//!
//! ```text
//!  0  4  CRC32C of everything from here to the end of the payload
//!  4  4  checksum of the chunk before it, or of the header
//!  8  4  length of the payload
//! 12     payload: entries, one after the other
//! ```
//!
//! An entry is a tag, then its fields in the order in which `encode.rs` writes them, by the rules of
//! [records](crate::record). Entries come kind by kind, and within a kind in the kernel's canonical order.
//! The last one is the end, with the number of entries of each kind.

mod chunk;
mod decode;
mod encode;
#[cfg(test)]
mod tests;

use std::fmt;

use kernel::{Lsn, Shard, Snapshot, Store, Time, Version};
use store::{Seq, StoreError};

use crate::record::DecodeError;

/// The format that this build writes.
pub const SNAPSHOT_VERSION: u32 = 1;
/// How many bytes are asked for at a time when a snapshot is read.
pub const RANGE_BYTES: usize = 1 << 20;
/// No piece that is written is longer: a chunk is closed once it has 64 KiB, and no entry is longer than
/// 80 KiB.
pub const PIECE_MAX: usize = chunk::HEADER + chunk::PAYLOAD_MAX;

/// Where the bytes go, piece by piece: a [`store::BlobWriter`], mostly.
pub type Output<'a> = dyn FnMut(&[u8]) -> Result<(), StoreError> + 'a;
/// Where they come from: at most so many bytes from an offset on, none only at the end. A range of a blob,
/// mostly.
pub type Input<'a> = dyn FnMut(u64, usize) -> Result<Vec<u8>, StoreError> + 'a;

/// Why there is no snapshot.
#[derive(Debug)]
pub enum SnapshotError {
    /// The store cannot read it.
    Store(StoreError),
    /// The bytes are not those of a snapshot, or of one that this build does not know.
    Damaged {
        /// Where.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Store(error) => error.fmt(f),
            SnapshotError::Damaged { offset, what } => write!(
                f,
                "a snapshot cannot be read: {what}; take an older one, or a stand-by's copy: offset={offset}"
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

/// Writes a snapshot that holds all batches before `next`, and says how many bytes it has.
pub fn write(snapshot: &Snapshot, next: Seq, out: &mut Output<'_>) -> Result<u64, StoreError> {
    let header = Header {
        store: store_of(snapshot),
        next,
        last: snapshot.last,
        now: snapshot.now,
        state_hash: snapshot.state_hash,
        floor: snapshot.floor,
    };
    let mut chunks = chunk::ChunkWriter::begin(&header.encode(), out)?;
    encode::entries(snapshot, &mut chunks)?;
    chunks.finish()
}

/// Reads a snapshot, and the number of the first batch that is not in it.
///
/// What it says is well formed; whether a kernel can have been in that state is for
/// [`kernel::Kernel::restore`] to say.
pub fn read(input: &mut Input<'_>) -> Result<(Snapshot, Seq), SnapshotError> {
    let mut chunks = chunk::ChunkReader::new(input);
    let header = Header::decode(&chunks.begin()?)?;
    let snapshot = decode::entries(&header, &mut chunks)?;
    chunks.end()?;
    Ok((snapshot, header.next))
}

/// The same in every `open` of a log; nothing before the first.
fn store_of(snapshot: &Snapshot) -> Store {
    snapshot.tenure.as_ref().map(|tenure| tenure.open.store).unwrap_or_default()
}

const MAGIC: &[u8; 8] = b"lockdsnp";

/// What there is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    store: Store,
    next: Seq,
    last: Lsn,
    now: Time,
    state_hash: u64,
    floor: Version,
}

impl Header {
    const BYTES: usize = 72;

    fn encode(&self) -> [u8; Header::BYTES] {
        let mut bytes = [0; Header::BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.store.shard.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.store.shards.to_le_bytes());
        let words =
            [self.store.hash_seed, self.next.0, self.last.0, self.now.0, self.state_hash, self.floor.0];
        for (place, word) in bytes[20..68].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes[..68]);
        bytes[68..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; Header::BYTES]) -> Result<Header, SnapshotError> {
        if &bytes[..8] != MAGIC {
            return damaged(0, "it does not begin like a snapshot");
        }
        if u32_at(bytes, 68) != crc32c::crc32c(&bytes[..68]) {
            return damaged(0, "the header does not match its checksum");
        }
        let version = u32_at(bytes, 8);
        if version != SNAPSHOT_VERSION {
            return damaged(8, format!("format version {version} is not known to this build"));
        }
        let (shard, shards) = (Shard(u32_at(bytes, 12)), u32_at(bytes, 16));
        Ok(Header {
            store: Store { shard, shards, hash_seed: u64_at(bytes, 20) },
            next: Seq(u64_at(bytes, 28)),
            last: Lsn(u64_at(bytes, 36)),
            now: Time(u64_at(bytes, 44)),
            state_hash: u64_at(bytes, 52),
            floor: Version(u64_at(bytes, 60)),
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
