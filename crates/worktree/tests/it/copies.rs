//! Forks, single paths, clones, ignored names, shared repositories and full disks.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use worktree::clock::SystemClock;
use worktree::doctor::DoctorRequest;
use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::ids::SessionId;
use worktree::policy::LockPolicy;
use worktree::repo::{NewWorktree, Repo};
use worktree::restore::RestoreRequest;
use worktree::tree::{NoProgress, RelPath};

use crate::support::layer::{Call, CallOutcome, HookedFs};
use crate::support::{Fixture, class, env, new_worktree};

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_ref()).expect("a plain path")
}

fn request(session: &SessionId, discard_changes: bool) -> RestoreRequest<'static> {
    RestoreRequest { session: Some(session.clone()), discard_changes, progress: &NoProgress }
}

fn read(fixture: &Fixture, name: &str) -> String {
    std::fs::read_to_string(fixture.payload(name)).unwrap_or_else(|error| format!("{name}: {error}"))
}

#[test]
fn a_fork_has_the_files_and_the_lineage_of_its_snapshot() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write("file", b"one");
    let one = fixture.snapshot(&session).expect("held").descriptor;
    fixture.write("file", b"two");
    let fork =
        fixture.repo.fork(&one, new_worktree("fork", fixture.main.mode), &NoProgress).expect("a new name");
    let forked = fixture.repo.payload(&fork).join("file");
    assert_eq!(std::fs::read(&forked).expect("there"), b"one");
    assert_eq!(fixture.repo.head(&fork).expect("readable"), Some(one.snapshot_id.clone()));
    std::fs::write(&forked, b"of the fork").expect("ours");
    assert_eq!(read(&fixture, "file"), "two", "the files are copies");
    let lock = fixture.repo.acquire(&fork, &crate::support::request()).expect("the fork's lock is free");
    let next = crate::support::snapshot(
        &fixture.repo,
        &fork,
        Some(&lock.session.session_id),
        worktree::snapshot::Consistency::Quiesced,
    );
    assert_eq!(next.expect("held").descriptor.parent, Some(one.snapshot_id.clone()));
    // The directory has files of its own: nothing of them is lost, and no worktree is left behind.
    let taken = fixture.repo.layout().root().join("taken");
    std::fs::create_dir(&taken).expect("ours");
    std::fs::write(taken.join("precious"), b"x").expect("ours");
    let refused = fixture.repo.fork(&one, new_worktree("taken", fixture.main.mode), &NoProgress);
    assert_eq!(class(refused), ErrorClass::Invalid);
    assert_eq!(std::fs::read(taken.join("precious")).expect("kept"), b"x");
    assert_eq!(class(fixture.repo.worktree(&"taken".parse().expect("a name"))), ErrorClass::NotFound);
}

#[test]
fn a_single_path_is_restored_and_the_rest_stays() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write("dir/a", b"a1");
    fixture.write("dir/b", b"b1");
    fixture.write("other", b"o1");
    let one = fixture.snapshot(&session).expect("held").descriptor;
    fixture.write("dir/a", b"a2");
    std::fs::remove_file(fixture.payload("dir/b")).expect("ours");
    fixture.write("other", b"o2");
    let two = fixture.snapshot(&session).expect("held").descriptor;
    let restore = |text: &str, discard| {
        fixture.repo.restore_path(&fixture.main, &one, &path(text), &request(&session, discard))
    };
    assert!(!restore("dir/b", false).expect("nothing is in its place").replaced);
    assert!(restore("dir/a", false).expect("it is saved").replaced);
    assert_eq!((read(&fixture, "dir/a").as_str(), read(&fixture, "dir/b").as_str()), ("a1", "b1"));
    assert_eq!(read(&fixture, "other"), "o2", "the rest stays");
    assert_eq!(fixture.repo.head(&fixture.main).expect("readable"), Some(two.snapshot_id), "the head too");
    fixture.write("dir/a", b"precious");
    let refused = restore("dir", false).expect_err("unsaved");
    assert!(refused.detail().contains("--discard-changes"), "{refused}");
    assert_eq!(read(&fixture, "dir/a"), "precious");
    restore("dir", true).expect("told to discard");
    assert_eq!((read(&fixture, "dir/a").as_str(), read(&fixture, "dir/b").as_str()), ("a1", "b1"));
    std::fs::remove_dir_all(fixture.payload("dir")).expect("ours");
    restore("dir/b", true).expect("the directory is made again");
    assert_eq!(read(&fixture, "dir/b"), "b1");
    assert_eq!(class(restore("none", true)), ErrorClass::NotFound);
    assert_eq!(class(restore(".", true)), ErrorClass::Invalid);
    let unlocked = RestoreRequest { session: None, discard_changes: true, progress: &NoProgress };
    let refused = fixture.repo.restore_path(&fixture.main, &one, &path("other"), &unlocked);
    assert_eq!(class(refused), ErrorClass::LockNotHeld);
}

