//! Smaller failures around the protocol: what an error says, and what concurrent commands leave behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

use worktree::doctor::DoctorRequest;
use worktree::error::{Error, ErrorClass};
use worktree::fs::Fs;
use worktree::repo::NewWorktree;
use worktree::snapshot::Consistency;
use worktree::worktree::{Mode, PayloadPath};

use crate::support::layer::{Call, CallOutcome, HookedFs};
use crate::support::{Fixture, class, new_worktree, request, snapshot};

fn failing(
    is_it: impl Fn(Call, &Path) -> bool + Send + Sync + 'static,
    code: rustix::io::Errno,
) -> Arc<dyn Fs> {
    Arc::new(HookedFs::new(move |call, path| {
        if is_it(call, path) { CallOutcome::Fail(code.into()) } else { CallOutcome::Proceed }
    }))
}

fn is_indeterminate(error: &Error) -> bool {
    error.facts().contains_key("indeterminate")
}

/// The disk was full before an entry could be written, or the filesystem refused the link: nothing was committed. The
/// error said that the entry may exist, and a snapshot kept its whole copy on the full disk.
#[test]
fn an_entry_that_was_refused_is_not_reported_as_indeterminate() {
    for (call, code, indeterminate) in [
        (Call::WriteNew, rustix::io::Errno::NOSPC, false),
        (Call::WriteNew, rustix::io::Errno::IO, false),
        (Call::Link, rustix::io::Errno::NOSPC, false),
        (Call::Link, rustix::io::Errno::ROFS, false),
        (Call::Link, rustix::io::Errno::IO, true),
    ] {
        let fixture = Fixture::new();
        fixture.write("file", b"1");
        let (ready, publishing) =
            (fixture.repo.layout().snapshots(), std::sync::atomic::AtomicBool::new(false));
        let tmp = fixture.repo.layout().tmp();
        let layer = failing(
            move |now, path| {
                use std::sync::atomic::Ordering::SeqCst;
                let armed = publishing.load(SeqCst);
                publishing.fetch_or(now == Call::Link && path.starts_with(&ready), SeqCst);
                // The first temporary file after READY is a probe of the clock, which is empty and stays possible.
                armed && now == call && (now == Call::Link || path.starts_with(&tmp))
            },
            code,
        );
        let repo = fixture.seen_by(layer, fixture.clock.clone());
        let error =
            snapshot(&repo, &fixture.main, None, Consistency::BestEffort).expect_err("it cannot publish");
        assert_eq!(is_indeterminate(&error), indeterminate, "{call:?} {code:?}: {error}");
        let kept = fs::read_dir(fixture.repo.layout().snapshots()).expect("readable").count();
        assert_eq!(
            kept,
            usize::from(indeterminate),
            "{call:?} {code:?}: the copy is kept only if it may be published"
        );
    }
}

#[test]
fn a_release_that_cannot_remove_its_session_says_that_the_lock_is_free() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let is_session =
        |call, path: &Path| call == Call::RemoveFile && path.extension().is_some_and(|end| end == "json");
    let repo = fixture.seen_by(failing(is_session, rustix::io::Errno::IO), fixture.clock.clone());
    let error = repo.lock(&fixture.main).release(&session).expect_err("the session is left");
    assert_eq!(error.facts()["released"], true);
    assert!(error.detail().contains("the lock is released"), "{error}");
    fixture.acquire().expect("a free lock");
}

