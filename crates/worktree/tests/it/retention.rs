//! Removing snapshots: what goes, what is kept, crashes, and readers at the same time.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use worktree::clock::SystemClock;
use worktree::doctor::DoctorRequest;
use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::ids::{SessionId, SnapshotId};
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::retention::{KeepPolicy, KeepReason, RemovalTarget};
use worktree::snapshot::{Consistency, Descriptor};
use worktree::tree::NoProgress;

use crate::support::layer::{Call, CallOutcome, HookedFs, crash};
use crate::support::{Fixture, TestClock, class, env, short_or_long, snapshot};

/// `count` snapshots of a tree of which one file changes; oldest first.
fn history(fixture: &Fixture, count: usize) -> (SessionId, Vec<Descriptor>) {
    let session = fixture.acquire().expect("free").session.session_id;
    for n in 0..4 {
        fixture.write(&format!("still{n}"), &[b'x'; 5000]);
    }
    crate::support::let_files_settle();
    let take = |round: usize| {
        fixture.write("changing", &vec![b'a' + u8::try_from(round).expect("few"); 9000]);
        fixture.snapshot(&session).expect("held").descriptor
    };
    let all = (0..count).map(take).collect();
    (session, all)
}

fn listed(fixture: &Fixture) -> Vec<SnapshotId> {
    let history = fixture.repo.history(&fixture.main, usize::MAX).expect("readable");
    history.into_iter().map(|one| one.snapshot_id).rev().collect()
}

fn ids(snapshots: &[&Descriptor]) -> Vec<SnapshotId> {
    snapshots.iter().map(|one| one.snapshot_id.clone()).collect()
}

/// What is left is whole, and `doctor` finds nothing.
fn assert_sound(fixture: &Fixture) {
    for one in fixture.repo.history(&fixture.main, usize::MAX).expect("readable") {
        fixture.repo.verify(&one, &NoProgress).expect("what is left is whole");
    }
    let report = fixture
        .repo
        .doctor(DoctorRequest { strict: true, repair: true, ..DoctorRequest::default() })
        .expect("it can be examined");
    assert!(report.is_healthy(), "{report:?}");
}

fn targets(snapshots: &[Descriptor]) -> Vec<RemovalTarget> {
    snapshots.iter().map(RemovalTarget::from).collect()
}

#[test]
fn a_removed_snapshot_is_gone_and_the_others_are_whole() {
    let fixture = Fixture::new();
    let (session, all) = history(&fixture, 4);
    let report = fixture.repo.remove_snapshots(&targets(&all[..2]), false).expect("nothing keeps them");
    assert_eq!(report.removed, ids(&[&all[0], &all[1]]));
    assert!(report.bytes_after < report.bytes_before, "{report:?}");
    assert_eq!(listed(&fixture), ids(&[&all[2], &all[3]]));
    assert_eq!(class(fixture.repo.find(&fixture.main, all[0].snapshot_id.as_str())), ErrorClass::NotFound);
    assert_sound(&fixture);
    let layer = fixture.repo.layout().snapshot_tree(&all[0].snapshot_id);
    assert!(layer.join("still0").exists() && !layer.join("changing").exists(), "only shared files stay");
    assert!(!fixture.repo.layout().snapshot(&all[1].snapshot_id).join("tree/changing").exists());
    let request = RestoreRequest { session: Some(session), discard_changes: true, progress: &NoProgress };
    fixture.repo.restore(&fixture.main, &all[2], &request).expect("whole");
    assert_eq!(std::fs::read(fixture.payload("changing")).expect("there"), [b'c'; 9000]);
    assert_eq!(std::fs::read(fixture.payload("still3")).expect("there"), [b'x'; 5000]);
}

/// Ctrl-C in a snapshot left its copy in `.jvs/snapshots`. `gc` did not remove it, and nothing but `doctor --strict` said
/// that it was there.
#[test]
fn gc_removes_snapshots_whose_process_was_interrupted() {
    let fixture = Fixture::new();
    let (session, all) = history(&fixture, 2);
    fixture.write("changing", &vec![b'z'; 50_000]);
    for (name, place) in [("READY.json", "snapshots"), ("main.d", "locks")] {
        let layer = HookedFs::new(move |call, path| {
            let is_it = call == Call::Link
                && path.iter().any(|part| part == place)
                && path.iter().any(|part| part == name);
            if is_it || call == Call::RemoveFile { CallOutcome::Fail(crash()) } else { CallOutcome::Proceed }
        });
        let dying = fixture.seen_by_the_dead(Arc::new(layer));
        snapshot(&dying, &fixture.main, Some(&session), Consistency::BestEffort).expect_err("it dies");
    }
    let stored = || std::fs::read_dir(fixture.repo.layout().snapshots()).expect("readable").count();
    assert_eq!(stored(), 4, "one without a descriptor, one that may have been published");
    let worktrees = std::slice::from_ref(&fixture.main);
    let gc =
        |dry_run| fixture.repo.collect_garbage(worktrees, KeepPolicy::default(), dry_run).expect("readable");
    let dry = gc(true);
    assert_eq!((dry.unfinished.len(), stored()), (1, 4), "{dry:?}");
    let report = gc(false);
    assert_eq!((&report.unfinished, report.bytes_after), (&dry.unfinished, dry.bytes_after));
    assert!(report.bytes_before >= report.bytes_after + 50_000, "{report:?}");
    assert!(report.removed.is_empty() && stored() == 3, "{report:?}");
    assert_eq!(listed(&fixture), ids(&[&all[0], &all[1]]));
    assert!(gc(false).unfinished.is_empty());
    assert_sound(&fixture);
}

