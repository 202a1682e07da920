//! The format of a batch as an object. All integers are little-endian.
//!
//! ```text
//!  0  8  magic "lockdobj"
//!  8  4  format version, 1
//! 12  4  1 if the batch begins its writer's tenure, else 0
//! 16 16  store id
//! 32 16  id of the writer
//! 48  4  shard
//! 52  4  CRC32C of the preceding 52 bytes and the following 40
//! 56     one frame, as in a log segment: a header of 40 bytes, payload, padding
//! ```
//!
//! **Invariant.** Checksums cover every byte, and the first 96 bytes can be verified without the rest: they
//! identify the writer, the batch, its LSNs, and the checksum of the rest.
//!
//! **What would break it.** A checksum over the object's own header alone: the header of one object with the
//! frame of another would pass, and the writer of the batch would be unknown.

use crate::frame::{FRAME_HEADER, FrameHeader, decode_frame};
use crate::port::Batch;

/// The length of the object header, before the frame, in bytes.
pub const OBJECT_HEADER: usize = 56;
/// The length of both headers in bytes: they can be verified without the payload.
pub const OBJECT_HEAD: usize = OBJECT_HEADER + FRAME_HEADER;

const MAGIC: &[u8; 8] = b"lockdobj";
const VERSION: u32 = 1;

/// Identifies one opening of a log by one process. Chosen at random by the process, so never repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u128);

/// The decoded object header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    /// The shard whose log the batch belongs to.
    pub shard: u32,
    /// The store that the log belongs to.
    pub store_id: u128,
    /// The writer of the batch.
    pub writer: WriterId,
    /// Whether this is the writer's first batch. Such an object is never deleted.
    pub begins_tenure: bool,
}

impl ObjectHeader {
    /// Encodes the object for a frame.
    pub fn encode(&self, frame: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(OBJECT_HEADER + frame.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.begins_tenure).to_le_bytes());
        bytes.extend_from_slice(&self.store_id.to_le_bytes());
        bytes.extend_from_slice(&self.writer.0.to_le_bytes());
        bytes.extend_from_slice(&self.shard.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(frame);
        let crc = head_crc(bytes.first_chunk().expect("a frame has a header"));
        bytes[52..56].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Decodes both headers of an object; the error describes the damage.
pub fn decode_head(bytes: &[u8]) -> Result<(ObjectHeader, FrameHeader), &'static str> {
    let head: &[u8; OBJECT_HEAD] = bytes.first_chunk().ok_or("the object is too short for a batch")?;
    if &head[..8] != MAGIC {
        return Err("the object is not a batch");
    }
    if u32_at(head, 52) != head_crc(head) {
        return Err("the object header does not match its checksum");
    }
    if u32_at(head, 8) != VERSION || u32_at(head, 12) > 1 {
        return Err("object format not supported by this build");
    }
    let header = ObjectHeader {
        shard: u32_at(head, 48),
        store_id: u128_at(head, 16),
        writer: WriterId(u128_at(head, 32)),
        begins_tenure: u32_at(head, 12) == 1,
    };
    let frame = FrameHeader::decode(&head[OBJECT_HEADER..]).ok_or("the object contains no frame")?;
    Ok((header, frame))
}

/// Decodes a whole object; the error describes the damage.
pub fn decode_object(bytes: &[u8]) -> Result<(ObjectHeader, FrameHeader, Batch), &'static str> {
    let (header, frame) = decode_head(bytes)?;
    if bytes.len() as u64 != object_len(&frame) {
        return Err("the object's length does not match its batch");
    }
    let (_, batch) = decode_frame(&bytes[OBJECT_HEADER..]).ok_or("the batch does not match its checksum")?;
    Ok((header, frame, batch))
}

/// The length in bytes of the object that contains a frame.
pub fn object_len(frame: &FrameHeader) -> u64 {
    (OBJECT_HEADER + crate::frame::frame_len(frame.length)) as u64
}

fn head_crc(head: &[u8; OBJECT_HEAD]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[..52]), &head[OBJECT_HEADER..])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::encode_frame;
    use crate::port::{LsnRange, Seq};

    fn object(begins_tenure: bool, payload: &[u8]) -> Vec<u8> {
        let (frame, _) = encode_frame(Seq(3), LsnRange::new(10, 11), payload, 4);
        ObjectHeader { shard: 1, store_id: 2, writer: WriterId(5 << 64), begins_tenure }.encode(&frame)
    }

    #[test]
    fn an_object_reads_back_as_it_was_written() {
        for (begins_tenure, payload) in [(false, &b""[..]), (true, b"lease"), (false, &[7; 1000])] {
            let (header, frame, batch) = decode_object(&object(begins_tenure, payload)).expect("whole");
            assert_eq!((header.shard, header.store_id, header.writer), (1, 2, WriterId(5 << 64)));
            assert_eq!((header.begins_tenure, frame.chain), (begins_tenure, 4));
            assert_eq!((batch.seq, batch.lsns, &batch.payload[..]), (Seq(3), LsnRange::new(10, 11), payload));
        }
    }

    #[test]
    fn every_bit_of_an_object_matters_and_its_headers_are_verified_alone() {
        let bytes = object(true, b"thirteen long");
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_object(&flipped).is_err(), "bit {bit}");
            assert_eq!(decode_head(&flipped).is_err(), bit < OBJECT_HEAD * 8, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(decode_object(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(decode_object(&[&bytes[..], &[0; 8]].concat()).is_err(), "trailing bytes");
    }

    /// Buckets will contain these bytes. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_bytes_of_version_1() {
        let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        assert_eq!(hex(&object(true, b"lease")), [GOLDEN_HEADER, GOLDEN_FRAME].concat());
    }

    const GOLDEN_HEADER: &str = "6c6f636b646f626a0100000001000000020000000000000000000000000000000000000000000000\
         0500000000000000010000005a4ccf6f";
    const GOLDEN_FRAME: &str =
        "66726d314be4d61a040000000500000003000000000000000a000000000000000b000000000000006c65617365000000";
}