/// Two processes removed a worktree at once, and the loser reported "No such file". In between, a third had added it
/// again, and the slower removal deleted the new record.
#[test]
fn a_removal_that_comes_second_removes_nothing() {
    for added_again in [false, true] {
        let fixture = Fixture::new();
        let (repo, id) = (fixture.repo.clone(), fixture.main.worktree_id.clone());
        let slow = crate::interleave::just_before(
            &fixture,
            |call, path| call == Call::List && path.ends_with("main.d"),
            move || {
                repo.remove_worktree(&id).expect("its lock is free");
                if added_again {
                    repo.add_worktree(new_worktree("main", Mode::Shared)).expect("the name is free");
                }
            },
        );
        let removed = slow.remove_worktree(&fixture.main.worktree_id);
        if added_again {
            // The late removal may apply to the new worktree, but then its entry says so too.
            let open = fixture.repo.worktree(&fixture.main.worktree_id).is_ok();
            assert_eq!(removed.is_err(), open);
        } else {
            assert_eq!(class(removed), ErrorClass::NotFound);
        }
        let report = fixture.repo.doctor(DoctorRequest::default()).expect("readable");
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

/// Two adds of overlapping paths each saw the other's record, both withdrew, and no worktree was there. Both now try again,
/// after pauses of different lengths.
#[test]
fn of_two_adds_that_both_withdraw_one_succeeds() {
    let fixture = Fixture::new();
    let (both_checked, both_created) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let add = |name: &str, path: &str| {
        let (checked, created) = (Arc::clone(&both_checked), Arc::clone(&both_created));
        let step = AtomicU32::new(0);
        // The first time, the calls after each of the two checks of the other's record meet.
        let layer = HookedFs::new(move |call, path| {
            let is_record = path.parent().is_some_and(|dir| dir.ends_with("worktrees"));
            if call == Call::Link && is_record && step.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
                checked.wait();
            } else if call == Call::List
                && path.ends_with("worktrees")
                && step.compare_exchange(1, 2, SeqCst, SeqCst).is_ok()
            {
                created.wait();
            }
            CallOutcome::Proceed
        });
        let clock = Arc::new(worktree::clock::SystemClock::new());
        let env = crate::support::env(fixture.dir.path(), Arc::new(layer), clock);
        let repo = worktree::repo::Repo::open(env, fixture.repo.layout().root()).expect("ours");
        let new = NewWorktree {
            path: PathBuf::from(path).try_into().expect("valid"),
            ..new_worktree(name, Mode::Exclusive)
        };
        std::thread::spawn(move || repo.add_worktree(new).map(drop))
    };
    let results = [add("outer", "a"), add("inner", "a/b")].map(|thread| thread.join().expect("no panic"));
    let stay = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!(stay, 1, "{results:?}");
    let refused = results.into_iter().find_map(Result::err).expect("one is refused");
    assert_eq!(refused.class(), ErrorClass::Invalid, "{refused}");
    let named = fixture.repo.worktrees().expect("readable");
    assert!(
        named.iter().any(|one| refused.detail().contains(&format!("worktree={}", one.worktree_id))),
        "{refused}"
    );
}

/// On a filesystem that ignores case, `.JVS` is the directory of the records.
#[test]
fn a_path_in_the_records_is_refused_in_any_case() {
    for path in [".JVS", ".Jvs/x"] {
        assert!(PayloadPath::try_from(PathBuf::from(path)).is_err(), "accepted {path}");
    }
}

/// Entries of a shared worktree were never folded, because only a release folds.
#[test]
fn the_entries_of_a_shared_worktree_are_folded_too() {
    let fixture = Fixture::with_mode(Mode::Shared);
    for _ in 0..35 {
        snapshot(&fixture.repo, &fixture.main, None, Consistency::BestEffort).expect("shared");
    }
    let first = fixture.repo.layout().entry(&fixture.main.worktree_id, worktree::ids::EntryNumber(1));
    let lines = fs::read_to_string(first).expect("there").lines().count();
    assert_eq!(lines, 16, "the first block is one file");
    assert_eq!(fixture.repo.history(&fixture.main, 1000).expect("whole").len(), 35);
}

/// A filesystem with times of whole seconds made the clock look up to a second behind.
#[test]
fn whole_seconds_of_a_filesystem_are_no_skew() {
    let fixture = Fixture::new();
    let policy = worktree::policy::LockPolicy::DEFAULT
        .with(&worktree::policy::PolicyChanges { max_clock_skew_ms: Some(500), ..Default::default() })
        .expect("valid");
    let layer = crate::support::layer::HookedFs::with_whole_seconds();
    let repo = fixture.seen_by(Arc::new(layer), fixture.clock.clone());
    for _ in 0..20 {
        let session = repo.acquire(&fixture.main, &crate::support::request_with(policy)).expect("no skew");
        repo.lock(&fixture.main).release(&session.session.session_id).expect("ours");
    }
}

/// One unreadable record made `worktree list`, `history`, `verify` and doctor useless for everything else.
#[test]
fn a_bad_record_hides_only_itself() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let first = fixture.snapshot(&session).expect("ours").descriptor;
    fixture.write("file", b"2");
    let second = fixture.snapshot(&session).expect("ours").descriptor;
    fixture.repo.add_worktree(new_worktree("other", Mode::Exclusive)).expect("a new name");
    let records = fixture.repo.layout().worktrees();
    fs::write(records.join("other.json"), b"").expect("writable");
    fs::create_dir(records.join("zz.json")).expect("writable");
    fs::remove_file(fixture.repo.layout().snapshot_ready(&second.snapshot_id)).expect("there");

    let listing = fixture.repo.worktree_listing().expect("readable");
    assert_eq!((listing.worktrees.len(), listing.damaged.len()), (1, 2));
    let history = fixture.repo.history_listing(&fixture.main, 9).expect("readable");
    assert_eq!(history.snapshots.len(), 1);
    assert_eq!(history.snapshots[0].snapshot_id, first.snapshot_id);
    assert_eq!(history.damaged[0].subject, second.snapshot_id.to_string());
    let report =
        fixture.repo.doctor(DoctorRequest { repair: true, ..DoctorRequest::default() }).expect("runs");
    let codes: Vec<&str> = report.findings.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["worktree_damaged", "worktree_damaged", "snapshot_damaged"], "{:?}", report.findings);
    fixture.repo.lock(&fixture.main).renew(&session).expect("the healthy worktree works");
    let beside = NewWorktree {
        path: PathBuf::from("new").try_into().expect("valid"),
        ..new_worktree("new", Mode::Shared)
    };
    assert_eq!(
        class(fixture.repo.add_worktree(beside)),
        ErrorClass::Damaged,
        "the path of the bad one is unknown"
    );
}

