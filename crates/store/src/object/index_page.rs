//! Index objects: the metadata of many batches in one object, so that opening a long log does not read each batch.
//! All integers are little-endian.
//!
//! ```text
//!  0  8  magic "lockdidx"
//!  8  4  format version, 1
//! 12  4  shard
//! 16 16  store id
//! 32  8  sequence number of the first batch
//! 40  4  number of batches
//! 44  4  checksum of the batch before the first
//! 48     for each batch, 44 bytes:
//!           0 16  id of the writer
//!          16  8  LSN of the first record
//!          24  8  LSN of the last record
//!          32  4  checksum of the frame
//!          36  4  length of the object
//!          40  4  1 if the batch begins its writer's tenure, else 0
//!  …  4  CRC32C of all preceding bytes
//! ```
//!
//! **Invariant.** An index object describes batches that are in the log, and a batch that is in the log never changes. So
//! every writer that creates it gives it the same contents, and it stays true for ever, also if its creator is deposed.
//!
//! **What would break it.** Creating it before all of its batches are this writer's: another writer may have one of the
//! numbers. Relying on it: it is derived data, and a log without any is scanned batch by batch.

use super::format::WriterId;
use super::index::Entry;
use crate::port::{LsnRange, Seq};

const MAGIC: &[u8; 8] = b"lockdidx";
const VERSION: u32 = 1;
const HEADER: usize = 48;
const ENTRY: usize = 44;

/// The largest index object that is read, in bytes.
pub(super) const INDEX_PAGE_MAX: usize = 1 << 20;

/// The metadata of consecutive batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexPage {
    pub(super) shard: u32,
    pub(super) store_id: u128,
    pub(super) first: Seq,
    /// The checksum of the batch before the first.
    pub(super) chain: u32,
    pub(super) entries: Vec<Entry>,
}

impl IndexPage {
    /// The maximum number of batches of a page.
    pub(super) const BATCHES_MAX: u64 = ((INDEX_PAGE_MAX - HEADER - 4) / ENTRY) as u64;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.entries.len() * ENTRY + 4);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.shard.to_le_bytes());
        bytes.extend_from_slice(&self.store_id.to_le_bytes());
        bytes.extend_from_slice(&self.first.0.to_le_bytes());
        bytes.extend_from_slice(&to_u32(self.entries.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&self.chain.to_le_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.writer.0.to_le_bytes());
            bytes.extend_from_slice(&entry.lsns.first.0.to_le_bytes());
            bytes.extend_from_slice(&entry.lsns.last.0.to_le_bytes());
            bytes.extend_from_slice(&entry.crc.to_le_bytes());
            bytes.extend_from_slice(&to_u32(entry.bytes).to_le_bytes());
            bytes.extend_from_slice(&u32::from(entry.begins_tenure).to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are damaged, or of a version that this build does not know.
    pub(super) fn decode(bytes: &[u8]) -> Option<IndexPage> {
        let (rest, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        let is_sound = rest.starts_with(MAGIC) && crc == crc32c::crc32c(rest).to_le_bytes();
        if !is_sound || rest.len() < HEADER || u32_at(rest, 8) != VERSION {
            return None;
        }
        let count = u32_at(rest, 40) as usize;
        if count.checked_mul(ENTRY) != Some(rest.len() - HEADER) {
            return None;
        }
        let chain = u32_at(rest, 44);
        let mut entries = Vec::with_capacity(count);
        let mut before = chain;
        for entry in rest[HEADER..].chunks_exact(ENTRY) {
            let entry = decode_entry(entry, before)?;
            before = entry.crc;
            entries.push(entry);
        }
        Some(IndexPage {
            shard: u32_at(rest, 12),
            store_id: u128_at(rest, 16),
            first: Seq(u64_at(rest, 32)),
            chain,
            entries,
        })
    }
}

fn decode_entry(bytes: &[u8], chain: u32) -> Option<Entry> {
    let begins_tenure = match u32_at(bytes, 40) {
        flag @ 0..=1 => flag == 1,
        _ => return None,
    };
    Some(Entry {
        writer: WriterId(u128_at(bytes, 0)),
        begins_tenure,
        lsns: LsnRange::new(u64_at(bytes, 16), u64_at(bytes, 24)),
        crc: u32_at(bytes, 32),
        chain,
        bytes: u64::from(u32_at(bytes, 36)),
    })
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).expect("an object of a batch is shorter than 4 GiB, and a page has few of them")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> IndexPage {
        let entry = |n: u32, begins_tenure| Entry {
            writer: WriterId(5 << 64 | u128::from(n)),
            begins_tenure,
            lsns: LsnRange::new(u64::from(n) * 10, u64::from(n) * 10 + 9),
            crc: 100 + n,
            chain: 99 + n,
            bytes: 96 + u64::from(n),
        };
        IndexPage {
            shard: 1,
            store_id: 2,
            first: Seq(3),
            chain: 99,
            entries: vec![entry(0, true), entry(1, false)],
        }
    }

    #[test]
    fn a_page_reads_back_as_it_was_written_and_every_bit_matters() {
        let bytes = page().encode();
        assert_eq!(IndexPage::decode(&bytes), Some(page()));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(IndexPage::decode(&flipped), None, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(IndexPage::decode(&bytes[..cut]), None, "cut at {cut}");
        }
    }

    /// Buckets contain these bytes. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_bytes_of_version_1() {
        let hex = page().encode().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        assert_eq!(hex, GOLDEN);
    }

    const GOLDEN: &str = "6c6f636b6469647801000000010000000200000000000000000000000000000003000000000000000200000063000000\
         000000000000000005000000000000000000000000000000090000000000000064000000600000000100000001000000\
         0000000005000000000000000a000000000000001300000000000000650000006100000000000000e1e59313";
}
