//! Every kind of file in a worktree: kept exactly, or refused by name.

use std::ffi::OsStr;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;

use worktree::error::ErrorClass;
use worktree::ids::SessionId;
use worktree::restore::RestoreRequest;
use worktree::snapshot::{Consistency, Descriptor};
use worktree::tree::{NoProgress, Progress};
use worktree::worktree::Mode;

use crate::support::layer::{Call, CallOutcome, HookedFs};
use crate::support::{Fixture, class, snapshot};

/// Takes a snapshot, empties the worktree, and restores it.
fn round_trip(fixture: &Fixture) -> Descriptor {
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("ours").descriptor;
    let payload = fixture.repo.payload(&fixture.main);
    fs::rename(&payload, fixture.dir.path().join("original")).expect("movable");
    fs::create_dir(&payload).expect("writable");
    restore(fixture, &session, &taken);
    taken
}

fn restore(fixture: &Fixture, session: &SessionId, snapshot: &Descriptor) {
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: true, progress: &NoProgress };
    fixture.repo.restore(&fixture.main, snapshot, &request).expect("ours");
}

#[test]
fn odd_names_survive_to_the_byte() {
    let fixture = Fixture::new();
    let names: [&[u8]; 6] =
        [b"line\nbreak", b"\xff\xfe not utf-8", b"%41 percent", b" spaces ", b"-dash", b"quote'\"\\"];
    for name in names {
        fs::write(fixture.repo.payload(&fixture.main).join(OsStr::from_bytes(name)), name).expect("writable");
    }
    let taken = round_trip(&fixture);
    assert_eq!(taken.files, 6);
    for name in names {
        let found = fs::read(fixture.repo.payload(&fixture.main).join(OsStr::from_bytes(name)));
        assert_eq!(found.expect("kept"), name);
    }
}

#[test]
fn links_holes_modes_times_and_empty_directories_survive() {
    let fixture = Fixture::new();
    fixture.write("a/file", b"content");
    fs::hard_link(fixture.payload("a/file"), fixture.payload("a/same")).expect("writable");
    symlink("a/file", fixture.payload("link")).expect("writable");
    symlink("/nonexistent/elsewhere", fixture.payload("dangling")).expect("writable");
    fs::create_dir(fixture.payload("empty")).expect("writable");
    fixture.write("script", b"#!/bin/sh\n");
    fs::set_permissions(fixture.payload("script"), fs::Permissions::from_mode(0o4751)).expect("ours");
    fs::set_permissions(fixture.payload("empty"), fs::Permissions::from_mode(0o1700)).expect("ours");
    let mut sparse = fs::File::create(fixture.payload("sparse")).expect("writable");
    sparse.seek(SeekFrom::Start(8 << 20)).expect("seekable");
    sparse.write_all(b"the end").expect("writable");
    drop(sparse);
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000, 123_456_789);
    fs::File::options()
        .write(true)
        .open(fixture.payload("script"))
        .and_then(|file| file.set_modified(old))
        .expect("ours");

    round_trip(&fixture);

    let meta = |name: &str| fs::symlink_metadata(fixture.payload(name)).expect("kept");
    assert_eq!(meta("a/file").ino(), meta("a/same").ino(), "still one file");
    assert_eq!(meta("a/file").nlink(), 2);
    assert_eq!(fs::read_link(fixture.payload("link")).expect("a link").as_os_str(), "a/file");
    assert_eq!(
        fs::read_link(fixture.payload("dangling")).expect("a link").as_os_str(),
        "/nonexistent/elsewhere"
    );
    assert_eq!(meta("script").mode() & 0o7777, 0o4751);
    assert_eq!(meta("script").modified().expect("has one"), old);
    assert_eq!(meta("empty").mode() & 0o7777, 0o1700);
    assert_eq!(meta("sparse").len(), (8 << 20) + 7);
    assert!(meta("sparse").blocks() * 512 < 1 << 20, "the hole is still a hole");
    assert!(fs::read(fixture.payload("sparse")).expect("readable").ends_with(b"\0the end"));
}

