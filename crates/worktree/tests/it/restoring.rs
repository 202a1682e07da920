//! Restores that are interrupted, overtaken, redirected or blocked: no work is lost, and the lock stays
//! usable.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use worktree::clock::SystemClock;
use worktree::doctor::DoctorRequest;
use worktree::error::{ErrorClass, Result};
use worktree::fs::{Fs, RealFs};
use worktree::ids::SessionId;
use worktree::repo::{NewWorktree, Repo};
use worktree::restore::RestoreRequest;
use worktree::snapshot::{Consistency, Descriptor};
use worktree::tree::NoProgress;
use worktree::worktree::{Mode, Worktree};

use crate::support::layer::{Call, CallOutcome, HookedFs};
use crate::support::{Fixture, STEALABLE_MS, class, env, new_worktree, request, snapshot};

fn restore(repo: &Repo, main: &Worktree, session: Option<&SessionId>, to: &Descriptor) -> Result<()> {
    let request = RestoreRequest { session: session.cloned(), discard_changes: true, progress: &NoProgress };
    repo.restore(main, to, &request).map(drop)
}

/// A filesystem on which the process is killed right before the two directories are swapped.
fn killed_at_the_swap() -> Arc<dyn Fs> {
    Arc::new(HookedFs::killed_from(Call::Exchange))
}