/// In a repository of several users, `gc` and `snapshot rm` failed while another user took a snapshot, and after it was
/// interrupted: its directory is closed until it is complete.
#[test]
fn an_unfinished_snapshot_of_another_user_does_not_stop_gc() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can play two users");
        return;
    }
    let fixture = Fixture::new();
    history(&fixture, 2);
    let layer = HookedFs::new(|call, path| {
        let is_it = call == Call::Link && path.ends_with("READY.json");
        if is_it || call == Call::RemoveFile { CallOutcome::Fail(crash()) } else { CallOutcome::Proceed }
    });
    let dying = fixture.seen_by_the_dead(Arc::new(layer));
    snapshot(&dying, &fixture.main, None, Consistency::BestEffort).expect_err("it dies");
    let unfinished = fixture.repo.unfinished_snapshots().expect("readable");
    let open = |dir: &Path, mode| {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    open(fixture.dir.path(), 0o755);
    let sequence = fixture.repo.layout().sequence(&fixture.main.worktree_id);
    fixture.repo.layout().directories().iter().chain([&sequence]).for_each(|dir| open(dir, 0o777));
    open(&fixture.repo.layout().snapshot_tree(&unfinished[0]), 0o700);
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["retention::gc_of_another_user", "--exact", "--nocapture"]);
    child.env("JVS_TEST_GC", fixture.dir.path()).uid(65_534).gid(65_534);
    let output = child.output().expect("this program starts again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(fixture.repo.unfinished_snapshots().expect("readable"), unfinished, "left to its user");
}

/// The role of the other user.
#[test]
fn gc_of_another_user() {
    let Some(dir) = std::env::var_os("JVS_TEST_GC").map(PathBuf::from) else { return };
    let env = env(&dir, Arc::new(RealFs), Arc::new(SystemClock::new()));
    let repo = Repo::open(env, &dir.join("repo")).expect("readable");
    let worktrees = repo.worktrees().expect("readable");
    let report = repo.collect_garbage(&worktrees, KeepPolicy::default(), false).expect("readable");
    assert!(report.unfinished.is_empty() && report.bytes_after > 0, "{report:?}");
}

/// A snapshot that runs is none that was interrupted, nor is one of another host.
#[test]
fn gc_leaves_unfinished_snapshots_alone_whose_process_may_run() {
    let fixture = Fixture::new();
    history(&fixture, 1);
    let dying = || {
        HookedFs::new(|call, path| {
            let is_it = call == Call::Link && path.ends_with("READY.json");
            if is_it || call == Call::RemoveFile { CallOutcome::Fail(crash()) } else { CallOutcome::Proceed }
        })
    };
    let elsewhere = Arc::new(TestClock::of_another_host("another host"));
    for clock in [fixture.clock.clone(), elsewhere] {
        let repo = fixture.seen_by(Arc::new(dying()), clock);
        snapshot(&repo, &fixture.main, None, Consistency::BestEffort).expect_err("it stays unfinished");
    }
    let worktrees = std::slice::from_ref(&fixture.main);
    let report = fixture.repo.collect_garbage(worktrees, KeepPolicy::default(), false).expect("readable");
    assert!(report.unfinished.is_empty(), "{report:?}");
}

#[test]
fn the_last_snapshot_that_needs_a_layer_takes_it_along() {
    let fixture = Fixture::new();
    let (session, all) = history(&fixture, 3);
    let report = fixture.repo.remove_snapshots(&targets(&all[..2]), false).expect("nothing keeps them");
    let dry = fixture.repo.remove_snapshots(&targets(&all[..0]), true).expect("nothing to do");
    assert_eq!((dry.bytes_before, dry.bytes_after), (report.bytes_after, report.bytes_after));
    // Files that a restore brings back are new, so the next snapshot shares nothing with the removed ones.
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: true, progress: &NoProgress };
    fixture.repo.restore(&fixture.main, &all[2], &request).expect("whole");
    let fresh = fixture.snapshot(&session).expect("held").descriptor;
    fixture.repo.remove_snapshots(&targets(&all[2..]), false).expect("no longer the head");
    let left: BTreeSet<String> = std::fs::read_dir(fixture.repo.layout().snapshots())
        .expect("readable")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .collect();
    assert_eq!(left, BTreeSet::from([fresh.snapshot_id.to_string()]));
    assert_sound(&fixture);
}

