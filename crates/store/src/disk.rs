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
mod tail;

pub use blobs::DiskBlobs;
pub use dir::{DiskDir, StoreFile};
pub use inspect::{Found, LogView, StoreView};
pub use log::{DiskLog, LogOptions};
pub use tail::Cut;

use std::io;
use std::path::Path;

use crate::fs::Fs;

/// Makes the name of a directory durable in the one above it.
fn sync_above<F: Fs>(fs: &F, dir: &Path) -> io::Result<()> {
    match dir.parent() {
        Some(above) if above.as_os_str().is_empty() => fs.sync_dir(Path::new(".")),
        Some(above) => fs.sync_dir(above),
        None => Ok(()),
    }
}