#[test]
fn a_tree_that_only_root_could_remove_is_still_replaced() {
    let fixture = Fixture::new();
    fixture.write("locked/file", b"1");
    fs::set_permissions(fixture.payload("locked"), fs::Permissions::from_mode(0o500)).expect("ours");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("ours").descriptor;
    restore(&fixture, &session, &taken);
    assert_eq!(fs::metadata(fixture.payload("locked")).expect("kept").mode() & 0o777, 0o500);
    let left = fixture.repo.layout().restores(&fixture.main.worktree_id);
    assert_eq!(fs::read_dir(left).expect("readable").count(), 0, "the old tree is gone");
}

#[test]
fn sockets_and_pipes_are_refused_by_name() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let _socket = std::os::unix::net::UnixListener::bind(fixture.payload("a.sock")).expect("writable");
    let refused = fixture.snapshot(&session).expect_err("it cannot be kept");
    assert_eq!(refused.class(), ErrorClass::Invalid);
    assert!(refused.detail().ends_with("path=a.sock"), "{refused}");
    let left = fs::read_dir(fixture.repo.layout().snapshots()).expect("readable").count();
    assert_eq!(left, 0, "nothing is left of the attempt");
}

#[test]
fn nothing_outside_the_worktree_is_followed_or_written() {
    let fixture = Fixture::new();
    let outside = fixture.dir.path().join("outside");
    fs::create_dir(&outside).expect("writable");
    fs::write(outside.join("secret"), b"not yours").expect("writable");
    symlink(&outside, fixture.payload("door")).expect("writable");
    let taken = round_trip(&fixture);
    assert_eq!(taken.files, 0, "the link was kept as a link");
    let stored = fixture.repo.layout().snapshot_tree(&taken.snapshot_id).join("door");
    assert!(fs::symlink_metadata(stored).expect("kept").is_symlink());
    assert_eq!(fs::read(outside.join("secret")).expect("untouched"), b"not yours");

    let payload = fixture.repo.payload(&fixture.main);
    fs::remove_dir_all(&payload).expect("ours");
    symlink(&outside, &payload).expect("writable");
    let session = fixture.repo.status(&fixture.main).expect("readable").lock.expect("held").session_id;
    assert_eq!(
        class(fixture.snapshot(&session)),
        ErrorClass::Io,
        "a worktree that became a link is not entered"
    );
}

/// A writer that runs when the copy of a file begins.
fn writer_during_copy(fixture: &Fixture, strike: impl Fn() + Send + Sync + 'static) -> worktree::repo::Repo {
    let steps = std::sync::atomic::AtomicU32::new(0);
    let layer = HookedFs::new(move |call, _| {
        if call == Call::Step && steps.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1 {
            strike();
        }
        CallOutcome::Proceed
    });
    fixture.seen_by(Arc::new(layer), fixture.clock.clone())
}

#[test]
fn a_quiesced_snapshot_refuses_a_tree_that_changed_underneath_it() {
    type Strike = fn(&std::path::Path);
    let strikes: [(&str, Strike); 5] = [
        ("file", |dir| fs::write(dir.join("file"), b"longer than before").expect("writable")),
        ("file", |dir| fs::remove_file(dir.join("file")).expect("ours")),
        ("", |dir| fs::write(dir.join("another"), b"").expect("writable")),
        ("z", |dir| fs::set_permissions(dir.join("z"), fs::Permissions::from_mode(0o600)).expect("ours")),
        ("", |dir| fs::rename(dir.join("z"), dir.join("y")).expect("ours")),
    ];
    for (number, (_, strike)) in strikes.into_iter().enumerate() {
        let fixture = Fixture::new();
        fixture.write("file", b"before");
        fixture.write("z", b"last");
        let session = fixture.acquire().expect("a free lock").session.session_id;
        let payload = fixture.repo.payload(&fixture.main);
        let repo = writer_during_copy(&fixture, move || strike(&payload));
        let refused = snapshot(&repo, &fixture.main, Some(&session), Consistency::Quiesced);
        assert_eq!(class(refused), ErrorClass::ConsistencyUnavailable, "strike {number}");
        assert!(fixture.repo.history(&fixture.main, 9).expect("readable").is_empty());
    }
}

