//! An operator's cut of a damaged log: only at the damage, with a copy of what is cut.

use std::path::{Path, PathBuf};

use store::conformance::{batch, check, fill};
use store::disk::{DiskDir, DiskLog, LogCut, LogOptions, StoreFile, StoreView, cut};
use store::fs::RealFs;
use store::{ErrorKind, LogStore, LsnRange, Seq, StoreError};

use crate::segment_files::{erase, frame_offsets, overwrite, sectors_of_last_frame};

const OPTIONS: LogOptions = LogOptions { shard: 0, store_id: 1, segment_bytes: 16 << 10 };

fn open(dir: &Path) -> Result<DiskLog<RealFs>, StoreError> {
    DiskLog::open(RealFs, dir, OPTIONS).map(|(log, _)| log)
}

fn plan(dir: &Path, file: &Path, offset: usize) -> Result<LogCut<RealFs>, StoreError> {
    cut(RealFs, dir, OPTIONS, file, offset as u64)
}

/// A log of `batches` batches, stopped cleanly; its segments.
fn stopped(dir: &Path, batches: u64) -> Vec<PathBuf> {
    let mut log = open(dir).expect("an empty log");
    fill(&mut log, batches);
    log.mark_clean_stop().expect("writable");
    let names = log.extents().into_iter().map(|extent| format!("{:016x}.seg", extent.first.0));
    names.map(|name| dir.join(name)).collect()
}

fn flip(file: &Path, byte: usize) {
    let bytes = std::fs::read(file).expect("readable");
    overwrite(file, byte, &[bytes[byte] ^ 1]);
}

#[test]
fn a_damaged_last_frame_is_cut_with_a_copy_and_appends_continue() {
    let dir = tempfile::tempdir().expect("a directory");
    let segment = stopped(dir.path(), 12).remove(0);
    let offsets = frame_offsets(&segment);
    let (last, end) = (offsets[offsets.len() - 2], offsets[offsets.len() - 1]);
    flip(&segment, last + 60);
    let removed = std::fs::read(&segment).expect("readable")[last..end].to_vec();
    let planned = plan(dir.path(), &segment, last).expect("damaged there");
    assert_eq!((planned.seq, planned.lsns), (Seq(11), Some(batch(Seq(11)).lsns)));
    let copy = dir.path().join(format!("cut-{:016x}-{last}", 0));
    assert_eq!(planned.copies(), [copy.as_path()]);
    assert!(open(dir.path()).is_err(), "a plan changes nothing");
    planned.apply().expect("writable");
    let copied = std::fs::read(&copy).expect("there");
    assert_eq!(copied, removed[..copied.len()]);
    assert!(removed[copied.len()..].iter().all(|byte| *byte == 0));
    let mut log = open(dir.path()).expect("sound, and the mark is removed");
    assert_eq!(log.bounds().next, Seq(11));
    fill(&mut log, 20);
    check(&log);
    assert!(copy.exists());
}

#[test]
fn damage_in_an_earlier_segment_is_cut_with_all_later_segments() {
    let dir = tempfile::tempdir().expect("a directory");
    let segments = stopped(dir.path(), 300);
    assert!(segments.len() > 3);
    let offsets = frame_offsets(&segments[1]);
    let first = usize::from_str_radix(&segments[1].file_stem().expect("a name").to_string_lossy(), 16);
    let damaged = first.expect("a number") as u64 + 3;
    flip(&segments[1], offsets[3] + 60);
    let planned = plan(dir.path(), &segments[1], offsets[3]).expect("damaged there");
    let lsns = LsnRange { first: batch(Seq(damaged)).lsns.first, last: batch(Seq(299)).lsns.last };
    assert_eq!((planned.seq, planned.lsns), (Seq(damaged), Some(lsns)));
    assert_eq!(planned.copies().len(), segments.len() - 1);
    planned.apply().expect("writable");
    let mut log = open(dir.path()).expect("sound");
    assert_eq!(log.bounds().next, Seq(damaged));
    fill(&mut log, 300);
    check(&log);
}

/// The last record ended with more zeros than a frame is padded with. Its frame was not recognised, and the operator was shown
/// fewer LSNs than the cut removed.
#[test]
fn a_last_batch_that_ends_with_zeros_is_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(dir.path()).expect("an empty log");
    for (seq, payload) in
        [vec![7; 100], vec![8; 100], [vec![9; 100], vec![0; 100]].concat()].iter().enumerate()
    {
        let lsn = 10 * seq as u64;
        log.append(Seq(seq as u64), LsnRange::new(lsn, lsn + 9), payload).expect("space");
    }
    drop(log);
    let segment = dir.path().join(format!("{:016x}.seg", 0));
    let second = frame_offsets(&segment)[1];
    flip(&segment, second + 60);
    let planned = plan(dir.path(), &segment, second).expect("damaged there");
    assert_eq!(planned.lsns, Some(LsnRange::new(10, 29)));
}

