//! The object-store backend: one object per batch, one object per blob, fencing by conditional puts, no
//! clock.
//!
//! ```text
//! store                                    parameters of the store, put if absent
//! store.key                                its key, put if absent, unless it is kept outside
//! map/<number, 16 hex digits>              maps of slots, each put if absent
//! log/<shard>/<batch, 16 hex digits>       one batch, put if absent
//! floor/<shard>/<batch, 16 hex digits>     batches below are dropped; the highest floor applies
//! index/<shard>/<batch, 16 hex digits>     metadata of the batches from this one on: derived data
//! blob/<name>                              blobs, by name
//! ```
//!
//! **What is absent.** A client: [`Objects`] is a port, so that a simulator can delay, lose and reorder
//! requests; `lockd-bucket` implements it for real stores. Sleeping: the caller decides what happens between two
//! attempts ([`RetryPolicy`]). Failure detection: when to take over a log is decided elsewhere.
//!
//! In reading order: [`port`] is the interface to an object store; [`mod@format`] is the encoding of a batch;
//! `names` are the object names; `root` has the parameters of a store; `log` is the protocol; `maintenance` is done in
//! the background: index objects, and the deletion of batches below the floor; `shard_objects` reads one shard's objects
//! and finds the end of its log; `index` holds the metadata of the batches, and `index_page` its encoding as an object;
//! `reader`, `recent`, `blobs` with `part` (the bytes of a blob that are not sent yet) and `blob_reader`, and `memory` complete it; `import` writes a log that was copied from another store, and
//! `check` compares the objects of a log with each other.

pub mod port;
pub mod format;
mod names;
mod root;
mod log;
mod maintenance;
mod shard_objects;
mod index;
mod index_page;
mod reader;
mod recent;
mod part;
mod blobs;
mod blob_reader;
mod memory;
mod import;
mod check;

pub use blobs::{ObjectBlobs, UploadOptions};
pub use check::{ObjectLogCheck, check_log};
pub use format::WriterId;
pub use import::ObjectImport;
pub use log::{ObjectLog, WriterRole};
pub use memory::MemoryObjects;
pub use part::{Part, Spool};
pub use port::{
    NewObject, ObjectRange, ObjectStream, ObjectUpload, Objects, ObjectsError, ObjectsErrorKind, Page, Pause,
    RetryPolicy,
};
pub use root::{KeySource, ObjectStoreRoot};
pub use shard_objects::ObjectOptions;
