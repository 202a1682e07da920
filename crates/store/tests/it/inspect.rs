//! Read-only views: they change nothing, and distinguish damage from an unfinished append.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use store::conformance::{append_next, batch, fill};
use store::disk::{DiskDir, DiskLog, LogItem, LogOptions, LogView, StoreFile, StoreView};
use store::fs::RealFs;
use store::{Batch, Bounds, ErrorKind, LogStore, LsnRange, Seq, StoreError};

use crate::segment_files::{erase, frame_offsets, overwrite, sectors_of_last_frame};

const SEGMENT: u64 = 16 << 10;

/// A store of two shards, with `batches` batches in the first.
fn written(dir: &Path, batches: u64) -> DiskDir {
    let store =
        DiskDir::open(dir, StoreFile { store_id: 7, shards: 2 }, &[7; 32], false).expect("a local directory");
    let (mut log, _) = store.log(0, SEGMENT).expect("a new log");
    fill(&mut log, batches);
    store
}

fn view(dir: &Path) -> LogView {
    StoreView::open(dir).expect("a store").log(0).expect("a log")
}

/// The sequence numbers of all batches, and the item after them.
fn walk(mut log: LogView) -> Result<(Vec<u64>, LogItem), StoreError> {
    let mut seqs = Vec::new();
    loop {
        match log.read_next()? {
            LogItem::Batch(found) => {
                assert_eq!(found, batch(found.seq));
                seqs.push(found.seq.0);
            }
            other => {
                assert_eq!(log.read_next().expect("it has ended"), LogItem::End);
                return Ok((seqs, other));
            }
        }
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let names =
        std::fs::read_dir(dir.join("log/0")).expect("there").map(|entry| entry.expect("readable").path());
    let mut segments: Vec<_> =
        names.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
    segments.sort();
    segments
}

/// Every file below a directory, with its contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("there").map(|entry| entry.expect("readable").path()) {
        if entry.is_dir() {
            found.extend(files(&entry));
        } else {
            found.insert(entry.clone(), std::fs::read(&entry).expect("readable"));
        }
    }
    found
}

#[test]
fn a_store_in_use_is_read_from_floor_to_end_and_not_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = written(dir.path(), 300);
    let before = files(dir.path());
    assert_eq!(walk(view(dir.path())).expect("sound"), ((0..300).collect(), LogItem::End));
    assert_eq!(files(dir.path()), before);

    let (mut log, _) = store.log(0, SEGMENT).expect("sound");
    log.raise_floor(Seq(207)).expect("within the log");
    assert_eq!(walk(view(dir.path())).expect("sound"), ((207..300).collect(), LogItem::End));
}

#[test]
fn viewing_an_empty_log_does_not_create_it() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(written(dir.path(), 1));
    let view = StoreView::open(dir.path()).expect("a store");
    assert_eq!(view.file(), StoreFile { store_id: 7, shards: 2 });
    assert_eq!(walk(view.log(1).expect("a log")).expect("sound"), (vec![], LogItem::End));
    assert!(!dir.path().join("log/1").exists());
    assert_eq!(view.log(2).err().expect("two shards").kind, ErrorKind::Refused);
}

#[test]
fn viewing_a_missing_store_does_not_create_it() {
    let dir = tempfile::tempdir().expect("a directory");
    for path in [dir.path().to_path_buf(), dir.path().join("nowhere")] {
        let error = StoreView::open(&path).expect_err("no store");
        assert_eq!(error.kind, ErrorKind::Gone, "{error}");
    }
    assert!(files(dir.path()).is_empty() && !dir.path().join("nowhere").exists());
    std::fs::write(dir.path().join("store"), "something else").expect("writable");
    assert_eq!(StoreView::open(dir.path()).expect_err("no store").kind, ErrorKind::Damaged);
}

#[test]
fn a_torn_tail_is_reported_and_not_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(written(dir.path(), 12));
    let segment = segments(dir.path()).pop().expect("a segment");
    let sectors = sectors_of_last_frame(&segment);
    let [(last, _), second] = sectors[..] else { panic!("a frame in two sectors: {sectors:?}") };
    erase(&segment, second);
    let before = files(dir.path());
    let (seqs, found) = walk(view(dir.path())).expect("a torn tail is no damage");
    let LogItem::Torn(cut) = found else { panic!("a torn tail: {found:?}") };
    assert_eq!((seqs, cut.seq, cut.lsns), ((0..11).collect(), Seq(11), Some(batch(Seq(11)).lsns)));
    assert_eq!((cut.file, cut.offset), (segment, last as u64));
    assert_eq!(files(dir.path()), before);
}

#[test]
fn damage_is_reported_with_file_and_offset_after_all_valid_batches() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(written(dir.path(), 300));
    let all = segments(dir.path());
    assert!(all.len() > 3, "{all:?}");
    for segment in [&all[0], &all[1], &all[all.len() - 1]] {
        let offsets = frame_offsets(segment);
        let byte = std::fs::read(segment).expect("readable")[offsets[3] + 45];
        overwrite(segment, offsets[3] + 45, &[byte ^ 1]);
        let error = walk(view(dir.path())).expect_err("a damaged frame");
        assert_eq!(error.kind, ErrorKind::Damaged);
        let place = format!("file={} offset={}", segment.display(), offsets[3]);
        assert!(error.what.contains(&place), "{error}");
        overwrite(segment, offsets[3] + 45, &[byte]);
    }
    assert!(walk(view(dir.path())).is_ok());

    for lost in [&all[0], &all[1]] {
        let original = std::fs::read(lost).expect("readable");
        std::fs::remove_file(lost).expect("removable");
        assert_eq!(walk(view(dir.path())).expect_err("a segment is missing").kind, ErrorKind::Damaged);
        std::fs::write(lost, original).expect("writable");
    }
}

