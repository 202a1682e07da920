//! A full disk, and a process without free file descriptors. A failed append ends the process, so the capacity that
//! a log reports must be exact.

use std::path::Path;

use sim::disk::{FaultPlan, PersistentErrors, SimFs};
use store::conformance::{append_next, check, fill};
use store::disk::{DiskLog, LogOptions};
use store::{ErrorKind, LogStore, LsnRange, Seq};

const NO_DESCRIPTORS: i32 = 24;
const DISK_FULL: i32 = 28;
const OVER_QUOTA: i32 = 122;
const CODES: [i32; 3] = [NO_DESCRIPTORS, DISK_FULL, OVER_QUOTA];

const SHORT: u64 = LogOptions::SEGMENT_BYTES_MIN;

fn open(fs: &SimFs, segment_bytes: u64) -> Option<DiskLog<SimFs>> {
    let options = LogOptions { shard: 0, store_id: 9, segment_bytes };
    DiskLog::open(fs.clone(), Path::new("/store/log"), options).ok().map(|(log, _)| log)
}

/// No file can be opened, created or extended.
fn exhausted(code: i32) -> PersistentErrors {
    PersistentErrors { opening: Some(code), growing: Some(code) }
}

/// A log whose spare segment has just come into use.
fn without_spare(fs: &SimFs) -> Option<DiskLog<SimFs>> {
    let mut log = open(fs, SHORT)?;
    while log.bounds().next < Seq(30) || log.capacity().spare {
        append_next(&mut log).ok()?;
    }
    Some(log)
}

/// The numbers of the calls that `action` makes, on a log without a spare.
fn calls_of(action: impl Fn(&mut DiskLog<SimFs>)) -> std::ops::Range<u64> {
    let fs = SimFs::new(FaultPlan::default());
    let mut log = without_spare(&fs).expect("no fault");
    let before = fs.calls();
    action(&mut log);
    before..fs.calls()
}

#[test]
fn a_reservation_that_fails_at_any_call_changes_nothing_and_can_be_retried() {
    let calls = calls_of(|log| log.reserve().expect("no fault"));
    assert!(calls.clone().count() >= 3, "{calls:?}");
    for (fail_at, code) in calls.flat_map(|call| CODES.map(|code| (call, code))) {
        let fs = SimFs::new(FaultPlan { crash_at: None, fail_at: Some((fail_at, code)) });
        let mut log = without_spare(&fs).expect("it fails only later");
        let (capacity, bounds) = (log.capacity(), log.bounds());
        let error = log.reserve().expect_err("it fails now");
        assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
        assert_eq!((log.capacity(), log.bounds()), (capacity, bounds), "call {fail_at}");
        log.reserve().expect("there is space again");
        assert!(log.capacity().spare && log.capacity().bytes >= 1000);
        fill(&mut log, bounds.next.0 + 50);
        check(&log);
        drop(log);
        check(&open(&fs, SHORT).expect("a sound log"));
    }
}

/// The process had no file descriptors left. The next append opened the spare segment, failed, and ended the
/// server: any client could cause that by opening enough connections.
#[test]
fn a_reserved_append_needs_neither_descriptors_nor_disk_space() {
    for code in CODES {
        let fs = SimFs::new(FaultPlan::default());
        let mut log = open(&fs, SHORT).expect("an empty log");
        for seq in 0..80 {
            let size = [4096, 0, 900, 4095, 1, 2000][usize::try_from(seq % 6).expect("small")];
            log.reserve().expect("nothing is refused yet");
            fs.set_errors(exhausted(code));
            log.append(Seq(seq), LsnRange::default(), &vec![7; size]).expect("it was reserved");
            fs.set_errors(PersistentErrors::default());
        }
    }
}

