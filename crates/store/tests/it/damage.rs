//! Opening and reading logs whose files were torn, damaged or replaced.

use std::path::{Path, PathBuf};

use store::conformance::{check, fill};
use store::disk::{DiskDir, DiskLog, LogOptions, StoreFile, TornTail};
use store::fs::RealFs;
use store::{ErrorKind, LogStore, LsnRange, Seq, StoreError};

use crate::segment_files::{erase, frame_offsets, overwrite, sectors_of_last_frame};

const OPTIONS: LogOptions = LogOptions { shard: 0, store_id: 1, segment_bytes: 16 << 10 };

fn open(dir: &Path) -> Result<(DiskLog<RealFs>, Option<TornTail>), StoreError> {
    DiskLog::open(RealFs, dir, OPTIONS)
}

/// Writes a log of `batches` batches, closes it, and returns its segment files.
fn written(dir: &Path, batches: u64) -> Vec<PathBuf> {
    let (mut log, _) = open(dir).expect("an empty log");
    fill(&mut log, batches);
    segments(dir)
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir).expect("there").map(|entry| entry.expect("readable").path());
    let mut segments: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|e| e == "seg")).collect();
    segments.sort();
    segments
}

/// Power failed while the last batch was being written: any of its sectors may be missing.
#[test]
fn a_tail_torn_at_any_sector_is_cut_and_reported_and_appends_continue() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut log, _) = open(dir.path()).expect("an empty log");
    fill(&mut log, 2);
    log.append(Seq(2), LsnRange::new(7, 9), &[0xab; 1200]).expect("writable");
    drop(log);
    let segment = dir.path().join(format!("{:016x}.seg", 0));
    let (whole, sectors) = (std::fs::read(&segment).expect("readable"), sectors_of_last_frame(&segment));
    assert_eq!(sectors.len(), 3);
    for missing in 1..7 {
        for name in std::fs::read_dir(dir.path()).expect("there") {
            std::fs::remove_file(name.expect("readable").path()).expect("removable");
        }
        std::fs::write(&segment, &whole).expect("writable");
        let is_missing = |sector: usize| missing & 1 << sector != 0;
        (0..3).filter(|sector| is_missing(*sector)).for_each(|sector| erase(&segment, sectors[sector]));
        let (mut log, cut) = open(dir.path()).expect("a torn tail is no damage");
        let cut = cut.unwrap_or_else(|| panic!("sectors {missing:03b} are missing"));
        assert_eq!((&cut.file, cut.offset, cut.seq), (&segment, sectors[0].0 as u64, Seq(2)));
        assert_eq!(cut.lsns, (!is_missing(0)).then_some(LsnRange::new(7, 9)), "{missing:03b}");
        assert_eq!(log.bounds().next, Seq(2));
        fill(&mut log, 14);
        check(&log);
        let (log, cut) = open(dir.path()).expect("sound again");
        assert_eq!((log.bounds().next, cut), (Seq(14), None));
    }
}

/// The torn bytes were left in place. The next batch was shorter, and half of the torn one remained after it:
/// at the next start that looked like damage.
#[test]
fn nothing_of_a_torn_tail_is_left_after_a_shorter_batch() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut log, _) = open(dir.path()).expect("an empty log");
    log.append(Seq(0), LsnRange::default(), b"first").expect("writable");
    log.append(Seq(1), LsnRange::default(), &[7; 3000]).expect("writable");
    drop(log);
    let segment = dir.path().join(format!("{:016x}.seg", 0));
    erase(&segment, sectors_of_last_frame(&segment)[2]);
    let (mut log, cut) = open(dir.path()).expect("a torn tail is no damage");
    assert!(cut.is_some());
    log.append(Seq(1), LsnRange::default(), b"x").expect("writable");
    drop(log);
    let (log, cut) = open(dir.path()).expect("sound");
    assert_eq!((log.bounds().next, cut), (Seq(2), None));
}

