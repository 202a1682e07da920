//! Files that a disk has lost or truncated.

use std::path::Path;
use std::sync::Arc;

use worktree::doctor::{DoctorRequest, Finding};
use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::tree::NoProgress;

use crate::support::layer::HookedFs;
use crate::support::{Fixture, STEALABLE_MS, TestClock, class, request};

fn cut(path: &Path, quarters: usize) {
    let bytes = std::fs::read(path).expect("it is there");
    std::fs::write(path, &bytes[..bytes.len() * quarters / 4]).expect("writable");
}

fn findings(fixture: &Fixture, repair: bool) -> Vec<Finding> {
    fixture
        .repo
        .doctor(DoctorRequest { strict: true, repair, ..DoctorRequest::default() })
        .expect("readable")
        .findings
}

/// An unreadable renewal must neither keep the lock for ever nor permit an early steal: its file time is
/// trusted, and no boot clock.
#[test]
fn a_torn_renewal_delays_a_steal_and_does_not_forbid_it() {
    for quarters in [0, 1, 3] {
        let fixture = Fixture::new();
        let session = fixture.acquire().expect("a free lock").session.session_id;
        let token = fixture.repo.lock(&fixture.main).renew(&session).expect("ours").fencing_token;
        cut(&fixture.repo.layout().renewal(&fixture.main.worktree_id, token), quarters);
        fixture.clock.advance_boot_clock(i64::try_from(STEALABLE_MS).expect("short"));
        assert_eq!(class(fixture.acquire()), ErrorClass::LockConflict, "its date is too recent");
        let later = Arc::new(TestClock::new());
        later.set_wall_back_by(-40_000);
        let there = fixture.seen_by(Arc::new(HookedFs::with_probes_ahead_by(40_000)), later);
        let watched = std::cell::Cell::new(0);
        let on_watch = |ms| watched.set(ms);
        let mut patient = request();
        patient.on_watch = &on_watch;
        assert!(there.acquire(&fixture.main, &patient).is_ok(), "quarters={quarters}");
        assert_eq!(watched.get(), 31_000, "and it had to be watched first");
    }
}

#[test]
fn a_torn_copy_is_ignored_and_repaired() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let copy = fixture.repo.layout().lock_copy(&fixture.main.worktree_id);
    cut(&copy, 2);
    assert_eq!(class(fixture.acquire()), ErrorClass::LockConflict);
    assert_eq!(findings(&fixture, true)[0].code, "lock_copy_stale");
    assert!(findings(&fixture, false).is_empty());
    let text = std::fs::read_to_string(&copy).expect("mended");
    assert!(text.contains(session.as_str()));
}

#[test]
fn a_damaged_entry_stops_everything_and_is_named() {
    for (n, quarters) in [(2_u64, 2), (1, 0)] {
        let fixture = Fixture::new();
        fixture.acquire().expect("a free lock");
        let path = fixture.repo.layout().entry(&fixture.main.worktree_id, worktree::ids::EntryNumber(n));
        cut(&path, quarters);
        fixture.clock.advance(STEALABLE_MS);
        if n == 2 {
            assert_eq!(class(fixture.acquire()), ErrorClass::Damaged, "nothing is granted on a guess");
        }
        let found = findings(&fixture, true);
        assert!(found.iter().any(|finding| finding.code == "audit_broken" && !finding.repaired), "{found:?}");
    }
}

#[test]
fn an_altered_audit_is_found() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    fixture.repo.lock(&fixture.main).release(&session).expect("ours");
    let path = fixture.repo.layout().entry(&fixture.main.worktree_id, worktree::ids::EntryNumber(2));
    let text = std::fs::read_to_string(&path).expect("readable");
    let forged = text.replace(session.as_str(), "s-somebody-else");
    assert_ne!(text, forged);
    std::fs::write(&path, forged).expect("writable");
    let found = findings(&fixture, false);
    assert!(found.iter().any(|finding| finding.code == "audit_broken"), "{found:?}");
}

#[test]
fn a_snapshot_that_lost_a_byte_is_found_and_not_restored() {
    let fixture = Fixture::new();
    fixture.write("file", b"precious");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let snapshot = fixture.snapshot(&session).expect("ours").descriptor;
    let stored = fixture.repo.layout().snapshot_tree(&snapshot.snapshot_id).join("file");
    std::fs::write(&stored, b"Precious").expect("writable");
    assert_eq!(class(fixture.repo.verify(&snapshot, &NoProgress)), ErrorClass::Damaged);
    let restore = worktree::restore::RestoreRequest {
        session: Some(session),
        discard_changes: true,
        progress: &NoProgress,
    };
    assert_eq!(class(fixture.repo.restore(&fixture.main, &snapshot, &restore)), ErrorClass::Damaged);
    assert_eq!(std::fs::read(fixture.payload("file")).expect("untouched"), b"precious");
    let manifest = fixture.repo.layout().snapshot_manifest(&snapshot.snapshot_id);
    cut(&manifest, 1);
    assert!(findings(&fixture, false).iter().any(|finding| finding.code == "snapshot_damaged"));
}

#[test]
fn a_torn_session_is_refused_and_says_so() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    cut(&fixture.repo.env().sessions.dir().join(format!("{session}.json")), 2);
    assert_eq!(class(fixture.repo.lock(&fixture.main).renew(&session)), ErrorClass::Damaged);
    let other = fixture.seen_by(Arc::new(RealFs), fixture.clock.clone());
    fixture.clock.advance(STEALABLE_MS);
    other.acquire(&fixture.main, &request()).expect("the lease ran out as usual");
}
