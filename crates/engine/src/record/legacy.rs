//! Reads the records of format 1. Nothing writes them any more.
//!
//! They differ from format 2 in this: a batch has no header, a record has a version after its length, and the fields
//! in `wire::legacy` are shorter.

use kernel::{Action, Lsn, Shard};

use super::{DecodeError, Record};
use crate::wire::{Format, Reader};

/// The fourth byte of a batch: the highest byte of the length of its first record.
pub(super) const HIGHEST_LENGTH_BYTE: u8 = 0;

const RECORD_VERSION: u8 = 1;

/// Decodes all records of a batch from the log of `shard`.
pub(super) fn decode_all(batch: &[u8], shard: Shard) -> Result<Vec<Record>, DecodeError> {
    let (mut shard, mut offset, mut records) = (shard, 0, Vec::new());
    while offset < batch.len() {
        let (record, length) = decode(&batch[offset..], shard)
            .map_err(|error| DecodeError { offset: offset + error.offset, ..error })?;
        if let Action::Open(open) = &record.command.action {
            shard = open.store.shard;
        }
        records.push(record);
        offset += length;
    }
    Ok(records)
}

/// The document of the record at `lsn` in a batch.
pub(super) fn document_in(batch: &[u8], lsn: Lsn) -> Result<Option<Vec<u8>>, DecodeError> {
    let mut rest = batch;
    while !rest.is_empty() {
        let mut head = Reader::new(rest);
        let length = u32::from_le_bytes(head.fixed()?) as usize;
        head.take(length)?;
        if rest.get(5..13) == Some(&lsn.0.to_le_bytes()) {
            return Ok(decode(rest, Shard::default())?.0.document);
        }
        rest = &rest[4 + length..];
    }
    Ok(None)
}

fn decode(bytes: &[u8], shard: Shard) -> Result<(Record, usize), DecodeError> {
    let mut head = Reader::new(bytes);
    let length = u32::from_le_bytes(head.fixed()?) as usize;
    let mut reader = Reader::within(head.take(length)?, 4);
    let version = reader.byte()?;
    if version != RECORD_VERSION {
        return Err(reader.error(format!("record format not supported by this build: version={version}")));
    }
    let record = Record::decode_fields(&mut reader, Format::One(shard))?;
    Ok((record, 4 + length))
}