#[test]
fn a_best_effort_snapshot_of_a_changing_tree_carries_its_risk_everywhere() {
    let fixture = Fixture::new();
    fixture.write("file", b"before");
    let payload = fixture.repo.payload(&fixture.main);
    let repo = writer_during_copy(&fixture, move || {
        fs::write(payload.join("file"), b"longer than before").expect("writable");
    });
    let taken = snapshot(&repo, &fixture.main, None, Consistency::BestEffort).expect("no lock is needed");
    assert!(!taken.is_head, "without the lock the head stays");
    assert_eq!(taken.descriptor.changed_while_read, ["file"]);
    let listed = &fixture.repo.history(&fixture.main, 9).expect("readable")[0];
    let found = fixture.repo.find(&fixture.main, taken.descriptor.snapshot_id.as_str()).expect("visible");
    for descriptor in [&taken.descriptor, listed, &found] {
        assert!(descriptor.risk.as_deref().is_some_and(|risk| risk.starts_with("best_effort")));
        fixture.repo.verify(descriptor, &NoProgress).expect("what was read is what was hashed");
    }
}

#[test]
fn a_shared_worktree_has_no_lock_and_any_process_moves_its_head() {
    let fixture = Fixture::with_mode(Mode::Shared);
    fixture.write("file", b"1");
    assert_eq!(class(fixture.acquire()), ErrorClass::Invalid);
    let taken = snapshot(&fixture.repo, &fixture.main, None, Consistency::Quiesced).expect("nobody writes");
    assert!(taken.is_head);
    assert_eq!(taken.descriptor.mode, Mode::Shared, "the descriptor tells that there was no single writer");
    fixture.write("file", b"2");
    let request = RestoreRequest { session: None, discard_changes: true, progress: &NoProgress };
    fixture.repo.restore(&fixture.main, &taken.descriptor, &request).expect("no lock is needed");
    assert_eq!(fs::read(fixture.payload("file")).expect("there"), b"1");
}

#[test]
fn a_restore_refuses_to_lose_what_is_in_no_snapshot() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("ours").descriptor;
    let careful = RestoreRequest { session: Some(session), discard_changes: false, progress: &NoProgress };
    fixture.repo.restore(&fixture.main, &taken, &careful).expect("nothing would be lost");
    fixture.write("unsaved", b"2");
    let refused = fixture.repo.restore(&fixture.main, &taken, &careful).expect_err("it would be lost");
    assert!(refused.detail().ends_with("first=unsaved"), "{refused}");
    assert!(fixture.payload("unsaved").exists());
}

/// Counts progress calls.
#[derive(Default)]
struct Counter {
    announced: std::sync::atomic::AtomicU64,
    done: std::sync::atomic::AtomicU64,
}

impl Progress for Counter {
    fn begin(&self, files: u64, _bytes: u64) {
        self.announced.fetch_add(files, std::sync::atomic::Ordering::SeqCst);
    }

    fn file_done(&self, _bytes: u64) {
        self.done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn many_files_are_copied_in_parallel_and_each_is_counted_once() {
    let fixture = Fixture::new();
    for n in 0..300 {
        fixture.write(&format!("{}/{n}", n % 7), format!("{n}").repeat(n).as_bytes());
    }
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let counter = Counter::default();
    let request = worktree::snapshot::SnapshotRequest {
        note: Some("many".into()),
        consistency: Consistency::Quiesced,
        session: Some(session),
        progress: &counter,
    };
    let taken = fixture.repo.snapshot(&fixture.main, &request).expect("ours").descriptor;
    assert_eq!(taken.files, 300);
    assert_eq!(counter.announced.into_inner(), 300);
    assert_eq!(counter.done.into_inner(), 300);
    fixture.repo.verify(&taken, &NoProgress).expect("whole");
}
