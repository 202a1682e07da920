//! `doctor --repair` on a worktree whose sequence is damaged.
//!
//! The story: an operator removed what looked like stale locks (`rm .jvs/locks/main.d/4`, or all of
//! `.jvs/locks`) and ran `jvs doctor --repair`. Bisection took the hole for the end of the sequence, so every
//! snapshot that was published after it looked as if it had been begun and never published. All of them were
//! deleted, and the report said `healthy`. The same happened to a backup that copied the locks before the
//! snapshots, and through a mount whose name cache did not show the newest entry yet.
//!
//! So repair removes only litter of worktrees whose sequence is whole, and never a snapshot that has a
//! descriptor and no intent: the intent is removed after the publish, so such a snapshot was published.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use worktree::doctor::{DoctorReport, DoctorRequest, Finding};
use worktree::ids::{EntryNumber, SessionId, SnapshotId};
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::snapshot::{Consistency, Descriptor};
use worktree::tree::NoProgress;
use worktree::worktree::{Mode, Worktree};

use crate::support::layer::{Call, CallOutcome, HookedFs, crash};
use crate::support::{Fixture, new_worktree, request, snapshot};

/// The newest entry of `main` in [`fixture_with_litter`].
const NEWEST: u64 = 9;

/// Entries of `main`: 1 create, 2 acquire, 3 to 7 publish, 8 restore, 9 release. Its litter, all of it left
/// by dead processes: the stage of the restore, a snapshot with an intent and no descriptor, and one with
/// both. The second worktree, `other`, has a published snapshot and the same two unfinished ones.
fn fixture_with_litter() -> (Fixture, Worktree) {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let mut published = Vec::new();
    for n in 3..=7 {
        fixture.write("file", format!("content {n}").as_bytes());
        // Best effort, because a quiesced one waits until the files have been at rest.
        let taken = snapshot(&fixture.repo, &fixture.main, Some(&session), Consistency::BestEffort);
        published.push(taken.expect("the holder's own").descriptor);
    }
    restore_and_die(&fixture, &published[0], &session);
    fixture.repo.lock(&fixture.main).release(&session).expect("the holder's own");
    let other = fixture.repo.add_worktree(new_worktree("other", Mode::Shared)).expect("a new name");
    snapshot(&fixture.repo, &other, None, Consistency::BestEffort).expect("a shared worktree");
    for worktree in [&fixture.main, &other] {
        snapshot_and_die(&fixture, worktree, Death::BeforeReady);
        snapshot_and_die(&fixture, worktree, Death::BeforePublish);
    }
    assert_eq!(fixture.repo.status(&fixture.main).expect("readable").newest_entry.0, NEWEST);
    (fixture, other)
}

/// The restore is committed, and its process dies before the swap.
fn restore_and_die(fixture: &Fixture, snapshot: &Descriptor, session: &SessionId) {
    let layer = HookedFs::killed_from(Call::Exchange);
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: true, progress: &NoProgress };
    let dying = fixture.seen_by_the_dead(Arc::new(layer));
    assert!(dying.restore(&fixture.main, snapshot, &request).is_err(), "it dies before the swap");
}

/// Which link a snapshot's process dies at.
#[derive(Clone, Copy)]
enum Death {
    BeforeReady,
    BeforePublish,
}

fn snapshot_and_die(fixture: &Fixture, worktree: &Worktree, death: Death) {
    let last = match death {
        Death::BeforeReady => fixture.repo.layout().snapshots(),
        Death::BeforePublish => fixture.repo.layout().locks(),
    };
    let layer = HookedFs::new(move |call, path: &Path| {
        let dead = (call == Call::Link && path.starts_with(&last)) || call == Call::RemoveFile;
        if dead { CallOutcome::Fail(crash()) } else { CallOutcome::Proceed }
    });
    let dying = fixture.seen_by_the_dead(Arc::new(layer));
    assert!(
        snapshot(&dying, worktree, None, Consistency::BestEffort).is_err(),
        "it dies before it publishes"
    );
}

/// Every file below `.jvs` except the temporary ones, with its content; directories have none.
fn inventory(fixture: &Fixture) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut open = vec![fixture.repo.layout().jvs()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).expect("readable") {
            let path = entry.expect("readable").path();
            if path == fixture.repo.layout().tmp() {
                continue;
            }
            if path.is_dir() {
                open.push(path.clone());
                found.insert(path, None);
            } else {
                found.insert(path.clone(), Some(std::fs::read(&path).expect("readable")));
            }
        }
    }
    found
}

/// Whether `path` belongs to one of the snapshots.
fn is_of(fixture: &Fixture, snapshots: &[SnapshotId], path: &Path) -> bool {
    snapshots.iter().any(|id| {
        let layout = fixture.repo.layout();
        path.starts_with(layout.snapshot(id)) || path == layout.intent(id)
    })
}