#[test]
fn without_a_spare_appends_succeed_exactly_up_to_the_reported_capacity() {
    for (odd, step) in (0..9).flat_map(|odd| [1, 7, 8, 40, 999, 4096].map(|step| (odd, step))) {
        let (fs, length) = (SimFs::new(FaultPlan::default()), SHORT + odd);
        let mut log = open(&fs, length).expect("an empty log");
        log.append(Seq(0), LsnRange::default(), b"begins a segment").expect("nothing is refused yet");
        assert!(!log.capacity().spare);
        fs.set_errors(exhausted(DISK_FULL));
        while log.capacity().bytes > 0 {
            let capacity = usize::try_from(log.capacity().bytes).expect("small");
            let (next, size) = (log.bounds().next, capacity.min(step));
            let error =
                log.append(next, LsnRange::default(), &vec![1; capacity + 1]).expect_err("more than fits");
            assert_eq!((error.kind, log.bounds().next), (ErrorKind::NoSpace, next), "{error}");
            log.append(next, LsnRange::default(), &vec![1; size]).expect("no more than fits");
        }
        let full = log.bounds().next;
        assert_eq!(log.append(full, LsnRange::default(), b"x").expect_err("full").kind, ErrorKind::NoSpace);
        fs.set_errors(PersistentErrors::default());
        log.append(full, LsnRange::default(), b"x").expect("there is space again");
        drop(log);
        let log = open(&fs, length).expect("a sound log");
        assert_eq!(log.bounds().next, full.next());
        let mut reader = log.reader();
        (0..=full.0).for_each(|seq| assert_eq!(reader.read(Seq(seq)).expect("there").seq, Seq(seq)));
    }
}

/// The spare is as long as a segment; the largest batch fills it to the last byte.
#[test]
fn with_a_spare_the_largest_batch_fits_and_one_byte_more_is_too_large() {
    for odd in 0..9 {
        let fs = SimFs::new(FaultPlan::default());
        let mut log = open(&fs, SHORT + odd).expect("an empty log");
        log.reserve().expect("nothing is refused");
        fs.set_errors(exhausted(DISK_FULL));
        let capacity = usize::try_from(log.capacity().bytes).expect("small");
        assert_eq!(capacity, 4096 + if odd == 8 { 8 } else { 0 });
        let error =
            log.append(Seq(0), LsnRange::default(), &vec![1; capacity + 1]).expect_err("one too many");
        assert_eq!(error.kind, ErrorKind::TooLarge);
        log.append(Seq(0), LsnRange::default(), &vec![1; capacity]).expect("it fits");
        assert_eq!(log.capacity().bytes, 0);
    }
}

/// The segment length was changed between two starts. The capacity of the last segment was computed from the new
/// length: negative, or beyond the end of the file.
#[test]
fn the_capacity_of_a_segment_follows_from_its_own_length() {
    for (before, after) in [(SHORT, 4 * SHORT), (4 * SHORT, SHORT)] {
        let fs = SimFs::new(FaultPlan::default());
        let mut log = open(&fs, before).expect("an empty log");
        while log.capacity().spare || log.capacity().bytes != 1000 {
            let fits = usize::try_from(log.capacity().bytes.saturating_sub(1000 + 40)).expect("small");
            log.append(log.bounds().next, LsnRange::default(), &vec![1; fits]).expect("there is space");
        }
        log.mark_clean_stop().expect("writable");
        drop(log);
        let mut log = open(&fs, after).expect("a sound log");
        fs.set_errors(exhausted(DISK_FULL));
        assert_eq!(log.capacity().bytes, 1000);
        log.append(log.bounds().next, LsnRange::default(), &[2; 1000]).expect("it fits");
        assert_eq!(log.capacity().bytes, 0);
        fs.set_errors(PersistentErrors::default());
        let next = log.bounds().next;
        log.append(next, LsnRange::default(), &[3; 1000]).expect("in another segment");
        drop(log);
        assert_eq!(open(&fs, before).expect("a sound log").bounds().next, next.next());
    }
}

/// The disk was full while the floor was raised. The partial file remained and made every later attempt fail: the
/// space of old batches could not be reclaimed before a restart.
#[test]
fn a_floor_that_could_not_be_raised_can_be_raised_later() {
    let calls = calls_of(|log| log.raise_floor(Seq(20)).expect("no fault"));
    for fail_at in calls {
        let fs = SimFs::new(FaultPlan { crash_at: None, fail_at: Some((fail_at, DISK_FULL)) });
        let mut log = without_spare(&fs).expect("it fails only later");
        assert!(log.raise_floor(Seq(20)).is_err(), "call {fail_at}");
        log.raise_floor(Seq(20)).expect("the partial file is replaced");
        assert_eq!(log.bounds().floor, Seq(20));
        check(&log);
    }
}
