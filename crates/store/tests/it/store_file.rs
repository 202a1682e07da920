//! The file `store` and the map of slots: what opens, what is converted, what is refused.

use std::fs;
use std::path::Path;

use store::disk::{DiskDir, StoreFile, StoreView};
use store::{ErrorKind, SlotMap, StoreError};

const KEY: [u8; 32] = [7; 32];

fn open(dir: &Path, shards: u32) -> Result<DiskDir, StoreError> {
    DiskDir::open(dir, StoreFile { store_id: 5, shards }, &KEY, false)
}

/// The file `store` as format 1 had it.
fn format_1(shards: u32) -> Vec<u8> {
    let mut bytes = b"lockdsto\x01\0\0\0".to_vec();
    bytes.extend_from_slice(&shards.to_le_bytes());
    bytes.extend_from_slice(&9_u128.to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn a_new_store_has_a_map_of_ranges_and_keeps_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let map = open(dir.path(), 4).expect("a new store").map().clone();
    assert_eq!(Some(&map), SlotMap::ranges(4).as_ref());
    let again = open(dir.path(), 9).expect("it exists");
    assert_eq!((again.map(), again.file().shards), (&map, 4));
}

#[test]
fn a_store_of_format_1_keeps_its_id_and_gets_the_map_that_it_had() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("store"), format_1(8)).expect("writable");
    let converted = open(dir.path(), 1).expect("it is converted");
    assert_eq!(converted.file(), StoreFile { store_id: 9, shards: 8 });
    assert_eq!(Some(converted.map()), SlotMap::of_format_1(8).as_ref());
    drop(converted);
    assert_ne!(fs::read(dir.path().join("store")).expect("readable"), format_1(8));
    assert_eq!(open(dir.path(), 1).expect("it is of format 2").file().store_id, 9);
}

/// With three shards the shard of a namespace does not follow from its slot.
#[test]
fn a_store_of_format_1_whose_shards_do_not_divide_the_slots_is_refused_unchanged() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("store"), format_1(3)).expect("writable");
    let error = open(dir.path(), 1).err().expect("refused");
    assert_eq!(error.kind, ErrorKind::Refused);
    assert!(error.to_string().contains("shards=3"), "{error}");
    assert_eq!(fs::read(dir.path().join("store")).expect("readable"), format_1(3));
}

#[test]
fn the_map_with_the_highest_number_counts() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(dir.path(), 2).expect("a new store"));
    let converted = tempfile::tempdir().expect("a directory");
    fs::write(converted.path().join("store"), format_1(2)).expect("writable");
    drop(open(converted.path(), 2).expect("it is converted"));
    let other = fs::read(converted.path().join("map/1")).expect("readable");
    fs::write(dir.path().join("map/10"), other).expect("writable");
    fs::copy(dir.path().join("map/1"), dir.path().join("map/9")).expect("writable");
    fs::write(dir.path().join("map/11.tmp"), b"left over").expect("writable");
    assert_eq!(Some(open(dir.path(), 2).expect("sound").map()), SlotMap::of_format_1(2).as_ref());
}

#[test]
fn a_store_without_its_map_or_with_a_damaged_one_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(dir.path(), 2).expect("a new store"));
    let map = dir.path().join("map/1");
    let mut bytes = fs::read(&map).expect("readable");
    bytes[4000] ^= 1;
    fs::write(&map, &bytes).expect("writable");
    assert_eq!(open(dir.path(), 2).err().expect("damaged").kind, ErrorKind::Damaged);
    fs::remove_file(&map).expect("writable");
    assert_eq!(open(dir.path(), 2).err().expect("missing").kind, ErrorKind::Damaged);
}

#[test]
fn a_store_with_another_key_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(dir.path(), 2).expect("a new store"));
    let other = DiskDir::open(dir.path(), StoreFile { store_id: 5, shards: 2 }, &[8; 32], false);
    let error = other.err().expect("refused");
    assert_eq!(error.kind, ErrorKind::Refused);
    assert!(error.to_string().contains("the store key is not the one"), "{error}");
}

/// A start on a store whose file `store` was lost created a new one beside the log: it named another store than the segments
/// did, and the one from a backup seemed to be the wrong one.
#[test]
fn a_store_whose_file_is_missing_is_damaged_and_not_created_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(dir.path(), 2).expect("a new store").log(0, 1 << 20).expect("a log"));
    let file = dir.path().join("store");
    let lost = fs::read(&file).expect("readable");
    fs::remove_file(&file).expect("writable");
    for error in
        [open(dir.path(), 2).err().expect("refused"), StoreView::open(dir.path()).expect_err("refused")]
    {
        assert_eq!(error.kind, ErrorKind::Damaged);
        assert!(error.to_string().contains("the store file is missing, though its log is here"), "{error}");
    }
    assert!(!file.exists(), "nothing is created");
    fs::write(&file, lost).expect("writable");
    open(dir.path(), 2).expect("the file of a backup is the right one");
}
