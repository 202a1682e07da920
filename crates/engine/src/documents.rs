//! Where a document's bytes are stored: in the log, or in a blob.
//!
//! The kernel stores an opaque [`Location`] with each document. Documents of up to [`Record::DOCUMENT_MAX`]
//! bytes are stored inline, in the record that committed them or in a later record that relocated them.
//! Longer documents are blobs, named after the term in which they were written.

use kernel::{Location, Lsn};
use store::{BlobName, ErrorKind, LogReader, StoreError};

use crate::record::Record;

/// A decoded [`Location`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DocumentLocation {
    /// In the record at this LSN.
    Inline(Lsn),
    /// In a blob.
    Blob(BlobId),
}

/// The number of a tenure, from 1. Each opening of a log begins a new term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term(pub u64);

/// Identifies a blob within its shard. Never reused, since no term begins twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlobId {
    /// The term that wrote the blob.
    pub term: Term,
    /// The blob's number within the term, from 0.
    pub number: u64,
}

impl DocumentLocation {
    /// Encodes the location for the kernel: the term in the upper 64 bits, 0 for inline documents.
    pub fn location(self) -> Location {
        match self {
            DocumentLocation::Inline(lsn) => Location(u128::from(lsn.0)),
            DocumentLocation::Blob(BlobId { term, number }) => {
                Location(u128::from(term.0) << 64 | u128::from(number))
            }
        }
    }

    /// Decodes a location.
    pub fn of(location: Location) -> DocumentLocation {
        let [term, number] = [location.0 >> 64, location.0 & u128::from(u64::MAX)]
            .map(|half| u64::try_from(half).expect("64 bits"));
        if term == 0 {
            DocumentLocation::Inline(Lsn(number))
        } else {
            DocumentLocation::Blob(BlobId { term: Term(term), number })
        }
    }
}

impl BlobId {
    /// The blob's name in the store.
    pub fn name(self, shard: kernel::Shard) -> BlobName {
        let BlobId { term: Term(term), number } = self;
        let name = format!("{}{term:016x}-{number:016x}", BlobId::prefix(shard));
        BlobName::new(&name).expect("digits and dashes")
    }

    /// The common prefix of a shard's blob names.
    pub fn prefix(shard: kernel::Shard) -> String {
        format!("document/{}/", shard.0)
    }

    /// Parses a blob name; `None` if it is not a document of this shard in canonical form.
    pub fn parse(name: &BlobName, shard: kernel::Shard) -> Option<BlobId> {
        let (term, number) = name.as_str().strip_prefix(&BlobId::prefix(shard))?.split_once('-')?;
        let read = |hex: &str| u64::from_str_radix(hex, 16).ok();
        let blob = BlobId { term: Term(read(term)?), number: read(number)? };
        (blob.name(shard) == *name).then_some(blob)
    }
}

/// Reads the document in the record at `lsn`. [`ErrorKind::Gone`] if it has been relocated since: look up its
/// location again.
pub fn read_inline(reader: &mut dyn LogReader, lsn: Lsn) -> Result<Vec<u8>, StoreError> {
    let batch = reader.read_lsn(store::Lsn(lsn.0))?;
    let mut rest = &batch.payload[..];
    while !rest.is_empty() {
        let (found, length) = Record::document_at(rest, lsn).map_err(|error| {
            let what = format!("a batch of the log cannot be decoded: {error} seq={}", batch.seq.0);
            StoreError::new(ErrorKind::Damaged, what)
        })?;
        if let Some(document) = found {
            return Ok(document);
        }
        rest = &rest[length..];
    }
    let what = "the record holds no document; restore the store from a backup";
    Err(StoreError::new(ErrorKind::Damaged, format!("{what}: lsn={}", lsn.0)))
}
