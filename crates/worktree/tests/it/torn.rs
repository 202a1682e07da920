//! Files that a disk has lost or cut short.

use std::path::Path;
use std::sync::Arc;

use worktree::doctor::{DoctorRequest, Finding};
use worktree::error::Class;
use worktree::fs::RealFs;
use worktree::tree::NoProgress;

use crate::support::layer::Layer;
use crate::support::{LyingClock, STEALABLE_MS, World, class, request};

fn cut(path: &Path, quarters: usize) {
    let bytes = std::fs::read(path).expect("it is there");
    std::fs::write(path, &bytes[..bytes.len() * quarters / 4]).expect("writable");
}

fn findings(world: &World, repair: bool) -> Vec<Finding> {
    world.repo.doctor(DoctorRequest { strict: true, repair }).expect("readable").findings
}

/// A renewal that cannot be read must neither keep the lock for ever nor let it be taken early: its date
/// is believed, and nobody's boot clock.
#[test]
fn a_torn_renewal_delays_a_steal_and_does_not_forbid_it() {
    for quarters in [0, 1, 3] {
        let world = World::new();
        let session = world.acquire().expect("a free lock").session.session_id;
        let token = world.repo.lock(&world.main).renew(&session).expect("ours").fencing_token;
        cut(&world.repo.layout().renewal(&world.main.worktree_id, token), quarters);
        world.clock.pass(STEALABLE_MS);
        assert_eq!(class(world.acquire()), Class::LockConflict, "its date is too recent");
        let later = Arc::new(LyingClock::new());
        later.set_wall_back_by(-40_000);
        let there = world.seen_by(Arc::new(Layer::with_probes_ahead_by(40_000)), later);
        let watched = std::cell::Cell::new(0);
        let on_watch = |ms| watched.set(ms);
        let mut patient = request();
        patient.on_watch = &on_watch;
        assert!(there.acquire(&world.main, &patient).is_ok(), "quarters={quarters}");
        assert_eq!(watched.get(), 31_000, "and it had to be watched first");
    }
}

#[test]
fn a_torn_copy_misleads_nobody_and_is_mended() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    let copy = world.repo.layout().lock_copy(&world.main.worktree_id);
    cut(&copy, 2);
    assert_eq!(class(world.acquire()), Class::LockConflict);
    assert_eq!(findings(&world, true)[0].code, "lock_copy_stale");
    assert!(findings(&world, false).is_empty());
    let text = std::fs::read_to_string(&copy).expect("mended");
    assert!(text.contains(session.as_str()));
}

#[test]
fn a_damaged_entry_stops_everything_and_is_named() {
    for (n, quarters) in [(2_u64, 2), (1, 0)] {
        let world = World::new();
        world.acquire().expect("a free lock");
        let path = world.repo.layout().entry(&world.main.worktree_id, worktree::ids::EntryNumber(n));
        cut(&path, quarters);
        world.clock.pass(STEALABLE_MS);
        if n == 2 {
            assert_eq!(class(world.acquire()), Class::Damaged, "nothing is granted on a guess");
        }
        let found = findings(&world, true);
        assert!(found.iter().any(|finding| finding.code == "audit_broken" && !finding.repaired), "{found:?}");
    }
}

#[test]
fn an_altered_audit_is_found() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    world.repo.lock(&world.main).release(&session).expect("ours");
    let path = world.repo.layout().entry(&world.main.worktree_id, worktree::ids::EntryNumber(2));
    let text = std::fs::read_to_string(&path).expect("readable");
    let forged = text.replace(session.as_str(), "s-somebody-else");
    assert_ne!(text, forged);
    std::fs::write(&path, forged).expect("writable");
    let found = findings(&world, false);
    assert!(found.iter().any(|finding| finding.code == "audit_broken"), "{found:?}");
}

#[test]
fn a_snapshot_that_lost_a_byte_is_found_and_not_restored() {
    let world = World::new();
    world.write("file", b"precious");
    let session = world.acquire().expect("a free lock").session.session_id;
    let snapshot = world.snapshot(&session).expect("ours").descriptor;
    let stored = world.repo.layout().snapshot_tree(&snapshot.snapshot_id).join("file");
    std::fs::write(&stored, b"Precious").expect("writable");
    assert_eq!(class(world.repo.verify(&snapshot, &NoProgress)), Class::Damaged);
    let restore = worktree::restore::RestoreRequest {
        session: Some(session),
        discard_changes: true,
        progress: &NoProgress,
    };
    assert_eq!(class(world.repo.restore(&world.main, &snapshot, &restore)), Class::Damaged);
    assert_eq!(std::fs::read(world.payload("file")).expect("untouched"), b"precious");
    let manifest = world.repo.layout().snapshot_manifest(&snapshot.snapshot_id);
    cut(&manifest, 1);
    assert!(findings(&world, false).iter().any(|finding| finding.code == "snapshot_damaged"));
}

#[test]
fn a_torn_session_is_refused_and_says_so() {
    let world = World::new();
    let session = world.acquire().expect("a free lock").session.session_id;
    cut(&world.repo.env().sessions.dir().join(format!("{session}.json")), 2);
    assert_eq!(class(world.repo.lock(&world.main).renew(&session)), Class::Damaged);
    let other = world.seen_by(Arc::new(RealFs), world.clock.clone());
    world.clock.pass(STEALABLE_MS);
    other.acquire(&world.main, &request()).expect("the lease ran out as usual");
}
