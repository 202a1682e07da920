//! Batches are found without reading whole segments, and concurrently dropped ones are reported as gone,
//! never as damaged.

use std::path::Path;
use std::sync::{Arc, Mutex};

use store::conformance::{batch, fill};
use store::disk::{DiskLog, LogOptions};
use store::{Batch, ErrorKind, LogStore, Lsn, LsnRange, Seq};

use crate::observed_fs::ObservedFs;

const PAYLOAD: usize = 2000;
const BATCHES: u64 = 6000;
/// The maximum number of bytes read to find a batch: from an index entry, with growing read-ahead.
const LOOKUP_MAX: u64 = 3 * (64 << 10);

fn open(fs: &ObservedFs, dir: &Path, segment_bytes: u64) -> DiskLog<ObservedFs> {
    let options = LogOptions { shard: 0, store_id: 1, segment_bytes };
    DiskLog::open(fs.clone(), dir, options).expect("a sound log").0
}

/// About three segments of four megabytes.
fn written(fs: &ObservedFs, dir: &Path) -> DiskLog<ObservedFs> {
    let mut log = open(fs, dir, 4 << 20);
    for seq in 0..BATCHES {
        log.append(Seq(seq), lsns(seq), &[7; PAYLOAD]).expect("writable");
    }
    assert!(log.extents().len() > 2, "{:?}", log.extents());
    log
}

fn lsns(seq: u64) -> LsnRange {
    LsnRange::new(seq * 10, seq * 10 + 9)
}

/// Sequence numbers all over the log, in no order.
fn scattered() -> impl Iterator<Item = u64> {
    (0..300).map(|n| n * 7919 % BATCHES)
}

fn check_lookups_are_cheap(fs: &ObservedFs, log: &DiskLog<ObservedFs>, how: &str) {
    let mut reader = log.reader();
    for seq in scattered() {
        fs.take_read();
        assert_eq!(reader.read(Seq(seq)).expect("there").seq, Seq(seq));
        let by_number = fs.take_read();
        assert_eq!(reader.read_lsn(Lsn(seq * 10 + 5)).expect("there").seq, Seq(seq));
        assert!(
            by_number < LOOKUP_MAX && fs.take_read() < LOOKUP_MAX,
            "{how}: {by_number} bytes for batch {seq}"
        );
        let fresh = log.reader().read_lsn(Lsn(seq * 10)).expect("there");
        assert_eq!((fresh.seq, fresh.lsns), (Seq(seq), lsns(seq)));
        assert!(fs.take_read() < LOOKUP_MAX, "{how}: by a new reader");
    }
}

#[test]
fn a_batch_is_found_without_reading_through_its_segment() {
    let dir = tempfile::tempdir().expect("a directory");
    let fs = ObservedFs::default();
    check_lookups_are_cheap(&fs, &written(&fs, dir.path()), "indexed while writing");
}

#[test]
fn a_segment_of_an_earlier_process_is_scanned_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let fs = ObservedFs::default();
    drop(written(&fs, dir.path()));
    let log = open(&fs, dir.path(), 4 << 20);
    let whole: u64 = log.extents().iter().map(|extent| extent.bytes).sum();
    fs.take_read();
    let last = BATCHES - 1;
    assert_eq!(log.reader().read_lsn(Lsn(last * 10)).expect("there").seq, Seq(last));
    assert!(fs.take_read() < LOOKUP_MAX, "the last segment was read when the log was opened");
    assert_eq!(log.reader().read_lsn(Lsn(25)).expect("there").seq, Seq(2));
    assert!(fs.take_read() < LOOKUP_MAX, "no further than needed");
    for seq in scattered() {
        log.reader().read_lsn(Lsn(seq * 10)).expect("there");
    }
    assert!(fs.take_read() < whole + 300 * LOOKUP_MAX);
    check_lookups_are_cheap(&fs, &log, "indexed while reading");
}