/// What is written between the comparison and the swap was in no snapshot, and would be gone.
#[test]
fn a_path_that_changes_while_it_is_replaced_is_kept() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write("file", b"one");
    let one = fixture.snapshot(&session).expect("held").descriptor;
    let target = fixture.payload("file");
    let fs = HookedFs::new(move |call, path| {
        if call == Call::MakeDir && path.to_string_lossy().contains("/restores/") {
            std::fs::write(&target, b"precious").expect("ours");
        }
        CallOutcome::Proceed
    });
    let repo = fixture.seen_by(Arc::new(fs), fixture.clock.clone());
    let restored = repo.restore_path(&fixture.main, &one, &path("file"), &request(&session, false));
    let kept = restored.expect("swapped").rescued.expect("it is told where");
    assert_eq!(std::fs::read(kept).expect("kept"), b"precious");
    assert_eq!(read(&fixture, "file"), "one");
}

#[test]
fn a_clone_has_all_snapshots_an_id_of_its_own_and_no_lock() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write("file", b"one");
    fixture.write("same", b"unchanged");
    crate::support::let_files_settle();
    let one = fixture.snapshot(&session).expect("held").descriptor;
    fixture.write("file", b"two");
    let two = fixture.snapshot(&session).expect("held").descriptor;
    fixture.repo.add_tag(&"base".parse().expect("a tag"), &one).expect("new");
    let root = fixture.dir.path().join("clone");
    std::fs::create_dir(&root).expect("ours");
    let others = env(fixture.dir.path(), Arc::new(RealFs), Arc::new(SystemClock::new()));
    let cloned = fixture.repo.clone_into(others, &root, &NoProgress).expect("an empty directory");
    assert_eq!((cloned.worktrees, cloned.snapshots), (1, 2));
    assert_ne!(cloned.repo.record().repo_id, fixture.repo.record().repo_id);
    let main = cloned.repo.worktree(&fixture.main.worktree_id).expect("cloned");
    assert_eq!(cloned.repo.head(&main).expect("readable"), Some(two.snapshot_id));
    assert_eq!(std::fs::read(root.join("main/file")).expect("there"), b"two");
    assert_eq!(cloned.repo.find(&main, "base").expect("tagged").snapshot_id, one.snapshot_id);
    for snapshot in cloned.repo.history(&main, 9).expect("readable") {
        cloned.repo.verify(&snapshot, &NoProgress).expect("intact");
    }
    assert_eq!(class(cloned.repo.lock(&main).renew(&session)), ErrorClass::LockNotHeld, "another repository");
    let lock = cloned.repo.acquire(&main, &crate::support::request()).expect("no lock was copied");
    cloned.repo.lock(&main).release(&lock.session.session_id).expect("held");
    let request = DoctorRequest { strict: true, ..DoctorRequest::default() };
    let report = cloned.repo.doctor(request).expect("it can be examined");
    assert!(report.is_healthy(), "{report:?}");
    fixture.repo.lock(&fixture.main).renew(&session).expect("the original's lock is untouched");
}

/// A clone was refused as soon as one snapshot was damaged, or one layer was no snapshot any more.
#[test]
fn a_clone_leaves_out_what_is_damaged_and_has_the_rest() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write("same", b"unchanged");
    crate::support::let_files_settle();
    let take = |text: &[u8]| {
        fixture.write("file", text);
        fixture.snapshot(&session).expect("held").descriptor
    };
    let [one, two, three] = [b"1", b"2", b"3"].map(|text| take(text));
    assert_eq!(three.base.as_ref(), Some(&two.snapshot_id), "a layer of the last");
    let layout = fixture.repo.layout();
    std::fs::write(layout.snapshot_ready(&two.snapshot_id), b"{").expect("ours");
    std::fs::write(layout.worktree_file(&"bad".parse().expect("an id")), b"").expect("ours");
    let root = fixture.dir.path().join("clone");
    std::fs::create_dir(&root).expect("ours");
    let others = env(fixture.dir.path(), Arc::new(RealFs), Arc::new(SystemClock::new()));
    let cloned = fixture.repo.clone_into(others, &root, &NoProgress).expect("the rest");
    let damaged: Vec<&str> = cloned.damaged.iter().map(|record| record.subject.as_str()).collect();
    assert_eq!(damaged, ["bad", two.snapshot_id.as_str()]);
    let main = cloned.repo.worktree(&fixture.main.worktree_id).expect("cloned");
    let history = cloned.repo.history(&main, 9).expect("readable");
    let ids: Vec<_> = history.iter().map(|snapshot| &snapshot.snapshot_id).collect();
    assert_eq!(ids, [&three.snapshot_id, &one.snapshot_id]);
    for snapshot in &history {
        cloned.repo.verify(snapshot, &NoProgress).expect("intact");
    }
    assert_eq!(std::fs::read(root.join("main/file")).expect("there"), b"3");
    let request = DoctorRequest { strict: true, ..DoctorRequest::default() };
    let report = cloned.repo.doctor(request).expect("it can be examined");
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn a_clone_without_a_readable_head_has_the_other_snapshots() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write("file", b"1");
    let one = fixture.snapshot(&session).expect("held").descriptor;
    fixture.write("file", b"2");
    let two = fixture.snapshot(&session).expect("held").descriptor;
    std::fs::write(fixture.repo.layout().snapshot_ready(&two.snapshot_id), b"{").expect("ours");
    let root = fixture.dir.path().join("clone");
    std::fs::create_dir(&root).expect("ours");
    let others = env(fixture.dir.path(), Arc::new(RealFs), Arc::new(SystemClock::new()));
    let cloned = fixture.repo.clone_into(others, &root, &NoProgress).expect("the rest");
    let damaged: Vec<&str> = cloned.damaged.iter().map(|record| record.subject.as_str()).collect();
    assert_eq!(damaged, [two.snapshot_id.as_str(), "main"], "the snapshot, and the worktree without files");
    let main = cloned.repo.worktree(&fixture.main.worktree_id).expect("cloned");
    assert_eq!(cloned.repo.head(&main).expect("readable"), None);
    let history = cloned.repo.history(&main, 9).expect("readable");
    assert!(history.len() == 1 && history[0].snapshot_id == one.snapshot_id, "{history:?}");
}

