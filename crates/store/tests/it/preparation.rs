//! Segments grow with use, and the next one is prepared ahead on another thread: no append waits until it is zeroed.

use std::path::Path;

use store::disk::{DiskLog, LogOptions};
use store::{BATCH_MAX, ErrorKind, LogStore, LsnRange, Seq};

use crate::observed_fs::ObservedFs;

const MIB: u64 = 1 << 20;

fn open(fs: &ObservedFs, dir: &Path) -> DiskLog<ObservedFs> {
    let options = LogOptions { shard: 0, store_id: 1, segment_bytes: LogOptions::SEGMENT_BYTES };
    DiskLog::open(fs.clone(), dir, options).expect("a sound log").0
}

/// Appends a batch of the largest size.
fn append(log: &mut DiskLog<ObservedFs>) {
    let Seq(next) = log.bounds().next;
    log.append(Seq(next), LsnRange::new(next, next), &vec![7; BATCH_MAX]).expect("space");
}

fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).expect("there").map(|entry| entry.expect("readable"));
    entries.map(|entry| entry.metadata().expect("readable").len()).sum()
}

#[test]
fn a_new_log_takes_four_mebibytes_and_its_segments_double_up_to_the_maximum() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&ObservedFs::default(), dir.path());
    log.reserve().expect("space");
    log.append(Seq(0), LsnRange::default(), b"first").expect("space");
    log.reserve().expect("space");
    assert!(bytes_in(dir.path()) <= 8 * MIB, "{} bytes", bytes_in(dir.path()));
    while log.extents().len() < 7 {
        append(&mut log);
    }
    let lengths: Vec<u64> = log.extents().iter().map(|extent| extent.bytes / MIB).collect();
    assert_eq!(lengths, [4, 8, 16, 32, 64, 64, 64]);
}

#[test]
fn a_batch_of_the_largest_size_fits_and_one_byte_more_is_too_large() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&ObservedFs::default(), dir.path());
    log.reserve().expect("space");
    assert_eq!(log.capacity().bytes, BATCH_MAX as u64);
    let error = log.append(Seq(0), LsnRange::default(), &vec![7; BATCH_MAX + 1]).expect_err("one too many");
    assert_eq!(error.kind, ErrorKind::TooLarge);
    append(&mut log);
}

/// At every rotation the whole shard stood still while 64 MiB were zeroed and synced.
#[test]
fn with_preparations_neither_a_reservation_nor_an_append_zeroes_a_segment() {
    let dir = tempfile::tempdir().expect("a directory");
    let fs = ObservedFs::default();
    let mut log = open(&fs, dir.path());
    log.reserve().expect("space");
    append(&mut log);
    let mut prepared = 0;
    while log.extents().len() < 5 {
        if let Some(preparation) = log.preparation() {
            assert!(log.preparation().is_none(), "one at a time");
            preparation().expect("space");
            assert!(log.preparation().is_none(), "there is a spare");
            prepared += 1;
        }
        let (_, syncs) = fs.unsynced();
        log.reserve().expect("space");
        append(&mut log);
        // The batch itself, and the header of a new segment.
        assert!(fs.unsynced().1 - syncs <= 2, "{} syncs", fs.unsynced().1 - syncs);
    }
    assert_eq!(prepared, 4);
    assert!(
        bytes_in(dir.path()) <= log.extents().iter().map(|extent| extent.bytes).sum(),
        "no file is left over"
    );
}

#[test]
fn a_preparation_is_due_once_half_of_the_segment_is_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&ObservedFs::default(), dir.path());
    assert!(log.preparation().is_none(), "an empty log has no segment to be half full");
    log.append(Seq(0), LsnRange::default(), &vec![7; BATCH_MAX - 4096]).expect("space");
    assert!(log.preparation().is_none());
    log.append(Seq(1), LsnRange::default(), &[7; 8192]).expect("space");
    assert!(log.preparation().is_some());
}

/// A preparation that is slow, fails or is dropped delays no append: the log creates a spare itself.
#[test]
fn a_log_does_not_wait_for_a_preparation() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&ObservedFs::default(), dir.path());
    append(&mut log);
    let slow = log.preparation().expect("due");
    for _ in 0..4 {
        log.reserve().expect("space");
        append(&mut log);
    }
    assert!(log.extents().len() > 1 && log.preparation().is_none(), "one is still in progress");
    slow().expect("space");
    log.reserve().expect("space");
    let dropped = loop {
        append(&mut log);
        if let Some(preparation) = log.preparation() {
            break preparation;
        }
    };
    drop(dropped);
    drop(log.preparation().expect("the dropped one can be repeated"));
    let names =
        std::fs::read_dir(dir.path()).expect("there").map(|entry| entry.expect("readable").file_name());
    assert!(names.filter(|name| name.to_string_lossy().starts_with("spare")).count() <= 1);
    drop(log);
    let log = open(&ObservedFs::default(), dir.path());
    let mut reader = log.reader();
    (0..log.bounds().next.0).for_each(|seq| drop(reader.read(Seq(seq)).expect("there")));
}
