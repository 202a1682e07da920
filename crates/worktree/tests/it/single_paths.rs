//! Single paths are restored as carefully as a whole worktree: nothing is lost, nothing becomes more open, and the
//! lease is renewed to the end.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use worktree::clock::{Clock, SystemClock};
use worktree::error::{ErrorClass, Result};
use worktree::ids::SessionId;
use worktree::policy::{LockPolicy, PolicyChanges};
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::restore_path::RestoredPath;
use worktree::snapshot::Descriptor;
use worktree::tree::{NoProgress, RelPath};

use crate::support::layer::{Call, CallOutcome, HookedFs};
use crate::support::{Fixture, STEALABLE_MS, class, request_with};

fn restore(
    repo: &Repo,
    fixture: &Fixture,
    (session, from): (&SessionId, &Descriptor),
    path: &str,
    discard_changes: bool,
) -> Result<RestoredPath> {
    let request = RestoreRequest { session: Some(session.clone()), discard_changes, progress: &NoProgress };
    let path = RelPath::parse(path.as_ref()).expect("a plain path");
    repo.restore_path(&fixture.main, from, &path, &request)
}

/// A held worktree, and a snapshot of it.
fn saved(files: &[(&str, &[u8])]) -> (Fixture, SessionId, Descriptor) {
    let fixture = Fixture::new();
    for (name, bytes) in files {
        fixture.write(name, bytes);
    }
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("held").descriptor;
    (fixture, session, taken)
}

fn mode(fixture: &Fixture, name: &str) -> u32 {
    fs::metadata(fixture.payload(name)).expect("there").mode() & 0o7777
}

/// A private directory was gone, and a file in it was restored. The directory came back with the mode of a new one,
/// readable for every user.
#[test]
fn missing_directories_above_a_path_come_back_with_their_modes() {
    let fixture = Fixture::new();
    fixture.write("private/deep/file", b"secret");
    fixture.write("private/other", b"x");
    for (name, mode) in [("private", 0o700), ("private/deep", 0o710)] {
        fs::set_permissions(fixture.payload(name), fs::Permissions::from_mode(mode)).expect("ours");
    }
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("held").descriptor;
    fs::remove_dir_all(fixture.payload("private")).expect("ours");
    let restored = restore(&fixture.repo, &fixture, (&session, &taken), "private/deep/file", false);
    assert!(!restored.expect("nothing is in its place").replaced);
    assert_eq!((mode(&fixture, "private"), mode(&fixture, "private/deep")), (0o700, 0o710));
    assert_eq!(fs::read(fixture.payload("private/deep/file")).expect("there"), b"secret");
    assert!(!fixture.payload("private/other").exists(), "only the path");
}

/// An attribute that was set since the last snapshot is in no manifest, and went without a question.
#[test]
fn a_path_with_attributes_that_no_snapshot_has_is_not_replaced_unasked() {
    let (fixture, session, taken) = saved(&[("dir/file", b"same")]);
    let file = fixture.payload("dir/file");
    if setxattr(&file, "user.origin", b"elsewhere", XattrFlags::empty()).is_err() {
        println!("skipped: this filesystem has no extended attributes");
        return;
    }
    let refused = restore(&fixture.repo, &fixture, (&session, &taken), "dir", false);
    let refused = refused.expect_err("the attribute would be dropped");
    assert!(refused.detail().contains("first=dir/file"), "{refused}");
    assert_eq!(refused.facts()["restore"], "not_committed");
    assert!(getxattr(&file, "user.origin", &mut [0; 64][..]).is_ok(), "it is still there");
    restore(&fixture.repo, &fixture, (&session, &taken), "dir", true).expect("asked for");
    assert!(getxattr(&file, "user.origin", &mut [0; 64][..]).is_err());
}

/// A name that snapshots leave out is in none of them, so replacing it loses work. A socket elsewhere in the worktree
/// does not matter.
#[test]
fn ignored_names_are_not_replaced_unasked_and_a_socket_elsewhere_is_no_obstacle() {
    let (fixture, session, taken) = saved(&[("build/out", b"old"), ("file", b"one")]);
    fixture.write(".jvsignore", b"build/\nTemp/\n");
    fixture.write("build/out", b"precious");
    fs::create_dir(fixture.payload("Temp")).expect("ours");
    let socket =
        std::os::unix::net::UnixListener::bind(fixture.payload("Temp/socket")).expect("a short path");
    fixture.snapshot(&session).expect("held");
    assert_eq!(
        class(restore(&fixture.repo, &fixture, (&session, &taken), "build", false)),
        ErrorClass::Invalid
    );
    assert_eq!(fs::read(fixture.payload("build/out")).expect("there"), b"precious");
    restore(&fixture.repo, &fixture, (&session, &taken), "file", false).expect("the socket is elsewhere");
    drop(socket);
}

