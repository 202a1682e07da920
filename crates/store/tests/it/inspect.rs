//! A log that is only looked at: nothing is changed, and what is wrong is told from what is merely unfinished.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use store::conformance::{append_next, batch, fill};
use store::disk::{DiskDir, Found, LogView, StoreFile, StoreView};
use store::{ErrorKind, LogStore, Seq, StoreError};

const SEGMENT: u64 = 16 << 10;

/// A store of two shards, with so many batches in the first.
fn written(dir: &Path, batches: u64) -> DiskDir {
    let store = DiskDir::open(dir, StoreFile { store_id: 7, shards: 2 }, false).expect("a local directory");
    let (mut log, _) = store.log(0, SEGMENT).expect("a new log");
    fill(&mut log, batches);
    store
}

fn look(dir: &Path) -> LogView {
    StoreView::open(dir).expect("a store").log(0).expect("a log")
}

/// The numbers of all batches, and what was found behind them.
fn walk(mut log: LogView) -> Result<(Vec<u64>, Found), StoreError> {
    let mut seqs = Vec::new();
    loop {
        match log.read_next()? {
            Found::Batch(found) => {
                assert_eq!(found, batch(found.seq));
                seqs.push(found.seq.0);
            }
            other => {
                assert_eq!(log.read_next().expect("it has ended"), Found::End);
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

fn overwrite(file: &Path, offset: usize, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(file).expect("there");
    file.write_all_at(bytes, offset as u64).expect("writable");
}

/// Where the frames of a segment begin, and where they end.
fn frames(segment: &Path) -> Vec<usize> {
    let bytes = std::fs::read(segment).expect("readable");
    let mut places = vec![store::frame::SEGMENT_HEADER];
    while let Some((header, _)) = store::frame::decode_frame(&bytes[places[places.len() - 1]..]) {
        places.push(places[places.len() - 1] + store::frame::frame_len(header.length));
    }
    places
}

/// Every file below a directory, with its content.
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
fn a_store_in_use_is_read_from_its_floor_to_its_end_and_nothing_is_touched() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = written(dir.path(), 300);
    let before = files(dir.path());
    assert_eq!(walk(look(dir.path())).expect("sound"), ((0..300).collect(), Found::End));
    assert_eq!(files(dir.path()), before);

    let (mut log, _) = store.log(0, SEGMENT).expect("sound");
    log.raise_floor(Seq(207)).expect("within the log");
    assert_eq!(walk(look(dir.path())).expect("sound"), ((207..300).collect(), Found::End));
}

#[test]
fn a_log_that_nothing_was_appended_to_is_empty_and_not_made() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(written(dir.path(), 1));
    let view = StoreView::open(dir.path()).expect("a store");
    assert_eq!(view.file(), StoreFile { store_id: 7, shards: 2 });
    assert_eq!(walk(view.log(1).expect("a log")).expect("sound"), (vec![], Found::End));
    assert!(!dir.path().join("log/1").exists());
    assert_eq!(view.log(2).err().expect("two shards").kind, ErrorKind::Refused);
}

#[test]
fn where_there_is_no_store_none_is_made() {
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
fn a_torn_tail_is_named_and_left_where_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(written(dir.path(), 12));
    let segment = segments(dir.path()).pop().expect("a segment");
    let places = frames(&segment);
    let last = places[places.len() - 2];
    overwrite(&segment, last + 50, &[0; 8]);
    let before = files(dir.path());
    let (seqs, found) = walk(look(dir.path())).expect("a torn tail is no damage");
    let Found::Torn(cut) = found else { panic!("a torn tail: {found:?}") };
    assert_eq!((seqs, cut.seq, cut.lsns), ((0..11).collect(), Seq(11), Some(batch(Seq(11)).lsns)));
    assert_eq!((cut.file, cut.offset), (segment, last as u64));
    assert_eq!(files(dir.path()), before);
}

#[test]
fn damage_is_refused_with_file_and_offset_after_all_that_is_whole() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(written(dir.path(), 300));
    let all = segments(dir.path());
    assert!(all.len() > 3, "{all:?}");
    for segment in [&all[0], &all[1], &all[all.len() - 1]] {
        let places = frames(segment);
        let byte = std::fs::read(segment).expect("readable")[places[3] + 45];
        overwrite(segment, places[3] + 45, &[byte ^ 1]);
        let error = walk(look(dir.path())).expect_err("a damaged frame");
        assert_eq!(error.kind, ErrorKind::Damaged);
        let place = format!("file={} offset={}", segment.display(), places[3]);
        assert!(error.what.contains(&place), "{error}");
        overwrite(segment, places[3] + 45, &[byte]);
    }
    assert!(walk(look(dir.path())).is_ok());

    for lost in [&all[0], &all[1]] {
        let kept = std::fs::read(lost).expect("readable");
        std::fs::remove_file(lost).expect("removable");
        assert_eq!(walk(look(dir.path())).expect_err("a segment is missing").kind, ErrorKind::Damaged);
        std::fs::write(lost, kept).expect("writable");
    }
}

/// A frame may be seen half written, and a whole one behind it a moment later: that is no damage.
#[test]
fn a_log_that_is_appended_to_meanwhile_never_looks_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = written(dir.path(), 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut log, _) = store.log(0, SEGMENT).expect("sound");
            for _ in 0..4000 {
                append_next(&mut log).expect("room");
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let (seqs, _) = walk(look(dir.path())).expect("it is only being written");
            assert!(seqs.iter().copied().eq(0..seqs.len() as u64));
        }
    });
    assert_eq!(walk(look(dir.path())).expect("sound").0.len(), 4001);
}