/// A filesystem on which `action` runs once, before the first call for which `is_it` holds.
fn once_before(
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

fn stages(fixture: &Fixture) -> Vec<PathBuf> {
    let dir = fixture.repo.layout().restores(&fixture.main.worktree_id);
    fs::read_dir(dir).map_or(Vec::new(), |names| names.map(|name| name.expect("readable").path()).collect())
}

fn read(fixture: &Fixture, name: &str) -> Vec<u8> {
    fs::read(fixture.payload(name)).expect("there")
}

/// A held worktree whose restore to `s1` was committed, and killed before the swap.
fn interrupted_restore() -> (Fixture, SessionId, Descriptor) {
    let fixture = Fixture::new();
    fixture.write("file", b"one");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let s1 = fixture.snapshot(&session).expect("ours").descriptor;
    fixture.write("file", b"two");
    fixture.snapshot(&session).expect("ours");
    let dying = fixture.seen_by_the_dead(killed_at_the_swap());
    restore(&dying, &fixture.main, Some(&session), &s1).expect_err("killed");
    assert_eq!(
        fixture.repo.head(&fixture.main).expect("readable"),
        Some(s1.snapshot_id.clone()),
        "committed"
    );
    assert_eq!(read(&fixture, "file"), b"two", "and not swapped");
    (fixture, session, s1)
}

/// A restore died between its commit and the swap. Its session went on: it edited files, took a snapshot,
/// created another file, and released the lock. The next acquire then swapped the old restore's files in, and
/// all of that was lost.
#[test]
fn an_interrupted_restore_is_not_replayed_over_newer_work() {
    let (fixture, session, _) = interrupted_restore();
    fixture.write("file", b"three");
    fixture.write("new1", b"in the snapshot");
    let s3 = fixture.snapshot(&session).expect("ours").descriptor;
    fixture.write("new2", b"in no snapshot");
    fixture.repo.lock(&fixture.main).release(&session).expect("ours");
    fixture.acquire().expect("a free lock");
    assert_eq!(read(&fixture, "file"), b"three");
    assert_eq!(read(&fixture, "new1"), b"in the snapshot");
    assert_eq!(read(&fixture, "new2"), b"in no snapshot");
    assert_eq!(s3.files, 2, "the snapshot shows the edited files, not the restored ones");
    assert!(stages(&fixture).is_empty(), "nothing is left that could surface later");
}

/// The same without a snapshot in between: no entry shows that the holder went on.
#[test]
fn an_interrupted_restore_does_not_discard_later_edits() {
    let (fixture, session, _) = interrupted_restore();
    fixture.write("new", b"in no snapshot");
    fixture.repo.lock(&fixture.main).release(&session).expect("ours");
    fixture.acquire().expect("a free lock");
    assert_eq!(read(&fixture, "file"), b"two");
    assert_eq!(read(&fixture, "new"), b"in no snapshot");
}

/// A later restore supersedes an interrupted one.
#[test]
fn a_newer_restore_supersedes_an_interrupted_one() {
    let (fixture, session, s1) = interrupted_restore();
    restore(&fixture.repo, &fixture.main, Some(&session), &s1).expect("ours");
    assert_eq!(read(&fixture, "file"), b"one");
    assert!(stages(&fixture).is_empty());
}

/// A parent directory of the worktree was replaced by a symbolic link. A restore with
/// `--discard-changes` followed it, and exchanged, then deleted, files outside the repository.
#[test]
fn a_restore_follows_no_symbolic_link_on_the_way_to_the_worktree() {
    let fixture = Fixture::new();
    let path = PathBuf::from("sub/deep").try_into().expect("a valid path");
    let deep = NewWorktree { path, ..new_worktree("deep", Mode::Exclusive) };
    let deep = fixture.repo.add_worktree(deep).expect("a new name");
    fs::write(fixture.repo.payload(&deep).join("file"), b"inside").expect("writable");
    let session = fixture.repo.acquire(&deep, &request()).expect("a free lock").session.session_id;
    let taken =
        snapshot(&fixture.repo, &deep, Some(&session), Consistency::Quiesced).expect("ours").descriptor;
    let outside = fixture.dir.path().join("outside");
    let lead_astray = {
        let (sub, aside) = (fixture.repo.layout().root().join("sub"), fixture.dir.path().join("aside"));
        let outside = outside.clone();
        move || {
            fs::create_dir_all(outside.join("deep")).expect("writable");
            fs::write(outside.join("deep/precious"), b"not yours").expect("writable");
            fs::rename(&sub, &aside).expect("ours");
            symlink(&outside, &sub).expect("writable");
        }
    };
    let astray = once_before(|call, path| call == Call::MakeDir && path.ends_with("tree"), lead_astray);
    let repo = fixture.seen_by(astray, fixture.clock.clone());
    restore(&repo, &deep, Some(&session), &taken).expect_err("the way leads out");
    assert_eq!(fs::read(outside.join("deep/precious")).expect("untouched"), b"not yours");
    assert_eq!(
        fixture.repo.head(&deep).expect("readable"),
        Some(taken.snapshot_id),
        "and nothing is left over"
    );
}

/// A filesystem on which nothing can be removed: settling leaves the old files in the stage.
fn nothing_can_be_removed() -> Arc<dyn Fs> {
    Arc::new(HookedFs::new(|call, _| match call {
        Call::Step => CallOutcome::Fail(io::ErrorKind::PermissionDenied.into()),
        _ => CallOutcome::Proceed,
    }))
}

/// B stole the lock, took over A's committed restore under a predictable name, and paused. C stole the lock
/// too, found that name, and finished the restore; before C had removed the old files, B resumed, swapped
/// again, which undid the restore, and reported that it held the lock.
#[test]
fn a_settler_that_was_overtaken_changes_nothing_and_gets_no_lock() {
    let (fixture, ..) = interrupted_restore();
    fixture.clock.advance(STEALABLE_MS);
    let faster = fixture.seen_by(nothing_can_be_removed(), fixture.clock.clone());
    let (main, clock, file) = (fixture.main.clone(), fixture.clock.clone(), fixture.payload("file"));
    let overtaken = once_before(
        |call, _| call == Call::Exchange,
        move || {
            clock.advance(STEALABLE_MS);
            drop(faster.acquire(&main, &request()));
            assert_eq!(fs::read(&file).expect("there"), b"one", "the restore is finished");
        },
    );
    let slow = fixture.seen_by(overtaken, fixture.clock.clone());
    let refused = slow.acquire(&fixture.main, &request());
    assert_eq!(read(&fixture, "file"), b"one", "the restore stays finished");
    assert_eq!(class(refused), ErrorClass::FencingMismatch);
}

/// Removing the stage of an earlier holder took longer than the lease, and the acquire still succeeded.
#[test]
fn an_acquire_that_settles_for_longer_than_its_lease_is_refused() {
    let (fixture, ..) = interrupted_restore();
    fixture.clock.advance(STEALABLE_MS);
    let clock = fixture.clock.clone();
    let slow = once_before(|call, _| call == Call::Exchange, move || clock.advance(STEALABLE_MS));
    let slow = fixture.seen_by(slow, fixture.clock.clone());
    assert_eq!(class(slow.acquire(&fixture.main, &request())), ErrorClass::LockExpired);
}

/// The next holder could not remove a directory of another user in a stage, so the worktree could not be
/// locked any more.
#[test]
fn a_stage_that_cannot_be_removed_does_not_block_the_lock() {
    let (fixture, ..) = interrupted_restore();
    fixture.clock.advance(STEALABLE_MS);
    let repo = fixture.seen_by(nothing_can_be_removed(), fixture.clock.clone());
    repo.acquire(&fixture.main, &request()).expect("housekeeping decides nothing");
    assert_eq!(read(&fixture, "file"), b"one", "the restore was finished");
    assert_eq!(stages(&fixture).len(), 1, "the rest waits for someone who may");
    fixture.clock.advance(STEALABLE_MS);
    fixture.acquire().expect("stealable");
    assert_eq!(read(&fixture, "file"), b"one");
    assert!(stages(&fixture).is_empty());
}

/// A tree was deeper than a process may have files open. It could be staged, but not removed, and the
/// worktree could never be locked again.
#[test]
fn a_tree_deeper_than_the_descriptor_limit_is_replaced() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let low = limit.current.map_or(1024, |now| now.min(1024));
    setrlimit(Resource::Nofile, Rlimit { current: Some(low), ..limit }).expect("lowering is allowed");
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let empty = fixture.snapshot(&session).expect("ours").descriptor;
    fixture.write(&format!("{}file", "d/".repeat(1_500)), b"deep");
    restore(&fixture.repo, &fixture.main, Some(&session), &empty).expect("ours");
    assert!(stages(&fixture).is_empty(), "all of it is gone");
}

