//! What the disk adapter does to a filesystem, seen through one that is watched.
#![allow(missing_docs, reason = "a test has no public items")]

mod blobs;
mod finding;
mod fs;
