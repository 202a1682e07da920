//! Restored stores open, with what was backed up, and issue higher tokens.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use backup::{BackupError, Quiet, RestoreOptions, restore};

use crate::world::{BLOB, NOW, World, content, no_hook};

const OPTIONS: RestoreOptions = RestoreOptions { now_unix_ms: NOW };

/// The lost store has granted leases since the backup. A restored store that counted on from the backup would issue their
/// tokens a second time, and a resource could not tell the two holders apart.
#[test]
fn tokens_of_a_restored_store_are_above_those_that_the_lost_store_has_issued_since() {
    for name in ["backup", "backup.tar"] {
        let world = World::new();
        let lease = world.acquire("long");
        world.put_blob(&lease, "long", &content(1, BLOB));
        world.put(&world.acquire("short"), "short", b"{\"a\":1}");
        let backup = world.dir.path().join(name);
        let manifest = world.backup(&backup, &no_hook).expect("a backup");
        let lost: Vec<_> = (0..100).map(|n| world.acquire(&format!("after {n}")).token).collect();
        world.stop();
        std::fs::rename(world.store(), world.dir.path().join("lost")).expect("moved");
        let restored = restore(&backup, &world.store(), &OPTIONS, &Quiet).expect("restored");
        assert_eq!(restored.manifest, manifest);
        world.start();
        let token = world.acquire("after 0").token;
        assert!(lost.iter().all(|lost| *lost < token), "{lost:?} {token:?}");
        // What was backed up is there: the same state, and so a second backup equals the first one's documents.
        let again = world.backup(&world.dir.path().join("again"), &no_hook).expect("a backup");
        assert_eq!((again.documents(), again.leases()), (2, 3));
        world.assert_nothing_failed();
    }
}

#[test]
fn nothing_is_overwritten() {
    let world = World::new();
    let backup = world.dir.path().join("backup");
    world.backup(&backup, &no_hook).expect("a backup");
    let refuses = |result: Result<(), BackupError>, words: &str| match result {
        Err(BackupError::Refused(what)) => assert!(what.contains(words), "{what}"),
        other => panic!("{other:?}"),
    };
    refuses(world.backup(&backup, &no_hook).map(drop), "the target exists");
    let restored = |to: &Path| restore(&backup, to, &OPTIONS, &Quiet).map(drop);
    refuses(restored(&world.store()), "the target is not empty");
    let file = world.dir.path().join("file");
    std::fs::write(&file, "precious").expect("writable");
    refuses(restored(&file), "not a directory");
    refuses(restored(&world.dir.path().join("missing/store")), "does not exist; create it");
    refuses(
        restore(world.dir.path(), &world.dir.path().join("new"), &OPTIONS, &Quiet).map(drop),
        "not a backup",
    );
    let empty = world.dir.path().join("empty");
    std::fs::create_dir(&empty).expect("a directory");
    restored(&empty).expect("an empty directory is fine");
}

#[test]
fn a_clock_that_is_behind_the_backup_is_refused() {
    let world = World::new();
    let backup = world.dir.path().join("backup");
    world.backup(&backup, &no_hook).expect("a backup");
    let target = world.dir.path().join("target");
    let behind = RestoreOptions { now_unix_ms: NOW - 1 };
    let what = restore(&backup, &target, &behind, &Quiet).expect_err("behind").to_string();
    assert!(what.contains("set the clock first") && !target.exists(), "{what}");
}

#[test]
fn every_file_is_for_its_owner_alone() {
    let world = World::new();
    let lease = world.acquire("long");
    world.put_blob(&lease, "long", &content(1, BLOB));
    let (dir, archive) = (world.dir.path().join("backup"), world.dir.path().join("backup.tar"));
    world.backup(&dir, &no_hook).expect("a backup");
    world.backup(&archive, &no_hook).expect("a backup");
    let target = world.dir.path().join("target");
    restore(&archive, &target, &OPTIONS, &Quiet).expect("restored");
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&archive), mode(&target)), (0o700, 0o600, 0o700));
    for root in [&dir, &target] {
        for path in crate::damage::files(root).keys() {
            assert_eq!(mode(path), 0o600, "{path:?}");
        }
    }
}

/// An archive that other tools can read needs no lockd to be looked into.
#[test]
fn an_archive_is_unpacked_by_tar_into_a_backup() {
    let world = World::new();
    world.put(&world.acquire("short"), "short", b"{\"a\":1}");
    let (archive, unpacked) = (world.dir.path().join("backup.tar"), world.dir.path().join("unpacked"));
    world.backup(&archive, &no_hook).expect("a backup");
    std::fs::create_dir(&unpacked).expect("a directory");
    let mut tar = std::process::Command::new("tar");
    let Ok(status) = tar.arg("-xf").arg(&archive).arg("-C").arg(&unpacked).status() else {
        println!("skipped: tar is not installed");
        return;
    };
    assert!(status.success());
    backup::verify(&unpacked, &Quiet).expect("a backup");
}