/// The unfinished snapshots of a worktree, by their intents.
fn unfinished(fixture: &Fixture, worktree: &Worktree) -> Vec<SnapshotId> {
    let of_worktree = format!("\"worktree_id\": \"{}\"", worktree.worktree_id);
    let intents = std::fs::read_dir(fixture.repo.layout().intents()).expect("readable");
    let paths = intents.map(|entry| entry.expect("readable").path());
    paths
        .filter(|path| std::fs::read_to_string(path).expect("readable").contains(&of_worktree))
        .map(|path| path.file_stem().expect("a name").to_str().expect("an id").parse().expect("an id"))
        .collect()
}

fn repair(repo: &Repo) -> DoctorReport {
    repo.doctor(DoctorRequest { strict: true, repair: true, ..DoctorRequest::default() })
        .expect("damage is a finding, not a failure")
}

fn codes(report: &DoctorReport) -> Vec<&str> {
    report.findings.iter().map(|finding: &Finding| finding.code).collect()
}

/// Damages the sequence of `main`, repairs, and checks that everything of `main` is still there, that the
/// damage is reported, and that the litter of the worktree beside it is gone.
fn repair_keeps_everything(damage: impl Fn(&Fixture), story: &str) {
    let (fixture, other) = fixture_with_litter();
    damage(&fixture);
    kept_by(&fixture, &other, &fixture.repo, story);
}

/// The same as `doctor` sees it.
fn kept_by(fixture: &Fixture, other: &Worktree, doctor: &Repo, story: &str) {
    let litter_of_other = unfinished(fixture, other);
    assert_eq!(litter_of_other.len(), 2, "one without a descriptor, one with");
    let before = inventory(fixture);
    for _ in 0..2 {
        let report = repair(doctor);
        assert!(!report.is_healthy(), "{story}: {:?}", report.findings);
    }
    let after = inventory(fixture);
    for (path, bytes) in &before {
        match after.get(path) {
            None => assert!(is_of(fixture, &litter_of_other, path), "{story}: removed {}", path.display()),
            Some(now) => assert_eq!(now, bytes, "{story}: changed {}", path.display()),
        }
    }
    assert!(unfinished(fixture, other).is_empty(), "{story}: the litter of a healthy worktree is removed");
    assert_eq!(fixture.repo.history(other, 9).expect("readable").len(), 1, "{story}");
}

fn entry(fixture: &Fixture, n: u64) -> PathBuf {
    fixture.repo.layout().entry(&fixture.main.worktree_id, EntryNumber(n))
}

fn remove_entries(fixture: &Fixture, numbers: impl IntoIterator<Item = u64>) {
    for n in numbers {
        std::fs::remove_file(entry(fixture, n)).expect("there");
    }
}

#[test]
fn repair_removes_nothing_when_an_entry_is_missing() {
    // 2, 4 and 8 are where bisection looks first; the others are found missing only when they are read.
    for n in 1..NEWEST {
        repair_keeps_everything(|fixture| remove_entries(fixture, [n]), &format!("without entry {n}"));
    }
}

#[test]
fn repair_removes_nothing_when_the_tail_is_cut_off() {
    // A snapshot that is READY and has no intent shows that its publish is lost.
    for first in 2..=7 {
        let story = format!("without the entries from {first}");
        repair_keeps_everything(|fixture| remove_entries(fixture, first..=NEWEST), &story);
    }
}

#[test]
fn repair_removes_nothing_when_the_sequence_is_gone() {
    repair_keeps_everything(|fixture| remove_entries(fixture, 1..=NEWEST), "without all entries");
    let remove_dir = |fixture: &Fixture| {
        std::fs::remove_dir_all(fixture.repo.layout().sequence(&fixture.main.worktree_id)).expect("there");
    };
    repair_keeps_everything(remove_dir, "without the sequence's directory");
}

#[test]
fn repair_removes_nothing_when_an_entry_is_corrupt() {
    for n in 1..=NEWEST {
        let cut_short = |fixture: &Fixture| {
            let bytes = std::fs::read(entry(fixture, n)).expect("there");
            std::fs::write(entry(fixture, n), &bytes[..bytes.len() / 2]).expect("writable");
        };
        repair_keeps_everything(cut_short, &format!("with half of entry {n}"));
        let emptied = |fixture: &Fixture| std::fs::write(entry(fixture, n), b"").expect("writable");
        repair_keeps_everything(emptied, &format!("with entry {n} empty"));
    }
}

#[test]
fn repair_removes_nothing_when_the_hash_chain_is_broken() {
    for n in 1..NEWEST {
        let alter = |fixture: &Fixture| {
            let text = std::fs::read_to_string(entry(fixture, n)).expect("there");
            let altered = text.replace("\"attempt\":\"", "\"attempt\":\"00");
            assert_ne!(text, altered);
            std::fs::write(entry(fixture, n), altered).expect("writable");
        };
        repair_keeps_everything(alter, &format!("with entry {n} altered"));
    }
}

