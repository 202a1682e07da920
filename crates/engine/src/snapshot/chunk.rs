//! Groups entries into chunks. Each chunk contains the checksum of its predecessor.

use store::StoreError;

use super::{Header, Input, Output, RANGE_BYTES, SnapshotError, damaged, u32_at};
use crate::wire::Writer;

/// The length of a chunk header in bytes.
pub(super) const HEADER: usize = 12;
/// A chunk of this many bytes takes no further entries.
const CLOSED_AT: usize = 64 << 10;
/// Maximum payload: a chunk is closed at 64 KiB, and a lease with the longest names has less than 80 KiB.
pub(super) const PAYLOAD_MAX: usize = CLOSED_AT + (80 << 10);

/// Writes chunks; buffers one at a time.
pub(super) struct ChunkWriter<'a, 'b> {
    out: &'a mut Output<'b>,
    /// Space for the chunk header, then the payload.
    chunk: Vec<u8>,
    /// The checksum of the previous chunk or of the header.
    chain: u32,
    written: u64,
}

impl<'a, 'b> ChunkWriter<'a, 'b> {
    /// Writes the header, whose last four bytes are its checksum.
    pub(super) fn begin(
        header: &[u8; Header::BYTES],
        out: &'a mut Output<'b>,
    ) -> Result<ChunkWriter<'a, 'b>, StoreError> {
        out(header)?;
        let chain = u32_at(header, Header::BYTES - 4);
        Ok(ChunkWriter { out, chunk: vec![0; HEADER], chain, written: Header::BYTES as u64 })
    }

    /// Appends one entry.
    pub(super) fn entry(&mut self, write: impl FnOnce(&mut Writer<'_>)) -> Result<(), StoreError> {
        write(&mut Writer::new(&mut self.chunk));
        if self.chunk.len() < HEADER + CLOSED_AT { Ok(()) } else { self.close() }
    }

    /// Writes the last chunk, and returns the total length in bytes.
    pub(super) fn finish(mut self) -> Result<u64, StoreError> {
        if self.chunk.len() > HEADER {
            self.close()?;
        }
        Ok(self.written)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        let length = self.chunk.len() - HEADER;
        assert!(length <= PAYLOAD_MAX, "an entry exceeds the maximum length: bytes={length}");
        let length = u32::try_from(length).expect("a chunk is far below 4 GiB");
        self.chunk[4..8].copy_from_slice(&self.chain.to_le_bytes());
        self.chunk[8..12].copy_from_slice(&length.to_le_bytes());
        self.chain = crc32c::crc32c(&self.chunk[4..]);
        self.chunk[..4].copy_from_slice(&self.chain.to_le_bytes());
        (self.out)(&self.chunk)?;
        self.written += self.chunk.len() as u64;
        self.chunk.truncate(HEADER);
        Ok(())
    }
}

/// Reads chunks; buffers one range of the input at a time.
pub(super) struct ChunkReader<'a, 'b> {
    input: &'a mut Input<'b>,
    /// A buffer that begins at offset `start` of the stream; its first `used` bytes are consumed.
    window: Vec<u8>,
    used: usize,
    start: u64,
    chain: u32,
}

/// The entries of a chunk.
pub(super) struct Chunk<'a> {
    /// The payload's offset in the stream.
    pub(super) offset: u64,
    pub(super) payload: &'a [u8],
}

impl<'a, 'b> ChunkReader<'a, 'b> {
    pub(super) fn new(input: &'a mut Input<'b>) -> ChunkReader<'a, 'b> {
        ChunkReader { input, window: Vec::new(), used: 0, start: 0, chain: 0 }
    }

    /// Reads and decodes the header. The first chunk is chained to its last four bytes.
    pub(super) fn begin(&mut self) -> Result<Header, SnapshotError> {
        self.fill(Header::PREFIX)?;
        let length = Header::length(&self.window)?;
        let bytes = self.take(length)?;
        let (header, chain) = (Header::decode(bytes)?, u32_at(bytes, length - 4));
        self.chain = chain;
        Ok(header)
    }

    /// Reads and verifies the next chunk.
    pub(super) fn chunk(&mut self) -> Result<Chunk<'_>, SnapshotError> {
        let at = self.offset();
        self.fill(HEADER)?;
        let header = &self.window[self.used..];
        let (crc, chain, length) = (u32_at(header, 0), u32_at(header, 4), u32_at(header, 8) as usize);
        if length == 0 || length > PAYLOAD_MAX {
            return damaged(at, format!("invalid chunk length: length={length}"));
        }
        self.fill(HEADER + length)?;
        if crc32c::crc32c(&self.window[self.used + 4..][..HEADER - 4 + length]) != crc {
            return damaged(at, "a chunk does not match its checksum");
        }
        if chain != self.chain {
            return damaged(at, "a chunk does not follow its predecessor");
        }
        self.chain = crc;
        let payload = &self.take(HEADER + length)?[HEADER..];
        Ok(Chunk { offset: at + HEADER as u64, payload })
    }

    /// Checks that nothing follows.
    pub(super) fn end(mut self) -> Result<(), SnapshotError> {
        let at = self.offset();
        let left = self.window.len() > self.used || self.read_more()?;
        if left { damaged(at, "trailing bytes after the end") } else { Ok(()) }
    }

    /// The offset of the next byte in the stream.
    fn offset(&self) -> u64 {
        self.start + self.used as u64
    }

    fn take(&mut self, length: usize) -> Result<&[u8], SnapshotError> {
        self.fill(length)?;
        let from = self.used;
        self.used += length;
        Ok(&self.window[from..self.used])
    }

    /// Reads until `length` bytes are buffered.
    fn fill(&mut self, length: usize) -> Result<(), SnapshotError> {
        while self.window.len() - self.used < length {
            if !self.read_more()? {
                return damaged(self.start + self.window.len() as u64, "unexpected end");
            }
        }
        Ok(())
    }

    /// Appends the next range of the input to the buffer; `false` at the end.
    fn read_more(&mut self) -> Result<bool, SnapshotError> {
        let end = self.start + self.window.len() as u64;
        let range = (self.input)(end, RANGE_BYTES)?;
        self.window.drain(..self.used);
        self.start += self.used as u64;
        self.used = 0;
        self.window.extend_from_slice(&range);
        Ok(!range.is_empty())
    }
}
