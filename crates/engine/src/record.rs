//! What is in the log: records, one after the other, that replay through the kernel's one entry point.
//!
//! The payload of a batch is a sequence of records. Each begins with a fixed part, little-endian:
//!
//! ```text
//!  0  4  length of what follows
//!  4  1  format version, 1
//!  5  8  LSN
//! 13  8  stamp: kernel time in milliseconds
//! 21 16  correlation id, 0 if there is none
//! 37     the command, then the document's bytes if it carries any
//! ```
//!
//! The command is encoded by [`command`]: a tag, then its fields in order. Numbers are LEB128, seven bits
//! a byte, the lowest first; texts and bytes have their length before them; what may be missing has
//! a byte 0 or 1 before it. Identifiers and hashes are as they are, at full length.
//!
//! Checksums are the store's business. Decoding still trusts nothing: every name is checked to be in its
//! one canonical spelling, every count to be within its limit, and every byte to be used.

pub mod command;

use std::fmt;

use kernel::{Command, Lsn, Time};

use crate::wire::{Reader, Writer};

/// The format that this build writes.
pub const RECORD_VERSION: u8 = 1;

/// One decided command, as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its position.
    pub lsn: Lsn,
    /// When it was decided.
    pub now: Time,
    /// What the client called it, for the audit trail; 0 if nothing.
    pub correlation: u128,
    /// What was decided.
    pub command: Command,
    /// The document that a commit installs, or a relocation carries forward, if it is small.
    pub document: Option<Vec<u8>>,
}

/// Appends a record to a batch.
pub fn encode_record(
    batch: &mut Vec<u8>,
    lsn: Lsn,
    now: Time,
    correlation: u128,
    command: &Command,
    document: Option<&[u8]>,
) {
    let start = batch.len();
    let mut writer = Writer::new(batch);
    writer.fixed(&[0; 4]);
    writer.byte(RECORD_VERSION);
    writer.fixed(&lsn.0.to_le_bytes());
    writer.fixed(&now.0.to_le_bytes());
    writer.fixed(&correlation.to_le_bytes());
    command::encode(command, &mut writer);
    writer.maybe(document, Writer::bytes);
    let length = u32::try_from(batch.len() - start - 4).expect("a record is far below 4 GiB");
    batch[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Bytes that are no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Where in the batch.
    pub offset: usize,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a record: {} (offset={})", self.what, self.offset)
    }
}

impl std::error::Error for DecodeError {}

impl Record {
    /// The longest document that may ride in a record.
    pub const DOCUMENT_MAX: usize = 64 << 10;

    /// Appends the record to a batch.
    pub fn encode(&self, batch: &mut Vec<u8>) {
        encode_record(batch, self.lsn, self.now, self.correlation, &self.command, self.document.as_deref());
    }

    /// All records of a batch.
    pub fn decode_all(batch: &[u8]) -> Result<Vec<Record>, DecodeError> {
        let mut records = Vec::new();
        let mut offset = 0;
        while offset < batch.len() {
            let (record, length) = Record::decode(&batch[offset..])
                .map_err(|error| DecodeError { offset: offset + error.offset, ..error })?;
            records.push(record);
            offset += length;
        }
        Ok(records)
    }

    /// The document of the record at the beginning of `bytes`, if it has one and is at this LSN; and how long the
    /// record is.
    pub fn document_at(bytes: &[u8], lsn: Lsn) -> Result<(Option<Vec<u8>>, usize), DecodeError> {
        let mut head = Reader::new(bytes);
        let length = u32::from_le_bytes(head.fixed()?) as usize;
        let body = head.take(length)?;
        // The version comes first, then the LSN.
        let at = body.get(1..9).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        if at != Some(lsn.0) {
            return Ok((None, 4 + length));
        }
        Ok((Record::decode(bytes)?.0.document, 4 + length))
    }

    /// The record at the beginning of `bytes`, and how long it is.
    pub fn decode(bytes: &[u8]) -> Result<(Record, usize), DecodeError> {
        let mut head = Reader::new(bytes);
        let length = u32::from_le_bytes(head.fixed()?) as usize;
        let body = head.take(length)?;
        let mut reader = Reader::within(body, 4);
        let version = reader.byte()?;
        if version != RECORD_VERSION {
            return Err(reader.error(format!("format version {version} is not known to this build")));
        }
        let record = Record {
            lsn: Lsn(u64::from_le_bytes(reader.fixed()?)),
            now: Time(u64::from_le_bytes(reader.fixed()?)),
            correlation: u128::from_le_bytes(reader.fixed()?),
            command: command::decode(&mut reader)?,
            document: reader.maybe(|reader| reader.bytes(Record::DOCUMENT_MAX).map(<[u8]>::to_vec))?,
        };
        reader.end()?;
        Ok((record, 4 + length))
    }
}