/// The lock was granted and renewed, and then its entry was lost. The copy for readers and the renewal name a
/// token that the sequence does not have: they are evidence of the loss, not litter.
#[test]
fn a_lock_copy_and_a_renewal_ahead_of_the_sequence_are_evidence_of_a_lost_tail() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    fixture.repo.lock(&fixture.main).renew(&session).expect("the holder's own");
    let copy = fixture.repo.layout().lock_copy(&fixture.main.worktree_id);
    for without_copy in [false, true] {
        if without_copy {
            std::fs::remove_file(&copy).expect("there");
        } else {
            remove_entries(&fixture, [2]);
        }
        let before = inventory(&fixture);
        let report = repair(&fixture.repo);
        assert!(codes(&report).contains(&"audit_broken"), "{:?}", report.findings);
        assert!(!report.is_healthy());
        assert_eq!(inventory(&fixture), before);
        fixture.repo.env().sessions.load(&session).expect("the secret may be needed once the entry is back");
    }
}

/// A mount with a cache of names that do not exist: the newest entries are listed, and cannot be opened yet.
#[test]
fn repair_through_a_stale_name_cache_removes_nothing() {
    for first_hidden in 3..=NEWEST {
        let (fixture, other) = fixture_with_litter();
        let hidden: Vec<PathBuf> = (first_hidden..=NEWEST).map(|n| entry(&fixture, n)).collect();
        let stale = HookedFs::new(move |call, path| {
            let is_hidden = matches!(call, Call::Meta | Call::Read) && hidden.iter().any(|one| one == path);
            if is_hidden { CallOutcome::Fail(io::ErrorKind::NotFound.into()) } else { CallOutcome::Proceed }
        });
        let doctor = fixture.seen_by(Arc::new(stale), fixture.clock.clone());
        kept_by(&fixture, &other, &doctor, &format!("with the entries from {first_hidden} hidden"));
        assert_eq!(fixture.repo.history(&fixture.main, 9).expect("undamaged").len(), 5);
    }
}

/// The worktree was removed, and with it its record; later someone removed its sequence too.
#[test]
fn snapshots_of_a_removed_worktree_outlive_the_loss_of_its_sequence() {
    let (fixture, _) = fixture_with_litter();
    fixture.repo.remove_worktree(&fixture.main.worktree_id).expect("nobody holds its lock");
    let snapshots = fixture.repo.layout().snapshots();
    std::fs::remove_dir_all(fixture.repo.layout().sequence(&fixture.main.worktree_id)).expect("there");
    let count = || std::fs::read_dir(&snapshots).expect("readable").count();
    let before = count();
    let report = repair(&fixture.repo);
    assert!(!report.is_healthy(), "{:?}", report.findings);
    assert_eq!(count(), before - 2, "only the unfinished ones of `other` are gone");
}

/// A directory that someone put there, a file, and a published snapshot that was renamed by hand.
#[test]
fn repair_leaves_alone_what_has_no_intent() {
    let fixture = Fixture::new();
    fixture.write("file", b"precious");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let published = fixture.snapshot(&session).expect("the holder's own").descriptor;
    let snapshots = fixture.repo.layout().snapshots();
    std::fs::create_dir(snapshots.join("my-old-backup")).expect("writable");
    std::fs::write(snapshots.join("README"), b"do not touch").expect("writable");
    std::fs::rename(
        fixture.repo.layout().snapshot(&published.snapshot_id),
        snapshots.join("renamed-by-hand"),
    )
    .expect("writable");
    let before = inventory(&fixture);
    let report = repair(&fixture.repo);
    assert_eq!(inventory(&fixture), before);
    assert_eq!(codes(&report), ["snapshot_damaged"], "foreign names are no findings: {:?}", report.findings);
    fixture.repo.lock(&fixture.main).renew(&session).expect("the sequence is whole, and the lock stands");
}

#[test]
fn the_litter_of_a_whole_sequence_is_removed() {
    let (fixture, other) = fixture_with_litter();
    let report = repair(&fixture.repo);
    assert!(report.is_healthy(), "{:?}", report.findings);
    let expected = ["partial_snapshot", "restore_left"];
    assert!(expected.iter().all(|code| codes(&report).contains(code)), "{:?}", report.findings);
    assert!(unfinished(&fixture, &fixture.main).is_empty() && unfinished(&fixture, &other).is_empty());
    let kept = std::fs::read_dir(fixture.repo.layout().snapshots()).expect("readable").count();
    assert_eq!(kept, 6, "the published ones: five of main, one of other");
    fixture.repo.acquire(&fixture.main, &request()).expect("a free lock");
}