/// Two restores of a shared worktree ran concurrently. The later one took the running one for an abandoned
/// one and removed its files, and each reported a result that did not match the worktree.
#[test]
fn a_running_restore_of_a_shared_worktree_is_left_alone_by_others() {
    let fixture = Fixture::with_mode(Mode::Shared);
    fixture.write("file", b"one");
    let s1 = snapshot(&fixture.repo, &fixture.main, None, Consistency::Quiesced).expect("shared").descriptor;
    fixture.write("file", b"two");
    let s2 = snapshot(&fixture.repo, &fixture.main, None, Consistency::Quiesced).expect("shared").descriptor;
    let (repo, main) = (fixture.repo.clone(), fixture.main.clone());
    let beside = once_before(
        |call, path| call == Call::WriteNew && path.ends_with("stage.json"),
        move || {
            let report = repo
                .doctor(DoctorRequest { strict: true, repair: true, ..DoctorRequest::default() })
                .expect("readable");
            assert!(report.findings.is_empty(), "a running restore is not left over: {:?}", report.findings);
            snapshot(&repo, &main, None, Consistency::BestEffort).expect("shared");
        },
    );
    restore(&fixture.seen_by(beside, fixture.clock.clone()), &fixture.main, None, &s1).expect("left alone");
    assert_eq!(read(&fixture, "file"), b"one");

    let (repo, main, to) = (fixture.repo.clone(), fixture.main.clone(), s2.clone());
    let overtaken = once_before(
        |call, path| call == Call::WriteNew && path.ends_with("stage.json"),
        move || restore(&repo, &main, None, &to).expect("it is the first to commit"),
    );
    let slow = fixture.seen_by(overtaken, fixture.clock.clone());
    assert_eq!(class(restore(&slow, &fixture.main, None, &s1)), ErrorClass::LockConflict);
    assert_eq!(read(&fixture, "file"), b"two");
    assert_eq!(fixture.repo.head(&fixture.main).expect("readable"), Some(s2.snapshot_id.clone()));

    let (repo, main) = (fixture.repo.clone(), fixture.main.clone());
    let overtaken = once_before(
        |call, _| call == Call::Exchange,
        move || restore(&repo, &main, None, &s2).expect("committed later"),
    );
    let slow = fixture.seen_by(overtaken, fixture.clock.clone());
    assert_eq!(class(restore(&slow, &fixture.main, None, &s1)), ErrorClass::LockConflict);
    assert_eq!(read(&fixture, "file"), b"two", "the files are those of the head");
}

