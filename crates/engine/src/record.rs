//! The record format: the log's contents, replayed through the kernel's one entry point.
//!
//! The payload of a batch is a header, then a sequence of records. All integers are little-endian. The header has the
//! writer's clocks when it sealed the batch:
//!
//! ```text
//!  0  3  magic "bat"
//!  3  1  format version, 2
//!  4 16  boot identity
//! 20  8  time since boot, in milliseconds
//! 28  8  wall clock, in milliseconds since 1970
//! 36     records
//! ```
//!
//! Each record begins with a fixed part:
//!
//! ```text
//!  0  4  length of the rest of the record
//!  4  8  LSN
//! 12  8  stamp: kernel time in milliseconds
//! 20 16  correlation id, 0 if there is none
//! 36     the command, then an optional inline document
//! ```
//!
//! The command is encoded by [`command`]: a tag, then its fields in order. Integers are LEB128; texts and
//! byte strings are length-prefixed; optional fields are prefixed with a byte 0 or 1. Identifiers and hashes
//! have a fixed length.
//!
//! Checksums are the store's responsibility. Decoding still trusts nothing: every name must be in its
//! canonical spelling, every count within its limit, and every byte consumed.
//!
//! Batches of format 1 have no header: they begin with the length of their first record, which is far below
//! 2^24, so that their fourth byte is 0. [`legacy`] reads them.

pub mod command;
mod legacy;

use std::fmt;

use kernel::{ClockReading, Command, Lsn, Shard, Span, Time};

use crate::wire::{Format, Reader, Writer};

/// The format version that this build writes.
pub const BATCH_VERSION: u8 = 2;
/// The length of a batch header in bytes.
pub const BATCH_HEADER: usize = 36;
/// The bytes of a record before its command: length, LSN, time, correlation id.
pub const RECORD_HEADER: usize = 4 + 8 + 8 + 16;
/// More records than any batch holds: an LSN this far above the last durable one was never used, also if the log lost
/// its torn last batch. A record has at least 38 bytes, and a batch at most 4 MiB.
pub const BATCH_RECORDS_MAX: u64 = 1 << 20;

const _: () = assert!(store::frame::PAYLOAD_MAX as u64 / 38 < BATCH_RECORDS_MAX);

const MAGIC: &[u8; 3] = b"bat";

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

/// A decoded batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchContents {
    /// The writer's clocks when it sealed the batch; `None` in format 1.
    pub clocks: Option<ClockReading>,
    /// The records, in order.
    pub records: Vec<Record>,
}

/// Begins a batch: reserves its header, which [`seal_batch`] fills in.
pub fn begin_batch(batch: &mut Vec<u8>) {
    assert!(batch.is_empty(), "a batch begins with its header");
    batch.resize(BATCH_HEADER, 0);
}

/// Fills in the header of a batch.
pub fn seal_batch(batch: &mut [u8], clocks: ClockReading) {
    batch[..3].copy_from_slice(MAGIC);
    batch[3] = BATCH_VERSION;
    batch[4..20].copy_from_slice(&clocks.boot.to_le_bytes());
    batch[20..28].copy_from_slice(&clocks.boot_clock.0.to_le_bytes());
    batch[28..BATCH_HEADER].copy_from_slice(&clocks.unix_ms.to_le_bytes());
}

/// Decodes the clocks of a batch and where its records begin; `None` for format 1.
fn decode_header(batch: &[u8]) -> Result<Option<(ClockReading, &[u8])>, DecodeError> {
    let mut reader = Reader::new(batch);
    let [magic @ .., version] = reader.fixed::<4>()?;
    match version {
        legacy::HIGHEST_LENGTH_BYTE => return Ok(None),
        BATCH_VERSION if magic == *MAGIC => {}
        BATCH_VERSION => return Err(reader.error("not a batch of records")),
        other => {
            return Err(reader.error(format!("batch format not supported by this build: version={other}")));
        }
    }
    let clocks = ClockReading {
        boot: u128::from_le_bytes(reader.fixed()?),
        boot_clock: Span(u64::from_le_bytes(reader.fixed()?)),
        unix_ms: u64::from_le_bytes(reader.fixed()?),
    };
    Ok(Some((clocks, &batch[BATCH_HEADER..])))
}