/// A frame may be read half written, and the next one complete a moment later: that is not damage.
#[test]
fn a_log_under_concurrent_appends_never_looks_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = written(dir.path(), 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut log, _) = store.log(0, SEGMENT).expect("sound");
            for _ in 0..4000 {
                append_next(&mut log).expect("writable");
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let (seqs, _) = walk(view(dir.path())).expect("it is only being written");
            assert!(seqs.iter().copied().eq(0..seqs.len() as u64));
        }
    });
    assert_eq!(walk(view(dir.path())).expect("sound").0.len(), 4001);
}

/// The same bytes that the log refuses to open are damage for a view: a flipped bit in the last frame, and a last frame
/// that is missing after a clean stop.
#[test]
fn damage_at_the_end_is_not_taken_for_a_torn_tail() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = written(dir.path(), 12);
    let segment = segments(dir.path()).pop().expect("a segment");
    let whole = std::fs::read(&segment).expect("readable");
    let last = sectors_of_last_frame(&segment)[0].0;
    for (byte, value) in whole.iter().enumerate().take(last + 152).skip(last) {
        overwrite(&segment, byte, &[value ^ 4]);
        let error = walk(view(dir.path())).err().unwrap_or_else(|| panic!("byte {byte} is damaged"));
        assert_eq!(error.kind, ErrorKind::Damaged);
        assert!(error.what.contains(&format!("file={} offset={last}", segment.display())), "{error}");
        overwrite(&segment, byte, &[*value]);
    }
    store.log(0, SEGMENT).expect("sound").0.mark_clean_stop().expect("writable");
    assert!(walk(view(dir.path())).is_ok());
    let segment = segments(dir.path()).pop().expect("a segment");
    for sector in sectors_of_last_frame(&segment) {
        erase(&segment, sector);
    }
    let error = walk(view(dir.path())).expect_err("the batch of the clean stop is missing");
    assert_eq!(error.kind, ErrorKind::Damaged, "{error}");
}

/// A restart copied the last batch to a new segment, and the old one kept an unsynced copy of it, which a power cut
/// tore. It is superseded: nothing may read it, torn or whole.
#[test]
fn a_superseded_frame_is_not_read() {
    // More than a restart copies as a whole; the last batch is in two sectors.
    const BATCHES: u64 = 40;
    let dir = tempfile::tempdir().expect("a directory");
    let store = written(dir.path(), BATCHES);
    let old = segments(dir.path()).pop().expect("a segment");
    let (bytes, sectors) = (std::fs::read(&old).expect("readable"), sectors_of_last_frame(&old));
    let (mut log, _) = store.log(0, SEGMENT).expect("sound");
    fill(&mut log, BATCHES + 3);
    assert_eq!(segments(dir.path()).len(), 2);
    std::fs::write(&old, bytes).expect("writable");
    for is_torn in [false, true] {
        if is_torn {
            erase(&old, sectors[1]);
        }
        assert_eq!(walk(view(dir.path())).expect("sound"), ((0..BATCHES + 3).collect(), LogItem::End));
        let mut reader = log.reader();
        for seq in 0..BATCHES + 3 {
            assert_eq!(reader.read(Seq(seq)).expect("sound"), batch(Seq(seq)));
        }
    }
}

/// A log whose batches were all truncated has a segment without frames. Its copy had neither segment nor floor, and ended before
/// its snapshot.
#[test]
fn a_log_without_batches_above_its_floor_is_copied_with_its_floor() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = StoreFile { store_id: 5, shards: 1 };
    let store = DiskDir::open(dir.path(), file, &[7; 32], true).expect("a store");
    let (mut log, _) = store.log(0, LogOptions::SEGMENT_BYTES_MIN).expect("an empty log");
    for seq in 0..9 {
        log.append(Seq(seq), LsnRange::new(seq, seq), b"x").expect("space");
    }
    log.raise_floor(Seq(9)).expect("within the log");
    let to = tempfile::tempdir().expect("a directory");
    let view = StoreView::open(dir.path()).expect("a store");
    let mut on_batch = |_: &Batch| -> Result<(), StoreError> { panic!("there is none") };
    let copied = view.copy_log(0, view.log(0).expect("a log"), to.path(), &mut on_batch).expect("readable");
    assert_eq!((copied.floor, copied.next), (Seq(9), Seq(9)));
    let options = LogOptions { shard: 0, store_id: 5, segment_bytes: LogOptions::SEGMENT_BYTES_MIN };
    let (mut log, _) = DiskLog::open(RealFs, &to.path().join("log/0"), options).expect("a sound log");
    assert_eq!(log.bounds(), Bounds { floor: Seq(9), next: Seq(9) });
    log.append(Seq(9), LsnRange::new(9, 9), b"x").expect("it continues");
}