/// A restore found no unsaved changes, and copied for minutes. Files written to the worktree during that time
/// were swapped out and deleted, without `--discard-changes`.
#[test]
fn files_that_are_written_while_a_restore_is_staged_are_not_lost() {
    let fixture = Fixture::new();
    fixture.write("file", b"one");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let s1 = fixture.snapshot(&session).expect("ours").descriptor;
    let late = fixture.payload("late");
    let busy = once_before(
        |call, path| call == Call::MakeDir && path.ends_with("tree"),
        move || fs::write(&late, b"precious").expect("writable"),
    );
    let repo = fixture.seen_by(busy, fixture.clock.clone());
    let request = RestoreRequest { session: Some(session), discard_changes: false, progress: &NoProgress };
    let refused = repo.restore(&fixture.main, &s1, &request).expect_err("it would be lost");
    assert_eq!(refused.class(), ErrorClass::ConsistencyUnavailable);
    assert!(refused.facts().contains_key("path"), "{refused}");
    assert_eq!(read(&fixture, "late"), b"precious");
    assert!(stages(&fixture).is_empty());
}

/// Two worktrees were added concurrently, one inside the other. Each add checked before the other had written
/// its record, and two lock holders then wrote to the same files.
#[test]
fn of_two_overlapping_worktrees_that_are_added_at_once_at_most_one_stays() {
    let fixture = Fixture::new();
    let nested = |name: &str, path: &str| NewWorktree {
        path: PathBuf::from(path).try_into().expect("a valid path"),
        ..new_worktree(name, Mode::Exclusive)
    };
    let (repo, inner) = (fixture.repo.clone(), nested("inner", "a/b"));
    let race = once_before(
        |call, path| call == Call::Link && path.ends_with("worktrees/outer.json"),
        move || drop(repo.add_worktree(inner.clone()).expect("the other is not there yet")),
    );
    let slow = fixture.seen_by(race, fixture.clock.clone());
    assert_eq!(class(slow.add_worktree(nested("outer", "a"))), ErrorClass::Invalid);
    let left: Vec<String> =
        fixture.repo.worktrees().expect("readable").iter().map(|one| one.worktree_id.to_string()).collect();
    assert_eq!(left, ["inner", "main"]);
    fixture.repo.add_worktree(nested("outer", "elsewhere")).expect("the name is free again");
}

/// The worktree was readable by its owner only, but the manifests of its snapshots exposed its names and
/// hashes to all users.
#[test]
fn a_snapshot_is_no_more_open_than_its_worktree() {
    let fixture = Fixture::new();
    fixture.write("secret", b"bytes");
    fs::set_permissions(fixture.repo.payload(&fixture.main), fs::Permissions::from_mode(0o700))
        .expect("ours");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("ours").descriptor;
    let dir = fixture.repo.layout().snapshot(&taken.snapshot_id);
    assert_eq!(fs::metadata(dir).expect("there").mode() & 0o077, 0);
    restore(&fixture.repo, &fixture.main, Some(&session), &taken).expect("ours");
}

/// The mode of a file changed between the scan and the copy. The copy had the new mode and the manifest the
/// old one, so the snapshot was published and could never be restored.
#[test]
fn a_best_effort_snapshot_records_the_modes_that_it_copied() {
    let fixture = Fixture::new();
    fixture.write("dir/file", b"bytes");
    let file = fixture.payload("dir/file");
    let changing = once_before(
        |call, _| call == Call::Step,
        move || fs::set_permissions(&file, fs::Permissions::from_mode(0o741)).expect("ours"),
    );
    let repo = fixture.seen_by(changing, fixture.clock.clone());
    let taken =
        snapshot(&repo, &fixture.main, None, Consistency::BestEffort).expect("best effort").descriptor;
    assert_eq!(taken.changed_while_read, ["dir/file"]);
    fixture.repo.verify(&taken, &NoProgress).expect("the manifest describes the copy");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    restore(&fixture.repo, &fixture.main, Some(&session), &taken).expect("so it can be restored");
}