/// A clean stop, one flipped bit in the last batch, a start: the batch was cut as if a crash had torn it, and its lease
/// was granted to another client.
#[test]
fn a_damaged_last_frame_is_refused_with_file_and_offset() {
    let dir = tempfile::tempdir().expect("a directory");
    let segment = written(dir.path(), 12).pop().expect("a segment");
    let whole = std::fs::read(&segment).expect("readable");
    let (last, end) =
        (sectors_of_last_frame(&segment)[0].0, *frame_offsets(&segment).last().expect("an end"));
    for (byte, value) in whole.iter().enumerate().take(end).skip(last) {
        overwrite(&segment, byte, &[value ^ 0x20]);
        let error = open(dir.path()).err().unwrap_or_else(|| panic!("byte {byte} is damaged"));
        assert_eq!(error.kind, ErrorKind::Damaged);
        assert!(error.what.contains(&format!("file={} offset={last}", segment.display())), "{error}");
        overwrite(&segment, byte, &[*value]);
    }
    assert!(open(dir.path()).is_ok());
}

/// After a clean stop the last batch is known to have been durable: nothing of it can be torn.
#[test]
fn a_log_without_the_last_batch_of_its_clean_stop_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut log, _) = open(dir.path()).expect("an empty log");
    log.mark_clean_stop().expect("an empty log has nothing to mark");
    fill(&mut log, 12);
    log.mark_clean_stop().expect("writable");
    drop(log);
    let segment = dir.path().join(format!("{:016x}.seg", 0));
    let (whole, sectors) = (std::fs::read(&segment).expect("readable"), sectors_of_last_frame(&segment));
    for missing in [&sectors[..], &sectors[1..]] {
        for sector in missing {
            erase(&segment, *sector);
        }
        let error = open(dir.path()).err().expect("the batch is missing");
        assert_eq!(error.kind, ErrorKind::Damaged);
        assert!(error.what.contains("clean stop"), "{error}");
        std::fs::write(&segment, &whole).expect("writable");
    }
    let (log, cut) = open(dir.path()).expect("as it was stopped");
    assert_eq!((log.bounds().next, cut), (Seq(12), None));
    assert_eq!(std::fs::read(&segment).expect("readable"), whole, "nothing needs to be copied");
}

/// A log was restored from a backup of another run, under the mark of this one.
#[test]
fn a_log_with_another_batch_than_at_its_clean_stop_is_refused() {
    for more in [0, 1, 200] {
        let dirs = [b"ours  ", b"theirs"].map(|first| {
            let dir = tempfile::tempdir().expect("a directory");
            let (mut log, _) = open(dir.path()).expect("an empty log");
            log.append(Seq(0), LsnRange::default(), first).expect("writable");
            fill(&mut log, 50);
            log.mark_clean_stop().expect("writable");
            fill(&mut log, 50 + more);
            dir
        });
        let [ours, theirs] = &dirs;
        std::fs::copy(theirs.path().join("clean-stop"), ours.path().join("clean-stop")).expect("writable");
        let error = open(ours.path()).err().unwrap_or_else(|| panic!("{more} batches later"));
        assert_eq!(error.kind, ErrorKind::Damaged);
        assert!(error.what.contains("clean stop"), "{error}");
    }
}

/// All segments of a log were lost, and it was opened as a new one.
#[test]
fn a_log_whose_segments_are_missing_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    written(dir.path(), 12);
    open(dir.path()).expect("sound").0.mark_clean_stop().expect("writable");
    for segment in segments(dir.path()) {
        std::fs::remove_file(segment).expect("removable");
    }
    assert_eq!(open(dir.path()).err().expect("nothing is left").kind, ErrorKind::Damaged);
}

