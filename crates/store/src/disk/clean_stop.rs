//! The file `clean-stop`: the last batch of the log when its process last stopped cleanly.
//!
//! **Invariant.** The batch that the mark names was durable before the mark was written. So a log that ends before that
//! batch, or holds another one in its place, is damaged. The next clean stop replaces the file; nothing removes it but
//! an operator's cut of the log before that batch.
//!
//! ```text
//!  0  8  magic "lockdcls"
//!  8  4  format version, 1
//! 12  8  sequence number of the batch
//! 20  8  first LSN
//! 28  8  last LSN
//! 36  4  checksum of the batch's frame
//! 40  4  CRC32C of the preceding 40 bytes
//! ```

use std::path::Path;

use crate::port::{Damage, LsnRange, Seq, StoreError};

pub(super) const NAME: &str = "clean-stop";
pub(super) const BYTES: usize = 44;
const MAGIC: &[u8; 8] = b"lockdcls";
const VERSION: u32 = 1;

/// The batch that a clean stop leaves as the log's last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CleanStop {
    pub(super) seq: Seq,
    pub(super) lsns: LsnRange,
    /// The checksum of its frame.
    pub(super) crc: u32,
}

impl CleanStop {
    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.seq.0.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.lsns.first.0.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.lsns.last.0.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..40]);
        bytes[40..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the contents of the file, `None` if there is no file.
    pub(super) fn decode(path: &Path, bytes: Option<&[u8]>) -> Result<Option<CleanStop>, StoreError> {
        let Some(bytes) = bytes else { return Ok(None) };
        let number =
            |bytes: &[u8; BYTES], at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let found: Option<&[u8; BYTES]> = bytes.try_into().ok();
        let mark = found.map(|bytes| CleanStop {
            seq: Seq(number(bytes, 12)),
            lsns: LsnRange::new(number(bytes, 20), number(bytes, 28)),
            crc: u32::from_le_bytes(bytes[36..40].try_into().expect("four bytes")),
        });
        let Some(mark) = mark.filter(|mark| mark.encode() == bytes) else {
            let what = "the clean-stop file is damaged";
            return Err(Damage { file: path.to_path_buf(), offset: 0, what }.into());
        };
        Ok(Some(mark))
    }

    /// Fails if a log that ends before `next`, at this position, has lost the batch.
    pub(super) fn check_end(&self, next: Seq, file: &Path, offset: u64) -> Result<(), StoreError> {
        if self.seq < next || planted!(CleanStopIgnored) {
            return Ok(());
        }
        let what = "the log ends before the last batch of its last clean stop";
        Err(Damage { file: file.to_path_buf(), offset, what }.into())
    }

    /// Fails if the frame at this position is of the mark's sequence number, and is another batch.
    pub(super) fn check_batch(&self, found: CleanStop, file: &Path, offset: u64) -> Result<(), StoreError> {
        if self.seq != found.seq || *self == found || planted!(CleanStopIgnored) {
            return Ok(());
        }
        let what = "the log holds another batch than at its last clean stop";
        Err(Damage { file: file.to_path_buf(), offset, what }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: CleanStop =
        CleanStop { seq: Seq(0x0102), lsns: LsnRange { first: crate::Lsn(3), last: crate::Lsn(4) }, crc: 5 };

    /// These bytes are on users' disks. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_bytes_of_the_clean_stop_mark() {
        let bytes = MARK.encode();
        let hex = bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        assert_eq!(hex, GOLDEN);
        assert_eq!(CleanStop::decode(Path::new("m"), Some(&bytes)).expect("whole"), Some(MARK));
    }

    const GOLDEN: &str =
        "6c6f636b64636c73010000000201000000000000030000000000000004000000000000000500000025c1b98b";

    #[test]
    fn every_bit_of_the_mark_matters() {
        for bit in 0..BYTES * 8 {
            let mut bytes = MARK.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(CleanStop::decode(Path::new("m"), Some(&bytes)).is_err(), "bit {bit}");
        }
    }
}
