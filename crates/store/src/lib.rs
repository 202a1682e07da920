//! Durable storage: one write-ahead log of batches per shard, and immutable blobs.
//!
//! **What is absent.** Nothing here knows what the bytes mean: no leases, no records, no clock. The disk
//! backend never retries: a caller whose state must not run ahead of its log has to stop when an append
//! fails. The object-store backend retries the same bytes under the caller's retry policy.
//!
//! The modules in reading order: [`port`] is the interface; [`disk`] implements it with files, in the format
//! of [`frame`], through [`fs`], with modes from [`private`]; [`SlotMap`] says
//! which shard has which slot; [`object`] implements it with an object store, through a port of its own;
//! [`memory`] implements it in memory; [`faulty`] injects faults into any of them; [`conformance`] is the
//! test suite that every implementation has to pass.

// `planted!(Fault)`: whether a deliberate fault is switched on; `false` without the feature `planted`.
#[macro_use]
extern crate planted;

pub mod port;
pub mod frame;
pub mod private;
pub mod fs;
mod slot_map;
mod store_file;
pub mod disk;
pub mod object;
pub mod memory;
pub mod faulty;
pub mod conformance;

pub use port::{
    BATCH_MAX, Batch, BlobName, BlobReader, BlobStore, BlobWriter, Bounds, Damage, ErrorKind, Extent,
    LogCapacity, LogReader, LogStore, Lsn, LsnRange, Preparation, Seq, StoreError,
};
pub use slot_map::SlotMap;
pub use store_file::{Key, StoreFile};
