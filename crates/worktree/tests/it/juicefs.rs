//! JuiceFS: its clone command, played by a script that takes the same arguments and refuses an existing target as the
//! command does; and JuiceFS itself, where `.ci/juicefs` has mounted a volume twice.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use worktree::clock::{Clock, SystemClock};
use worktree::doctor::DoctorRequest;
use worktree::env::Env;
use worktree::error::ErrorClass;
use worktree::fs::{Fs, RealFs};
use worktree::ids::{Entropy, SessionId, SystemEntropy};
use worktree::policy::LockPolicy;
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::snapshot::{Consistency, Descriptor};
use worktree::tree::NoProgress;
use worktree::worktree::Mode;

use crate::support::layer::HookedFs;
use crate::support::{Fixture, env, let_files_settle, new_worktree, request, scratch, snapshot};

/// `juicefs clone --preserve SRC DST`; every call is a line of `calls`.
fn stand_in(dir: &Path, action: &str) -> PathBuf {
    let command = dir.join("juicefs");
    let script = format!(
        "#!/bin/sh\n\
         [ \"$1\" = clone ] && [ \"$2\" = --preserve ] && [ $# = 4 ] || exit 64\n\
         [ -d \"$3\" ] && [ ! -e \"$4\" ] || exit 65\n\
         echo \"$3\" >> '{}'\n{action}\n",
        dir.join("calls").display()
    );
    fs::write(&command, script).expect("writable");
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).expect("ours");
    command
}

fn calls(fixture: &Fixture) -> usize {
    fs::read_to_string(fixture.dir.path().join("calls")).map_or(0, |text| text.lines().count())
}

fn on_juicefs(fixture: &Fixture, action: &str) -> Repo {
    let command = stand_in(fixture.dir.path(), action);
    fixture.seen_by(Arc::new(HookedFs::with_clone_command(command)), fixture.clock.clone())
}

/// Two mounts of one volume, and the directory that has its data; none unless `.ci/juicefs` runs the tests.
fn volume() -> Option<[PathBuf; 3]> {
    let Some(paths) = std::env::var_os("JVS_TEST_JUICEFS") else {
        println!("skipped: needs JuiceFS; run .ci/juicefs");
        return None;
    };
    let paths: Vec<PathBuf> = std::env::split_paths(&paths).collect();
    Some(paths.try_into().expect("two mounts and the data"))
}

fn real_env(sessions: &Path) -> Env {
    env(sessions, Arc::new(RealFs), Arc::new(SystemClock::new()))
}

fn allocated(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable"));
    entries
        .map(|entry| {
            let meta = entry.path().symlink_metadata().expect("there");
            if meta.is_dir() { allocated(&entry.path()) } else { meta.blocks() * 512 }
        })
        .sum()
}

/// More than the size from which a file is copied by `copy_file_range`.
const LARGE: usize = 40 << 20;

/// A whole snapshot, one of a changed file and a restore store no data again.
/// In pieces of 4 MiB, the copy of a large file became many references to its data, which JuiceFS compacted when it was read:
/// the data was stored twice.
#[test]
fn on_juicefs_itself_a_snapshot_and_a_restore_are_clones() {
    let Some([mount, _, data]) = volume() else { return };
    let (dir, sessions) = (tempfile::tempdir_in(&mount).expect("writable"), scratch());
    assert!(RealFs.clone_command(dir.path()).is_some(), "the mount is recognised");
    let repo = Repo::init(real_env(sessions.path()), dir.path(), LockPolicy::DEFAULT).expect("empty");
    let main = repo.add_worktree(new_worktree("main", Mode::Exclusive)).expect("a new name");
    let files = repo.payload(&main);
    let random = || {
        let mut bytes = vec![0; LARGE];
        SystemEntropy.fill(&mut bytes);
        bytes
    };
    let large = random();
    fs::create_dir(files.join("dir")).expect("writable");
    fs::write(files.join("dir/large"), &large).expect("writable");
    fs::hard_link(files.join("dir/large"), files.join("linked")).expect("writable");
    std::os::unix::fs::symlink("linked", files.join("symbolic")).expect("writable");
    let stored = allocated(&data);
    assert!(stored > LARGE as u64, "the data is where it is expected");
    let session = repo.acquire(&main, &request()).expect("a free lock").session.session_id;
    let first = snapshot(&repo, &main, Some(&session), Consistency::Quiesced).expect("held").descriptor;
    fs::remove_file(files.join("linked")).expect("writable");
    fs::write(files.join("dir/large"), random()).expect("writable");
    snapshot(&repo, &main, Some(&session), Consistency::Quiesced).expect("held");
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: false, progress: &NoProgress };
    repo.restore(&main, &first, &request).expect("held");
    // Compaction runs in the background.
    SystemClock::new().wait(4_000);
    let now = allocated(&data);
    assert!(now < stored + LARGE as u64 + (1 << 20), "data was stored again: before={stored} now={now}");
    assert!(fs::read(files.join("dir/large")).expect("restored") == large);
    let inode = |name: &str| fs::metadata(files.join(name)).expect("restored").ino();
    assert_eq!((inode("linked"), inode("symbolic")), (inode("dir/large"), inode("dir/large")));
    for one in repo.history(&main, 10).expect("readable") {
        repo.verify(&one, &NoProgress).expect("intact");
    }
    repo.lock(&main).release(&session).expect("held");
    let report = repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() }).expect("readable");
    assert!(report.is_healthy(), "{report:?}");
}

