//! Folding old entries: space comes back, numbers never do.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use worktree::doctor::DoctorRequest;
use worktree::ids::EntryNumber;
use worktree::sequence::{AppendOutcome, FOLD, Sequence};

use crate::support::layer::Layer;
use crate::support::{World, request, short_or_long};

/// Acquires and releases until the sequence has at least `entries`.
fn grow(world: &World, entries: u64) {
    while world.repo.status(&world.main).expect("readable").newest_entry.0 < entries {
        let session = world.acquire().expect("a free lock").session.session_id;
        world.repo.lock(&world.main).release(&session).expect("ours");
    }
}

fn inode(world: &World, n: u64) -> u64 {
    let path = world.repo.layout().entry(&world.main.worktree_id, EntryNumber(n));
    std::fs::symlink_metadata(path).expect("no number ever disappears").ino()
}

#[test]
fn folded_entries_share_a_file_and_the_audit_still_holds() {
    let world = World::new();
    world.write("file", b"bytes");
    let session = world.acquire().expect("a free lock").session.session_id;
    world.snapshot(&session).expect("ours");
    world.repo.lock(&world.main).release(&session).expect("ours");
    grow(&world, FOLD * 2 + 20);
    assert_eq!(inode(&world, 1), inode(&world, FOLD));
    assert_eq!(inode(&world, FOLD + 1), inode(&world, FOLD * 2));
    assert_ne!(inode(&world, FOLD), inode(&world, FOLD + 1));
    assert_ne!(inode(&world, FOLD * 2), inode(&world, FOLD * 2 + 1), "the newest block stays as it is");
    let report = world.repo.doctor(DoctorRequest { strict: true, repair: false }).expect("readable");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(report.entries > FOLD * 2);
    assert_eq!(world.repo.history(&world.main, 9).expect("readable").len(), 1, "through a folded entry");
}

/// A writer looks, sleeps through hundreds of entries and their folding, and wakes.
#[test]
fn a_writer_that_slept_through_a_fold_still_finds_its_number_taken() {
    let world = World::new();
    let sequence = Sequence::new(world.repo.env(), world.repo.layout(), &world.main.worktree_id);
    let mut stale = sequence.read(EntryNumber(1)).expect("readable").entry;
    stale.n = EntryNumber(2);
    grow(&world, FOLD + 20);
    assert_eq!(inode(&world, 2), inode(&world, FOLD), "entry 2 has been folded");
    assert_eq!(sequence.append(&stale).expect("decided"), AppendOutcome::NumberTaken);
}

#[test]
fn a_crash_while_folding_loses_nothing_and_is_made_good() {
    // From 1, because opening the repository is a call too.
    for at in (1..770).step_by(short_or_long(96, 24)) {
        let world = World::new();
        grow(&world, FOLD - 1);
        let session = world.acquire().expect("a free lock").session.session_id;
        let (layer, death) = Layer::dying_at(at, 2);
        let dying = world.seen_by_the_dead(Arc::new(layer));
        let newest = world.repo.status(&world.main).expect("readable").newest_entry;
        let sequence = Sequence::new(dying.env(), dying.layout(), &world.main.worktree_id);
        drop(sequence.fold_below(EntryNumber(FOLD + 2)));
        let made = death.calls.load(std::sync::atomic::Ordering::SeqCst);
        assert!(made > at, "the crash comes while folding, at={at} calls={made}");
        world.repo.lock(&world.main).release(&session).expect("folding decides nothing");
        let again = world.repo.acquire(&world.main, &request()).expect("a free lock");
        assert!(again.lock.fencing_token.entry() > newest);
        let mended = world.repo.doctor(DoctorRequest { strict: true, repair: true }).expect("readable");
        assert!(mended.is_healthy(), "at={at} {:?}", mended.findings);
    }
}
