//! The object-store backend: one object per batch, one object per blob, fencing by conditional puts, no
//! clock.
//!
//! **Not used by the server yet.** No store URL selects this backend: only the simulator and the tests run
//! it. It is the base of the planned S3 support.
//!
//! ```text
//! log/<shard>/<batch, 16 hex digits>      one batch, put if absent
//! floor/<shard>/<batch, 16 hex digits>    batches below are dropped; the highest floor applies
//! blob/<name>                             blobs, by name
//! ```
//!
//! **What is absent.** A client: [`Objects`] is a port, so that a simulator can delay, lose and reorder
//! requests; a real client will implement it later. Sleeping: the caller decides what happens between two
//! attempts ([`RetryPolicy`]). Failure detection: when to take over a log is decided elsewhere.
//!
//! In reading order: [`port`] is the interface to an object store; [`mod@format`] is the encoding of a batch;
//! `names` are the object names; `log` is the protocol; `truncate` deletes batches below the floor;
//! `shard_objects` reads one shard's objects and finds the end of its log; `index` holds the metadata of the
//! batches; `reader`, `blobs` and `memory` complete it.

pub mod port;
pub mod format;
mod names;
mod log;
mod truncate;
mod shard_objects;
mod index;
mod reader;
mod blobs;
mod memory;

pub use blobs::ObjectBlobs;
pub use format::WriterId;
pub use log::{ObjectLog, WriterRole};
pub use memory::MemoryObjects;
pub use port::{Objects, ObjectsError, ObjectsErrorKind, Page, Pause, RetryPolicy};
pub use shard_objects::ObjectOptions;
