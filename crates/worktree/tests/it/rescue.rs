//! A restore loses no work, and a restore that cannot be done does not block later commands.
//!
//! The stories: a file that was written after a restore had compared the tree, and before the swap, was deleted
//! with the old tree, and the restore reported success. A worktree that was a mount point passed every check, the
//! restore was committed, the swap failed, and from then on every acquire, snapshot and repair failed with it. And
//! the lease was not renewed while the old tree was removed: the lock was stolen, and the restore reported success.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use worktree::clock::{Clock, SystemClock};
use worktree::diff::PathChange;
use worktree::doctor::DoctorRequest;
use worktree::error::{Error, ErrorClass, Result};
use worktree::fs::Fs;
use worktree::ids::SessionId;
use worktree::policy::{LockPolicy, PolicyChanges};
use worktree::record::EntryEvent;
use worktree::repo::Repo;
use worktree::restore::{RestoreOutcome, RestoreRequest, SettledOutcome};
use worktree::snapshot::Descriptor;
use worktree::tree::NoProgress;

use crate::support::layer::{Call, CallOutcome, HookedFs};
use crate::support::{Fixture, STEALABLE_MS, class, request_with};

/// A held worktree with the snapshots "one" and "two"; its files are those of "two".
fn two_snapshots() -> (Fixture, SessionId, Descriptor, Descriptor) {
    let fixture = Fixture::new();
    fixture.write("file", b"one");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let one = fixture.snapshot(&session).expect("ours").descriptor;
    fixture.write("file", b"two");
    let two = fixture.snapshot(&session).expect("ours").descriptor;
    (fixture, session, one, two)
}

fn restore(repo: &Repo, fixture: &Fixture, session: &SessionId, to: &Descriptor) -> Result<RestoreOutcome> {
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: false, progress: &NoProgress };
    repo.restore(&fixture.main, to, &request)
}

/// A filesystem on which `action` runs once, right before the call.
fn before(
    is_it: impl Fn(Call, &Path) -> bool + Send + Sync + 'static,
    action: impl Fn() + Send + Sync + 'static,
) -> Arc<dyn Fs> {
    let done = AtomicBool::new(false);
    Arc::new(HookedFs::new(move |call, path| {
        if is_it(call, path) && !done.swap(true, Ordering::SeqCst) {
            action();
        }
        CallOutcome::Proceed
    }))
}

/// A filesystem on which the swap fails with `code`, by exchange and by rename.
fn no_swap(fixture: &Fixture, code: rustix::io::Errno, trial_too: bool) -> Arc<dyn Fs> {
    let name = fixture.repo.payload(&fixture.main).file_name().expect("a name").to_owned();
    Arc::new(HookedFs::new(move |call, path| {
        let is_swap = matches!(call, Call::Exchange | Call::Rename) && path.ends_with(&name);
        let is_trial = trial_too && call == Call::Rename && path.ends_with("trial");
        if is_swap || is_trial { CallOutcome::Fail(code.into()) } else { CallOutcome::Proceed }
    }))
}

fn state_of(error: &Error) -> &str {
    error.facts()["restore"].as_str().expect("the error says whether the restore stands")
}

fn newest_event(fixture: &Fixture) -> EntryEvent {
    fixture.repo.lock(&fixture.main).view().expect("whole").newest.event
}

fn read(path: PathBuf) -> Vec<u8> {
    fs::read(path).expect("there")
}

#[test]
fn a_file_written_right_before_the_swap_is_kept_and_its_place_is_reported() {
    let (fixture, session, one, _) = two_snapshots();
    let late = fixture.payload("precious");
    let busy = before(|call, _| call == Call::Exchange, move || fs::write(&late, b"work").expect("writable"));
    let repo = fixture.seen_by(busy, fixture.clock.clone());
    let rescued = restore(&repo, &fixture, &session, &one).expect("done").rescued.expect("the file is kept");
    assert_eq!(read(fixture.payload("file")), b"one", "the restore is done");
    assert_eq!(read(rescued.join("precious")), b"work");
    assert_eq!(read(rescued.join("file")), b"two", "with all that was there");
    let found = fixture.repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() });
    let codes: Vec<&str> = found.expect("readable").findings.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["rescued_files"], "and not forgotten");
    let unchanged = restore(&fixture.repo, &fixture, &session, &one).expect("done");
    assert_eq!(unchanged.rescued, None, "a tree that did not change is removed");
}

