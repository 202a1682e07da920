//! Where a document's bytes are stored: in the log, or in a blob.
//!
//! The kernel stores an opaque [`Location`] with each document. Documents of up to
//! [`Record::DOCUMENT_MAX`](crate::record::Record::DOCUMENT_MAX) bytes are stored inline, in the record that committed them or in a later record that relocated them.
//! Longer documents are blobs, named after the shard and the term in which they were written.

use kernel::{Location, Lsn, Shard};
use store::{Batch, BlobName, ErrorKind, LogReader, StoreError};

use crate::record::document_in;

/// A decoded [`Location`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DocumentLocation {
    /// In the log, in one record.
    Inline {
        /// The shard whose log has the record.
        shard: Shard,
        /// The record.
        lsn: Lsn,
    },
    /// In a blob.
    Blob(BlobId),
}

/// The number of a tenure, from 1. Each opening of a log begins a new term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term(pub u64);

/// Identifies a blob. Never reused, since no term begins twice and every upload draws random bits: a writer that does
/// not know yet that another one has taken over cannot touch the other's blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlobId {
    /// The shard that wrote the blob.
    pub shard: Shard,
    /// The term that wrote the blob.
    pub term: Term,
    /// The blob's number within the term, from 0.
    pub number: u64,
    /// Random bits drawn for this upload. 0 for a blob of format 1, whose name has none.
    pub random: u64,
}

impl DocumentLocation {
    /// Encodes the location for the kernel: a term of 0 for inline documents.
    pub fn location(self) -> Location {
        match self {
            DocumentLocation::Inline { shard, lsn } => Location { shard, term: 0, number: lsn.0, random: 0 },
            DocumentLocation::Blob(BlobId { shard, term, number, random }) => {
                Location { shard, term: term.0, number, random }
            }
        }
    }

    /// Decodes a location.
    pub fn of(location: Location) -> DocumentLocation {
        let Location { shard, term, number, random } = location;
        if term == 0 {
            DocumentLocation::Inline { shard, lsn: Lsn(number) }
        } else {
            DocumentLocation::Blob(BlobId { shard, term: Term(term), number, random })
        }
    }
}

impl BlobId {
    /// The blob's name in the store.
    pub fn name(self) -> BlobName {
        let BlobId { shard, term: Term(term), number, random } = self;
        let random = if random > 0 { format!("-{random:016x}") } else { String::new() };
        let name = format!("{}{term:016x}-{number:016x}{random}", BlobId::prefix(shard));
        BlobName::new(&name).expect("digits and dashes")
    }

    /// The common prefix of a shard's blob names.
    pub fn prefix(shard: Shard) -> String {
        format!("document/{}/", shard.0)
    }

    /// Parses a blob name; `None` if it is not a document of this shard in canonical form.
    pub fn parse(name: &BlobName, shard: Shard) -> Option<BlobId> {
        let mut parts = name.as_str().strip_prefix(&BlobId::prefix(shard))?.split('-');
        let mut read = || parts.next().map(|hex| u64::from_str_radix(hex, 16).ok());
        let (term, number) = (Term(read()??), read()??);
        let random = read().unwrap_or(Some(0))?;
        let blob = BlobId { shard, term, number, random };
        (blob.name() == *name).then_some(blob)
    }
}

/// Reads the document in the record at `lsn`. [`ErrorKind::Gone`] if it has been relocated since: look up its
/// location again.
pub fn read_inline(reader: &mut dyn LogReader, lsn: Lsn) -> Result<Vec<u8>, StoreError> {
    document_of_batch(&reader.read_lsn(store::Lsn(lsn.0))?, lsn)
}

/// The document in the record at `lsn` of a batch.
pub(crate) fn document_of_batch(batch: &Batch, lsn: Lsn) -> Result<Vec<u8>, StoreError> {
    let found = document_in(&batch.payload, lsn).map_err(|error| {
        let what = format!("a batch of the log cannot be decoded: {error} seq={}", batch.seq.0);
        StoreError::new(ErrorKind::Damaged, what)
    })?;
    found.ok_or_else(|| {
        let what = "the record holds no document; restore the store from a backup with `lockd restore`";
        StoreError::new(ErrorKind::Damaged, format!("{what}: lsn={}", lsn.0))
    })
}
