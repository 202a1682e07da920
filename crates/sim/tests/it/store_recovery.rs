//! Recovery makes durable what it accepts. A process death leaves batches that can be read and are not durable, and
//! every batch that is acknowledged after the restart depends on them.

use std::path::{Path, PathBuf};

use sim::disk::{FaultPlan, SECTOR, SimFs};
use sim::rng::Rng;
use store::disk::{DiskLog, LogOptions, TornTail};
use store::frame::{SEGMENT_HEADER, decode_frame, frame_len};
use store::fs::{File, Fs};
use store::{Batch, ErrorKind, LogStore, LsnRange, Seq, StoreError};

const LOG: &str = "/store/log";
const OPTIONS: LogOptions = LogOptions { shard: 0, store_id: 9, segment_bytes: 16 << 10 };
const IO_ERROR: i32 = 5;
const NO_FAULT: FaultPlan = FaultPlan { crash_at: None, fail_at: None };
/// The sync of a batch is the second call of an append that begins no segment.
const SYNC: u64 = 1;

fn open(fs: &SimFs) -> Result<(DiskLog<SimFs>, Option<TornTail>), StoreError> {
    DiskLog::open(fs.clone(), Path::new(LOG), OPTIONS)
}

fn crash_at(call: u64) -> FaultPlan {
    FaultPlan { crash_at: Some(call), fail_at: None }
}

fn fail_at(call: u64) -> FaultPlan {
    FaultPlan { crash_at: None, fail_at: Some((call, IO_ERROR)) }
}

/// The batch at `seq`: without zeros, and long enough to lie in several sectors that it shares with no other.
fn batch(seq: Seq) -> Batch {
    let fill = u8::try_from(seq.0 % 250 + 1).expect("a byte");
    Batch { seq, lsns: LsnRange::new(seq.0 * 10 + 1, seq.0 * 10 + 9), payload: vec![fill; 1300] }
}

fn append(log: &mut DiskLog<SimFs>) -> Result<(), StoreError> {
    let Batch { seq, lsns, payload } = batch(log.bounds().next);
    log.append(seq, lsns, &payload)
}

fn append_until(log: &mut DiskLog<SimFs>, next: u64) {
    while log.bounds().next < Seq(next) {
        append(log).expect("space");
    }
}

/// Every batch can be read, from the floor to the end.
fn check(log: &DiskLog<SimFs>, context: &str) {
    let mut reader = log.reader();
    for seq in log.bounds().floor.0..log.bounds().next.0 {
        let read = reader.read(Seq(seq)).unwrap_or_else(|error| panic!("{context}: batch {seq}: {error}"));
        assert_eq!(read, batch(Seq(seq)), "{context}");
    }
}

/// A log of `batches` batches, all durable.
fn written(batches: u64) -> SimFs {
    let fs = SimFs::new(NO_FAULT);
    append_until(&mut open(&fs).expect("an empty log").0, batches);
    fs.after_power_cut(|_| false, NO_FAULT)
}

/// Opens the log, and appends with a fault at the call of this number; the disk that the next process finds.
fn append_with(fs: &SimFs, fault: impl Fn(u64) -> FaultPlan, call: u64) -> SimFs {
    let probe = fs.after_process_death(NO_FAULT);
    open(&probe).expect("a sound log");
    let fs = fs.after_process_death(fault(probe.calls() + call));
    let (mut log, _) = open(&fs).expect("a sound log");
    append(&mut log).expect_err("as planned");
    fs.after_process_death(NO_FAULT)
}

/// After a power cut all batches below `acknowledged` are there, and appends continue.
fn check_after_power_cut(fs: &SimFs, acknowledged: u64, context: &str) {
    for seed in 0..40 {
        let (fs, context) =
            (fs.after_crash(&mut Rng::new(seed), NO_FAULT), format!("{context}, seed {seed}"));
        let (mut log, _) = open(&fs).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(log.bounds().next >= Seq(acknowledged), "{context}: {:?}", log.bounds());
        let next = log.bounds().next.0;
        append_until(&mut log, next + 2);
        check(&log, &context);
    }
}

/// The process died between the write and the sync of a batch. The restart read the batch from the page cache, and
/// acknowledged batches behind it; the power cut lost it, and the store did not open: "a damaged frame is followed by
/// valid ones".
#[test]
fn a_batch_that_was_written_and_not_synced_is_durable_once_a_restart_accepts_it() {
    let fs = append_with(&written(5), crash_at, SYNC);
    let (mut log, torn) = open(&fs).expect("a sound log");
    assert_eq!((log.bounds().next, torn), (Seq(6), None), "the page cache has it");
    check_after_power_cut(&fs, 6, "accepted");
    append_until(&mut log, 10);
    check_after_power_cut(&fs, 10, "acknowledged");
}