/// A filesystem went read-only by itself, and doctor could not even look: the probe of the clock failed.
#[test]
fn a_read_only_repository_can_be_examined() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    fixture.snapshot(&session).expect("ours");
    let is_write = |call, _: &Path| {
        matches!(
            call,
            Call::WriteNew
                | Call::Link
                | Call::Rename
                | Call::Exchange
                | Call::RemoveFile
                | Call::MakeDir
                | Call::Step
        )
    };
    let repo = fixture.seen_by(failing(is_write, rustix::io::Errno::ROFS), fixture.clock.clone());
    let report =
        repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() }).expect("it can be read");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!((report.clock_skew_ms, report.snapshots), (None, 1));
    assert!(repo.acquire(&fixture.main, &request()).is_err());
}

#[test]
fn a_symbolic_link_in_place_of_a_worktree_is_a_finding() {
    let fixture = Fixture::new();
    let payload = fixture.repo.payload(&fixture.main);
    fs::remove_dir(&payload).expect("empty");
    std::os::unix::fs::symlink("/tmp", &payload).expect("writable");
    let report = fixture.repo.doctor(DoctorRequest::default()).expect("readable");
    assert_eq!(report.findings[0].code, "payload_replaced");
}

/// A publish stood, and the check after it failed to list the directory. The error did not say that the publish may
/// have happened, so the snapshot was removed, and the history named a snapshot without files.
#[test]
fn a_failure_after_the_publish_keeps_the_snapshot() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    let published = std::sync::atomic::AtomicBool::new(false);
    let layer = failing(
        move |call, path| {
            use std::sync::atomic::Ordering::SeqCst;
            published.fetch_or(call == Call::Link && path.ends_with("main.d/2"), SeqCst);
            call == Call::List && published.load(SeqCst)
        },
        rustix::io::Errno::IO,
    );
    let repo = fixture.seen_by(layer, fixture.clock.clone());
    let error = snapshot(&repo, &fixture.main, None, Consistency::BestEffort).expect_err("the check failed");
    assert!(is_indeterminate(&error), "{error}");
    let history = fixture.repo.history(&fixture.main, 9).expect("whole");
    fixture.repo.verify(&history[0], &worktree::tree::NoProgress).expect("it is there");
}

/// A clock was too far off for `init`, which left a directory without a repository behind.
#[test]
fn an_init_that_fails_leaves_nothing_behind() {
    let dir = crate::support::scratch();
    let root = dir.path().join("repo");
    fs::create_dir(&root).expect("writable");
    let ahead = Arc::new(HookedFs::with_clock_ahead_by(3_600_000));
    let clock = || Arc::new(worktree::clock::SystemClock::new());
    let policy = worktree::policy::LockPolicy::DEFAULT;
    let wrong = crate::support::env(dir.path(), ahead, clock());
    let refused = worktree::repo::Repo::init(wrong, &root, policy);
    assert_eq!(refused.map(drop).expect_err("the clock is wrong").class(), ErrorClass::ClockSkewExceeded);
    assert_eq!(fs::read_dir(&root).expect("readable").count(), 0);
    let right = crate::support::env(dir.path(), Arc::new(worktree::fs::RealFs), clock());
    worktree::repo::Repo::init(right, &root, policy).expect("an empty directory");
}

/// An add that was killed between the directory of the sequence and its first entry left a directory without entries,
/// and doctor reported a sequence that was lost. Now both appear at once.
#[test]
fn an_interrupted_add_is_no_loss_and_can_be_repeated() {
    // The first call opens the repository.
    for at in 1.. {
        let fixture = Fixture::new();
        let (layer, death) = HookedFs::dying_at(at, 2);
        let added =
            fixture.seen_by_the_dead(Arc::new(layer)).add_worktree(new_worktree("other", Mode::Exclusive));
        let report = fixture.repo.doctor(DoctorRequest::default()).expect("readable");
        assert!(!report.findings.iter().any(|one| one.code == "audit_broken"), "at {at}: {report:?}");
        if added.is_err() {
            let again = fixture.repo.add_worktree(new_worktree("other", Mode::Exclusive));
            let is_there = fixture.repo.worktree(&"other".parse().expect("a name")).is_ok();
            assert!(again.is_ok() || is_there, "at {at}: {again:?}");
        }
        let repair = DoctorRequest { repair: true, ..DoctorRequest::default() };
        let report = fixture.repo.doctor(repair).expect("readable");
        assert!(report.is_healthy(), "at {at}: {report:?}");
        if death.calls.load(std::sync::atomic::Ordering::SeqCst) <= at {
            assert!(at > 10, "only {at} calls");
            return;
        }
    }
}