#[test]
fn heads_tags_pins_and_readers_keep_a_snapshot() {
    let fixture = Fixture::new();
    let (_, all) = history(&fixture, 4);
    fixture.repo.add_tag(&"keep".parse().expect("a tag"), &all[0]).expect("new");
    fixture.repo.pin(&all[1]).expect("new");
    for (snapshot, reason) in [(&all[3], "head"), (&all[0], "tagged"), (&all[1], "pinned")] {
        let refused =
            fixture.repo.remove_snapshots(&targets(std::slice::from_ref(snapshot)), false).expect_err("kept");
        assert_eq!((refused.class(), &refused.facts()["reason"]), (ErrorClass::Invalid, &reason.into()));
    }
    let uses = fixture.repo.layout().uses();
    let mark = uses.join(format!("{}.{}.00", all[2].snapshot_id, fixture.repo.env().maker));
    std::fs::write(&mark, b"").expect("ours");
    let refused = fixture.repo.remove_snapshots(&targets(&all[2..3]), false).expect_err("in use");
    assert_eq!(refused.facts()["reason"], "in_use");
    let report = fixture.repo.collect_garbage(
        std::slice::from_ref(&fixture.main),
        KeepPolicy { last: Some(0), days: None },
        false,
    );
    let reasons: Vec<KeepReason> = report.expect("it skips them").kept.iter().map(|one| one.reason).collect();
    assert_eq!(reasons, [KeepReason::Head, KeepReason::InUse, KeepReason::Pinned, KeepReason::Tagged]);
    assert_eq!(listed(&fixture).len(), 4, "nothing was removed");
    std::fs::remove_file(mark).expect("ours");
    fixture.repo.remove_snapshots(&targets(&all[2..3]), false).expect("no longer in use");
    assert_sound(&fixture);
}

#[test]
fn gc_keeps_the_newest_and_the_recent_and_a_dry_run_changes_nothing() {
    let fixture = Fixture::new();
    let (_, all) = history(&fixture, 5);
    let main = std::slice::from_ref(&fixture.main);
    let gc = |last, days, dry_run| {
        fixture.repo.collect_garbage(main, KeepPolicy { last, days }, dry_run).expect("nothing is damaged")
    };
    assert!(gc(None, None, false).removed.is_empty(), "without a rule all are kept");
    assert!(gc(None, Some(1), false).removed.is_empty(), "all are of today");
    assert!(gc(Some(1), Some(1), false).removed.is_empty(), "one rule suffices to be kept");
    let dry = gc(Some(2), None, true);
    assert_eq!(dry.removed, ids(&[&all[2], &all[1], &all[0]]));
    assert_eq!(listed(&fixture).len(), 5);
    let done = gc(Some(2), None, false);
    assert_eq!(done.removed, dry.removed);
    assert_eq!(
        (done.bytes_before, done.bytes_after),
        (dry.bytes_before, dry.bytes_after),
        "it told the truth"
    );
    assert_eq!(listed(&fixture), ids(&[&all[3], &all[4]]));
    assert_sound(&fixture);
}

/// The process dies before each call of a removal: the snapshot is there or not, what is left is whole, and the
/// next collection finishes the work.
#[test]
fn a_removal_can_be_interrupted_anywhere() {
    let step = short_or_long(7, 1) as u64;
    for at in (1..).step_by(usize::try_from(step).expect("small")) {
        let fixture = Fixture::new();
        let (_, all) = history(&fixture, 3);
        let (fs, death) = HookedFs::dying_at(at, 2);
        let dying = fixture.seen_by_the_dead(Arc::new(fs));
        let outcome = dying.remove_snapshots(&targets(&all[..1]), false);
        let calls = death.calls.load(std::sync::atomic::Ordering::SeqCst);
        let left = listed(&fixture);
        assert!(left == ids(&[&all[0], &all[1], &all[2]]) || left == ids(&[&all[1], &all[2]]), "at={at}");
        let main = std::slice::from_ref(&fixture.main);
        fixture.repo.collect_garbage(main, KeepPolicy::default(), false).expect("it finishes the work");
        if left.len() == 2 {
            let layer = fixture.repo.layout().snapshot_tree(&all[0].snapshot_id);
            assert!(!layer.join("changing").exists(), "at={at}: the space is free");
        } else {
            fixture
                .repo
                .remove_snapshots(&targets(&all[..1]), false)
                .expect("the dead one's intent does not count");
        }
        assert_sound(&fixture);
        if outcome.is_ok() && calls <= at {
            return;
        }
    }
}

