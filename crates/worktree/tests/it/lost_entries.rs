//! A sequence that lost entries grants nothing until the loss is accepted, and then no token is used twice.
//!
//! The story: A held the lock by entry 8, and an operator removed entry 4. The newest entry was found by
//! bisection, which took 3 for it: `lock status` said "free", and the next acquire was granted with token 4
//! while A went on renewing. The copy of the lock, which still said 8, was never asked.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use worktree::doctor::{DoctorReport, DoctorRequest};
use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::ids::{EntryNumber, SessionId};
use worktree::snapshot::{Consistency, Descriptor};
use worktree::tree::NoProgress;
use worktree::worktree::Mode;

use crate::support::layer::HookedFs;
use crate::support::{Fixture, STEALABLE_MS, class, env, new_worktree, request, snapshot};

/// Entries: 1 create, 2 acquire, 3 publish, 4 release, 5 acquire, 6 publish, 7 release, 8 acquire.
struct Held {
    fixture: Fixture,
    holder: SessionId,
    published: Vec<Descriptor>,
}

const NEWEST: u64 = 8;

impl Held {
    fn new() -> Self {
        let fixture = Fixture::new();
        let mut published = Vec::new();
        for content in [b"one", b"two"] {
            fixture.write("file", content);
            let session = fixture.acquire().expect("a free lock").session.session_id;
            let taken = snapshot(&fixture.repo, &fixture.main, Some(&session), Consistency::BestEffort);
            published.push(taken.expect("the holder's own").descriptor);
            fixture.repo.lock(&fixture.main).release(&session).expect("the holder's own");
        }
        let held = fixture.acquire().expect("a free lock");
        assert_eq!(held.lock.fencing_token.0, NEWEST);
        Self { fixture, holder: held.session.session_id, published }
    }

    fn entry(&self, n: u64) -> PathBuf {
        self.fixture.repo.layout().entry(&self.fixture.main.worktree_id, EntryNumber(n))
    }

    fn remove_entries(&self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|n| fs::remove_file(self.entry(n)).expect("there"));
    }

    fn remove_copy_and_session(&self) {
        fs::remove_file(self.fixture.repo.layout().lock_copy(&self.fixture.main.worktree_id)).expect("there");
        self.fixture.repo.env().sessions.remove(&self.holder).expect("ours");
    }

    fn doctor(&self, request: DoctorRequest) -> DoctorReport {
        self.fixture.repo.doctor(request).expect("damage is a finding, not a failure")
    }

    /// Nothing is granted, renewed, published or reported as free.
    fn refuses_everything(&self, story: &str) {
        let fixture = &self.fixture;
        let lock = fixture.repo.lock(&fixture.main);
        assert_eq!(class(fixture.acquire()), ErrorClass::Damaged, "{story}");
        assert_eq!(class(fixture.repo.status(&fixture.main)), ErrorClass::Damaged, "{story}");
        let renewed = lock.renew(&self.holder).expect_err("not decided by a damaged sequence").class();
        assert!([ErrorClass::Damaged, ErrorClass::LockNotHeld].contains(&renewed), "{story}");
        let published = snapshot(&fixture.repo, &fixture.main, None, Consistency::BestEffort);
        assert_eq!(class(published), ErrorClass::Damaged, "{story}");
        fixture.clock.advance(STEALABLE_MS);
        assert_eq!(class(fixture.acquire()), ErrorClass::Damaged, "{story}: not even after the lease");
    }

    /// Repair alone changes nothing; accepting the loss makes the sequence whole, and history complete.
    fn accepts_the_loss(&self, story: &str) {
        let repaired = self.doctor(DoctorRequest { repair: true, ..DoctorRequest::default() });
        assert!(!repaired.is_healthy(), "{story}: repair decides nothing");
        assert!(repaired.findings.iter().any(|finding| finding.code == "audit_broken"), "{story}");
        let accepted = self.doctor(DoctorRequest { accept_loss: true, ..DoctorRequest::default() });
        assert!(accepted.is_healthy(), "{story}: {:?}", accepted.findings);
        let again = self.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() });
        assert!(again.findings.iter().all(|one| one.code == "session_left"), "{story}: {:?}", again.findings);
        let history = self.fixture.repo.history(&self.fixture.main, 9).expect("whole");
        assert_eq!(history.len(), 2, "{story}: both snapshots are listed");
        for descriptor in &self.published {
            self.fixture.repo.verify(descriptor, &NoProgress).expect("untouched");
        }
    }
}

#[test]
fn a_missing_entry_stops_every_grant_and_the_holder_keeps_the_lock_after_the_repair() {
    for n in 1..NEWEST {
        let (held, story) = (Held::new(), format!("without entry {n}"));
        held.remove_entries([n]);
        held.accepts_the_loss(&story);
        let lock = held.fixture.repo.lock(&held.fixture.main);
        lock.renew(&held.holder).expect("its own entry was never lost");
        assert_eq!(class(held.fixture.acquire()), ErrorClass::LockConflict, "{story}");
        let held = Held::new();
        held.remove_entries([n]);
        held.refuses_everything(&story);
    }
}

