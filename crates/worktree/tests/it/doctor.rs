//! What `doctor` finds, what it mends, and what it leaves alone.

use std::sync::Arc;

use worktree::doctor::{DoctorRequest, Finding};
use worktree::fs::RealFs;
use worktree::snapshot::Consistency;

use crate::support::layer::{Call, Layer, Verdict, crash};
use crate::support::{LyingClock, World, request, snapshot};

fn examine(world: &World, repair: bool) -> Vec<Finding> {
    world.repo.doctor(DoctorRequest { strict: true, repair }).expect("readable").findings
}

fn codes(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.code).collect()
}

/// Finds exactly `code`, mends it, and finds nothing any more.
fn found_and_mended(world: &World, code: &str) {
    let found = examine(world, false);
    assert_eq!(codes(&found), [code], "{found:?}");
    assert!(!found[0].repaired, "looking changes nothing");
    let mended = examine(world, true);
    assert!(codes(&mended) == [code] && mended[0].repaired, "{mended:?}");
    assert!(examine(world, false).is_empty());
}

#[test]
fn a_worktree_whose_removal_was_cut_off_is_removed() {
    let world = World::new();
    let layer = Layer::new(|call, path: &std::path::Path| {
        let record = call == Call::RemoveFile && path.ends_with("worktrees/main.json");
        if record { Verdict::Fail(crash()) } else { Verdict::Go }
    });
    let dying = world.seen_by(Arc::new(layer), world.clock.clone());
    assert!(dying.remove_worktree(&world.main.worktree_id).is_err());
    found_and_mended(&world, "half_removed");
    assert!(world.repo.worktrees().expect("readable").is_empty());
}

#[test]
fn an_intent_that_outlived_its_publish_is_removed_and_the_snapshot_stays() {
    let world = World::new();
    world.write("file", b"1");
    let session = world.acquire().expect("a free lock").session.session_id;
    let intents = world.repo.layout().intents();
    let layer = Layer::new(move |call, path: &std::path::Path| {
        let intent = call == Call::RemoveFile && path.starts_with(&intents);
        if intent { Verdict::Fail(crash()) } else { Verdict::Go }
    });
    let dying = world.seen_by_the_dead(Arc::new(layer));
    let taken =
        snapshot(&dying, &world.main, Some(&session), Consistency::Quiesced).expect("it was published");
    found_and_mended(&world, "intent_left");
    world.repo.find(&world.main, taken.descriptor.snapshot_id.as_str()).expect("still there");
}

#[test]
fn a_directory_that_someone_deleted_is_told_and_not_invented() {
    let world = World::new();
    std::fs::remove_dir(world.repo.payload(&world.main)).expect("empty");
    let found = examine(&world, true);
    assert_eq!(codes(&found), ["payload_missing"]);
    assert!(!found[0].repaired);
}

#[test]
fn a_renewal_of_a_tenure_that_is_over_is_removed() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    world.repo.lock(&world.main).release(&session).expect("ours");
    std::fs::write(world.repo.layout().sequence(&world.main.worktree_id).join("2.renew"), b"{}")
        .expect("writable");
    found_and_mended(&world, "renewal_left");
}

#[test]
fn a_session_whose_lock_was_stolen_is_forgotten() {
    let world = World::new();
    world.acquire().expect("a free lock");
    world.clock.pass(crate::support::STEALABLE_MS);
    world.acquire().expect("stealable");
    found_and_mended(&world, "session_left");
}

/// Temporary files and intents of processes that run, here or perhaps elsewhere, are theirs.
#[test]
fn nothing_that_may_be_in_use_is_touched() {
    let world = World::new();
    world.write("file", b"1");
    let busy = |name: &'static str| {
        let layer = Layer::new(|call, _| match call {
            Call::Link | Call::RemoveFile => Verdict::Fail(crash()),
            _ => Verdict::Go,
        });
        let clock = if name.is_empty() { LyingClock::new() } else { LyingClock::elsewhere(name) };
        let repo = world.seen_by(Arc::new(layer), Arc::new(clock));
        drop(snapshot(&repo, &world.main, None, Consistency::BestEffort));
        drop(repo.acquire(&world.main, &request()));
    };
    busy("");
    busy("another host");
    let left = || std::fs::read_dir(world.repo.layout().tmp()).expect("readable").count();
    let before = left();
    assert!(before >= 4, "two of each: {before}");
    let found = examine(&world, true);
    assert!(found.iter().all(|finding| finding.code == "session_left"), "{found:?}");
    assert_eq!(left(), before);
}

#[test]
fn a_healthy_repository_stays_as_it_is_under_repair() {
    let world = World::new();
    world.write("file", b"1");
    let session = world.acquire().expect("a free lock").session.session_id;
    world.snapshot(&session).expect("ours");
    let elsewhere = world.seen_by(Arc::new(RealFs), world.clock.clone());
    let report = elsewhere.doctor(DoctorRequest { strict: true, repair: true }).expect("readable");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!((report.worktrees, report.entries, report.snapshots), (1, 3, 1));
    world.repo.lock(&world.main).renew(&session).expect("the holder noticed nothing");
}
