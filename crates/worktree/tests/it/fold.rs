//! Folding old entries: disk space is freed, numbers never are.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use worktree::doctor::DoctorRequest;
use worktree::fs::{Fs, RealFs};
use worktree::ids::EntryNumber;
use worktree::sequence::{FOLD, Sequence};

use crate::support::layer::{Call, CallOutcome, HookedFs};
use crate::support::{Fixture, request, short_or_long};

/// Acquires and releases until the sequence has at least `entries`.
fn grow(fixture: &Fixture, entries: u64) {
    while fixture.repo.status(&fixture.main).expect("readable").newest_entry.0 < entries {
        let session = fixture.acquire().expect("a free lock").session.session_id;
        fixture.repo.lock(&fixture.main).release(&session).expect("ours");
    }
}

fn inode(fixture: &Fixture, n: u64) -> u64 {
    let path = fixture.repo.layout().entry(&fixture.main.worktree_id, EntryNumber(n));
    std::fs::symlink_metadata(path).expect("no number ever disappears").ino()
}

#[test]
fn folded_entries_share_a_file_and_the_audit_still_holds() {
    let fixture = Fixture::new();
    fixture.write("file", b"bytes");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    fixture.snapshot(&session).expect("ours");
    fixture.repo.lock(&fixture.main).release(&session).expect("ours");
    grow(&fixture, FOLD * 2 + 3);
    assert_eq!(inode(&fixture, 1), inode(&fixture, FOLD));
    assert_eq!(inode(&fixture, FOLD + 1), inode(&fixture, FOLD * 2));
    assert_ne!(inode(&fixture, FOLD), inode(&fixture, FOLD + 1));
    assert_ne!(inode(&fixture, FOLD * 2), inode(&fixture, FOLD * 2 + 1), "the newest block stays as it is");
    let report =
        fixture.repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() }).expect("readable");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(report.entries > FOLD * 2);
    assert_eq!(fixture.repo.history(&fixture.main, 9).expect("readable").len(), 1, "through a folded entry");
}

/// The entries of a snapshot with its acquire and its release must not cost a disk block each for long.
#[test]
fn no_full_block_stays_unfolded_whichever_numbers_releases_get() {
    let fixture = Fixture::new();
    for round in 0..FOLD * 2 {
        fixture.write("file", round.to_string().as_bytes());
        let session = fixture.acquire().expect("a free lock").session.session_id;
        // Releases get every third number, and then every fourth.
        fixture.snapshot(&session).expect("ours");
        if round >= FOLD {
            fixture.snapshot(&session).expect("ours");
        }
        fixture.repo.lock(&fixture.main).release(&session).expect("ours");
        let newest = fixture.repo.status(&fixture.main).expect("readable").newest_entry.0;
        let files: BTreeSet<u64> = (1..=newest).map(|n| inode(&fixture, n)).collect();
        let full_blocks = (newest - 1) / FOLD;
        assert_eq!(files.len() as u64, full_blocks + newest - full_blocks * FOLD, "newest={newest}");
    }
}

/// A writer reads the sequence, pauses while other entries are appended and folded, and resumes.
#[test]
fn a_writer_that_slept_through_a_fold_still_finds_its_number_taken() {
    let fixture = Fixture::new();
    let (layout, id) = (fixture.repo.layout(), &fixture.main.worktree_id);
    let stale = layout.tmp().join("stale");
    std::fs::copy(layout.entry(id, EntryNumber(1)), &stale).expect("readable");
    grow(&fixture, FOLD + 3);
    assert_eq!(inode(&fixture, 2), inode(&fixture, FOLD), "entry 2 has been folded");
    let late = RealFs.link(&stale, &layout.entry(id, EntryNumber(2))).expect_err("its number is taken");
    assert_eq!(late.kind(), std::io::ErrorKind::AlreadyExists);
}

/// Two hosts shared a repository on JuiceFS, whose clients cache names for a second. One folded entries, and the other could
/// not open the newest one that it had listed: its acquire failed with `E_DAMAGED`, and told the user to run `doctor`.
#[test]
fn an_entry_that_a_name_cache_still_has_as_it_was_before_a_fold_is_waited_for() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let failures = Arc::new(AtomicU64::new(0));
    let counted = failures.clone();
    let caching = HookedFs::new(move |call, path| {
        let is_entry = call == Call::Read && path.parent().is_some_and(|dir| dir.ends_with("main.d"));
        if is_entry && path.ends_with("2") && counted.fetch_add(1, Ordering::SeqCst) < 3 {
            return CallOutcome::Fail(std::io::ErrorKind::NotFound.into());
        }
        CallOutcome::Proceed
    });
    let elsewhere = fixture.seen_by(Arc::new(caching), fixture.clock.clone());
    elsewhere.lock(&fixture.main).renew(&session).expect("the entry is there");
    assert!(failures.load(Ordering::SeqCst) > 3, "it was read again");
}

#[test]
fn a_crash_while_folding_loses_nothing_and_is_repaired() {
    // From 1, because opening the repository is a call too.
    for at in (1..46).step_by(short_or_long(9, 1)) {
        let fixture = Fixture::new();
        grow(&fixture, FOLD - 1);
        let session = fixture.acquire().expect("a free lock").session.session_id;
        let (layer, death) = HookedFs::dying_at(at, 2);
        let dying = fixture.seen_by_the_dead(Arc::new(layer));
        let newest = fixture.repo.status(&fixture.main).expect("readable").newest_entry;
        let sequence = Sequence::new(dying.env(), dying.layout(), &fixture.main.worktree_id);
        drop(sequence.fold_below(EntryNumber(FOLD + 2)));
        let made = death.calls.load(std::sync::atomic::Ordering::SeqCst);
        assert!(made > at, "the crash comes while folding, at={at} calls={made}");
        fixture.repo.lock(&fixture.main).release(&session).expect("folding decides nothing");
        let again = fixture.repo.acquire(&fixture.main, &request()).expect("a free lock");
        assert!(again.lock.fencing_token.entry() > newest);
        let mended = fixture
            .repo
            .doctor(DoctorRequest { strict: true, repair: true, ..DoctorRequest::default() })
            .expect("readable");
        assert!(mended.is_healthy(), "at={at} {:?}", mended.findings);
    }
}
