//! Batches are found without reading through the segments they are in, and what the log drops meanwhile is
//! gone, never damaged.

use std::path::Path;
use std::sync::{Arc, Mutex};

use store::conformance::{batch, fill};
use store::disk::{DiskLog, LogOptions};
use store::{Batch, ErrorKind, LogStore, Lsns, Seq};

use crate::observed_fs::Watched;

const PAYLOAD: usize = 2000;
const BATCHES: u64 = 6000;
/// From a place to a batch, read in steps that grow, and the batch.
const NEAR: u64 = 3 * (64 << 10);

fn open(fs: &Watched, dir: &Path, segment_bytes: u64) -> DiskLog<Watched> {
    let options = LogOptions { shard: 0, store_id: 1, segment_bytes };
    DiskLog::open(fs.clone(), dir, options).expect("a sound log").0
}

/// About three segments of four megabytes.
fn written(fs: &Watched, dir: &Path) -> DiskLog<Watched> {
    let mut log = open(fs, dir, 4 << 20);
    for seq in 0..BATCHES {
        log.append(Seq(seq), lsns(seq), &[7; PAYLOAD]).expect("room");
    }
    assert!(log.extents().len() > 2, "{:?}", log.extents());
    log
}

fn lsns(seq: u64) -> Lsns {
    Lsns { first: seq * 10, last: seq * 10 + 9 }
}

/// All over the log, in no order.
fn anywhere() -> impl Iterator<Item = u64> {
    (0..300).map(|n| n * 7919 % BATCHES)
}

fn check_is_cheap(fs: &Watched, log: &DiskLog<Watched>, how: &str) {
    let mut reader = log.reader();
    for seq in anywhere() {
        fs.take_read();
        assert_eq!(reader.read(Seq(seq)).expect("there").seq, Seq(seq));
        let by_number = fs.take_read();
        assert_eq!(reader.holding(seq * 10 + 5).expect("there").seq, Seq(seq));
        assert!(by_number < NEAR && fs.take_read() < NEAR, "{how}: {by_number} bytes for batch {seq}");
        let fresh = log.reader().holding(seq * 10).expect("there");
        assert_eq!((fresh.seq, fresh.lsns), (Seq(seq), lsns(seq)));
        assert!(fs.take_read() < NEAR, "{how}: by a new reader");
    }
}

#[test]
fn a_batch_is_found_without_reading_through_its_segment() {
    let dir = tempfile::tempdir().expect("a directory");
    let fs = Watched::default();
    check_is_cheap(&fs, &written(&fs, dir.path()), "as it was written");
}

#[test]
fn a_segment_of_an_earlier_process_is_read_through_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let fs = Watched::default();
    drop(written(&fs, dir.path()));
    let log = open(&fs, dir.path(), 4 << 20);
    let whole: u64 = log.extents().iter().map(|extent| extent.bytes).sum();
    fs.take_read();
    let last = BATCHES - 1;
    assert_eq!(log.reader().holding(last * 10).expect("there").seq, Seq(last));
    assert!(fs.take_read() < NEAR, "the last segment was read when the log was opened");
    assert_eq!(log.reader().holding(25).expect("there").seq, Seq(2));
    assert!(fs.take_read() < NEAR, "no further than needed");
    for seq in anywhere() {
        log.reader().holding(seq * 10).expect("there");
    }
    assert!(fs.take_read() < whole + 300 * NEAR);
    check_is_cheap(&fs, &log, "once it has been read");
}

#[test]
fn what_is_not_in_the_log_yet_is_not_taken_for_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&Watched::default(), dir.path(), LogOptions::SEGMENT_BYTES_MIN);
    let mut reader = log.reader();
    for next in 0..200 {
        assert_eq!(reader.holding(next * 10).expect_err("not there").kind, ErrorKind::Gone);
        assert_eq!(reader.read(Seq(next)).expect_err("not there").kind, ErrorKind::Gone);
        fill(&mut log, next + 1);
        assert_eq!(reader.holding(next * 10).expect("there"), batch(Seq(next)));
    }
}

/// A reader that was under way when segments were dropped found the next one missing, and called it damage.
#[test]
fn what_was_dropped_under_a_reader_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&Watched::default(), dir.path(), LogOptions::SEGMENT_BYTES_MIN);
    fill(&mut log, 300);
    let pieces = log.extents();
    let mut reader = log.reader();
    reader.read(Seq(0)).expect("there");
    log.raise_floor(pieces[3].first).expect("within the log");
    for seq in 1..pieces[1].first.0 {
        assert_eq!(reader.read(Seq(seq)).expect("its file is still open"), batch(Seq(seq)));
    }
    assert_eq!(reader.read(pieces[1].first).expect_err("dropped").kind, ErrorKind::Gone);
    assert_eq!(reader.read(pieces[2].first).expect_err("dropped").kind, ErrorKind::Gone);
    assert_eq!(reader.holding(pieces[2].first.0 * 10).expect_err("dropped").kind, ErrorKind::Gone);
    assert_eq!(reader.read(pieces[3].first).expect("above the floor"), batch(pieces[3].first));
}

#[test]
fn a_segment_that_is_dropped_just_before_it_is_opened_is_gone() {
    for by_lsn in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let fs = Watched::default();
        let mut log = open(&fs, dir.path(), LogOptions::SEGMENT_BYTES_MIN);
        fill(&mut log, 300);
        let second = log.extents()[1].first;
        let mut reader = log.reader();
        let log = Arc::new(Mutex::new(log));
        fs.before_open(move || log.lock().expect("free").raise_floor(Seq(300)).expect("all of it"));
        let read = if by_lsn { reader.holding(second.0 * 10) } else { reader.read(second) };
        assert_eq!(read.expect_err("dropped").kind, ErrorKind::Gone);
    }
}

/// Nobody but the log may remove segments: one that is missing otherwise is damage, and named.
#[test]
fn a_segment_that_somebody_else_removed_is_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&Watched::default(), dir.path(), LogOptions::SEGMENT_BYTES_MIN);
    fill(&mut log, 300);
    let second = log.extents()[1].first;
    let name = format!("{:016x}.seg", second.0);
    std::fs::remove_file(dir.path().join(&name)).expect("there");
    let error = log.reader().read(second).expect_err("missing");
    assert!(error.kind == ErrorKind::Damaged && error.what.contains(&name), "{error}");
}

#[test]
fn readers_beside_a_log_that_appends_and_drops_find_what_was_written_or_that_it_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&Watched::default(), dir.path(), LogOptions::SEGMENT_BYTES_MIN);
    fill(&mut log, 100);
    let read = |mut reader: Box<dyn store::LogReader>, pace: u64| {
        let found = |found: Result<Batch, store::StoreError>, seq| match found {
            Ok(found) => assert_eq!(found, batch(Seq(seq))),
            Err(error) => assert_eq!(error.kind, ErrorKind::Gone, "batch {seq}: {error}"),
        };
        for n in 0..20_000 {
            let seq = n * pace % 3000;
            found(reader.read(Seq(seq)), seq);
            found(reader.holding(seq * 10 + 3), seq);
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