/// Decodes a batch from the log of `shard`.
pub fn decode_batch(batch: &[u8], shard: Shard) -> Result<BatchContents, DecodeError> {
    let Some((clocks, rest)) = decode_header(batch)? else {
        return Ok(BatchContents { clocks: None, records: legacy::decode_all(batch, shard)? });
    };
    let mut records = Vec::new();
    let mut offset = 0;
    while offset < rest.len() {
        let (record, length) = Record::decode(&rest[offset..])
            .map_err(|error| DecodeError { offset: BATCH_HEADER + offset + error.offset, ..error })?;
        records.push(record);
        offset += length;
    }
    Ok(BatchContents { clocks: Some(clocks), records })
}

/// The document of the record at `lsn` in a batch; `None` if there is no such record, or it has no document. Decodes
/// no other record.
pub fn document_in(batch: &[u8], lsn: Lsn) -> Result<Option<Vec<u8>>, DecodeError> {
    let Some((_, mut rest)) = decode_header(batch)? else { return legacy::document_in(batch, lsn) };
    while !rest.is_empty() {
        let mut head = Reader::new(rest);
        let length = u32::from_le_bytes(head.fixed()?) as usize;
        head.take(length)?;
        if rest.get(4..12) == Some(&lsn.0.to_le_bytes()) {
            return Ok(Record::decode(rest)?.0.document);
        }
        rest = &rest[4 + length..];
    }
    Ok(None)
}

/// The records of a batch that have a document, and where each document ends in the batch. A document is the last part of its
/// record. Nothing for format 1, and nothing after a record that cannot be decoded.
pub(crate) fn document_ends(batch: &[u8]) -> impl Iterator<Item = (Lsn, usize)> {
    let is_present = matches!(decode_header(batch), Ok(Some(_)));
    let mut offset = if is_present { BATCH_HEADER } else { batch.len() };
    let records = std::iter::from_fn(move || {
        let (record, length) = Record::decode(batch.get(offset..)?).ok()?;
        offset += length;
        Some((record, offset))
    });
    records.filter_map(|(record, end)| record.document.map(|_| (record.lsn, end)))
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
    writer.fixed(&lsn.0.to_le_bytes());
    writer.fixed(&now.0.to_le_bytes());
    writer.fixed(&correlation.to_le_bytes());
    debug_assert_eq!(batch.len() - start, RECORD_HEADER);
    let mut writer = Writer::new(batch);
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

    /// Encodes a whole batch.
    pub fn encode_batch(clocks: ClockReading, records: &[Record]) -> Vec<u8> {
        let mut batch = Vec::new();
        begin_batch(&mut batch);
        for record in records {
            record.encode(&mut batch);
        }
        seal_batch(&mut batch, clocks);
        batch
    }

    /// Decodes the records of a batch of the present format.
    pub fn decode_all(batch: &[u8]) -> Result<Vec<Record>, DecodeError> {
        decode_batch(batch, Shard::default()).map(|contents| contents.records)
    }

    /// Decodes the record at the beginning of `bytes`, and returns its length in bytes.
    pub fn decode(bytes: &[u8]) -> Result<(Record, usize), DecodeError> {
        let mut head = Reader::new(bytes);
        let length = u32::from_le_bytes(head.fixed()?) as usize;
        let mut reader = Reader::within(head.take(length)?, 4);
        let record = Record::decode_fields(&mut reader, Format::Two)?;
        Ok((record, 4 + length))
    }

    fn decode_fields(reader: &mut Reader<'_>, format: Format) -> Result<Record, DecodeError> {
        let record = Record {
            lsn: Lsn(u64::from_le_bytes(reader.fixed()?)),
            now: Time(u64::from_le_bytes(reader.fixed()?)),
            correlation: u128::from_le_bytes(reader.fixed()?),
            command: command::decode(reader, format)?,
            document: reader.maybe(|reader| reader.bytes(Record::DOCUMENT_MAX).map(<[u8]>::to_vec))?,
        };
        reader.end()?;
        Ok(record)
    }
}
