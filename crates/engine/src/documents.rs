//! Where a document's bytes are: in the log, or in a blob.
//!
//! The kernel keeps a [`Location`] beside each document and does not look into it. Up to
//! [`Record::DOCUMENT_MAX`] bytes ride in the record that commits them, or in the one that carried them forward;
//! longer ones are blobs, named by the term in which they were written.

use kernel::{Location, Lsn};
use store::{BlobName, ErrorKind, LogReader, StoreError};

use crate::record::Record;

/// A location, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the record at this LSN.
    Inline(Lsn),
    /// In a blob.
    Blob(BlobId),
}

/// Names a blob: no two ever have the same, since no term begins twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlobId {
    /// The tenure that wrote it, from 1.
    pub term: u64,
    /// Counts those of one tenure.
    pub number: u64,
}

impl Place {
    /// As the kernel keeps it: the term in the upper half, 0 for what is in the log.
    pub fn location(self) -> Location {
        match self {
            Place::Inline(lsn) => Location(u128::from(lsn.0)),
            Place::Blob(BlobId { term, number }) => Location(u128::from(term) << 64 | u128::from(number)),
        }
    }

    /// What a location means.
    pub fn of(location: Location) -> Place {
        let [term, number] = [location.0 >> 64, location.0 & u128::from(u64::MAX)]
            .map(|half| u64::try_from(half).expect("half of it"));
        if term == 0 { Place::Inline(Lsn(number)) } else { Place::Blob(BlobId { term, number }) }
    }
}

impl BlobId {
    /// The blob's name in its shard's part of the store.
    pub fn name(self, shard: kernel::Shard) -> BlobName {
        let BlobId { term, number } = self;
        let name = format!("{}{term:016x}-{number:016x}", BlobId::prefix(shard));
        BlobName::new(&name).expect("digits and dashes")
    }

    /// What the names of a shard's blobs begin with.
    pub fn prefix(shard: kernel::Shard) -> String {
        format!("document/{}/", shard.0)
    }

    /// The blob of this name, if it is one of the shard's.
    pub fn parse(name: &BlobName, shard: kernel::Shard) -> Option<BlobId> {
        let (term, number) = name.as_str().strip_prefix(&BlobId::prefix(shard))?.split_once('-')?;
        let read = |hex: &str| u64::from_str_radix(hex, 16).ok();
        let blob = BlobId { term: read(term)?, number: read(number)? };
        (blob.name(shard) == *name).then_some(blob)
    }
}

/// The document in the record at this LSN. [`ErrorKind::Gone`] if it has been carried forward since: look again
/// where it is.
pub fn read_inline(reader: &mut dyn LogReader, lsn: Lsn) -> Result<Vec<u8>, StoreError> {
    let batch = reader.holding(lsn.0)?;
    let mut rest = &batch.payload[..];
    while !rest.is_empty() {
        let (found, length) = Record::document_at(rest, lsn).map_err(|error| {
            StoreError::new(ErrorKind::Damaged, format!("batch {} of the log: {error}", batch.seq.0))
        })?;
        if let Some(document) = found {
            return Ok(document);
        }
        rest = &rest[length..];
    }
    Err(StoreError::new(ErrorKind::Damaged, format!("no document where one should be: lsn={}", lsn.0)))
}
