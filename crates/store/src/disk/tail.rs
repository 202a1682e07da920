//! Classifies the bytes after a log's last valid frame: empty, a torn frame, or damage.
//!
//! **Invariant.** A frame is torn only if a power cut in the middle of its append can have left it so: the disk writes
//! sectors of 512 bytes, and a segment reads as zeros where nothing was written. So at least one sector of a torn frame
//! is all zeros. Any other bad frame was whole once and may have been acknowledged: it is damage. The rule is the same
//! for a log being opened and for a read-only view.
//!
//! **What would break it.** Trusting the length in a header that nothing has verified: one flipped bit there stretches
//! the frame over sectors that no append has written. So a frame that becomes valid by flipping one bit of its length
//! is damage.

use std::path::{Path, PathBuf};

use crate::frame::{
    FRAME_HEADER, FrameHeader, PAYLOAD_MAX, contains_frame, frame_len, is_valid_with_another_length,
};
use crate::port::{Damage, LsnRange, Seq, StoreError};

/// The unit that a disk writes in whole or not at all, in bytes.
const SECTOR: u64 = 512;

/// A torn tail: a batch whose append was interrupted, and so was never acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment file.
    pub file: PathBuf,
    /// The offset of the torn frame in bytes.
    pub offset: u64,
    /// The sequence number of the torn batch.
    pub seq: Seq,
    /// Its LSNs, if the frame header is readable.
    pub lsns: Option<LsnRange>,
}

/// The frame that would be next: its sequence number, and the checksum of its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpectedFrame {
    pub(super) seq: Seq,
    pub(super) chain: u32,
}

impl ExpectedFrame {
    /// Whether `frame` is the expected one.
    pub(super) fn matches(self, frame: &FrameHeader) -> bool {
        frame.seq == self.seq && (frame.chain == self.chain || planted!(ChainUnchecked))
    }

    /// Classifies the bytes from `offset` to the end of the segment; `None` if they are zeros.
    pub(super) fn classify_tail(
        self,
        path: &Path,
        offset: u64,
        tail: &[u8],
    ) -> Result<Option<TornTail>, StoreError> {
        if is_zeros(tail) {
            return Ok(None);
        }
        let header = self.header(tail);
        let damage = match header {
            Some(header) => damage_of_frame(&header, offset, tail),
            None => damage_without_header(offset, tail),
        };
        if let Some(what) = damage.filter(|_| !planted!(DamageCut)) {
            return Err(Damage { file: path.to_path_buf(), offset, what }.into());
        }
        // A header that lies in two sectors may have lost its second part, with the LSNs.
        let is_complete = !has_empty_sector(offset, &tail[..tail.len().min(FRAME_HEADER)]);
        let lsns = header.filter(|_| is_complete).map(|header| header.lsns);
        Ok(Some(TornTail { file: path.to_path_buf(), offset, seq: self.seq, lsns }))
    }

    /// The header of the expected frame, if it is readable and the frame fits into the segment.
    fn header(self, tail: &[u8]) -> Option<FrameHeader> {
        let fits = |header: &FrameHeader| frame_len(header.length) <= tail.len();
        FrameHeader::decode(tail).filter(|header| self.matches(header) && fits(header))
    }
}

/// Why a bad frame with a readable header is not torn.
fn damage_of_frame(header: &FrameHeader, offset: u64, tail: &[u8]) -> Option<&'static str> {
    // Padding is zeros in any case.
    let (frame, rest) = tail.split_at(frame_len(header.length));
    if !is_zeros(rest) {
        return Some("a damaged frame is followed by bytes that its append has not written");
    }
    if !has_empty_sector(offset, &frame[..FRAME_HEADER + header.length]) {
        return Some("a frame does not match its checksum, and none of its sectors is missing");
    }
    let has_damaged_length = is_valid_with_another_length(tail) && !planted!(LengthTrusted);
    has_damaged_length.then_some("a frame has a damaged length")
}

/// Why the bytes of a frame without a readable header are not torn.
fn damage_without_header(offset: u64, tail: &[u8]) -> Option<&'static str> {
    // Up to the end of the sector in which the header ends: if the sector is missing, so is all of this.
    let header_end = (offset + FRAME_HEADER as u64).next_multiple_of(SECTOR) - offset;
    let header = &tail[..usize::try_from(header_end).expect("at most two sectors").min(tail.len())];
    if !has_empty_sector(offset, header) {
        return Some("a frame header is damaged, and none of its sectors is missing");
    }
    let extent_max = frame_len(PAYLOAD_MAX).min(tail.len());
    if contains_frame(tail) || !is_zeros(&tail[extent_max..]) {
        return Some("a damaged frame is followed by valid ones");
    }
    None
}

/// Whether all bytes of `part` in some sector are zeros. `part` begins at `offset` in its file.
fn has_empty_sector(offset: u64, part: &[u8]) -> bool {
    let first = usize::try_from(SECTOR - offset % SECTOR).expect("at most a sector").min(part.len());
    let (first, rest) = part.split_at(first);
    is_zeros(first) || rest.chunks(usize::try_from(SECTOR).expect("small")).any(is_zeros)
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
