//! Every adapter against the one conformance suite.
#![allow(missing_docs, reason = "a test has no public items")]

use std::path::Path;

use store::conformance;
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::faulty::{Fault, Faulty};
use store::fs::RealFs;
use store::memory::{MemoryBlobs, MemoryLog};

/// Small segments, so that a few batches fill several.
const OPTIONS: LogOptions =
    LogOptions { shard: 3, store_id: 77, segment_bytes: LogOptions::SEGMENT_BYTES_MIN };

fn open(dir: &Path) -> DiskLog<RealFs> {
    let (log, cut) = DiskLog::open(RealFs, &dir.join("log"), OPTIONS).expect("a sound log");
    assert_eq!(cut, None);
    log
}

#[test]
fn a_log_on_disk_conforms() {
    let dir = tempfile::tempdir().expect("a directory");
    conformance::log(open(dir.path()), |log| {
        drop(log);
        open(dir.path())
    });
    let dir = tempfile::tempdir().expect("a directory");
    conformance::reads_while_appending(open(dir.path()));
}

#[test]
fn a_log_in_memory_conforms() {
    conformance::log(MemoryLog::default(), |log| log);
    conformance::reads_while_appending(MemoryLog::default());
}

#[test]
fn a_faulty_log_without_faults_conforms() {
    conformance::log(Faulty::new(MemoryLog::default(), Box::new(|_| Fault::None)), |log| log);
}

#[test]
fn blobs_on_disk_conform_and_leave_nothing_under_way() {
    let dir = tempfile::tempdir().expect("a directory");
    let blobs = DiskBlobs::open(RealFs, dir.path()).expect("an empty directory");
    conformance::blobs(&blobs);
    assert_eq!(std::fs::read_dir(dir.path().join("tmp")).expect("there").count(), 0);
}

#[test]
fn blobs_in_memory_conform() {
    conformance::blobs(&MemoryBlobs::default());
    conformance::blobs(&Faulty::new(MemoryBlobs::default(), Box::new(|_| Fault::None)));
}
