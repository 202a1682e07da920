//! The disk backend: a directory with log segments and one file per blob.
//!
//! ```text
//! store                 store id, number of shards and format, signed with the store key
//! map/<n>               the map from slots to shards; the highest number counts
//! lock                  locked by the process that has the store open
//! backup-lock           locked by processes that copy the store: nothing is deleted meanwhile
//! log/<shard>/          one log: <first batch, 16 hex digits>.seg, spare-<n>, floor, clean-stop,
//!                       cut-<segment>-<offset>
//! blob/by-name/         finished blobs, by name
//! blob/tmp/             blobs being written
//! ```

mod backup_lock;
mod blobs;
mod clean_stop;
mod copy;
mod cut;
mod dir;
mod floor;
mod import;
mod index;
mod inspect;
mod log;
mod read_only;
mod reader;
mod recovery;
mod spare;
mod tail;

pub use backup_lock::BackupHold;
pub use blobs::DiskBlobs;
pub use copy::{CopiedFile, FileDigest, LogCopy};
pub use cut::{CutPlace, LogCut, cut};
pub use dir::{DiskDir, LockedDir, UnusedStore, create_store};
pub use import::LogImport;
pub use inspect::{LogItem, LogView, StoreView};
pub use log::{DiskLog, LogOptions};
pub use tail::TornTail;

pub use crate::store_file::{Key, StoreFile};
