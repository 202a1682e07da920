//! The store's integration tests, in one binary.
#![allow(missing_docs, reason = "a test has no public items")]

mod conformance;
mod cut;
mod damage;
mod eviction;
mod inspect;
mod lookup;
mod observed_fs;
mod preparation;
mod segment_files;
mod store_file;
mod unsynced_bytes;
