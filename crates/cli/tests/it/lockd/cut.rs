//! `lockd store cut`: removes exactly the damage that was reported, and only with `--yes`.

use std::path::Path;

use crate::lockd::support::{Ran, flip, frames, lockd, ticking};

fn cut(store: &Path, more: &[&str]) -> Ran {
    lockd(&[&["store", "cut", "--store", store.to_str().expect("a plain path")], more].concat())
}

#[test]
fn a_damaged_batch_is_cut_with_yes_and_only_described_without() {
    let store = ticking();
    let (segment, places) = (store.segment(), frames(&store.segment()));
    flip(&segment, places[1] + 50);
    let (file, offset) = (segment.to_str().expect("a plain path").to_string(), places[1].to_string());
    let in_use = cut(Path::new(store.path()), &["--yes", &file, &offset]);
    assert_eq!(in_use.code, 1);
    assert!(in_use.stderr.contains("another process has the store open"), "{}", in_use.stderr);

    let dir = store.close();
    let before = std::fs::read(&segment).expect("readable");
    let described = cut(dir.path(), &[&file, &offset]);
    assert_eq!(described.code, 2);
    let place = format!("file={file} offset={offset}");
    for part in ["seq=1 ", "shard=0 ", "lsns=3-6 ", &place, "copy: "] {
        assert!(described.stdout.contains(part), "{part} in {}", described.stdout);
    }
    assert!(described.stderr.contains("nothing was changed; add --yes"), "{}", described.stderr);
    let for_programs = cut(dir.path(), &[&file, &offset, "--output", "json"]);
    let report = &for_programs.lines()[0];
    assert_eq!((for_programs.code, &report["is_confirmed"], &report["seq"]), (2, &false.into(), &1.into()));
    assert_eq!((&report["file"], &report["first_lsn"]), (&file.as_str().into(), &3.into()));
    assert_eq!((for_programs.lines().len(), for_programs.stderr.as_str()), (1, ""));
    assert_eq!(std::fs::read(&segment).expect("readable"), before);

    assert_eq!(cut(dir.path(), &["--yes", &file, &offset]).code, 0);
    let copy = segment.with_file_name(format!("cut-0000000000000000-{offset}"));
    assert!(before[places[1]..].starts_with(&std::fs::read(copy).expect("a copy")));
    let dumped = lockd(&["store", "dump", "--store", dir.path().to_str().expect("a plain path")]);
    assert_eq!((dumped.code, dumped.lsns()), (0, vec![1, 2]));
}

#[test]
fn a_place_that_is_not_damaged_is_refused() {
    let store = ticking();
    let (segment, places) = (store.segment(), frames(&store.segment()));
    let dir = store.close();
    let file = segment.to_str().expect("a plain path");
    let sound = cut(dir.path(), &["--yes", file, &places[1].to_string()]);
    assert_eq!(sound.code, 1);
    assert!(sound.stderr.contains("the log is not damaged"), "{}", sound.stderr);
    flip(&segment, places[1] + 50);
    let elsewhere = cut(dir.path(), &["--yes", file, &places[2].to_string()]);
    assert_eq!(elsewhere.code, 1);
    assert!(elsewhere.stderr.contains(&format!("offset={}", places[1])), "{}", elsewhere.stderr);
    let foreign = cut(dir.path(), &["--yes", "/tmp/0000000000000000.seg", "48"]);
    assert_eq!(foreign.code, 2);
    assert!(foreign.stderr.contains("not a file of this store"), "{}", foreign.stderr);
}

/// The cut was made although the newest snapshot contains the damaged batch. The server, which had started until then,
/// found the log shorter than the snapshot and refused to start.
#[test]
fn a_batch_that_a_snapshot_contains_is_not_cut() {
    let store = ticking();
    let (segment, places) = (store.segment(), frames(&store.segment()));
    flip(&segment, places[1] + 50);
    store.snapshot(0, 2);
    let dir = store.close();
    let before = std::fs::read(&segment).expect("readable");
    let place = [segment.to_str().expect("a plain path"), &places[1].to_string()];
    let refused = cut(dir.path(), &[&["--yes"], &place[..]].concat());
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("a snapshot contains this batch"), "{}", refused.stderr);
    assert!(refused.stderr.contains("snapshot=snapshot/0/0000000000000002 seq=1"), "{}", refused.stderr);
    assert_eq!(std::fs::read(&segment).expect("readable"), before);
}
