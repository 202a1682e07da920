//! A snapshot stores what changed, and is as good as one that stored everything.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use worktree::error::ErrorClass;
use worktree::ids::SessionId;
use worktree::restore::RestoreRequest;
use worktree::snapshot::Descriptor;
use worktree::tree::NoProgress;

use crate::support::{Fixture, class, short_or_long};

/// Names with kinds, modes and bytes.
type Listing = BTreeMap<String, (u32, Vec<u8>)>;

fn listing(dir: &Path) -> Listing {
    let mut found = Listing::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(at) = dirs.pop() {
        for entry in std::fs::read_dir(&at).expect("readable") {
            let path = entry.expect("readable").path();
            let meta = path.symlink_metadata().expect("there");
            let name = path.strip_prefix(dir).expect("below").to_str().expect("text").to_owned();
            let bytes = if meta.is_dir() {
                dirs.push(path);
                Vec::new()
            } else if meta.is_symlink() {
                std::fs::read_link(&path).expect("a link").to_str().expect("text").into()
            } else {
                std::fs::read(&path).expect("readable")
            };
            found.insert(name, (meta.mode(), bytes));
        }
    }
    found
}

fn restore(fixture: &Fixture, session: &SessionId, snapshot: &Descriptor) {
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: true, progress: &NoProgress };
    fixture.repo.restore(&fixture.main, snapshot, &request).expect("stored and intact");
}

fn stored(fixture: &Fixture, snapshot: &Descriptor) -> Vec<String> {
    let names = listing(&fixture.repo.layout().snapshot_tree(&snapshot.snapshot_id));
    names.into_iter().filter(|(_, (mode, _))| mode & 0o170_000 != 0o040_000).map(|(name, _)| name).collect()
}

/// Every second snapshot of 60,000 files took all of their space and time again.
#[test]
fn a_snapshot_stores_only_what_changed() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    for n in 0..20 {
        fixture.write(&format!("dir{}/file{n}", n % 3), format!("content {n}").as_bytes());
    }
    crate::support::let_files_settle();
    let first = fixture.snapshot(&session).expect("held").descriptor;
    assert_eq!((stored(&fixture, &first).len(), &first.base), (20, &None));
    fixture.write("dir1/file4", b"changed");
    let second = fixture.snapshot(&session).expect("held").descriptor;
    assert_eq!(stored(&fixture, &second), ["dir1/file4"]);
    assert_eq!(second.base, Some(first.snapshot_id.clone()));
    assert_eq!((second.files, first.files), (20, 20), "the descriptor counts all files");
    let now = listing(&fixture.payload(""));
    for one in [&first, &second] {
        fixture.repo.verify(one, &NoProgress).expect("intact");
    }
    restore(&fixture, &session, &first);
    assert_eq!(std::fs::read(fixture.payload("dir1/file4")).expect("there"), b"content 4");
    restore(&fixture, &session, &second);
    assert_eq!(listing(&fixture.payload("")), now);
    for file in std::fs::read_dir(fixture.payload("dir1")).expect("there") {
        let meta = file.expect("readable").metadata().expect("there");
        assert_eq!(meta.nlink(), 1, "a worktree's file is never a hard link to a stored one");
    }
}

/// Each of these leaves the size of the file as it was.
#[test]
fn a_change_is_noticed_even_if_size_and_modification_time_are_put_back() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    for name in ["bytes", "moved", "mode", "swapped-a", "swapped-b", "linked"] {
        fixture.write(name, format!("old {name:>10}").as_bytes());
    }
    std::os::unix::fs::symlink("old", fixture.payload("link")).expect("writable");
    crate::support::let_files_settle();
    fixture.snapshot(&session).expect("held");
    let path = |name: &str| fixture.payload(name);
    let times = path("bytes").metadata().expect("there").modified().expect("supported");
    fixture.write("bytes", format!("new {:>10}", "bytes").as_bytes());
    std::fs::File::options()
        .write(true)
        .open(path("bytes"))
        .expect("ours")
        .set_modified(times)
        .expect("ours");
    std::fs::rename(path("moved"), path("moved-away")).expect("ours");
    std::fs::set_permissions(path("mode"), PermissionsExt::from_mode(0o600)).expect("ours");
    std::fs::rename(path("swapped-a"), path("x")).expect("ours");
    std::fs::rename(path("swapped-b"), path("swapped-a")).expect("ours");
    std::fs::rename(path("x"), path("swapped-b")).expect("ours");
    std::fs::hard_link(path("linked"), path("linked-too")).expect("ours");
    std::fs::remove_file(path("link")).expect("ours");
    std::os::unix::fs::symlink("new", path("link")).expect("ours");
    let now = listing(&path(""));
    let second = fixture.snapshot(&session).expect("held").descriptor;
    fixture.repo.verify(&second, &NoProgress).expect("the stored files are those of the manifest");
    restore(&fixture, &session, &second);
    assert_eq!(listing(&path("")), now);
    let inode = |name: &str| path(name).metadata().expect("there").ino();
    assert_eq!(inode("linked"), inode("linked-too"));
}

