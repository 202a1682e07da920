//! The record format: the log's contents, replayed through the kernel's one entry point.
//!
//! The payload of a batch is a sequence of records. Each begins with a fixed part, little-endian:
//!
//! ```text
//!  0  4  length of the rest of the record
//!  4  1  format version, 1
//!  5  8  LSN
//! 13  8  stamp: kernel time in milliseconds
//! 21 16  correlation id, 0 if there is none
//! 37     the command, then an optional inline document
//! ```
//!
//! The command is encoded by [`command`]: a tag, then its fields in order. Integers are LEB128; texts and
//! byte strings are length-prefixed; optional fields are prefixed with a byte 0 or 1. Identifiers and hashes
//! have a fixed length.
//!
//! Checksums are the store's responsibility. Decoding still trusts nothing: every name must be in its
//! canonical spelling, every count within its limit, and every byte consumed.

pub mod command;

use std::fmt;

use kernel::{Command, Lsn, Time};

use crate::wire::{Reader, Writer};

/// The format version that this build writes.
pub const RECORD_VERSION: u8 = 1;

/// A logged command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record's position in the log.
    pub lsn: Lsn,
    /// The command's stamp, in kernel time.
    pub now: Time,
    /// The client's correlation id, for the audit trail; 0 if there is none.
    pub correlation: u128,
    /// The command.
    pub command: Command,
    /// The inline document of a commit or a relocation.
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

/// Bytes that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The offset in bytes from the start of the batch or snapshot.
    pub offset: usize,
    /// A description of the error.
    pub what: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: offset={}", self.what, self.offset)
    }
}

impl std::error::Error for DecodeError {}

impl Record {
    /// Maximum size of an inline document in bytes.
    pub const DOCUMENT_MAX: usize = 64 << 10;

    /// Appends the record to a batch.
    pub fn encode(&self, batch: &mut Vec<u8>) {
        encode_record(batch, self.lsn, self.now, self.correlation, &self.command, self.document.as_deref());
    }

    /// Decodes all records of a batch.
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

    /// Decodes the document of the record at the beginning of `bytes`, if the record is at `lsn` and has one.
    /// Also returns the record's length in bytes.
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

    /// Decodes the record at the beginning of `bytes`, and returns its length in bytes.
    pub fn decode(bytes: &[u8]) -> Result<(Record, usize), DecodeError> {
        let mut head = Reader::new(bytes);
        let length = u32::from_le_bytes(head.fixed()?) as usize;
        let body = head.take(length)?;
        let mut reader = Reader::within(body, 4);
        let version = reader.byte()?;
        if version != RECORD_VERSION {
            return Err(reader.error(format!("record format not supported by this build: version={version}")));
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
