//! Damaged backups and damaged stores are refused, with the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use backup::{BackupError, Quiet, RestoreOptions, restore, verify};

use crate::world::{BLOB, NOW, World, content, no_hook};

/// Every file below a directory, with its content.
pub(crate) fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).expect("readable"));
        }
    }
    found
}

fn world_with_backup(to: &str) -> (World, PathBuf) {
    let world = World::new();
    let lease = world.acquire("long");
    world.put_blob(&lease, "long", &content(1, BLOB));
    let lease = world.acquire("short");
    world.put(&lease, "short", b"{\"a\":1}");
    let path = world.dir.path().join(to);
    world.backup(&path, &no_hook).expect("a backup");
    (world, path)
}

fn refused(backup: &Path) -> String {
    let target = backup.with_file_name("target");
    let verified = verify(backup, &Quiet).expect_err("damaged").to_string();
    let restored = restore(backup, &target, &RestoreOptions { now_unix_ms: NOW }, &Quiet);
    let restored = restored.expect_err("damaged").to_string();
    assert!(!target.exists(), "nothing appears: {restored}");
    let parent = std::fs::read_dir(backup.parent().expect("a directory")).expect("a directory");
    let names: Vec<_> = parent.map(|entry| entry.expect("readable").file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains(".partial-")), "{names:?}");
    verified
}

#[test]
fn a_flipped_bit_in_any_file_of_a_backup_is_found() {
    let (_world, backup) = world_with_backup("backup");
    let whole = files(&backup);
    assert!(whole.len() >= 6, "{:?}", whole.keys());
    for (path, bytes) in &whole {
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            std::fs::write(path, damaged).expect("writable");
            let what = refused(&backup);
            assert!(what.contains("another backup") || what.contains("not a backup"), "{path:?}: {what}");
        }
        std::fs::write(path, bytes).expect("writable");
    }
    verify(&backup, &Quiet).expect("whole again");
}

#[test]
fn a_missing_file_and_an_added_one_are_found() {
    let (_world, backup) = world_with_backup("backup");
    for (path, bytes) in files(&backup) {
        std::fs::remove_file(&path).expect("there");
        refused(&backup);
        std::fs::write(&path, bytes).expect("writable");
    }
    std::fs::write(backup.join("store/blob/extra"), "x").expect("writable");
    let what = verify(&backup, &Quiet).expect_err("added").to_string();
    assert!(what.contains("does not name") && what.contains("extra"), "{what}");
}

#[test]
fn a_damaged_archive_is_found_at_every_kind_of_place() {
    let (_world, backup) = world_with_backup("backup.tar");
    let whole = std::fs::read(&backup).expect("readable");
    let step = whole.len() / 97;
    for at in (0..whole.len()).step_by(step) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&backup, damaged).expect("writable");
        assert!(verify(&backup, &Quiet).is_err(), "byte {at}");
    }
    for length in [0, 100, 512, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&backup, &whole[..length]).expect("writable");
        refused(&backup);
    }
    std::fs::write(&backup, [whole, vec![0]].concat()).expect("writable");
    refused(&backup);
}

/// A backup of a store whose document is damaged would lack that document, unnoticed.
#[test]
fn a_damaged_or_missing_document_is_named_and_no_backup_appears() {
    let world = World::new();
    let lease = world.acquire("long");
    world.put_blob(&lease, "long", &content(1, BLOB));
    let blobs = files(&world.store().join("blob/by-name/document"));
    let (path, bytes) = blobs.iter().next().expect("a blob");
    let to = world.dir.path().join("backup");
    let mut damaged = bytes.clone();
    damaged[7] ^= 1;
    std::fs::write(path, damaged).expect("writable");
    let what = world.backup(&to, &no_hook).expect_err("damaged").to_string();
    assert!(what.contains("does not match its hash") && what.contains("long"), "{what}");
    std::fs::remove_file(path).expect("there");
    let what = world.backup(&to, &no_hook).expect_err("missing").to_string();
    assert!(what.contains("its blob is missing") && what.contains("lockd store check"), "{what}");
    assert!(!to.exists());
    let names = std::fs::read_dir(world.dir.path()).expect("a directory").count();
    assert_eq!(names, 1, "only the store is there");
}

#[test]
fn a_store_without_its_key_or_with_another_is_not_backed_up() {
    let world = World::new();
    let (key, to) = (world.store().join("store.key"), world.dir.path().join("backup"));
    std::fs::write(&key, [8; 32]).expect("writable");
    let what = world.backup(&to, &no_hook).expect_err("another key").to_string();
    assert!(what.contains("the store key is not the one"), "{what}");
    std::fs::write(&key, [7; 31]).expect("writable");
    assert!(matches!(world.backup(&to, &no_hook), Err(BackupError::Damaged(_))));
    std::fs::remove_file(&key).expect("there");
    let what = world.backup(&to, &no_hook).expect_err("no key").to_string();
    assert!(what.contains("the store key is missing"), "{what}");
}