/// Random changes between snapshots; every snapshot must come back as it was, whatever it shares. The seed is
/// printed by the failing assertion.
#[test]
fn every_snapshot_of_a_random_history_comes_back_as_it_was() {
    for seed in 0..short_or_long(2, 20) as u64 {
        let fixture = Fixture::new();
        let session = fixture.acquire().expect("free").session.session_id;
        let mut random = seed;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut taken: Vec<(Descriptor, Listing)> = Vec::new();
        for round in 0..8 {
            for _ in 0..next(6) {
                let name = format!("d{}/f{}", next(3), next(4));
                let other = format!("d{}/f{}", next(3), next(4));
                let path = fixture.payload(&name);
                match next(5) {
                    0 | 1 => fixture.write(&name, format!("{round} {}", next(1000)).as_bytes()),
                    2 => drop(std::fs::remove_file(&path)),
                    3 if path.exists() => {
                        std::fs::create_dir_all(fixture.payload(&other).parent().expect("below"))
                            .expect("ours");
                        std::fs::rename(&path, fixture.payload(&other)).expect("ours");
                    }
                    4 if path.exists() && !fixture.payload(&other).exists() => {
                        std::fs::create_dir_all(fixture.payload(&other).parent().expect("below"))
                            .expect("ours");
                        std::fs::hard_link(&path, fixture.payload(&other)).expect("ours");
                    }
                    _ => {}
                }
            }
            let now = listing(&fixture.payload(""));
            taken.push((fixture.snapshot(&session).expect("held").descriptor, now));
            if next(4) == 0 {
                let (old, _) = &taken[usize::try_from(next(taken.len() as u64)).expect("small")];
                restore(&fixture, &session, old);
            }
        }
        for (snapshot, then) in &taken {
            fixture.repo.verify(snapshot, &NoProgress).unwrap_or_else(|error| panic!("seed={seed}: {error}"));
            restore(&fixture, &session, snapshot);
            assert_eq!(listing(&fixture.payload("")), *then, "seed={seed} {}", snapshot.snapshot_id);
        }
    }
}

#[test]
fn damage_in_a_shared_file_is_found_in_every_snapshot_that_has_it() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write("shared", b"bytes");
    crate::support::let_files_settle();
    let first = fixture.snapshot(&session).expect("held").descriptor;
    fixture.write("other", b"new");
    let second = fixture.snapshot(&session).expect("held").descriptor;
    assert_eq!(stored(&fixture, &second), ["other"]);
    let file = fixture.repo.layout().snapshot_tree(&first.snapshot_id).join("shared");
    std::fs::write(file, b"BYTES").expect("as a bad disk does");
    for one in [&first, &second] {
        assert_eq!(class(fixture.repo.verify(one, &NoProgress)), ErrorClass::Damaged);
    }
}

#[test]
fn a_damaged_index_or_a_lost_base_only_costs_a_whole_copy() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write("file", b"bytes");
    crate::support::let_files_settle();
    fixture.snapshot(&session).expect("held");
    let index = fixture.repo.layout().index(&fixture.main.worktree_id);
    let whole = std::fs::read_to_string(&index).expect("written");
    std::fs::write(&index, whole.replace("file", "elif")).expect("ours");
    let second = fixture.snapshot(&session).expect("held").descriptor;
    assert_eq!((stored(&fixture, &second).len(), second.base), (1, None));
    let gone = whole.replace(whole.split(' ').nth(2).expect("an id"), "20200101t000000000z-00000000");
    std::fs::write(&index, gone).expect("ours");
    assert_eq!(fixture.snapshot(&session).expect("held").descriptor.base, None);
}

/// A chain of layers is bounded, without storing a file again that has not changed since its oldest layer.
#[test]
fn a_long_history_has_few_layers() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    for n in 0..5 {
        fixture.write(&format!("still{n}"), b"unchanged");
    }
    crate::support::let_files_settle();
    let mut all = Vec::new();
    for round in 0..68 {
        fixture.write("changing", format!("{round}").as_bytes());
        all.push(fixture.snapshot(&session).expect("held").descriptor);
    }
    let first = Some(all[0].snapshot_id.clone());
    assert!(all[2..].iter().any(|one| one.base == first), "one begins again at the oldest layer");
    assert!(all[1..].iter().all(|one| stored(&fixture, one) == ["changing"]), "and stores only what changed");
    for (round, one) in all.iter().enumerate().step_by(11) {
        fixture.repo.verify(one, &NoProgress).expect("intact");
        restore(&fixture, &session, one);
        assert_eq!(std::fs::read(fixture.payload("changing")).expect("there"), round.to_string().as_bytes());
        assert!(fixture.payload("still4").exists());
    }
}
