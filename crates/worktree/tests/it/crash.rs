//! The process dies before, in and after every call that it makes; someone else carries on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use worktree::doctor::DoctorRequest;
use worktree::error::Result;
use worktree::ids::SessionId;
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::snapshot::{Consistency, Descriptor};
use worktree::tree::NoProgress;

use crate::support::layer::HookedFs;
use crate::support::{Fixture, STEALABLE_MS, request, snapshot};

/// What stands before the attack.
struct Before {
    session: Option<SessionId>,
    published: Option<Descriptor>,
    newest: u64,
}

/// Lets `act` die everywhere, and recovers each time. Returns how many deaths that were.
fn die_and_recover(
    prepare: impl Fn(&Fixture) -> Before,
    act: impl Fn(&Repo, &Fixture, &Before) -> Result<()>,
    check: impl Fn(&Fixture, &Before, bool),
) -> u64 {
    die_everywhere(prepare, act, |fixture, before, finished| {
        check(fixture, before, finished);
        recover(fixture, before.newest, finished);
    })
}

/// Lets `act` die at each of its calls in turn, in a write with each part of the bytes, until it gets
/// through.
fn die_everywhere(
    prepare: impl Fn(&Fixture) -> Before,
    act: impl Fn(&Repo, &Fixture, &Before) -> Result<()>,
    check: impl Fn(&Fixture, &Before, bool),
) -> u64 {
    for at in 0.. {
        for quarters in [0, 2, 4] {
            let fixture = Fixture::new();
            let mut before = prepare(&fixture);
            before.newest = newest(&fixture);
            let (layer, death) = HookedFs::dying_at(at + CALLS_TO_OPEN, quarters);
            let dying = fixture.seen_by_the_dead(Arc::new(layer));
            let finished = act(&dying, &fixture, &before).is_ok();
            check(&fixture, &before, finished);
            if finished {
                return at;
            }
            if !death.in_write.load(Ordering::SeqCst) {
                break;
            }
        }
    }
    unreachable!("the loop has no end")
}

/// `Repo::open` reads one file before the attack begins.
const CALLS_TO_OPEN: u64 = 1;

/// Whatever happened: the audit holds, the lock can be had again, and what is left over can be mended.
fn recover(fixture: &Fixture, before: u64, finished: bool) {
    let grown = newest(fixture) - before;
    assert!(grown <= 1, "one act appends at most one entry");
    let report = fixture.repo.doctor(DoctorRequest::default()).expect("readable");
    let broken = |code: &str| ["audit_broken", "snapshot_damaged"].contains(&code);
    assert!(!report.findings.iter().any(|finding| broken(finding.code)), "{:?}", report.findings);
    fixture.clock.advance(STEALABLE_MS);
    let session = fixture.acquire().expect("whatever happened, the lock can be had").session.session_id;
    let mended = fixture
        .repo
        .doctor(DoctorRequest { strict: true, repair: true, ..DoctorRequest::default() })
        .expect("readable");
    assert!(mended.is_healthy(), "finished={finished} {:?}", mended.findings);
    let again =
        fixture.repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() }).expect("readable");
    assert!(again.findings.is_empty(), "{:?}", again.findings);
    fixture.repo.lock(&fixture.main).release(&session).expect("ours");
}

fn newest(fixture: &Fixture) -> u64 {
    fixture.repo.status(&fixture.main).expect("readable").newest_entry.0
}

fn nothing(_: &Fixture) -> Before {
    Before { session: None, published: None, newest: 0 }
}

fn held(fixture: &Fixture) -> Before {
    let session = fixture.acquire().expect("a free lock").session.session_id;
    Before { session: Some(session), published: None, newest: 0 }
}

fn held_over(fixture: &Fixture) -> Before {
    let before = held(fixture);
    fixture.clock.advance(STEALABLE_MS);
    before
}

/// A published snapshot, and then a changed file.
fn published(fixture: &Fixture) -> Before {
    fixture.write("dir/one", b"first");
    let before = held(fixture);
    let session = before.session.as_ref().expect("held");
    let published = fixture.snapshot(session).expect("the holder's own").descriptor;
    fixture.write("dir/one", b"second");
    fixture.write("two", b"new");
    Before { published: Some(published), ..before }
}

fn session(before: &Before) -> &SessionId {
    before.session.as_ref().expect("held")
}

#[test]
fn acquire_survives_a_crash_at_every_call() {
    let deaths = die_and_recover(
        nothing,
        |repo, fixture, _| repo.acquire(&fixture.main, &request()).map(drop),
        |fixture, _, finished| {
            let lock = fixture.repo.status(&fixture.main).expect("readable").lock;
            assert!(lock.is_some() || !finished, "an acquire that returned is there");
        },
    );
    assert!(deaths > 10, "the attack reached only {deaths} calls");
}

#[test]
fn steal_survives_a_crash_at_every_call() {
    let deaths = die_and_recover(
        held_over,
        |repo, fixture, _| repo.acquire(&fixture.main, &request()).map(drop),
        |fixture, before, finished| {
            let lock = fixture.repo.status(&fixture.main).expect("readable").lock.expect("old or new holder");
            let stolen = lock.session_id != *session(before);
            assert!(stolen || !finished, "a steal that returned is there");
            assert_eq!(stolen, lock.acquire_seq == 2);
        },
    );
    assert!(deaths > 10, "the attack reached only {deaths} calls");
}