/// Each client caches names and attributes for a second.
#[test]
fn two_clients_of_juicefs_never_get_the_same_token() {
    let Some([one, other, _]) = volume() else { return };
    let (dir, sessions) = (tempfile::tempdir_in(&one).expect("writable"), [scratch(), scratch()]);
    let repo = Repo::init(real_env(sessions[0].path()), dir.path(), LockPolicy::DEFAULT).expect("empty");
    repo.add_worktree(new_worktree("main", Mode::Exclusive)).expect("a new name");
    let there = other.join(dir.path().file_name().expect("a name"));
    let work = |root: &Path, sessions: &Path| {
        let repo = Repo::open(real_env(sessions), root).expect("it exists");
        let main = repo.worktree(&"main".parse().expect("a name")).expect("it exists");
        let mut tokens = Vec::new();
        while tokens.len() < 20 {
            match repo.acquire(&main, &request()) {
                Ok(acquired) => {
                    tokens.push(acquired.lock.fencing_token);
                    repo.lock(&main).release(&acquired.session.session_id).expect("held");
                }
                Err(error) => {
                    assert_eq!(error.class(), ErrorClass::LockConflict, "{error}");
                    SystemClock::new().wait(5);
                }
            }
        }
        tokens
    };
    let tokens: Vec<_> = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| work(&there, sessions[1].path()));
        let ours = work(dir.path(), sessions[0].path());
        ours.into_iter().chain(theirs.join().expect("no panic")).collect()
    });
    assert_eq!(tokens.iter().collect::<BTreeSet<_>>().len(), 40, "{tokens:?}");
    // Longer than the other client's names are cached.
    SystemClock::new().wait(1_500);
    let report = repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() }).expect("readable");
    assert!(report.is_healthy(), "{report:?}");
}

/// A tree with all that a copy keeps.
fn fill(fixture: &Fixture) {
    fixture.write(".jvsignore", b"*.log\n");
    fixture.write("ignored.log", b"x");
    fixture.write("dir/file", b"one");
    fixture.write("dir/sub/empty", b"");
    fs::hard_link(fixture.payload("dir/file"), fixture.payload("dir/linked")).expect("ours");
    std::os::unix::fs::symlink("dir/file", fixture.payload("symbolic")).expect("ours");
    fs::set_permissions(fixture.payload("dir/sub"), fs::Permissions::from_mode(0o2750)).expect("ours");
    fs::set_permissions(fixture.payload("dir/file"), fs::Permissions::from_mode(0o440)).expect("ours");
}

fn take(repo: &Repo, fixture: &Fixture, session: &SessionId) -> Descriptor {
    snapshot(repo, &fixture.main, Some(session), Consistency::Quiesced).expect("held").descriptor
}

fn restore(repo: &Repo, fixture: &Fixture, session: &SessionId, to: &Descriptor) {
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: true, progress: &NoProgress };
    repo.restore(&fixture.main, to, &request).expect("held");
}

