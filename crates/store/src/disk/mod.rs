//! A store in a directory: segments of frames, and a file for each blob.
//!
//! ```text
//! store                 what was fixed when the store was made
//! lock                  held by the process that has it open
//! log/<shard>/          one log: <first batch, 16 hex digits>.seg, spare, floor
//! blob/                 blobs, by name; tmp/ those under way
//! ```

mod blobs;
mod dir;
mod index;
mod inspect;
mod log;
mod reader;

pub use blobs::DiskBlobs;
pub use dir::{DiskDir, StoreFile};
pub use inspect::{Found, LogView, StoreView};
pub use log::{Cut, DiskLog, LogOptions};