#[test]
fn renew_survives_a_crash_at_every_call() {
    let deaths = die_and_recover(
        held,
        |repo, fixture, before| repo.lock(&fixture.main).renew(session(before)).map(drop),
        |fixture, before, _| {
            let lock = fixture.repo.status(&fixture.main).expect("readable").lock.expect("still held");
            assert_eq!(lock.session_id, *session(before));
        },
    );
    assert!(deaths > 10, "the attack reached only {deaths} calls");
}

#[test]
fn release_survives_a_crash_at_every_call() {
    let deaths = die_and_recover(
        held,
        |repo, fixture, before| repo.lock(&fixture.main).release(session(before)).map(drop),
        |fixture, _, finished| {
            let free = fixture.repo.status(&fixture.main).expect("readable").lock.is_none();
            assert!(free || !finished, "a release that returned is there");
        },
    );
    assert!(deaths > 10, "the attack reached only {deaths} calls");
}

#[test]
fn publish_survives_a_crash_at_every_call() {
    let deaths = die_and_recover(
        published,
        |repo, fixture, before| {
            snapshot(repo, &fixture.main, Some(session(before)), Consistency::Quiesced).map(drop)
        },
        |fixture, before, finished| {
            let history = fixture.repo.history(&fixture.main, 10).expect("readable");
            let head = fixture.repo.head(&fixture.main).expect("readable").expect("there was one");
            assert_eq!(head, history[0].snapshot_id, "the head is the newest that can be seen");
            let old = before.published.as_ref().expect("published").snapshot_id.clone();
            match history.len() {
                1 => assert!(head == old && !finished, "the old head"),
                2 => assert_ne!(head, old, "the new head"),
                other => panic!("{other} snapshots are visible"),
            }
            for snapshot in &history {
                fixture.repo.verify(snapshot, &NoProgress).expect("what is visible is whole");
            }
        },
    );
    assert!(deaths > 40, "the attack reached only {deaths} calls");
}

#[test]
fn restore_survives_a_crash_at_every_call() {
    let deaths = die_and_recover(
        published,
        |repo, fixture, before| {
            let request = RestoreRequest {
                session: before.session.clone(),
                discard_changes: true,
                progress: &NoProgress,
            };
            repo.restore(&fixture.main, before.published.as_ref().expect("published"), &request).map(drop)
        },
        |fixture, _, finished| {
            let one = std::fs::read(fixture.payload("dir/one")).expect("never missing");
            let two = std::fs::read(fixture.payload("two")).ok();
            match &one[..] {
                b"first" => assert_eq!(two, None, "all of the new files"),
                b"second" => assert!(two.is_some() && !finished, "all of the old files"),
                other => panic!("neither old nor new: {other:?}"),
            }
        },
    );
    assert!(deaths > 40, "the attack reached only {deaths} calls");
}

#[test]
fn a_committed_restore_is_finished_by_the_next_holder() {
    let restored = std::cell::Cell::new(0);
    die_everywhere(
        published,
        |repo, fixture, before| {
            let request = RestoreRequest {
                session: before.session.clone(),
                discard_changes: true,
                progress: &NoProgress,
            };
            repo.restore(&fixture.main, before.published.as_ref().expect("published"), &request).map(drop)
        },
        |fixture, before, _| {
            let committed = newest(fixture) > before.newest;
            fixture.clock.advance(STEALABLE_MS);
            let next = fixture.acquire().expect("stealable").session.session_id;
            let one = std::fs::read(fixture.payload("dir/one")).expect("never missing");
            assert_eq!(&one[..] == b"first", committed, "done if and only if it was committed");
            restored.set(restored.get() + u32::from(committed));
            fixture.repo.lock(&fixture.main).release(&next).expect("ours");
        },
    );
    assert!(restored.get() > 5, "the attack never came after the commit");
}

/// Without an exchange of names the worktree's directory is away between two renames. A crash there must not
/// lose it: the next holder puts it back.
#[test]
fn a_restore_by_two_renames_that_dies_between_them_is_put_right_by_the_next_holder() {
    let mut was_away = false;
    for at in 0.. {
        let fixture = Fixture::new();
        let before = published(&fixture);
        let dying = fixture.seen_by_the_dead(Arc::new(HookedFs::poor_and_dying_at(at + CALLS_TO_OPEN)));
        let request =
            RestoreRequest { session: before.session.clone(), discard_changes: true, progress: &NoProgress };
        let finished =
            dying.restore(&fixture.main, before.published.as_ref().expect("published"), &request).is_ok();
        was_away |= !fixture.repo.payload(&fixture.main).exists();
        recover(&fixture, before.newest.max(3), finished);
        let one = std::fs::read(fixture.payload("dir/one")).expect("back in its place");
        assert!([&b"first"[..], b"second"].contains(&&one[..]), "at={at}");
        if finished {
            break;
        }
    }
    assert!(was_away, "the attack never came between the two renames");
}
