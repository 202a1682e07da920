//! What the simulated disk keeps and loses.

use super::*;

const A: &str = "/d/a";
const IO_ERROR: i32 = 5;

/// A file in a directory, both durable.
fn empty_file() -> (SimFs, SimFile) {
    let fs = SimFs::new(FaultPlan::default());
    fs.create_dir(Path::new("/d")).expect("new");
    fs.sync_dir(Path::new("/")).expect("synced");
    let file = fs.create(Path::new(A)).expect("new");
    fs.sync_dir(Path::new("/d")).expect("synced");
    (fs, file)
}

fn bytes_of(fs: &SimFs, path: &str) -> Option<Vec<u8>> {
    let file = fs.open(Path::new(path)).ok()?;
    let mut bytes = vec![0; usize::try_from(file.length().ok()?).ok()?];
    file.read_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

/// The distinct contents found after 200 random crashes.
fn outcomes(fs: &SimFs, path: &str) -> Vec<Option<Vec<u8>>> {
    let mut found: Vec<_> = (0..200)
        .map(|seed| bytes_of(&fs.after_crash(&mut Rng::new(seed), FaultPlan::default()), path))
        .collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn synced_data_survives_a_power_cut_and_other_data_may() {
    let (fs, file) = empty_file();
    file.write_at(b"safe", 0).expect("written");
    file.sync().expect("synced");
    assert_eq!(outcomes(&fs, A), [Some(b"safe".to_vec())]);
    file.write_at(b"once", 0).expect("written");
    file.write_at(b"lost", 0).expect("written");
    assert_eq!(outcomes(&fs, A), [Some(b"lost".to_vec()), Some(b"once".to_vec()), Some(b"safe".to_vec())]);
}

#[test]
fn names_survive_a_power_cut_once_their_directory_and_its_parents_are_synced() {
    let fs = SimFs::new(FaultPlan::default());
    fs.create_dir(Path::new("/d/e")).expect("new");
    let file = fs.create(Path::new("/d/e/a")).expect("new");
    file.sync().expect("synced");
    for (dir, left) in [("/d/e", 2), ("/d", 2), ("/", 1)] {
        fs.sync_dir(Path::new(dir)).expect("synced");
        assert_eq!(outcomes(&fs, "/d/e/a").len(), left, "{dir}");
    }
    fs.remove(Path::new("/d/e/a")).expect("there");
    assert_eq!(outcomes(&fs, "/d/e/a"), [None, Some(b"".to_vec())]);
    assert!(fs.create(Path::new("/other/a")).is_err(), "its directory does not exist");
}

#[test]
fn each_subset_of_the_sectors_of_a_write_may_survive() {
    let (fs, file) = empty_file();
    file.write_at(&[7; 3 * SECTOR], 0).expect("written");
    assert_eq!(fs.unsynced(), 3);
    for subset in 0..8 {
        let after = fs.after_power_cut(|sector| subset & 1 << sector != 0, FaultPlan::default());
        let bytes = bytes_of(&after, A).expect("durable");
        let found = (0..3).filter(|sector| bytes.get(sector * SECTOR) == Some(&7));
        assert_eq!(found.fold(0, |found, sector| found | 1 << sector), subset);
    }
}

#[test]
fn a_process_death_keeps_unsynced_writes_readable_and_not_durable() {
    let (fs, file) = empty_file();
    file.write_at(b"cached", 0).expect("written");
    let after = fs.after_process_death(FaultPlan::default());
    assert_eq!(bytes_of(&after, A), Some(b"cached".to_vec()));
    assert_eq!(outcomes(&after, A), [Some(b"".to_vec()), Some(b"cached".to_vec())]);
}

#[test]
fn a_later_sync_does_not_save_what_a_failed_one_lost() {
    let (fs, file) = empty_file();
    file.write_at(&[1; SECTOR], 0).expect("written");
    fs.disk().plan.fail_at = Some((fs.calls(), IO_ERROR));
    file.sync().expect_err("as planned");
    file.write_at(&[2; SECTOR], SECTOR as u64).expect("written");
    file.sync().expect("the pages are clean");
    assert_eq!(bytes_of(&fs, A), Some([[1; SECTOR], [2; SECTOR]].concat()));
    let lost = [[0; SECTOR], [2; SECTOR]].concat();
    assert_eq!(bytes_of(&fs.after_power_cut(|_| false, FaultPlan::default()), A), Some(lost));
    file.write_at(&[3; SECTOR], 0).expect("written");
    file.sync().expect("dirty again");
    assert_eq!(outcomes(&fs, A), [Some([[3; SECTOR], [2; SECTOR]].concat())]);
}

#[test]
fn an_unsynced_truncation_may_be_lost() {
    let (fs, file) = empty_file();
    file.write_at(&[1; 2 * SECTOR], 0).expect("written");
    file.sync().expect("synced");
    file.truncate(9).expect("shorter");
    assert_eq!(bytes_of(&fs, A), Some(vec![1; 9]));
    assert_eq!(outcomes(&fs, A), [Some(vec![1; 9]), Some(vec![1; 2 * SECTOR])]);
    file.sync().expect("synced");
    assert_eq!(outcomes(&fs, A), [Some(vec![1; 9])]);
}

#[test]
fn a_flipped_bit_is_on_the_device() {
    let (fs, file) = empty_file();
    file.write_at(&[0, 0], 0).expect("written");
    file.sync().expect("synced");
    fs.flip_bit(Path::new(A), 9);
    assert_eq!(bytes_of(&fs, A), Some(vec![0, 2]));
    assert_eq!(outcomes(&fs, A), [Some(vec![0, 2])]);
}

#[test]
fn calls_after_the_crash_fail() {
    let fs = SimFs::new(FaultPlan { crash_at: Some(2), fail_at: None });
    fs.create_dir(Path::new("/d")).expect("before it");
    let file = fs.create(Path::new(A)).expect("before it");
    assert!(file.write_at(b"x", 0).is_err() && file.sync().is_err() && fs.sync_dir(Path::new("/d")).is_err());
}
