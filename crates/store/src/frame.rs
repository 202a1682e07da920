//! The log's format on disk. All integers are little-endian.
//!
//! A **segment** is a file that is zeroed before it gets its name. It ends where the next segment begins: frames in it
//! from the next segment's first batch on are superseded by those of the next segment.
//!
//! ```text
//!  0  8  magic "lockdlog"
//!  8  4  format version, 1
//! 12  4  shard
//! 16 16  store id
//! 32  8  sequence number of the first batch
//! 40  4  checksum of the last frame of the previous segment, 0 if there is none
//! 44  4  CRC32C of the preceding 44 bytes
//! 48     frames back to back, then zeros
//! ```
//!
//! A **frame** is one batch, padded with zeros to a multiple of eight:
//!
//! ```text
//!  0  4  magic "frm1"
//!  4  4  CRC32C of the rest of the frame, from offset 8 to the end of the padding
//!  8  4  checksum of the previous frame
//! 12  4  length of the payload
//! 16  8  sequence number of the batch
//! 24  8  first LSN
//! 32  8  last LSN
//! 40     payload, padding
//! ```
//!
//! The checksum covers every byte but the magic, which is constant. Each frame contains the checksum of its
//! predecessor, so a frame that is missing, repeated or from another log is detected.

use crate::port::{Batch, LsnRange, Seq};

/// The length of a segment header in bytes.
pub const SEGMENT_HEADER: usize = 48;
/// The length of a frame header in bytes.
pub const FRAME_HEADER: usize = 40;
/// The largest payload that can be read, in bytes. Appends are limited to the smaller
/// [`BATCH_MAX`](crate::port::BATCH_MAX).
pub const PAYLOAD_MAX: usize = 4 << 20;

const SEGMENT_MAGIC: &[u8; 8] = b"lockdlog";
const SEGMENT_VERSION: u32 = 1;
const FRAME_MAGIC: &[u8; 4] = b"frm1";

/// The decoded header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The shard whose log the segment belongs to.
    pub shard: u32,
    /// The store that the log belongs to.
    pub store_id: u128,
    /// The first batch in the segment.
    pub first: Seq,
    /// The checksum of the frame before that batch.
    pub chain: u32,
}

impl SegmentHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[..8].copy_from_slice(SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.shard.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.store_id.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.chain.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header; the error describes the damage.
    pub fn decode(bytes: &[u8; SEGMENT_HEADER]) -> Result<SegmentHeader, &'static str> {
        if &bytes[..8] != SEGMENT_MAGIC {
            return Err("not a log segment");
        }
        if u32_at(bytes, 44) != crc32c::crc32c(&bytes[..44]) {
            return Err("the segment header does not match its checksum");
        }
        if u32_at(bytes, 8) != SEGMENT_VERSION {
            return Err("segment format not supported by this build");
        }
        let store_id = u128::from_le_bytes(bytes[16..32].try_into().expect("sixteen bytes"));
        Ok(SegmentHeader {
            shard: u32_at(bytes, 12),
            store_id,
            first: Seq(u64_at(bytes, 32)),
            chain: u32_at(bytes, 40),
        })
    }
}

/// The length in bytes of a frame with a payload of this length.
pub fn frame_len(payload: usize) -> usize {
    (FRAME_HEADER + payload).next_multiple_of(8)
}

/// Encodes a batch as a frame; returns the frame and its checksum.
pub fn encode_frame(seq: Seq, lsns: LsnRange, payload: &[u8], chain: u32) -> (Vec<u8>, u32) {
    let length = u32::try_from(payload.len()).expect("a payload is at most PAYLOAD_MAX");
    let mut bytes = Vec::with_capacity(frame_len(payload.len()));
    bytes.extend_from_slice(FRAME_MAGIC);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&chain.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&seq.0.to_le_bytes());
    bytes.extend_from_slice(&lsns.first.0.to_le_bytes());
    bytes.extend_from_slice(&lsns.last.0.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes.resize(frame_len(payload.len()), 0);
    let crc = checksum(&bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    (bytes, crc)
}

fn checksum(frame: &[u8]) -> u32 {
    if planted!(LsnUnchecked) {
        return crc32c::crc32c_append(crc32c::crc32c(&frame[8..24]), &frame[FRAME_HEADER..]);
    }
    crc32c::crc32c(&frame[8..])
}

/// The decoded header of a frame. The checksum is not verified yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The frame's checksum.
    pub crc: u32,
    /// The previous frame's checksum.
    pub chain: u32,
    /// The length of the payload in bytes.
    pub length: usize,
    /// The batch's sequence number.
    pub seq: Seq,
    /// The LSNs of its records.
    pub lsns: LsnRange,
}