/// A sync failed with EIO and the process ended, as it must. The pages counted as clean: the restart read the batch,
/// acknowledged four more, and the power cut lost the batch in front of them.
#[test]
fn a_batch_whose_sync_failed_is_durable_once_a_restart_accepts_it() {
    let fs = append_with(&written(5), fail_at, SYNC);
    let (mut log, _) = open(&fs).expect("a sound log");
    assert_eq!(log.bounds().next, Seq(6), "the page cache has it");
    append_until(&mut log, 10);
    check_after_power_cut(&fs, 10, "acknowledged");
}

/// The last batch that fits a segment was written and not synced. The restart went on in a new segment and synced only
/// that: the power cut left a segment that did not continue its predecessor.
#[test]
fn the_last_batch_of_a_full_segment_is_durable_before_the_next_segment_is_used() {
    for batches in 9..15 {
        let fs = append_with(&written(batches), crash_at, SYNC);
        let (mut log, _) = open(&fs).expect("a sound log");
        assert_eq!(log.bounds().next, Seq(batches + 1), "the page cache has it");
        append_until(&mut log, batches + 14);
        assert!(log.extents().len() > 1, "it has gone on in another segment");
        check_after_power_cut(&fs, batches + 14, &format!("{batches} batches"));
    }
}

/// The process died after it had named a new segment, and before the directory was synced. After a clean stop before
/// that, nothing seemed to need recovery: the restart appended to a segment whose name the power cut lost.
#[test]
fn a_segment_is_not_appended_to_before_its_name_is_durable() {
    let fs = SimFs::new(NO_FAULT);
    let (mut log, _) = open(&fs).expect("an empty log");
    while log.capacity().bytes >= 1300 || log.bounds().next == Seq(0) {
        append(&mut log).expect("space");
    }
    let stopped = log.bounds().next;
    log.mark_clean_stop().expect("writable");
    // A spare of 16 KiB is created with 3 calls, and its header is written and synced; then it is renamed.
    let probe = fs.after_process_death(NO_FAULT);
    open(&probe).expect("a sound log");
    let fs = fs.after_process_death(crash_at(probe.calls() + 6));
    append(&mut open(&fs).expect("a sound log").0).expect_err("before the directory is synced");
    let fs = fs.after_process_death(NO_FAULT);
    assert_eq!(segments(&fs).len(), 2, "renamed");
    let (mut log, _) = open(&fs).expect("a sound log");
    assert_eq!(log.bounds().next, stopped);
    append(&mut log).expect("space");
    check_after_power_cut(&fs, stopped.0 + 1, "acknowledged");
}

/// The paths of the segments, in order.
fn segments(fs: &SimFs) -> Vec<PathBuf> {
    let names = fs.list(Path::new(LOG)).expect("a directory");
    let is_segment = |name: &&String| Path::new(name).extension().is_some_and(|kind| kind == "seg");
    names.iter().filter(is_segment).map(|name| Path::new(LOG).join(name)).collect()
}

fn contents(fs: &SimFs, path: &Path) -> Vec<u8> {
    let file = fs.open(path).expect("there");
    let mut bytes = vec![0; usize::try_from(file.length().expect("readable")).expect("small")];
    file.read_at(&mut bytes, 0).expect("readable");
    bytes
}

/// The last frame of the log: its file, and its first and last byte.
fn last_frame(fs: &SimFs) -> Option<(PathBuf, std::ops::Range<usize>)> {
    let path = segments(fs).pop()?;
    let (bytes, mut at, mut last) = (contents(fs, &path), SEGMENT_HEADER, None);
    while let Some((header, _)) = decode_frame(&bytes[at..]) {
        let end = at + frame_len(header.length);
        last = Some((path.clone(), at..end));
        at = end;
    }
    last
}

/// Every subset of the sectors of a batch may be all that a power cut leaves of it.
#[test]
fn a_batch_with_any_subset_of_its_sectors_is_torn_or_whole() {
    for (batches, length) in [(0, 2700), (1, 2600), (2, 2500), (3, 2500)] {
        let fs = SimFs::new(NO_FAULT);
        let (mut log, _) = open(&fs).expect("an empty log");
        append_until(&mut log, batches);
        let Batch { seq, lsns, .. } = batch(log.bounds().next);
        log.append(seq, lsns, &vec![0xee; length]).expect("space");
        let (path, frame) = last_frame(&fs).expect("a batch");
        let sectors: Vec<usize> = (frame.start / SECTOR..frame.end.div_ceil(SECTOR)).collect();
        assert_eq!(sectors.len(), 6, "{frame:?}");
        for subset in 0..64_u32 {
            let fs = fs.after_power_cut(|_| false, NO_FAULT);
            let file = fs.open(&path).expect("there");
            for (n, sector) in sectors.iter().enumerate().filter(|(n, _)| subset & 1 << n == 0) {
                let (from, to) = (frame.start.max(sector * SECTOR), frame.end.min((sector + 1) * SECTOR));
                file.write_at(&vec![0; to - from], from as u64).unwrap_or_else(|_| panic!("sector {n}"));
            }
            let (log, torn) = open(&fs).unwrap_or_else(|error| panic!("subset {subset:06b}: {error}"));
            assert_eq!(torn.is_some(), subset != 0 && subset != 63, "subset {subset:06b}");
            assert_eq!(log.bounds().next.0, seq.0 + u64::from(subset == 63), "subset {subset:06b}");
        }
    }
}

