//! Copies of a store on disk: taken while a server uses it, verified by a second recovery, restored; export and import.
//!
//! **Invariant.** A backup under its own name is complete, durable, and was recovered to the state that it was taken
//! from. So is a restored store. Both are written under a temporary name, verified there, and then renamed.
//!
//! **What is absent.** Any change to the store that is copied; HTTP, TLS and command lines; a network: a copy is made on
//! the machine that has the store's directory.
//!
//! The modules in reading order: `manifest` describes a backup; `recovered` recovers a shard without opening its store,
//! and checks its documents; `take` copies a store, under `pace`; `verify` reads a backup as a server would; `restore`
//! makes a store of it; `archive` is a backup as one file; `drill` does all of it;
//! `export` and `import` move documents; `staging` has the temporary names.

#[macro_use]
extern crate planted;

mod archive;
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
mod verify;

pub use drill::{Drill, drill};
pub use error::BackupError;
pub use export::{ExportCounts, export};
pub use import::{ImportOptions, import};
pub use manifest::{FileEntry, Manifest, ShardEntry};
pub use pace::{Pace, Progress, Quiet};
pub use recovered::{DocumentDamage, RecoveredShard, check_documents, recover_shard};
pub use restore::{RestoreOptions, Restored, restore};
pub use take::{BackupOptions, is_archive, take};
pub use verify::verify;