#[test]
fn a_segment_whose_header_is_damaged_is_cut_as_a_whole() {
    let dir = tempfile::tempdir().expect("a directory");
    let segments = stopped(dir.path(), 300);
    let (last, first) = (segments.last().expect("some"), &segments[0]);
    flip(last, 20);
    plan(dir.path(), last, 0).expect("damaged there").apply().expect("writable");
    let mut log = open(dir.path()).expect("sound");
    assert!(log.bounds().next < Seq(300));
    fill(&mut log, 300);
    check(&log);
    drop(log);
    flip(first, 20);
    let refused = plan(dir.path(), first, 0).err().expect("nothing would be left");
    assert_eq!(refused.kind, ErrorKind::Refused);
}

/// The clean stop named a batch of which nothing is left: an operator accepts the loss.
#[test]
fn a_missing_end_is_accepted_with_a_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let segment = stopped(dir.path(), 12).remove(0);
    let sectors = sectors_of_last_frame(&segment);
    for sector in &sectors {
        erase(&segment, *sector);
    }
    assert!(open(dir.path()).is_err());
    let planned = plan(dir.path(), &segment, sectors[0].0).expect("it ends there");
    assert_eq!((planned.bytes, planned.lsns, planned.copies()), (0, None, vec![]));
    planned.apply().expect("writable");
    assert_eq!(open(dir.path()).expect("sound").bounds().next, Seq(11));
}

#[test]
fn a_cut_anywhere_but_at_the_damage_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let segments = stopped(dir.path(), 300);
    let offsets = frame_offsets(&segments[1]);
    let refused = |file: &Path, offset: usize| {
        let error = plan(dir.path(), file, offset).err().unwrap_or_else(|| panic!("{offset}"));
        assert_eq!(error.kind, ErrorKind::Refused, "{error}");
        error
    };
    refused(&segments[1], offsets[3]);
    flip(&segments[1], offsets[3] + 60);
    let place = format!("file={} offset={}", segments[1].display(), offsets[3]);
    for (file, offset) in
        [(1, offsets[2]), (1, offsets[4]), (1, offsets[3] + 8), (1, 0), (0, offsets[3]), (2, offsets[3])]
    {
        assert!(refused(&segments[file], offset).what.contains(&place));
    }
}

/// A torn tail was never acknowledged: the next start cuts it, and counts it as torn.
#[test]
fn a_torn_tail_is_not_cut_by_an_operator() {
    let dir = tempfile::tempdir().expect("a directory");
    let segment = stopped(dir.path(), 12).remove(0);
    std::fs::remove_file(dir.path().join("clean-stop")).expect("there");
    let sectors = sectors_of_last_frame(&segment);
    erase(&segment, sectors[1]);
    let error = plan(dir.path(), &segment, sectors[0].0).err().expect("it is torn");
    assert_eq!(error.kind, ErrorKind::Refused, "{error}");
}

#[test]
fn a_cut_before_the_floor_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let segment = stopped(dir.path(), 12).remove(0);
    open(dir.path()).expect("sound").raise_floor(Seq(8)).expect("within the log");
    let offsets = frame_offsets(&segment);
    flip(&segment, offsets[5] + 60);
    let error = plan(dir.path(), &segment, offsets[5]).err().expect("below the floor");
    assert_eq!(error.kind, ErrorKind::Refused, "{error}");
}

/// A read-only view named damage where the reader had stopped, which `cut` refused: it wants the place where its own walk
/// through the log ends.
#[test]
fn a_view_names_the_place_that_a_cut_accepts_and_none_below_the_floor() {
    let dir = tempfile::tempdir().expect("a directory");
    let store =
        DiskDir::open(dir.path(), StoreFile { store_id: 1, shards: 1 }, &[7; 32], true).expect("a new store");
    let (mut log, _) = store.log(0, OPTIONS.segment_bytes).expect("a new log");
    fill(&mut log, 300);
    let segments = log.extents();
    drop(log);
    let logs = dir.path().join("log/0");
    let segment = |at: usize| logs.join(format!("{:016x}.seg", segments[at].first.0));
    assert!(segments.len() > 3);
    let view = || StoreView::open(dir.path()).expect("a store").cut_place(0);
    assert_eq!(view().expect_err("sound").kind, ErrorKind::Refused);
    let whole = std::fs::read(segment(1)).expect("readable");
    let damages: [&dyn Fn(); 3] =
        [&|| std::fs::remove_file(segment(1)).expect("there"), &|| flip(&segment(1), 0), &|| {
            flip(&segment(1), frame_offsets(&segment(1))[3] + 60);
        }];
    for damage in damages {
        damage();
        let place = view().expect("damaged");
        let planned = plan(&logs, &place.file, usize::try_from(place.offset).expect("small"));
        assert_eq!(planned.expect("the place is accepted").seq, place.seq);
        std::fs::write(segment(1), &whole).expect("writable");
    }
    let (mut log, _) = store.log(0, OPTIONS.segment_bytes).expect("sound");
    log.raise_floor(Seq(segments[2].first.0 - 1)).expect("within the log");
    drop(log);
    flip(&segment(1), frame_offsets(&segment(1))[1] + 60);
    assert_eq!(view().expect_err("below the floor").kind, ErrorKind::Refused);
}