/// The first name of a hard-linked file was outside of the path, and the restore failed to link to it.
#[test]
fn one_name_of_a_hard_linked_file_is_restored_by_itself() {
    let fixture = Fixture::new();
    fixture.write("a", b"linked");
    fs::create_dir(fixture.payload("dir")).expect("ours");
    for name in ["dir/b", "dir/c"] {
        fs::hard_link(fixture.payload("a"), fixture.payload(name)).expect("ours");
    }
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("held").descriptor;
    fs::remove_dir_all(fixture.payload("dir")).expect("ours");
    restore(&fixture.repo, &fixture, (&session, &taken), "dir", false).expect("nothing is in its place");
    let inode = |name: &str| fs::metadata(fixture.payload(name)).expect("there").ino();
    assert_eq!(fs::read(fixture.payload("dir/b")).expect("there"), b"linked");
    assert_eq!(inode("dir/b"), inode("dir/c"), "links within the path stay links");
    assert_ne!(inode("a"), inode("dir/b"));
    restore(&fixture.repo, &fixture, (&session, &taken), "dir/c", false).expect("it is saved");
    assert_eq!(fs::read(fixture.payload("dir/c")).expect("there"), b"linked");
}

/// The process died after the exchange. A file had been written before it; the next holder removed the stage unseen.
#[test]
fn the_next_holder_keeps_a_path_that_changed_before_the_exchange() {
    let (fixture, session, taken) = saved(&[("dir/file", b"one")]);
    let late = fixture.payload("dir/precious");
    // The record of the stage is written after the comparison and before the exchange, which is the next step.
    let armed = AtomicBool::new(false);
    let dead = AtomicBool::new(false);
    let layer = HookedFs::new(move |call, path| {
        if call == Call::WriteNew && path.ends_with("path.json") {
            armed.store(true, Ordering::SeqCst);
        } else if call == Call::Step && armed.load(Ordering::SeqCst) {
            if dead.swap(true, Ordering::SeqCst) {
                return CallOutcome::Fail(crate::support::layer::crash());
            }
            fs::write(&late, b"work").expect("writable");
        }
        let is_call_of_the_dead = dead.load(Ordering::SeqCst) && call != Call::Step;
        if is_call_of_the_dead {
            CallOutcome::Fail(crate::support::layer::crash())
        } else {
            CallOutcome::Proceed
        }
    });
    let dying = fixture.seen_by_the_dead(Arc::new(layer));
    let error = restore(&dying, &fixture, (&session, &taken), "dir", false).expect_err("dies");
    assert_eq!(error.facts()["restore"], "done", "{error}");
    assert!(!fixture.payload("dir/precious").exists(), "it was exchanged");
    fixture.clock.advance(STEALABLE_MS);
    let settled = fixture.acquire().expect("stealable").settled;
    let rescued = settled[0].rescued.as_ref().expect("the acquire reports where the file is");
    assert_eq!(fs::read(rescued.join("precious")).expect("kept"), b"work");
}

/// The lease was not renewed while the replaced files were removed: the lock was stolen, and the restore of a path
/// reported success.
#[test]
fn the_lease_is_renewed_while_the_replaced_files_are_removed_and_its_loss_is_reported() {
    let policy = LockPolicy::DEFAULT
        .with(&PolicyChanges { renew_interval_ms: Some(20), ..PolicyChanges::default() })
        .expect("valid");
    for loses in [false, true] {
        let (fixture, first, taken) = saved(&[("dir/file", b"one")]);
        fixture.repo.lock(&fixture.main).release(&first).expect("ours");
        let session =
            fixture.repo.acquire(&fixture.main, &request_with(policy)).expect("free").session.session_id;
        let renewals = Arc::new(AtomicU64::new(0));
        let (counted, clock) = (renewals.clone(), fixture.clock.clone());
        let (recorded, steps) = (AtomicBool::new(false), AtomicU64::new(0));
        let slow = HookedFs::new(move |call, path| {
            let is_record = call == Call::WriteNew && path.ends_with("path.json");
            recorded.fetch_or(is_record, Ordering::SeqCst);
            let is_renewal = call == Call::Rename && path.extension().is_some_and(|end| end == "renew");
            // After the record, the first step is the exchange, and the others remove what was replaced.
            let is_step = call == Call::Step && recorded.load(Ordering::SeqCst);
            let removes = steps.fetch_add(u64::from(is_step), Ordering::SeqCst) >= 1;
            counted.fetch_add(u64::from(is_renewal && removes), Ordering::SeqCst);
            if is_step && removes {
                if loses {
                    clock.advance(STEALABLE_MS);
                }
                let waits = |_: &u32| !loses && counted.load(Ordering::SeqCst) < 2;
                (0..6_000).take_while(waits).for_each(|_| SystemClock::new().wait(5));
            }
            CallOutcome::Proceed
        });
        let repo = fixture.seen_by(Arc::new(slow), fixture.clock.clone());
        let restored = restore(&repo, &fixture, (&session, &taken), "dir", false);
        if loses {
            let error = restored.expect_err("the lock was lost");
            let facts = (error.class(), error.facts()["restore"].as_str());
            assert_eq!(facts, (ErrorClass::LockExpired, Some("done")), "{error}");
        } else {
            restored.expect("renewed in time");
            assert!(renewals.load(Ordering::SeqCst) >= 2, "after the exchange");
        }
    }
}