/// The first segments of a log were lost. The start failed with `batch not in the log: seq=0`: no file, and no command that
/// helps; and after a snapshot it succeeded, without the documents of the lost segments.
#[test]
fn a_log_whose_first_segments_are_missing_is_refused_with_the_file_that_is_left() {
    for floor in [Seq(0), Seq(100)] {
        let dir = tempfile::tempdir().expect("a directory");
        written(dir.path(), 300);
        open(dir.path()).expect("sound").0.raise_floor(floor).expect("within the log");
        let all = segments(dir.path());
        assert!(all.len() > 2, "{all:?}");
        std::fs::remove_file(&all[0]).expect("removable");
        let error = open(dir.path()).err().expect("batches are missing");
        assert_eq!(error.kind, ErrorKind::Damaged);
        let place = format!("file={} offset=0", all[1].display());
        for words in ["the segments before this one are missing", "`lockd restore`", place.as_str()] {
            assert!(error.what.contains(words), "{words}: {error}");
        }
        assert_eq!(segments(dir.path()), all[1..], "nothing is changed");
    }
}

/// A disk flipped a bit in the middle of the log. Treated as a torn tail, it would have cut off every later
/// batch, all of them acknowledged.
#[test]
fn damage_before_the_last_frame_is_refused_with_file_and_offset() {
    let dir = tempfile::tempdir().expect("a directory");
    let segment = written(dir.path(), 12).pop().expect("a segment");
    let whole = std::fs::read(&segment).expect("readable");
    let offsets = frame_offsets(&segment);
    for at in (offsets[1]..offsets[offsets.len() - 2]).step_by(11) {
        overwrite(&segment, at, &[whole[at] ^ 0x10]);
        let error = open(dir.path()).err().unwrap_or_else(|| panic!("byte {at} is damaged"));
        assert_eq!(error.kind, ErrorKind::Damaged);
        let place = offsets.iter().rfind(|place| **place <= at).expect("in a frame");
        assert!(error.what.contains(&format!("offset={place}")), "{error}");
        assert!(error.what.contains(".seg") && error.what.contains("restore"), "{error}");
        overwrite(&segment, at, &[whole[at]]);
    }
    assert!(open(dir.path()).is_ok());
}

#[test]
fn damage_in_an_earlier_segment_is_reported_when_it_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let segments = written(dir.path(), 300);
    assert!(segments.len() > 2, "{segments:?}");
    let offsets = frame_offsets(&segments[0]);
    overwrite(&segments[0], offsets[3] + 20, &[0xee]);
    let (log, _) = open(dir.path()).expect("the end is sound");
    let mut reader = log.reader();
    let error = (0..300).find_map(|seq| reader.read(Seq(seq)).err()).expect("one frame is damaged");
    assert_eq!(error.kind, ErrorKind::Damaged);
}

/// A segment was lost or restored from an older backup: the chain of checksums is broken.
#[test]
fn a_missing_or_foreign_segment_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let segments = written(dir.path(), 300);
    let original = std::fs::read(&segments[1]).expect("readable");
    std::fs::remove_file(&segments[1]).expect("removable");
    let (log, _) = open(dir.path()).expect("the end is sound");
    let mut reader = log.reader();
    let error = (0..300).find_map(|seq| reader.read(Seq(seq)).err()).expect("a segment is missing");
    assert_eq!(error.kind, ErrorKind::Damaged);
    drop(log);

    std::fs::write(&segments[1], original).expect("writable");
    let other = LogOptions { store_id: 2, ..OPTIONS };
    let refused = DiskLog::open(RealFs, dir.path(), other).err().expect("another store's log");
    assert_eq!(refused.kind, ErrorKind::Damaged);
}

