//! The file `floor`: the lowest batch that can be read.
//!
//! ```text
//!  0  8  magic "lockdflr"
//!  8  4  format version, 1
//! 12  8  sequence number
//! 20  4  CRC32C of the preceding 20 bytes
//! ```

use std::path::Path;

use crate::port::{Damage, Seq, StoreError};

pub(super) const NAME: &str = "floor";
pub(super) const BYTES: usize = 24;
const MAGIC: &[u8; 8] = b"lockdflr";
const VERSION: u32 = 1;

pub(super) fn encode(floor: Seq) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&floor.0.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..20]);
    bytes[20..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Decodes the contents of the file, `None` if there is no file. A log without one begins at its first batch.
pub(super) fn decode(path: &Path, bytes: Option<&[u8]>) -> Result<Seq, StoreError> {
    let Some(bytes) = bytes else { return Ok(Seq(0)) };
    let found: Option<&[u8; BYTES]> = bytes.try_into().ok();
    let floor = found.map(|bytes| Seq(u64::from_le_bytes(bytes[12..20].try_into().expect("eight bytes"))));
    floor.filter(|floor| bytes == encode(*floor)).ok_or_else(|| {
        Damage { file: path.to_path_buf(), offset: 0, what: "the floor file is damaged" }.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These bytes are on users' disks. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_bytes_of_the_floor() {
        let bytes = encode(Seq(0x0102));
        let hex = bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        assert_eq!(hex, "6c6f636b64666c7201000000020100000000000088e5cdcb");
        assert_eq!(decode(Path::new("floor"), Some(&bytes)).expect("whole"), Seq(0x0102));
    }
}
