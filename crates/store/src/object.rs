//! A store in an object store: an object for each batch, an object for each blob, and safety without a clock.
//!
//! ```text
//! log/<shard>/<batch, 16 hex digits>      one batch, created if absent
//! floor/<shard>/<batch, 16 hex digits>    what is below is gone; the highest counts
//! blob/<name>                             blobs, by name
//! ```
//!
//! **What is absent.** A client: [`Objects`] is a port, so that a simulator can delay, lose and reorder
//! requests, and a real client can be put behind it later. Sleeping: what happens between two tries is
//! the owner's ([`Patience`]). Who should take over, and when: silence is watched elsewhere.
//!
//! In reading order: [`port`] is what is asked of an object store; [`mod@format`] is the bytes of a batch;
//! `names`; `log` is the protocol; `truncate` gives room back; `shard_objects` asks for one shard's objects and
//! finds the end of its log; `index` is what is known of it; `reader`; `blobs`; `memory`.

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
pub use log::{ObjectLog, Standing};
pub use memory::MemoryObjects;
pub use port::{Answer, Objects, ObjectsError, Page, Patience, Pause};
pub use shard_objects::ObjectOptions;
