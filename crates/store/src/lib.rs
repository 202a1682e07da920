//! Where bytes are kept: one log of batches for each shard, and immutable blobs.
//!
//! **What is absent.** Nothing here knows what the bytes mean: no leases, no records, no clock. On disk
//! nothing retries: a caller that must not be ahead of its log has to end when an append fails. In an
//! object store the same bytes are tried again, as often as the caller has patience.
//!
//! The modules in reading order: [`port`] says what a store does; [`disk`] does it with files, in the
//! formats of [`frame`], through [`fs`], which makes files [`private`]; [`object`] does it with objects, through a port of its own;
//! [`memory`] does it with neither; [`faulty`] does it badly, on purpose; [`conformance`] is what every
//! one of them has to pass.

/// Is this deliberate fault switched on, or one of these? Never, without the feature `planted`.
#[cfg(feature = "planted")]
macro_rules! planted {
    ($($fault:ident)|+) => {
        [$(::planted::Fault::$fault),+].into_iter().any(::planted::is)
    };
}
#[cfg(not(feature = "planted"))]
macro_rules! planted {
    ($($fault:ident)|+) => {
        false
    };
}

pub mod port;
pub mod frame;
pub mod private;
pub mod fs;
pub mod disk;
pub mod object;
pub mod memory;
pub mod faulty;
pub mod conformance;

pub use port::{
    Batch, BlobName, BlobStore, BlobWriter, Bounds, Damage, ErrorKind, Extent, LogReader, LogStore, Lsns,
    Room, Seq, StoreError,
};