#[test]
fn a_batch_not_appended_yet_is_gone_not_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&ObservedFs::default(), dir.path(), LogOptions::SEGMENT_BYTES_MIN);
    let mut reader = log.reader();
    for next in 0..200 {
        assert_eq!(reader.read_lsn(Lsn(next * 10)).expect_err("not there").kind, ErrorKind::Gone);
        assert_eq!(reader.read(Seq(next)).expect_err("not there").kind, ErrorKind::Gone);
        fill(&mut log, next + 1);
        assert_eq!(reader.read_lsn(Lsn(next * 10)).expect("there"), batch(Seq(next)));
    }
}

/// A reader was in the middle of the log when segments were dropped; it found the next one missing and
/// reported damage.
#[test]
fn a_batch_dropped_under_a_reader_is_gone_not_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&ObservedFs::default(), dir.path(), LogOptions::SEGMENT_BYTES_MIN);
    fill(&mut log, 300);
    let extents = log.extents();
    let mut reader = log.reader();
    reader.read(Seq(0)).expect("there");
    log.raise_floor(extents[3].first).expect("within the log");
    for seq in 1..extents[1].first.0 {
        assert_eq!(reader.read(Seq(seq)).expect("its file is still open"), batch(Seq(seq)));
    }
    assert_eq!(reader.read(extents[1].first).expect_err("dropped").kind, ErrorKind::Gone);
    assert_eq!(reader.read(extents[2].first).expect_err("dropped").kind, ErrorKind::Gone);
    assert_eq!(reader.read_lsn(Lsn(extents[2].first.0 * 10)).expect_err("dropped").kind, ErrorKind::Gone);
    assert_eq!(reader.read(extents[3].first).expect("above the floor"), batch(extents[3].first));
}

#[test]
fn a_segment_dropped_just_before_it_is_opened_is_gone() {
    for by_lsn in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let fs = ObservedFs::default();
        let mut log = open(&fs, dir.path(), LogOptions::SEGMENT_BYTES_MIN);
        fill(&mut log, 300);
        let second = log.extents()[1].first;
        let mut reader = log.reader();
        let log = Arc::new(Mutex::new(log));
        fs.before_open(move || log.lock().expect("free").raise_floor(Seq(300)).expect("all of it"));
        let read = if by_lsn { reader.read_lsn(Lsn(second.0 * 10)) } else { reader.read(second) };
        assert_eq!(read.expect_err("dropped").kind, ErrorKind::Gone);
    }
}

/// Only the log may remove segments: any other missing segment is damage, and reported by name.
#[test]
fn a_segment_not_removed_by_the_log_is_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&ObservedFs::default(), dir.path(), LogOptions::SEGMENT_BYTES_MIN);
    fill(&mut log, 300);
    let second = log.extents()[1].first;
    let name = format!("{:016x}.seg", second.0);
    std::fs::remove_file(dir.path().join(&name)).expect("there");
    let error = log.reader().read(second).expect_err("missing");
    assert!(error.kind == ErrorKind::Damaged && error.what.contains(&name), "{error}");
}

#[test]
fn concurrent_readers_find_batches_as_written_or_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&ObservedFs::default(), dir.path(), LogOptions::SEGMENT_BYTES_MIN);
    fill(&mut log, 100);
    let read = |mut reader: Box<dyn store::LogReader>, pace: u64| {
        let found = |found: Result<Batch, store::StoreError>, seq| match found {
            Ok(found) => assert_eq!(found, batch(Seq(seq))),
            Err(error) => assert_eq!(error.kind, ErrorKind::Gone, "batch {seq}: {error}"),
        };
        for n in 0..20_000 {
            let seq = n * pace % 3000;
            found(reader.read(Seq(seq)), seq);
            found(reader.read_lsn(Lsn(seq * 10 + 3)), seq);
        }
    };
    std::thread::scope(|scope| {
        for pace in [1, 1, 7919] {
            let reader = log.reader();
            scope.spawn(move || read(reader, pace));
        }
        for next in 101..3000 {
            fill(&mut log, next);
            if next % 50 == 0 {
                log.raise_floor(Seq(next - 100)).expect("within the log");
            }
        }
    });
}