/// A segment was restored from a backup of another run: of this store, under the right name, every frame
/// valid. Only the chained checksums show that these are not the batches appended here.
#[test]
fn a_segment_of_another_history_is_refused() {
    let (ours, theirs) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let [ours, theirs] = [(&ours, b"ours  "), (&theirs, b"theirs")].map(|(dir, first)| {
        let (mut log, _) = open(dir.path()).expect("an empty log");
        log.append(Seq(0), LsnRange::default(), first).expect("writable");
        fill(&mut log, 300);
        log.mark_clean_stop().expect("writable");
        segments(dir.path())
    });
    assert!(ours.len() > 2 && ours.len() == theirs.len());
    let dir = ours[0].parent().expect("a directory");
    for (n, (segment, foreign)) in ours.iter().zip(&theirs).enumerate().skip(1) {
        let original = std::fs::read(segment).expect("readable");
        std::fs::copy(foreign, segment).expect("writable");
        // Opening the log reads only the last segment.
        let error = match open(dir) {
            Ok((log, _)) => {
                let mut reader = log.reader();
                (0..300).find_map(|seq| reader.read(Seq(seq)).err())
            }
            Err(error) => Some(error),
        };
        assert_eq!(error.expect("another history").kind, ErrorKind::Damaged, "segment {n}");
        std::fs::write(segment, original).expect("writable");
    }
    // A single frame, in the middle of the last segment and at its end.
    let (segment, foreign) = (ours.last().expect("a segment"), theirs.last().expect("a segment"));
    let (original, foreign) =
        (std::fs::read(segment).expect("readable"), std::fs::read(foreign).expect("readable"));
    let offsets = frame_offsets(segment);
    for place in [1, offsets.len() - 2] {
        let (from, to) = (offsets[place], offsets[place + 1]);
        overwrite(segment, from, &foreign[from..to]);
        let error = open(dir).err().unwrap_or_else(|| panic!("frame {place} is foreign"));
        assert_eq!(error.kind, ErrorKind::Damaged, "{error}");
        std::fs::write(segment, &original).expect("writable");
    }
    let mut reader = open(dir).expect("as it was").0.reader();
    (0..300).for_each(|seq| drop(reader.read(Seq(seq)).expect("as it was")));
}

#[test]
fn a_damaged_floor_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    written(dir.path(), 50);
    open(dir.path()).expect("sound").0.raise_floor(Seq(20)).expect("within the log");
    overwrite(&dir.path().join("floor"), 9, &[0xff]);
    assert_eq!(open(dir.path()).err().expect("a damaged floor").kind, ErrorKind::Damaged);
    std::fs::write(dir.path().join("floor"), b"").expect("writable");
    assert_eq!(open(dir.path()).err().expect("an empty floor").kind, ErrorKind::Damaged);
}

#[test]
fn a_store_is_opened_by_one_process_at_a_time_and_keeps_its_parameters() {
    let dir = tempfile::tempdir().expect("a directory");
    let parameters = StoreFile { store_id: 5, shards: 2 };
    let first = DiskDir::open(dir.path(), parameters, &[7; 32], false).expect("a local directory");
    let second = DiskDir::open(dir.path(), parameters, &[7; 32], false).err().expect("it is open already");
    assert_eq!(second.kind, ErrorKind::Refused);
    drop(first);
    let other = StoreFile { store_id: 6, shards: 9 };
    let again = DiskDir::open(dir.path(), other, &[7; 32], false).expect("not open");
    assert_eq!(again.file(), parameters);
    let (mut log, _) = again.log(1, LogOptions::SEGMENT_BYTES_MIN).expect("a new log");
    fill(&mut log, 3);
    drop(again);
    overwrite(&dir.path().join("store"), 14, &[9]);
    assert_eq!(
        DiskDir::open(dir.path(), parameters, &[7; 32], false).err().expect("damaged").kind,
        ErrorKind::Damaged
    );
}

/// Each crash and restart after 256 KiB of log left a segment and began another: a crash loop used more disk space with
/// every round.
#[test]
fn restarts_after_crashes_share_one_segment_of_the_same_length() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { segment_bytes: LogOptions::SEGMENT_BYTES, ..OPTIONS };
    let mut after_first = None;
    for restart in 0..60 {
        let (mut log, torn) = DiskLog::open(RealFs, dir.path(), options).expect("sound");
        assert_eq!(torn, None);
        log.append(log.bounds().next, LsnRange::new(restart + 1, restart + 1), &[7; 10 << 10])
            .expect("space");
        // Without a clean stop.
        drop(log);
        let lengths: Vec<u64> =
            segments(dir.path()).iter().map(|path| path.metadata().expect("there").len()).collect();
        assert_eq!(*after_first.get_or_insert(lengths.clone()), lengths, "restart {restart}");
    }
}
