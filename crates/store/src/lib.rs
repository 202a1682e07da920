//! Where bytes are kept: one log of batches for each shard, and immutable blobs.
//!
//! **What is absent.** Nothing here knows what the bytes mean: no leases, no records, no clock. Nothing
//! retries: a caller that must not be ahead of its log has to end when an append fails.
//!
//! The modules in reading order: [`port`] says what a store does; [`disk`] does it with files, in the
//! formats of [`frame`], through [`fs`]; [`memory`] does it without; [`faulty`] does it badly, on
//! purpose; [`conformance`] is what every one of them has to pass.

pub mod port;
pub mod frame;
pub mod fs;
pub mod disk;
pub mod memory;
pub mod faulty;
pub mod conformance;

pub use port::{
    Batch, BlobName, BlobStore, BlobWriter, Bounds, Damage, ErrorKind, Extent, LogReader, LogStore, Lsns,
    Room, Seq, StoreError,
};