/// A change of an existing file, and a restore that goes by two renames.
#[test]
fn a_file_changed_right_before_a_swap_by_two_renames_is_kept() {
    let (fixture, session, one, _) = two_snapshots();
    let file = fixture.payload("file");
    let done = AtomicBool::new(false);
    let poor = HookedFs::new(move |call, _| {
        if call == Call::Exchange && !done.swap(true, Ordering::SeqCst) {
            fs::write(&file, b"TWO!").expect("writable");
        }
        match call {
            Call::Exchange => CallOutcome::Fail(io::ErrorKind::Unsupported.into()),
            _ => CallOutcome::Proceed,
        }
    });
    let repo = fixture.seen_by(Arc::new(poor), fixture.clock.clone());
    let rescued = restore(&repo, &fixture, &session, &one).expect("done").rescued.expect("the file is kept");
    assert_eq!(read(rescued.join("file")), b"TWO!");
}

/// The restoring process dies after the swap; a file had been written in between. The next holder removes the stage.
#[test]
fn the_next_holder_keeps_what_was_written_before_the_swap_too() {
    let (fixture, session, one, _) = two_snapshots();
    let late = fixture.payload("precious");
    let dead = AtomicBool::new(false);
    let layer = HookedFs::new(move |call, _| {
        if call == Call::Exchange {
            fs::write(&late, b"work").expect("writable");
        }
        let is_dead = dead.load(Ordering::SeqCst);
        dead.fetch_or(call == Call::Exchange, Ordering::SeqCst);
        if is_dead { CallOutcome::Fail(crate::support::layer::crash()) } else { CallOutcome::Proceed }
    });
    let error =
        restore(&fixture.seen_by_the_dead(Arc::new(layer)), &fixture, &session, &one).expect_err("dies");
    assert_eq!(state_of(&error), "pending", "{error}");
    fixture.clock.advance(STEALABLE_MS);
    let settled = fixture.acquire().expect("stealable").settled;
    let rescued = settled[0].rescued.as_ref().expect("the acquire reports where the file is");
    assert_eq!(read(rescued.join("precious")), b"work");
    assert_eq!(read(fixture.payload("file")), b"one");
}

#[test]
fn a_worktree_that_cannot_be_moved_is_refused_before_the_commit() {
    for code in [rustix::io::Errno::BUSY, rustix::io::Errno::XDEV] {
        let (fixture, session, one, two) = two_snapshots();
        let repo = fixture.seen_by(no_swap(&fixture, code, true), fixture.clock.clone());
        let error = restore(&repo, &fixture, &session, &one).expect_err("it cannot be swapped");
        assert_eq!((error.class(), state_of(&error)), (ErrorClass::Io, "not_committed"), "{error}");
        assert_eq!(fixture.repo.head(&fixture.main).expect("whole"), Some(two.snapshot_id));
        assert!(matches!(newest_event(&fixture), EntryEvent::Publish { .. }), "nothing was committed");
    }
}

#[test]
fn a_swap_that_fails_after_the_commit_is_undone_by_an_entry() {
    let (fixture, session, one, two) = two_snapshots();
    let repo = fixture.seen_by(no_swap(&fixture, rustix::io::Errno::BUSY, false), fixture.clock.clone());
    let error = restore(&repo, &fixture, &session, &one).expect_err("it cannot be swapped");
    assert_eq!(state_of(&error), "undone", "{error}");
    assert_eq!(
        fixture.repo.head(&fixture.main).expect("whole"),
        Some(two.snapshot_id),
        "head and files agree"
    );
    assert_eq!(read(fixture.payload("file")), b"two");
    assert!(matches!(newest_event(&fixture), EntryEvent::UndoRestore { .. }));
    fixture.snapshot(&session).expect("the worktree works as before");
    fixture.repo.lock(&fixture.main).release(&session).expect("ours");
    assert!(fixture.acquire().expect("a free lock").settled.is_empty());
    let report = fixture.repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() });
    assert!(report.expect("readable").findings.is_empty(), "and the audit knows the entry");
}

