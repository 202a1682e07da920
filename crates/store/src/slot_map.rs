//! The map from slots to shards.
//!
//! **Invariant.** A map never changes: a store that moves a slot gets a new map with a higher number. The log that owns
//! a slot decides; the map only says where to ask first.
//!
//! The encoding, little-endian:
//!
//! ```text
//!    0  8  magic "lockdmap"
//!    8  4  format version, 1
//!   12  4  number of shards
//!   16     the shard of each slot, two bytes each
//! 8208  4  CRC32C of the preceding bytes
//! ```

/// The shard of every slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap {
    shards: u32,
    /// One for each slot.
    shard_of: Vec<u16>,
}

const MAGIC: &[u8; 8] = b"lockdmap";
const VERSION: u32 = 1;
const HEADER: usize = 16;
const BYTES: usize = HEADER + 2 * SlotMap::SLOTS + 4;

impl SlotMap {
    /// The number of slots.
    pub const SLOTS: usize = 4096;
    /// The maximum number of shards: each has at least one slot.
    pub const SHARDS_MAX: u32 = 4096;

    /// The map of a new store: each shard has a range of slots. `None` if there are no shards, or more than slots.
    pub fn ranges(shards: u32) -> Option<SlotMap> {
        SlotMap::new(shards, |slot| slot * shards / u32::try_from(SlotMap::SLOTS).expect("a small number"))
    }

    /// The map of a store of format 1, which had no slots: the hash of a namespace modulo the number of shards was its
    /// shard. `None` if that does not follow from the slot: the number of slots must be a multiple of that of shards.
    pub fn of_format_1(shards: u32) -> Option<SlotMap> {
        let divides = u32::try_from(SlotMap::SLOTS).is_ok_and(|slots| shards > 0 && slots % shards == 0);
        let shard_of = |slot| if planted!(ConvertedToRanges) { slot * shards / 4096 } else { slot % shards };
        SlotMap::new(shards, shard_of).filter(|_| divides)
    }

    fn new(shards: u32, shard_of: impl Fn(u32) -> u32) -> Option<SlotMap> {
        if !(1..=SlotMap::SHARDS_MAX).contains(&shards) {
            return None;
        }
        let shard = |slot| u16::try_from(shard_of(slot)).expect("below the number of shards");
        Some(SlotMap { shards, shard_of: (0..4096).map(shard).collect() })
    }

    /// The number of shards.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The shard of a slot.
    pub fn shard(&self, slot: usize) -> u32 {
        u32::from(self.shard_of[slot])
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.shards.to_le_bytes());
        self.shard_of.iter().for_each(|shard| bytes.extend_from_slice(&shard.to_le_bytes()));
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a map; the error describes the damage.
    pub(crate) fn decode(bytes: &[u8]) -> Result<SlotMap, &'static str> {
        let (rest, crc) = bytes.split_at_checked(bytes.len().wrapping_sub(4)).ok_or("not a map of slots")?;
        if !rest.starts_with(MAGIC) || rest.len() < HEADER {
            return Err("not a map of slots");
        }
        if crc != crc32c::crc32c(rest).to_le_bytes() {
            return Err("the map of slots does not match its checksum");
        }
        if rest[8..12] != VERSION.to_le_bytes() {
            return Err("a map of slots of a format that this build does not support");
        }
        let shards = u32::from_le_bytes(rest[12..HEADER].try_into().expect("four bytes"));
        let shard_of: Vec<u16> =
            rest[HEADER..].chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        if bytes.len() != BYTES || shard_of.iter().any(|shard| u32::from(*shard) >= shards) {
            return Err("a map of slots to shards that do not exist");
        }
        Ok(SlotMap { shards, shard_of })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_store_gives_each_shard_a_range_of_slots() {
        let map = SlotMap::ranges(3).expect("three shards");
        let shards: Vec<u32> = [0, 1365, 1366, 2730, 2731, 4095].map(|slot| map.shard(slot)).to_vec();
        assert_eq!(shards, [0, 0, 1, 1, 2, 2]);
        assert_eq!((SlotMap::ranges(0), SlotMap::ranges(4097)), (None, None));
        assert!(
            SlotMap::ranges(4096).is_some_and(|map| (0..4096).all(|slot| map.shard(slot) as usize == slot))
        );
    }

    #[test]
    fn a_converted_store_keeps_the_shard_of_every_hash() {
        for shards in [1, 2, 4, 64] {
            let map = SlotMap::of_format_1(shards).expect("it divides the number of slots");
            for hash in [0, 1, 4095, 4096, 1 << 40, u64::MAX, 0x1234_5678_9abc_def0] {
                let slot = usize::try_from(hash % 4096).expect("small");
                assert_eq!(u64::from(map.shard(slot)), hash % u64::from(shards), "{shards} {hash}");
            }
        }
        assert_eq!(SlotMap::of_format_1(3), None);
        assert_eq!(SlotMap::of_format_1(0), None);
    }

    /// These bytes are on users' disks. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_bytes_of_a_map() {
        let map = SlotMap::ranges(4).expect("four shards");
        let bytes = map.encode();
        assert_eq!(bytes.len(), 8212);
        assert_eq!(&bytes[..18], b"lockdmap\x01\0\0\0\x04\0\0\0\0\0");
        assert_eq!(bytes[16 + 2 * 4095..16 + 2 * 4096], [3, 0]);
        assert_eq!(bytes[8208..], [107, 77, 177, 54]);
        assert_eq!(SlotMap::decode(&bytes), Ok(map));
        for (at, value) in [(0, b'x'), (8, 2), (12, 3), (5000, 9)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            assert!(SlotMap::decode(&damaged).is_err(), "{at}");
            let crc = crc32c::crc32c(&damaged[..8208]);
            damaged[8208..].copy_from_slice(&crc.to_le_bytes());
            assert!(SlotMap::decode(&damaged).is_err(), "{at}, with a right checksum");
        }
        assert!(SlotMap::decode(&[]).is_err() && SlotMap::decode(&bytes[..100]).is_err());
    }
}
