//! Copies of a store: taken while a server uses it, verified by a second recovery, restored; export and import; copies
//! between disks and buckets.
//!
//! **Invariant.** A backup under its own name is complete, durable, and was recovered to the state that it was taken
//! from. So is a restored store. Both are written under a temporary name, verified there, and then renamed.
//!
//! **What is absent.** Any change to the store that is copied; HTTP, TLS and command lines. A bucket is reached through
//! the port [`store::object::Objects`], and never written to unless it is the empty target of a copy.
//!
//! The modules in reading order: `manifest` describes a backup; `recovered` recovers a shard without opening its store,
//! and checks its documents; `take` copies a store, under `pace`; `verify` reads a backup as a server would; `restore`
//! makes a store of it; `archive` is a backup as one file; `drill` does all of it;
//! `export` and `import` move documents; `bucket_store` is a store in a bucket, `download` copies one to a directory,
//! `upload` copies a directory to an empty bucket, and `copy` does either, or both; `staging` has the temporary names.

#[macro_use]
extern crate planted;

mod archive;
mod bucket_store;
mod copy;
mod download;
mod drill;
mod error;
mod export;
mod import;
mod manifest;
mod pace;
mod recovered;
mod restore;
mod staging;
mod take;
mod upload;
mod verify;

pub use bucket_store::{BlobUse, BucketStore};
pub use copy::{CopyOptions, CopyReport, StoreLocation, copy_store};
pub use download::{DownloadOptions, download};
pub use drill::{Drill, drill};
pub use error::BackupError;
pub use export::{ExportCounts, export};
pub use import::{ImportOptions, import};
pub use manifest::{FileEntry, Manifest, ShardEntry};
pub use pace::{Pace, Progress, Quiet};
pub use recovered::{DocumentDamage, RecoveredShard, check_documents, recover_shard};
pub use restore::{RestoreOptions, Restored, restore};
pub use take::{BackupOptions, is_archive, take};
pub use upload::{KeyLocation, upload};
pub use verify::verify;