#[test]
fn after_a_lost_tail_no_token_is_granted_twice() {
    for first in 1..=NEWEST {
        let (held, story) = (Held::new(), format!("without the entries from {first}"));
        held.remove_entries(first..=NEWEST);
        held.refuses_everything(&story);
        held.accepts_the_loss(&story);
        let next = held.fixture.acquire().expect("free: the tenure of 8 is lost");
        assert!(next.lock.fencing_token.0 > NEWEST, "{story}: {}", next.lock.fencing_token);
        assert!(next.lock.acquire_seq > 3, "{story}: {}", next.lock.acquire_seq);
        let lock = held.fixture.repo.lock(&held.fixture.main);
        assert_eq!(class(lock.renew(&held.holder)), ErrorClass::LockNotHeld, "{story}");
        held.fixture.snapshot(&next.session.session_id).expect("the new holder works as usual");
        lock.release(&next.session.session_id).expect("the new holder's own");
    }
}

/// Each trace alone is enough: a session of this user, the copy of the lock, or a published snapshot.
#[test]
fn every_trace_of_a_lost_tail_is_evidence() {
    let held = Held::new();
    held.remove_entries([8]);
    fs::remove_file(held.fixture.repo.layout().lock_copy(&held.fixture.main.worktree_id)).expect("there");
    assert_eq!(class(held.fixture.acquire()), ErrorClass::Damaged, "the session names token 8");

    let held = Held::new();
    held.remove_entries([8]);
    held.fixture.repo.env().sessions.remove(&held.holder).expect("ours");
    assert_eq!(class(held.fixture.acquire()), ErrorClass::Damaged, "the copy names token 8");

    let held = Held::new();
    held.remove_copy_and_session();
    held.remove_entries(5..=8);
    assert_eq!(class(held.fixture.acquire()), ErrorClass::Damaged, "a snapshot was taken under token 5");

    let held = Held::new();
    held.remove_copy_and_session();
    held.remove_entries(6..=8);
    held.fixture.clock.advance(STEALABLE_MS);
    assert_eq!(class(held.fixture.acquire()), ErrorClass::Damaged, "a published snapshot is not listed");
}

/// `rm -rf .jvs/locks/*`, and then `worktree remove` or `add` to get going again.
#[test]
fn a_worktree_whose_sequence_is_gone_is_not_begun_again_with_small_tokens() {
    let held = Held::new();
    let locks = held.fixture.repo.layout().locks();
    fs::remove_dir_all(&locks).expect("there");
    fs::create_dir(&locks).expect("writable");
    held.refuses_everything("without .jvs/locks/*");
    let id = &held.fixture.main.worktree_id;
    assert_eq!(class(held.fixture.repo.remove_worktree(id)), ErrorClass::Damaged);
    fs::remove_file(held.fixture.repo.layout().worktree_file(id)).expect("there");
    let again = held.fixture.repo.add_worktree(new_worktree("main", Mode::Exclusive));
    assert_eq!(class(again), ErrorClass::Damaged);
    held.accepts_the_loss("without .jvs/locks/*");
}

#[test]
fn a_corrupt_newest_entry_is_skipped_after_the_loss_is_accepted() {
    let held = Held::new();
    fs::write(held.entry(NEWEST), b"{").expect("writable");
    held.refuses_everything("with entry 8 torn");
    held.accepts_the_loss("with entry 8 torn");
    let next = held.fixture.acquire().expect("free").lock;
    assert!(next.fencing_token.0 > NEWEST);
    assert_eq!(fs::read(held.entry(NEWEST)).expect("still there"), b"{", "nothing is removed");
}

/// Three losses in a row: the sequence stays whole, and later entries are audited as before.
#[test]
fn losses_add_up() {
    let held = Held::new();
    for n in [2, 4, 6] {
        held.remove_entries([n]);
        held.accepts_the_loss(&format!("and without entry {n}"));
    }
    let lost = held.fixture.repo.lock(&held.fixture.main).view().expect("whole").state().lost.clone();
    assert_eq!(lost.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2", "4", "6"]);
    held.remove_entries([5]);
    held.refuses_everything("and without entry 5");
}

/// A listing is no snapshot of a directory: an entry that is appended while it is read may be missing from it.
#[test]
fn an_entry_that_a_listing_lacks_is_not_taken_for_a_hole() {
    for unlisted in ["4", "8"] {
        let held = Held::new();
        let layer = HookedFs::not_listing(unlisted);
        let repo = held.fixture.seen_by(Arc::new(layer), held.fixture.clock.clone());
        assert_eq!(repo.status(&held.fixture.main).expect("whole").newest_entry.0, NEWEST);
        assert_eq!(class(repo.acquire(&held.fixture.main, &request())), ErrorClass::LockConflict);
    }
}

/// `cp -a` copies a repository with its id. A session of the original worked in the copy, and releasing it
/// there removed the session: the original stayed locked until its lease ran out.
#[test]
fn a_session_of_the_original_is_refused_in_a_copy_of_the_repository() {
    let held = Held::new();
    let root = held.fixture.repo.layout().root();
    let copied = held.fixture.dir.path().join("copy");
    let status = std::process::Command::new("cp").arg("-a").arg(root).arg(&copied).status().expect("cp runs");
    assert!(status.success());
    let env = env(held.fixture.dir.path(), Arc::new(RealFs), held.fixture.clock.clone());
    let copy = worktree::repo::Repo::open(env, &copied).expect("a repository");
    let lock = copy.lock(&held.fixture.main);
    assert_eq!(class(lock.renew(&held.holder)), ErrorClass::LockNotHeld);
    let refused = lock.release(&held.holder).expect_err("not held here");
    assert!(refused.detail().contains("another copy"), "{refused}");
    let lock = held.fixture.repo.lock(&held.fixture.main);
    lock.release(&held.holder).expect("the original is as it was");
}