impl FrameHeader {
    /// `None` if the bytes cannot be the beginning of a frame.
    pub fn decode(bytes: &[u8]) -> Option<FrameHeader> {
        let header: &[u8; FRAME_HEADER] = bytes.first_chunk()?;
        let length = u32_at(header, 12) as usize;
        (&header[..4] == FRAME_MAGIC && length <= PAYLOAD_MAX).then(|| FrameHeader {
            crc: u32_at(header, 4),
            chain: u32_at(header, 8),
            length,
            seq: Seq(u64_at(header, 16)),
            lsns: LsnRange::new(u64_at(header, 24), u64_at(header, 32)),
        })
    }
}

/// Decodes the frame at the beginning of `bytes`, if it is complete and matches its checksum.
pub fn decode_frame(bytes: &[u8]) -> Option<(FrameHeader, Batch)> {
    let header = FrameHeader::decode(bytes)?;
    let frame = bytes.get(..frame_len(header.length))?;
    if checksum(frame) != header.crc {
        return None;
    }
    let payload = frame[FRAME_HEADER..FRAME_HEADER + header.length].to_vec();
    Some((header, Batch { seq: header.seq, lsns: header.lsns, payload }))
}

/// Whether the frame at the beginning of `bytes` is valid with one bit of its length flipped.
pub fn is_valid_with_another_length(bytes: &[u8]) -> bool {
    let Some(length) = bytes.first_chunk::<FRAME_HEADER>().map(|header| u32_at(header, 12)) else {
        return false;
    };
    (0..u32::BITS).map(|bit| length ^ 1 << bit).any(|length| {
        let frame = bytes.get(..frame_len(length as usize)).filter(|_| length as usize <= PAYLOAD_MAX);
        frame.is_some_and(|frame| {
            let mut frame = frame.to_vec();
            frame[12..16].copy_from_slice(&length.to_le_bytes());
            decode_frame(&frame).is_some()
        })
    })
}

/// Whether `bytes` contain a valid frame at any multiple of eight, where frames begin.
pub fn contains_frame(bytes: &[u8]) -> bool {
    (0..bytes.len()).step_by(8).any(|at| decode_frame(&bytes[at..]).is_some())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Lsn;

    const LSNS: LsnRange = LsnRange { first: Lsn(7), last: Lsn(9) };

    #[test]
    fn a_frame_reads_back_as_it_was_written() {
        for length in [0, 1, 7, 8, 9, 1000] {
            let payload = vec![0xab; length];
            let (bytes, crc) = encode_frame(Seq(5), LSNS, &payload, 77);
            assert_eq!(bytes.len() % 8, 0);
            let (header, batch) = decode_frame(&bytes).expect("a whole frame");
            assert_eq!((header.crc, header.chain), (crc, 77));
            assert_eq!(batch, Batch { seq: Seq(5), lsns: LSNS, payload });
        }
    }

    #[test]
    fn every_bit_of_a_frame_matters() {
        let (bytes, _) = encode_frame(Seq(5), LSNS, b"thirteen long", 77);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_frame(&flipped).is_none(), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(decode_frame(&bytes[..cut]).is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn every_bit_of_a_segment_header_matters() {
        let header = SegmentHeader { shard: 3, store_id: 1 << 100, first: Seq(42), chain: 99 };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        for bit in 0..SEGMENT_HEADER * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    /// These bytes are on users' disks. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_bytes_of_version_1() {
        let header = SegmentHeader { shard: 1, store_id: 2, first: Seq(3), chain: 4 }.encode();
        let (frame, _) = encode_frame(Seq(3), LsnRange::new(10, 11), b"lease", 4);
        let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        assert_eq!(hex(&header), GOLDEN_HEADER);
        assert_eq!(hex(&frame), GOLDEN_FRAME);
    }

    const GOLDEN_HEADER: &str =
        "6c6f636b646c6f67010000000100000002000000000000000000000000000000030000000000000004000000c2f726db";
    const GOLDEN_FRAME: &str =
        "66726d314be4d61a040000000500000003000000000000000a000000000000000b000000000000006c65617365000000";
}
