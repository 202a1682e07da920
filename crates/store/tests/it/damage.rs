//! Opening and reading logs whose files were torn, damaged or replaced.

use std::path::{Path, PathBuf};

use store::conformance::{check, fill};
use store::disk::{DiskDir, DiskLog, LogOptions, StoreFile, TornTail};
use store::fs::RealFs;
use store::{ErrorKind, LogStore, LsnRange, Seq, StoreError};

use crate::segment_files::{frame_offsets, overwrite};

const OPTIONS: LogOptions = LogOptions { shard: 0, store_id: 1, segment_bytes: 16 << 10 };

fn open(dir: &Path) -> Result<(DiskLog<RealFs>, Option<TornTail>), StoreError> {
    DiskLog::open(RealFs, dir, OPTIONS)
}

/// Writes a log of `batches` batches, closes it, and returns its segment files.
fn written(dir: &Path, batches: u64) -> Vec<PathBuf> {
    let (mut log, _) = open(dir).expect("an empty log");
    fill(&mut log, batches);
    let names = std::fs::read_dir(dir).expect("there").map(|entry| entry.expect("readable").path());
    let mut segments: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|e| e == "seg")).collect();
    segments.sort();
    segments
}

/// Power failed while the last batch was being written: any part of it may be missing.
#[test]
fn a_tail_torn_at_any_byte_is_cut_and_reported_and_appends_continue() {
    let dir = tempfile::tempdir().expect("a directory");
    let segment = written(dir.path(), 12).pop().expect("a segment");
    let whole = std::fs::read(&segment).expect("readable");
    let offsets = frame_offsets(&segment);
    let (last, end) = (offsets[offsets.len() - 2], offsets[offsets.len() - 1]);
    // Padding is zeros anyway: a frame without it is not torn.
    let content =
        last + whole[last..end].iter().rposition(|byte| *byte != 0).expect("a frame is not empty") + 1;
    for torn in (last..content).step_by(5) {
        std::fs::write(&segment, &whole).expect("writable");
        overwrite(&segment, torn, &vec![0; end - torn]);
        let (mut log, cut) = open(dir.path()).expect("a torn tail is no damage");
        assert_eq!(log.bounds().next, Seq(11), "torn at {torn}");
        // If no byte of the frame is left, nothing was torn.
        assert_eq!(cut.is_some(), torn > last, "torn at {torn}");
        if let Some(cut) = cut {
            let named = (torn >= last + store::frame::FRAME_HEADER).then_some(LsnRange::new(110, 119));
            assert_eq!((cut.seq, cut.offset), (Seq(11), last as u64));
            assert!(cut.lsns == named || torn < last + store::frame::FRAME_HEADER, "torn at {torn}: {cut:?}");
        }
        fill(&mut log, 14);
        check(&log);
        let (log, cut) = open(dir.path()).expect("sound again");
        assert_eq!((log.bounds().next, cut), (Seq(14), None));
    }
}

/// Sectors of one write may reach the disk in any order: the end may be there, and the beginning not.
#[test]
fn a_torn_tail_without_its_beginning_is_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let segment = written(dir.path(), 12).pop().expect("a segment");
    let offsets = frame_offsets(&segment);
    let (last, end) = (offsets[offsets.len() - 2], offsets[offsets.len() - 1]);
    overwrite(&segment, last, &vec![0; (end - last) / 2]);
    let (mut log, cut) = open(dir.path()).expect("a torn tail is no damage");
    assert_eq!(cut.map(|cut| (cut.seq, cut.lsns)), Some((Seq(11), None)));
    fill(&mut log, 20);
    check(&log);
}

/// The torn bytes were left in place. The next batch was shorter, and half of the torn one remained after it:
/// at the next start that looked like damage.
#[test]
fn a_torn_tail_is_zeroed_before_a_shorter_batch_is_appended() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut log, _) = open(dir.path()).expect("an empty log");
    log.append(Seq(0), LsnRange::default(), b"first").expect("writable");
    log.append(Seq(1), LsnRange::default(), &[7; 3000]).expect("writable");
    drop(log);
    let segment = dir.path().join(format!("{:016x}.seg", 0));
    let offsets = frame_offsets(&segment);
    overwrite(&segment, offsets[1] + 1000, &[0; 8]);
    let (mut log, cut) = open(dir.path()).expect("a torn tail is no damage");
    assert!(cut.is_some());
    log.append(Seq(1), LsnRange::default(), b"x").expect("writable");
    drop(log);
    let (log, cut) = open(dir.path()).expect("sound");
    assert_eq!((log.bounds().next, cut), (Seq(2), None));
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
        drop(log);
        written(dir.path(), 300)
    });
    assert!(ours.len() > 2 && ours.len() == theirs.len());
    let dir = ours[0].parent().expect("a directory");
    for (n, (segment, foreign)) in ours.iter().zip(&theirs).enumerate().skip(1) {
        let original = std::fs::read(segment).expect("readable");
        std::fs::copy(foreign, segment).expect("writable");
        // Opening the log reads only the last segment.
        let (log, _) = open(dir).expect("each segment is sound by itself");
        let mut reader = log.reader();
        let error = (0..300).find_map(|seq| reader.read(Seq(seq)).err());
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
