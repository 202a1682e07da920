//! The disk backend: a directory with log segments and one file per blob.
//!
//! ```text
//! store                 store id, number of shards and format, signed with the store key
//! map/<n>               the map from slots to shards; the highest number counts
//! lock                  locked by the process that has the store open
//! log/<shard>/          one log: <first batch, 16 hex digits>.seg, spare, floor
//! blob/by-name/         finished blobs, by name
//! blob/tmp/             blobs being written
//! ```

mod blobs;
mod dir;
mod index;
mod inspect;
mod log;
mod reader;
mod store_file;
mod tail;

pub use blobs::DiskBlobs;
pub use dir::{DiskDir, LockedDir};
pub use inspect::{LogItem, LogView, StoreView};
pub use log::{DiskLog, LogOptions};
pub use store_file::{Key, StoreFile};
pub use tail::TornTail;

use std::io;
use std::path::Path;

use crate::fs::Fs;

/// Makes the name of a directory durable in its parent.
fn sync_parent<F: Fs>(fs: &F, dir: &Path) -> io::Result<()> {
    match dir.parent() {
        Some(parent) if parent.as_os_str().is_empty() => fs.sync_dir(Path::new(".")),
        Some(parent) => fs.sync_dir(parent),
        None => Ok(()),
    }
}
