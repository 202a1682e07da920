//! The findings of `doctor`, its repairs, and the files that it must leave alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use worktree::doctor::{DoctorRequest, Finding};
use worktree::fs::RealFs;
use worktree::snapshot::Consistency;

use crate::support::layer::{Call, CallOutcome, HookedFs, crash};
use crate::support::{Fixture, TestClock, let_files_settle, request, snapshot};

fn examine(fixture: &Fixture, repair: bool) -> Vec<Finding> {
    fixture
        .repo
        .doctor(DoctorRequest { strict: true, repair, ..DoctorRequest::default() })
        .expect("readable")
        .findings
}

fn codes(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.code).collect()
}

/// Finds exactly `code`, repairs it, and finds nothing afterwards.
fn found_and_repaired(fixture: &Fixture, code: &str) {
    let found = examine(fixture, false);
    assert_eq!(codes(&found), [code], "{found:?}");
    assert!(!found[0].repaired, "looking changes nothing");
    let mended = examine(fixture, true);
    assert!(codes(&mended) == [code] && mended[0].repaired, "{mended:?}");
    assert!(examine(fixture, false).is_empty());
}

#[test]
fn an_interrupted_removal_of_a_worktree_is_finished() {
    let fixture = Fixture::new();
    let layer = HookedFs::new(|call, path: &std::path::Path| {
        let record = call == Call::RemoveFile && path.ends_with("worktrees/main.json");
        if record { CallOutcome::Fail(crash()) } else { CallOutcome::Proceed }
    });
    let dying = fixture.seen_by(Arc::new(layer), fixture.clock.clone());
    assert!(dying.remove_worktree(&fixture.main.worktree_id).is_err());
    found_and_repaired(&fixture, "half_removed");
    assert!(fixture.repo.worktrees().expect("readable").is_empty());
}

#[test]
fn an_intent_that_outlived_its_publish_is_removed_and_the_snapshot_stays() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let intents = fixture.repo.layout().intents();
    let layer = HookedFs::new(move |call, path: &std::path::Path| {
        let intent = call == Call::RemoveFile && path.starts_with(&intents);
        if intent { CallOutcome::Fail(crash()) } else { CallOutcome::Proceed }
    });
    let dying = fixture.seen_by_the_dead(Arc::new(layer));
    let taken =
        snapshot(&dying, &fixture.main, Some(&session), Consistency::Quiesced).expect("it was published");
    found_and_repaired(&fixture, "intent_left");
    fixture.repo.find(&fixture.main, taken.descriptor.snapshot_id.as_str()).expect("still there");
}

#[test]
fn a_missing_worktree_directory_is_reported_and_not_recreated() {
    let fixture = Fixture::new();
    std::fs::remove_dir(fixture.repo.payload(&fixture.main)).expect("empty");
    let found = examine(&fixture, true);
    assert_eq!(codes(&found), ["payload_missing"]);
    assert!(!found[0].repaired);
}

#[test]
fn a_renewal_of_a_tenure_that_is_over_is_removed() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    fixture.repo.lock(&fixture.main).release(&session).expect("ours");
    std::fs::write(fixture.repo.layout().sequence(&fixture.main.worktree_id).join("2.renew"), b"{}")
        .expect("writable");
    found_and_repaired(&fixture, "renewal_left");
}

#[test]
fn a_session_whose_lock_was_stolen_is_removed() {
    let fixture = Fixture::new();
    fixture.acquire().expect("a free lock");
    fixture.clock.advance(crate::support::STEALABLE_MS);
    fixture.acquire().expect("stealable");
    found_and_repaired(&fixture, "session_left");
}

/// Temporary files and intents of processes that may still run, on this host or another, stay.
#[test]
fn nothing_that_may_be_in_use_is_touched() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    let busy = |name: &'static str| {
        let layer = HookedFs::new(|call, _| match call {
            Call::Link | Call::RemoveFile => CallOutcome::Fail(crash()),
            _ => CallOutcome::Proceed,
        });
        let clock = if name.is_empty() { TestClock::new() } else { TestClock::of_another_host(name) };
        let repo = fixture.seen_by(Arc::new(layer), Arc::new(clock));
        drop(snapshot(&repo, &fixture.main, None, Consistency::BestEffort));
        drop(repo.acquire(&fixture.main, &request()));
    };
    busy("");
    busy("another host");
    let left = || std::fs::read_dir(fixture.repo.layout().tmp()).expect("readable").count();
    let before = left();
    assert!(before >= 4, "two of each: {before}");
    let found = examine(&fixture, true);
    assert!(found.iter().all(|finding| finding.code == "session_left"), "{found:?}");
    assert_eq!(left(), before);
}

#[test]
fn a_healthy_repository_stays_as_it_is_under_repair() {
    let fixture = Fixture::new();
    fixture.write("file", b"1");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    fixture.snapshot(&session).expect("ours");
    let elsewhere = fixture.seen_by(Arc::new(RealFs), fixture.clock.clone());
    let report = elsewhere
        .doctor(DoctorRequest { strict: true, repair: true, ..DoctorRequest::default() })
        .expect("readable");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!((report.worktrees, report.entries, report.snapshots), (1, 3, 1));
    fixture.repo.lock(&fixture.main).renew(&session).expect("the holder noticed nothing");
}

/// Filesystem calls of `doctor --strict`, and the bytes that it reads, with `count` snapshots.
fn cost_of_examination(count: usize) -> (u64, u64) {
    let fixture = Fixture::with_mode(worktree::worktree::Mode::Shared);
    for n in 0..20 {
        fixture.write(&format!("unchanged-{n}"), b"bytes");
    }
    let_files_settle();
    for n in 0..count {
        fixture.write("file", n.to_string().as_bytes());
        snapshot(&fixture.repo, &fixture.main, None, Consistency::BestEffort).expect("shared");
    }
    let (calls, bytes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (all_calls, all_bytes) = (calls.clone(), bytes.clone());
    let layer = HookedFs::new(move |call, path: &std::path::Path| {
        all_calls.fetch_add(1, Ordering::SeqCst);
        if call == Call::Read {
            all_bytes.fetch_add(path.metadata().map_or(0, |meta| meta.len()), Ordering::SeqCst);
        }
        CallOutcome::Proceed
    });
    let seen = fixture.seen_by(Arc::new(layer), fixture.clock.clone());
    let (calls_before, bytes_before) = (calls.load(Ordering::SeqCst), bytes.load(Ordering::SeqCst));
    let report = seen.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() }).expect("readable");
    assert_eq!((report.snapshots, report.findings.len()), (count as u64, 0), "{:?}", report.findings);
    (calls.load(Ordering::SeqCst) - calls_before, bytes.load(Ordering::SeqCst) - bytes_before)
}

/// It was quadratic: each snapshot listed and read the whole sequence again.
#[test]
fn the_cost_of_an_examination_is_linear_in_snapshots_and_entries() {
    let [once, twice, four_times] = [50, 100, 200].map(cost_of_examination);
    println!("calls and bytes: {once:?} {twice:?} {four_times:?}");
    for (less, more) in [(once, twice), (twice, four_times)] {
        assert!(more.0 < less.0 * 2 + less.0 / 10, "calls: {once:?} {twice:?} {four_times:?}");
        assert!(more.1 < less.1 * 2 + less.1 / 10, "bytes: {once:?} {twice:?} {four_times:?}");
    }
}