/// The restoring process died, and the next holder cannot swap: it undoes the restore and gets the lock.
#[test]
fn an_acquire_undoes_a_restore_that_it_cannot_finish() {
    let (fixture, session, one, two) = two_snapshots();
    let dying = fixture.seen_by_the_dead(Arc::new(HookedFs::killed_from(Call::Exchange)));
    restore(&dying, &fixture, &session, &one).expect_err("killed");
    fixture.clock.advance(STEALABLE_MS);
    let stuck = fixture.seen_by(no_swap(&fixture, rustix::io::Errno::BUSY, false), fixture.clock.clone());
    let acquired = stuck.acquire(&fixture.main, &crate::support::request()).expect("not blocked for ever");
    let outcomes: Vec<_> = acquired.settled.iter().map(|one| (one.outcome, &one.snapshot_id)).collect();
    assert_eq!(outcomes, [(SettledOutcome::Undone, &one.snapshot_id)]);
    assert_eq!(fixture.repo.head(&fixture.main).expect("whole"), Some(two.snapshot_id));
    fixture.snapshot(&acquired.session.session_id).expect("the worktree works as before");
}

#[test]
fn an_acquire_reports_the_restore_that_it_finished() {
    let (fixture, session, one, _) = two_snapshots();
    let dying = fixture.seen_by_the_dead(Arc::new(HookedFs::killed_from(Call::Exchange)));
    let error = restore(&dying, &fixture, &session, &one).expect_err("killed");
    assert_eq!(state_of(&error), "pending", "{error}");
    fixture.clock.advance(STEALABLE_MS);
    let settled = fixture.acquire().expect("stealable").settled;
    assert_eq!(settled.len(), 1);
    assert_eq!((settled[0].outcome, &settled[0].snapshot_id), (SettledOutcome::Finished, &one.snapshot_id));
    assert_eq!(settled[0].rescued, None);
}

/// Removing the old tree took longer than the lease. Now it is renewed until the end; and if that fails, the
/// restore does not report success.
#[test]
fn the_lease_is_renewed_while_the_old_tree_is_removed_and_its_loss_is_reported() {
    let policy = LockPolicy::DEFAULT.with(&PolicyChanges {
        lease_duration_ms: Some(2_000),
        renew_interval_ms: Some(20),
        ..PolicyChanges::default()
    });
    for loses in [false, true] {
        let fixture = Fixture::new();
        let policy = policy.as_ref().expect("valid");
        let session =
            fixture.repo.acquire(&fixture.main, &request_with(*policy)).expect("free").session.session_id;
        fixture.write("file", b"one");
        let one = fixture.snapshot(&session).expect("ours").descriptor;
        let renewals = Arc::new(AtomicU64::new(0));
        let (counted, swapped, clock) = (renewals.clone(), AtomicBool::new(false), fixture.clock.clone());
        let slow = HookedFs::new(move |call, path| {
            swapped.fetch_or(call == Call::Exchange, Ordering::SeqCst);
            let is_renewal = call == Call::Rename && path.extension().is_some_and(|end| end == "renew");
            counted.fetch_add(u64::from(is_renewal && swapped.load(Ordering::SeqCst)), Ordering::SeqCst);
            if call == Call::Step && swapped.load(Ordering::SeqCst) {
                if loses {
                    clock.advance(STEALABLE_MS);
                }
                let waited = |_: &u32| counted.load(Ordering::SeqCst) < 2;
                (0..6_000).take_while(|step| !loses && waited(step)).for_each(|_| SystemClock::new().wait(5));
            }
            CallOutcome::Proceed
        });
        let repo = fixture.seen_by(Arc::new(slow), fixture.clock.clone());
        let restored = restore(&repo, &fixture, &session, &one);
        if loses {
            let error = restored.expect_err("the lock was lost");
            assert_eq!((error.class(), state_of(&error)), (ErrorClass::LockExpired, "done"), "{error}");
        } else {
            restored.expect("renewed in time");
            assert!(renewals.load(Ordering::SeqCst) >= 2, "after the swap");
        }
        assert_eq!(read(fixture.payload("file")), b"one");
    }
}

#[test]
fn a_preview_lists_what_would_change_and_what_would_be_lost() {
    let (fixture, session, one, _) = two_snapshots();
    fixture.write("new", b"in no snapshot");
    let preview = fixture.repo.preview_restore(&fixture.main, &one, &NoProgress).expect("readable");
    let changes: Vec<_> = preview.changes.changes.iter().map(|one| (one.path.as_str(), one.change)).collect();
    assert_eq!(changes, [("file", PathChange::Modified), ("new", PathChange::Removed)]);
    let unsaved: Vec<_> = preview.unsaved.changes.iter().map(|one| (one.path.as_str(), one.change)).collect();
    assert_eq!(unsaved, [("new", PathChange::Added)]);
    assert_eq!(class(restore(&fixture.repo, &fixture, &session, &one)), ErrorClass::Invalid);
    assert_eq!(read(fixture.payload("new")), b"in no snapshot");
}