#[test]
fn ignored_names_are_in_no_snapshot_and_are_no_change() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write(".jvsignore", b"Temp/\n*.log\n");
    fixture.write("kept", b"x");
    fixture.write("Temp/deep/file", b"x");
    fixture.write("a.log", b"x");
    let socket =
        std::os::unix::net::UnixListener::bind(fixture.payload("Temp/socket")).expect("a short path");
    let taken = fixture.snapshot(&session).expect("the socket is ignored").descriptor;
    drop(socket);
    let names = fixture.repo.stored_names(&taken, &RelPath::ROOT).expect("readable");
    let names: Vec<&str> = names.iter().map(|name| name.path.as_str()).collect();
    assert_eq!(names, [".jvsignore", "kept"]);
    let changes = fixture.repo.diff_files(&fixture.main, Some(&taken), &NoProgress).expect("readable");
    assert!(changes.is_empty(), "{changes:?}");
    let refused = fixture.repo.restore(&fixture.main, &taken, &request(&session, false));
    assert_eq!(class(refused), ErrorClass::Invalid, "a restore would remove them, and asks first");
    fixture.write(".jvsignore", b"[open");
    let wrong = fixture.snapshot(&session).expect_err("the pattern has no end");
    assert!(wrong.detail().contains("line=1"), "{wrong}");
}

#[test]
fn a_copy_that_does_not_fit_is_refused_before_it_begins() {
    let fixture = Fixture::new();
    let session = fixture.acquire().expect("free").session.session_id;
    fixture.write("large", &vec![7; 100_000]);
    let full = fixture.seen_by(Arc::new(HookedFs::with_free_bytes(50_000)), fixture.clock.clone());
    let take = |repo: &Repo| {
        crate::support::snapshot(
            repo,
            &fixture.main,
            Some(&session),
            worktree::snapshot::Consistency::Quiesced,
        )
    };
    let refused = take(&full).expect_err("too little space");
    assert_eq!(refused.class(), ErrorClass::Io);
    assert_eq!(refused.facts()["free_bytes"], 50_000);
    assert!(refused.detail().contains("jvs gc"), "{refused}");
    assert_eq!(std::fs::read_dir(fixture.repo.layout().snapshots()).expect("readable").count(), 0);
    let taken = take(&fixture.repo).expect("enough space").descriptor;
    let restored = full.restore(&fixture.main, &taken, &request(&session, true));
    assert!(restored.expect_err("too little space").facts().contains_key("needed_bytes"));
}

#[test]
fn a_shared_repository_belongs_to_the_group() {
    let dir = crate::support::scratch();
    let root = dir.path().join("repo");
    std::fs::create_dir(&root).expect("ours");
    let env = env(dir.path(), Arc::new(RealFs), Arc::new(SystemClock::new()));
    let repo = Repo::init_shared(env.clone(), &root, LockPolicy::DEFAULT).expect("an empty directory");
    assert!(repo.record().shared);
    for dir in [root.clone(), root.join(".jvs"), root.join(".jvs/locks"), root.join(".jvs/tmp")] {
        let mode = dir.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o2070, 0o2070, "{}", dir.display());
    }
    let new = NewWorktree {
        worktree_id: "main".parse().expect("a name"),
        path: PathBuf::from("main").try_into().expect("a path"),
        mode: worktree::worktree::Mode::Exclusive,
        policy: LockPolicy::DEFAULT,
    };
    repo.add_worktree(new).expect("new");
    let main = root.join("main").metadata().expect("there");
    assert_eq!((main.mode() & 0o2000, main.gid()), (0o2000, root.metadata().expect("there").gid()));
    assert!(Repo::open(env, &root).expect("it exists").record().shared, "later commands know");
}