/// The two orders of a restore and a removal of the same snapshot: one of them gives way.
#[test]
fn a_reader_and_a_remover_cannot_miss_each_other() {
    let fixture = Fixture::new();
    let (session, all) = history(&fixture, 3);
    let reader: Repo = fixture.repo.clone();
    let restore = |snapshot: &Descriptor| {
        let request =
            RestoreRequest { session: Some(session.clone()), discard_changes: true, progress: &NoProgress };
        reader.restore(&fixture.main, snapshot, &request)
    };
    // The restore comes between the intent and the check: it is refused, and the removal goes on.
    let outcome = Arc::new(Mutex::new(None));
    let (seen, tag, target) = (outcome.clone(), reader.clone(), all[0].clone());
    let fs = HookedFs::new(move |call, path| {
        if call == Call::List && path.ends_with("uses") {
            let tagged = tag.add_tag(&"late".parse().expect("a tag"), &target);
            seen.lock().expect("no panic").get_or_insert(tagged.map_err(|error| error.class()));
        }
        CallOutcome::Proceed
    });
    let remover = fixture.seen_by(Arc::new(fs), fixture.clock.clone());
    remover.remove_snapshots(&targets(&all[..1]), false).expect("the tag came too late");
    let late = outcome.lock().expect("no panic").take().expect("the hook ran");
    assert_eq!(late.expect_err("refused"), ErrorClass::NotFound);
    // The restore is committed before the intent is there: the snapshot is a head by then.
    restore(&all[1]).expect("nothing removes it yet");
    let refused = fixture.repo.remove_snapshots(&targets(&all[1..2]), false).expect_err("it is the head now");
    assert_eq!(refused.facts()["reason"], "head");
    assert_sound(&fixture);
}

/// One snapshot without a readable descriptor made `gc` fail for all others, and could itself never be removed.
#[test]
fn a_damaged_snapshot_is_kept_by_gc_and_can_be_removed_by_its_id() {
    let fixture = Fixture::new();
    let (_session, all) = history(&fixture, 4);
    let bad = &all[1].snapshot_id;
    std::fs::write(fixture.repo.layout().snapshot_ready(bad), b"").expect("ours");
    let policy = KeepPolicy { last: Some(1), days: None };
    let main = std::slice::from_ref(&fixture.main);
    let report = fixture.repo.collect_garbage(main, policy, false).expect("the others can go");
    assert_eq!(report.removed, ids(&[&all[2], &all[0]]));
    assert!(report.kept.iter().any(|one| one.snapshot_id == *bad && one.reason == KeepReason::Damaged));
    assert!(report.blocked_by.is_empty(), "its manifest shows what it needs");
    assert_eq!(class(fixture.repo.removal_target(&fixture.main, &bad.as_str()[..10])), ErrorClass::Invalid);
    let target = fixture.repo.removal_target(&fixture.main, bad.as_str()).expect("it was published");
    fixture.repo.remove_snapshots(&[target], false).expect("nothing keeps it");
    assert_eq!(listed(&fixture), ids(&[&all[3]]));
    assert_sound(&fixture);
}

/// A snapshot whose manifest is lost may share any file, and a backup may bring the manifest back.
#[test]
fn no_file_is_freed_while_the_layers_of_a_snapshot_are_unknown() {
    let fixture = Fixture::new();
    let (_session, all) = history(&fixture, 4);
    let bad = &all[2].snapshot_id;
    let delta = fixture.repo.layout().snapshot_delta(bad);
    let saved = std::fs::read(&delta).expect("there");
    std::fs::write(&delta, b"base").expect("ours");
    // A snapshot that is based on it is damaged too; a removal needs neither.
    let report = fixture.repo.remove_snapshots(&targets(&all[..2]), false).expect("nothing keeps them");
    assert_eq!(report.removed.len(), 2);
    assert!(report.blocked_by.contains(bad), "{report:?}");
    std::fs::write(&delta, saved).expect("the backup");
    assert_eq!(listed(&fixture), ids(&[&all[2], &all[3]]));
    for one in fixture.repo.history(&fixture.main, 9).expect("readable") {
        fixture.repo.verify(&one, &NoProgress).expect("no file of it is gone");
    }
    let report = fixture.repo.remove_snapshots(&[], false).expect("it can be freed now");
    assert!(report.blocked_by.is_empty() && report.bytes_after < report.bytes_before, "{report:?}");
    assert_sound(&fixture);
}