/// Records of a later version were read as if their fields meant the same.
#[test]
fn records_of_another_version_are_refused() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("ours").descriptor;
    let layout = fixture.repo.layout();
    for path in [layout.worktree_file(&fixture.main.worktree_id), layout.snapshot_ready(&taken.snapshot_id)] {
        let text = fs::read_to_string(&path).expect("readable");
        fs::write(&path, text.replace("\"v\": 1", "\"v\": 2")).expect("writable");
    }
    let refused = fixture.repo.worktree(&fixture.main.worktree_id).expect_err("another version");
    assert!(refused.detail().contains("format=2 known=1"), "{refused}");
    let refused = fixture.repo.visible(&taken.snapshot_id).expect_err("another version");
    assert!(refused.detail().contains("format=2 known=1"), "{refused}");
}

/// Runs a part without root's rights: as user `nobody` if the tests run as root.
fn as_nobody(part: &str, prepare: impl Fn(&Path)) {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["restoring::part", "--exact", "--nocapture"]);
    child.env("JVS_TEST_UNPRIVILEGED", part).env("JVS_TEST_DIR", dir.path());
    for sub in ["repo", "repo/sub", "repo/sub/main"] {
        fs::create_dir(dir.path().join(sub)).expect("writable");
    }
    prepare(dir.path());
    if rustix::process::getuid().is_root() {
        for sub in ["", "repo", "repo/sub", "repo/sub/main"] {
            chown(dir.path().join(sub), Some(NOBODY), Some(NOBODY)).expect("root may");
        }
        child.uid(NOBODY).gid(NOBODY);
    }
    let output = child.output().expect("this program starts again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

const NOBODY: u32 = 65_534;

/// The entry point of the child. Without a role in the environment it does nothing.
#[test]
fn part() {
    let Ok(part) = std::env::var("JVS_TEST_UNPRIVILEGED") else { return };
    let dir = PathBuf::from(std::env::var_os("JVS_TEST_DIR").expect("set by the parent"));
    let env = env(&dir, Arc::new(RealFs), Arc::new(SystemClock::new()));
    let repo = Repo::init(env, &dir.join("repo"), worktree::policy::LockPolicy::DEFAULT).expect("ours");
    let path = PathBuf::from("sub/main").try_into().expect("a valid path");
    let main =
        repo.add_worktree(NewWorktree { path, ..new_worktree("main", Mode::Exclusive) }).expect("a new name");
    let session = repo.acquire(&main, &request()).expect("a free lock").session.session_id;
    let taken = snapshot(&repo, &main, Some(&session), Consistency::Quiesced);
    if part == "set-user-id" {
        let refused = taken.expect_err("it cannot be kept as it is");
        assert!(refused.to_string().contains("program"), "refused by its name: {refused}");
        return;
    }
    let taken = taken.expect("ours").descriptor;
    match part.as_str() {
        "read-only" => {
            let sub = dir.join("repo/sub");
            fs::set_permissions(&sub, fs::Permissions::from_mode(0o555)).expect("ours");
            let before = repo.status(&main).expect("readable").newest_entry;
            assert_eq!(class(restore(&repo, &main, Some(&session), &taken)), ErrorClass::Io);
            assert_eq!(repo.status(&main).expect("readable").newest_entry, before, "nothing was committed");
            repo.lock(&main).release(&session).expect("ours");
            repo.acquire(&main, &request()).expect("the lock can still be had");
            fs::set_permissions(&sub, fs::Permissions::from_mode(0o755)).expect("ours");
        }
        other => panic!("no such part: {other}"),
    }
}

/// A user took a snapshot of a worktree that contained a set-user-id program of root. The copy belonged to
/// the user and kept set-user-id, so it ran with the user's rights for everyone.
#[test]
fn a_program_whose_owner_and_set_user_id_cannot_be_kept_is_refused_by_its_name() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    as_nobody("set-user-id", |dir| {
        let program = dir.join("repo/sub/main/program");
        fs::write(&program, b"#!/bin/sh\n").expect("writable");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).expect("ours");
    });
}

/// The parent of the worktree's directory was not writable. The restore was committed, could not be swapped
/// in by any process, and the worktree could never be locked again.
#[test]
fn a_restore_that_could_not_be_swapped_in_is_not_committed() {
    as_nobody("read-only", |_| {});
}
