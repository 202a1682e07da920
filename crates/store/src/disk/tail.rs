//! What is behind the last good frame of a log: nothing, a torn frame, or damage.
//!
//! **Invariant.** Only what an append that was cut off can have left counts as torn. Whole frames behind a bad one,
//! or bytes where no append has written, are damage, whoever looks: the log that is opened, or somebody who only
//! reads it.

use std::path::{Path, PathBuf};

use crate::frame::{FrameHeader, frame_len, holds_a_frame};
use crate::port::{Damage, Lsns, Seq, StoreError};

/// A torn tail. Nobody had been told that it was durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub file: PathBuf,
    /// From where on.
    pub offset: u64,
    /// The number of the batch.
    pub seq: Seq,
    /// What was in it, if its header can be read.
    pub lsns: Option<Lsns>,
}

/// The frame that would be next: its number, and the checksum of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) seq: Seq,
    pub(super) chain: u32,
}

impl Expected {
    /// Is it this one?
    pub(super) fn is(self, frame: &FrameHeader) -> bool {
        frame.seq == self.seq && (frame.chain == self.chain || planted!(ChainUnchecked))
    }

    /// What the bytes from `offset` to the end of the segment are; `None` if they are zeros.
    pub(super) fn judge(self, path: &Path, offset: u64, tail: &[u8]) -> Result<Option<Cut>, StoreError> {
        if tail.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let damaged = |what| Err(Damage { file: path.to_path_buf(), offset, what }.into());
        if holds_a_frame(tail) && !planted!(DamageCut) {
            return damaged("a damaged frame with whole ones behind it");
        }
        let header = FrameHeader::decode(tail).filter(|header| self.is(header));
        let torn_end = header.map_or(tail.len(), |header| frame_len(header.length).min(tail.len()));
        if tail[torn_end..].iter().any(|byte| *byte != 0) && !planted!(DamageCut) {
            return damaged("something behind the last frame that no append has written");
        }
        let lsns = header.map(|header| header.lsns);
        Ok(Some(Cut { file: path.to_path_buf(), offset, seq: self.seq, lsns }))
    }
}