/// Whatever the command keeps or forgets, the result is that of a copy.
#[test]
fn a_clone_gives_the_same_snapshot_and_the_same_files_as_a_copy() {
    let faithful = "cp -a \"$3\" \"$4\"";
    let forgetful = "cp -r \"$3\" \"$4\" && chmod -R 777 \"$4\" && touch -d @1 \"$4/dir/sub/empty\"";
    let incomplete = "cp -a \"$3\" \"$4\" && rm \"$4/.jvsignore\" && printf longer > \"$4/dir/sub/empty\"";
    for action in [faithful, forgetful, incomplete] {
        let fixture = Fixture::new();
        fill(&fixture);
        let session = fixture.acquire().expect("a free lock").session.session_id;
        let copied = take(&fixture.repo, &fixture, &session);
        fs::remove_dir_all(fixture.repo.layout().indexes()).expect("a cache");
        let repo = on_juicefs(&fixture, action);
        let cloned = take(&repo, &fixture, &session);
        assert_eq!(calls(&fixture), 1, "one command for the whole tree: {action}");
        assert_eq!(cloned.content_hash, copied.content_hash, "{action}");
        repo.verify(&cloned, &NoProgress).expect("intact");
        restore(&repo, &fixture, &session, &cloned);
        assert_eq!(calls(&fixture), 2, "and one for the restore: {action}");
        let meta = |name: &str| fs::symlink_metadata(fixture.payload(name)).expect("restored");
        assert_eq!(meta("dir/file").ino(), meta("dir/linked").ino(), "{action}");
        assert_eq!((meta("dir/file").mode() & 0o7777, meta("dir/sub").mode() & 0o7777), (0o440, 0o2750));
        assert_ne!(meta("dir/sub/empty").mtime(), 1, "{action}");
        assert!(!fixture.payload("ignored.log").exists(), "it is in no snapshot");
        let again = take(&fixture.repo, &fixture, &session);
        assert_eq!(again.content_hash, copied.content_hash, "{action}");
        let request = DoctorRequest { strict: true, ..DoctorRequest::default() };
        let report = fixture.repo.doctor(request).expect("readable");
        assert!(report.is_healthy(), "{report:?}");
    }
}

/// Only what changed is stored again; a restore clones the layer that has most files, and copies the rest over it.
#[test]
fn a_restore_clones_the_oldest_layer_and_copies_the_others() {
    let fixture = Fixture::new();
    fill(&fixture);
    (0..10).for_each(|n| fixture.write(&format!("still{n}"), b"x"));
    let_files_settle();
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let repo = on_juicefs(&fixture, "cp -a \"$3\" \"$4\"");
    let first = take(&repo, &fixture, &session);
    // The same size as before: only the layer shows that the clone has the old bytes.
    fixture.write("changed", b"new");
    fs::remove_file(fixture.payload("dir/sub/empty")).expect("ours");
    fs::create_dir(fixture.payload("dir/sub/empty")).expect("ours");
    let second = take(&repo, &fixture, &session);
    assert_eq!((second.base.as_ref(), calls(&fixture)), (Some(&first.snapshot_id), 1));
    fixture.write("changed", b"NEW");
    let third = take(&repo, &fixture, &session);
    restore(&repo, &fixture, &session, &second);
    assert_eq!(calls(&fixture), 2);
    assert_eq!(fs::read(fixture.payload("changed")).expect("restored"), b"new");
    assert!(fixture.payload("dir/sub/empty").is_dir());
    restore(&repo, &fixture, &session, &third);
    assert_eq!(fs::read(fixture.payload("changed")).expect("restored"), b"NEW");
}

/// Without the command, or if it fails, everything is copied, and nothing of a failed clone is left.
#[test]
fn a_clone_that_fails_becomes_a_copy() {
    for action in ["exit 1", "mkdir \"$4\" && echo torn > \"$4/torn\" && exit 1", "true", "touch \"$4\""] {
        let fixture = Fixture::new();
        fill(&fixture);
        let session = fixture.acquire().expect("a free lock").session.session_id;
        let taken = take(&on_juicefs(&fixture, action), &fixture, &session);
        fixture.repo.verify(&taken, &NoProgress).expect("intact");
        assert!(!fixture.repo.layout().snapshot_tree(&taken.snapshot_id).join("torn").exists());
    }
    let fixture = Fixture::new();
    fill(&fixture);
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let missing = HookedFs::with_clone_command(PathBuf::from("/nonexistent/juicefs"));
    take(&fixture.seen_by(Arc::new(missing), fixture.clock.clone()), &fixture, &session);
}
