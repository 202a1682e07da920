//! Runs the conformance suite against every implementation.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use store::LogStore;
use store::conformance;
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::faulty::{Fault, Faulty};
use store::fs::RealFs;
use store::memory::{MemoryBlobs, MemoryLog};
use store::object::{
    MemoryObjects, ObjectBlobs, ObjectLog, ObjectOptions, RetryPolicy, UploadOptions, WriterId,
};

/// Small segments, so that a few batches fill several of them.
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
    let dir = tempfile::tempdir().expect("a directory");
    conformance::raising_the_floor_frees_extents(open(dir.path()));
}

#[test]
fn a_log_in_memory_conforms() {
    conformance::log(MemoryLog::default(), |log| log);
    conformance::reads_while_appending(MemoryLog::default());
    conformance::raising_the_floor_frees_extents(MemoryLog::default());
}

/// Opens the log with a new writer id.
fn open_objects(objects: &MemoryObjects) -> ObjectLog {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let writer = WriterId(u128::from(OPENED.fetch_add(1, Ordering::Relaxed)));
    let options = ObjectOptions { index_batches: 16, ..ObjectOptions::new(3, 77, writer) };
    ObjectLog::open(Arc::new(objects.clone()), options, RetryPolicy::without_pause(1)).expect("a sound log")
}

#[test]
fn a_log_of_objects_conforms() {
    let objects = MemoryObjects::default();
    conformance::log(open_objects(&objects), |_| open_objects(&objects));
    conformance::reads_while_appending(open_objects(&MemoryObjects::default()));
}

#[test]
fn blobs_of_objects_conform() {
    let objects = Arc::new(MemoryObjects::default());
    conformance::blobs(&ObjectBlobs::new(objects, RetryPolicy::without_pause(1), UploadOptions::parts_of(4)));
}

#[test]
fn a_faulty_log_without_faults_conforms() {
    conformance::log(Faulty::new(MemoryLog::default(), Box::new(|_| Fault::None)), |log| log);
}

/// Existing segments may differ in length from new ones, and a restart shortens the last.
#[test]
fn the_extents_of_a_log_on_disk_are_its_files() {
    let dir = tempfile::tempdir().expect("a directory");
    conformance::fill(&mut open(dir.path()), 100);
    let longer = LogOptions { segment_bytes: 3 * OPTIONS.segment_bytes, ..OPTIONS };
    let (mut log, _) = DiskLog::open(RealFs, &dir.path().join("log"), longer).expect("a sound log");
    conformance::fill(&mut log, 300);
    let extents = log.extents();
    for extent in &extents {
        let file = dir.path().join("log").join(format!("{:016x}.seg", extent.first.0));
        assert_eq!(std::fs::metadata(file).expect("there").len(), extent.bytes);
    }
    let ends = [extents[0].bytes, extents[extents.len() - 1].bytes];
    assert_eq!(ends, [OPTIONS.segment_bytes, longer.segment_bytes]);
}

#[test]
fn blobs_on_disk_conform_and_leave_no_temporary_files() {
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