/// A flipped bit is damage, and is never taken for a torn tail: the batch may have been acknowledged.
#[test]
fn one_flipped_bit_anywhere_in_the_last_frame_is_refused() {
    for (length, step) in [(60, 1), (2700, 5)] {
        let fs = written(2);
        let (mut log, _) = open(&fs).expect("a sound log");
        log.append(Seq(2), LsnRange::new(31, 39), &vec![0xee; length]).expect("space");
        let (path, frame) = last_frame(&fs).expect("a batch");
        let header = frame.start * 8..(frame.start + 48) * 8;
        for bit in header.chain((frame.start * 8..frame.end * 8).step_by(step)) {
            let fs = fs.after_process_death(NO_FAULT);
            fs.flip_bit(&path, bit);
            let error = open(&fs).err().unwrap_or_else(|| panic!("bit {bit} of {frame:?} is damaged"));
            assert_eq!(error.kind, ErrorKind::Damaged, "bit {bit}");
            let place = format!("file={} offset={}", path.display(), frame.start);
            assert!(error.what.contains(&place), "bit {bit}: {error}");
        }
    }
}

/// A stop, clean or not, a start with a power cut at every call of it, and another start.
#[test]
fn a_power_cut_at_every_call_of_an_opening_loses_nothing() {
    for (batches, clean) in (0..8).chain([12, 13, 30]).flat_map(|batches| [(batches, false), (batches, true)])
    {
        let fs = SimFs::new(NO_FAULT);
        let (mut log, _) = open(&fs).expect("an empty log");
        append_until(&mut log, batches);
        if clean {
            log.mark_clean_stop().expect("writable");
        }
        let probe = fs.after_process_death(NO_FAULT);
        open(&probe).expect("a sound log");
        for call in 0..=probe.calls() {
            let fs = fs.after_process_death(crash_at(call));
            // It may succeed or crash.
            drop(open(&fs));
            let subsets = if fs.unsynced() <= 6 { 1 << fs.unsynced() } else { 0 };
            for subset in 0..subsets {
                let after = fs.after_power_cut(|change| subset & 1 << change != 0, NO_FAULT);
                let context = format!("{batches} batches, clean {clean}, call {call}, subset {subset:06b}");
                check_opens(&after, batches, &context);
            }
            for seed in 0..if subsets == 0 { 20 } else { 0 } {
                let after = fs.after_crash(&mut Rng::new(seed), NO_FAULT);
                let context = format!("{batches} batches, clean {clean}, call {call}, seed {seed}");
                check_opens(&after, batches, &context);
            }
        }
    }
}

fn check_opens(fs: &SimFs, batches: u64, context: &str) {
    let (log, torn) = open(fs).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!((log.bounds().next, torn), (Seq(batches), None), "{context}");
    check(&log, context);
}

/// A server that was killed and restarted in a loop left a segment behind each time, until the disk was full.
#[test]
fn a_thousand_restarts_take_no_more_disk_than_ten() {
    for appends in [0, 1] {
        let (mut fs, mut used) = (written(3), Vec::new());
        for restart in 0..1000 {
            let (mut log, _) = open(&fs).expect("a sound log");
            for _ in 0..appends {
                log.append(log.bounds().next, LsnRange::default(), b"an opening").expect("space");
            }
            let data = appends * (restart + 1) * frame_len(10);
            used.push(fs.bytes_used() - data);
            fs = fs.after_process_death(NO_FAULT);
        }
        let bound = used[..10].iter().max().expect("ten");
        // Headers of the segments in between: a segment is replaced until it holds about a kilobyte.
        let headers = SEGMENT_HEADER * (appends * 1000 * frame_len(10)).div_ceil(900);
        let most = used.iter().max().expect("a thousand");
        assert!(*most <= bound + headers, "{most} bytes, {bound} after ten restarts");
        assert!(segments(&fs).len() <= 3 + appends * 60, "{} segments", segments(&fs).len());
    }
}
