//! Classifies the bytes after a log's last valid frame: empty, a torn frame, or damage.
//!
//! **Invariant.** Only bytes that an interrupted append can have left count as torn. Valid frames after a bad
//! one, or bytes where no append has written, are damage. The rule is the same for a log being opened and for
//! a read-only view.

use std::path::{Path, PathBuf};

use crate::frame::{FrameHeader, contains_frame, frame_len};
use crate::port::{Damage, LsnRange, Seq, StoreError};

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
        if tail.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let damaged = |what| Err(Damage { file: path.to_path_buf(), offset, what }.into());
        if contains_frame(tail) && !planted!(DamageCut) {
            return damaged("a damaged frame is followed by valid ones");
        }
        let header = FrameHeader::decode(tail).filter(|header| self.matches(header));
        let torn_end = header.map_or(tail.len(), |header| frame_len(header.length).min(tail.len()));
        if tail[torn_end..].iter().any(|byte| *byte != 0) && !planted!(DamageCut) {
            return damaged("the last frame is followed by bytes that no append has written");
        }
        let lsns = header.map(|header| header.lsns);
        Ok(Some(TornTail { file: path.to_path_buf(), offset, seq: self.seq, lsns }))
    }
}
