//! The file or object `store`: the parameters that are fixed when a store is created.
//!
//! ```text
//!  0  8  magic "lockdsto"
//!  8  4  version of this file, 2
//! 12  4  number of shards
//! 16 16  store id
//! 32  4  format of logs and snapshots, 2
//! 36 32  BLAKE3 of the preceding 36 bytes, keyed with the store key
//! 68  4  CRC32C of the preceding 68 bytes
//! ```
//!
//! Version 1 had no format and no MAC: 36 bytes, the last four of them the CRC32C of the rest.

use std::path::PathBuf;

use crate::port::{Damage, ErrorKind, StoreError};
use crate::slot_map::SlotMap;

/// The parameters that are fixed when a store is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFile {
    /// Unique to this store.
    pub store_id: u128,
    /// The number of shards; each has one log.
    pub shards: u32,
}

/// The key of a store: shared by all its servers.
pub type Key = [u8; 32];

/// A decoded file `store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredFile {
    /// Of format 1: to be converted.
    Legacy(StoreFile),
    /// Of the present format, with its MAC.
    Current(StoreFile, [u8; 32]),
}

impl StoredFile {
    pub(crate) fn parameters(self) -> StoreFile {
        match self {
            StoredFile::Legacy(file) | StoredFile::Current(file, _) => file,
        }
    }
}

const MAGIC: &[u8; 8] = b"lockdsto";
const VERSION: u32 = 2;
const FORMAT: u32 = 2;
const SIGNED: usize = 36;
const BYTES: usize = 72;

/// Encodes the present version.
pub(crate) fn encode(file: StoreFile, key: &Key) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&file.shards.to_le_bytes());
    bytes.extend_from_slice(&file.store_id.to_le_bytes());
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    let mac = blake3::keyed_hash(key, &bytes);
    bytes.extend_from_slice(mac.as_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// A file `store` that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFileError {
    /// The bytes differ from what was written.
    Damaged(&'static str),
    /// Whole, and of a version that this build does not know: a newer build wrote it.
    Unsupported(u32),
}

impl StoreFileError {
    pub(crate) fn at(self, path: PathBuf) -> StoreError {
        let version = match self {
            StoreFileError::Damaged(what) => return Damage { file: path, offset: 0, what }.into(),
            StoreFileError::Unsupported(version) => version,
        };
        StoreError::new(
            ErrorKind::Refused,
            format!(
                "the store was written by a newer lockd, whose format this one does not know, and nothing was changed; \
                 start the newer version again, or restore a backup from before the upgrade with `lockd restore`: \
                 format={version} supported={VERSION} file={}",
                path.display()
            ),
        )
    }
}

/// Decodes any version; the error says what is wrong.
pub(crate) fn decode(bytes: &[u8]) -> Result<StoredFile, StoreFileError> {
    use StoreFileError::Damaged;
    let (rest, crc) =
        bytes.split_at_checked(bytes.len().wrapping_sub(4)).ok_or(Damaged("not a store file"))?;
    if !rest.starts_with(MAGIC) || rest.len() < 32 {
        return Err(Damaged("not a store file"));
    }
    if crc != crc32c::crc32c(rest).to_le_bytes() {
        return Err(Damaged("the store file does not match its checksum"));
    }
    let file = StoreFile {
        shards: u32::from_le_bytes(rest[12..16].try_into().expect("four bytes")),
        store_id: u128::from_le_bytes(rest[16..32].try_into().expect("sixteen bytes")),
    };
    if !(1..=SlotMap::SHARDS_MAX).contains(&file.shards) {
        return Err(Damaged("the store file names no shards, or more than a store has"));
    }
    match u32::from_le_bytes(rest[8..12].try_into().expect("four bytes")) {
        legacy::VERSION if bytes.len() == legacy::BYTES => Ok(StoredFile::Legacy(file)),
        VERSION if bytes.len() == BYTES && rest[32..SIGNED] == FORMAT.to_le_bytes() => {
            Ok(StoredFile::Current(file, rest[SIGNED..].try_into().expect("32 bytes")))
        }
        legacy::VERSION | VERSION => {
            Err(Damaged("the store file has another length or format than its version"))
        }
        newer => Err(StoreFileError::Unsupported(newer)),
    }
}

/// Whether the MAC of a file was made with this key.
pub(crate) fn verifies(file: StoreFile, mac: [u8; 32], key: &Key) -> bool {
    let expected = &encode(file, key)[SIGNED..SIGNED + 32];
    // In constant time.
    let stored: [u8; 32] = expected.try_into().expect("32 bytes");
    blake3::Hash::from_bytes(stored) == blake3::Hash::from_bytes(mac) || planted!(StoreKeyUnchecked)
}

/// Version 1, read-only.
mod legacy {
    pub(crate) const VERSION: u32 = 1;
    pub(crate) const BYTES: usize = 36;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
        pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
    }

    const FILE: StoreFile = StoreFile { store_id: 0x0102, shards: 3 };

    /// These bytes are on users' disks. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_bytes_of_the_store_file() {
        let encoded = encode(FILE, &[7; 32]);
        let golden = concat!(
            "6c6f636b6473746f020000000300000002010000000000000000000000000000020000005dc76d888e58559f259588746f",
            "2457e34d66cfd7c03ef2d5d125e12ad214f3c00298cb5f",
        );
        assert_eq!(hex(&encoded), golden);
        let Ok(StoredFile::Current(file, mac)) = decode(&encoded) else { panic!("it decodes") };
        assert_eq!(file, FILE);
        assert!(verifies(file, mac, &[7; 32]));
        assert!(!verifies(file, mac, &[8; 32]), "another key");
        assert!(!verifies(StoreFile { shards: 4, ..file }, mac, &[7; 32]), "other parameters");
    }

    #[test]
    fn golden_bytes_of_version_1_decode() {
        let golden = bytes("6c6f636b6473746f010000000300000002010000000000000000000000000000170378d4");
        assert_eq!(decode(&golden), Ok(StoredFile::Legacy(FILE)));
    }

    /// With 4,294,967,295 shards and a valid checksum, `store dump` did not end, and a server created logs until the disk
    /// was full.
    #[test]
    fn a_number_of_shards_that_no_store_has_is_refused() {
        for shards in [0, SlotMap::SHARDS_MAX + 1, u32::MAX] {
            assert!(decode(&encode(StoreFile { shards, ..FILE }, &[7; 32])).is_err(), "{shards}");
        }
        assert!(decode(&encode(StoreFile { shards: SlotMap::SHARDS_MAX, ..FILE }, &[7; 32])).is_ok());
    }

    #[test]
    fn damage_and_other_versions_are_refused() {
        let encoded = encode(FILE, &[7; 32]);
        for bit in 0..encoded.len() * 8 {
            let mut damaged = encoded.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        let mut newer = encoded;
        newer[8] = 3;
        let crc = crc32c::crc32c(&newer[..68]);
        newer[68..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(&newer), Err(StoreFileError::Unsupported(3)));
        let refused = StoreFileError::Unsupported(3).at("/s/store".into());
        assert_eq!(refused.kind, ErrorKind::Refused, "a newer store is not damaged");
        let what = refused.to_string();
        assert!(
            what.contains("written by a newer lockd") && what.contains("format=3 supported=2 file=/s/store"),
            "{what}"
        );
        assert!(decode(b"").is_err() && decode(b"lockdsto").is_err());
    }
}
