//! Real mounts around a worktree: those on which a restore was committed and then could not be done, and a read-only
//! one. They need root; without it, or where mounting is forbidden, the tests are skipped with a message.
//!
//! The stories: a container's volume was a bind mount, and a repository was baked into an image. Each restore failed in
//! its swap, after its entry, and every later command failed with it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use worktree::clock::SystemClock;
use worktree::doctor::DoctorRequest;
use worktree::error::{Error, ErrorClass};
use worktree::fs::RealFs;
use worktree::ids::SessionId;
use worktree::policy::LockPolicy;
use worktree::record::EntryEvent;
use worktree::repo::{NewWorktree, Repo};
use worktree::restore::RestoreRequest;
use worktree::retention::KeepPolicy;
use worktree::snapshot::{Consistency, Descriptor};
use worktree::tree::{NoProgress, RelPath};
use worktree::worktree::{Mode, Worktree};

use crate::support::{env, new_worktree, request, snapshot};

/// A mount that ends with the test.
pub(crate) struct Mount {
    at: PathBuf,
}

impl Mount {
    /// `None` if mounting is not permitted here.
    pub(crate) fn new(at: &Path, arguments: &[&str]) -> Option<Self> {
        let mut mount = Command::new("mount");
        let done = mount.args(arguments).arg(at).stderr(Stdio::null()).status().is_ok_and(|it| it.success());
        if !done {
            println!("skipped: this user may not mount {arguments:?}");
        }
        done.then(|| Self { at: at.to_owned() })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.at).status());
    }
}

pub(crate) fn open_env(dir: &Path) -> worktree::env::Env {
    env(dir, Arc::new(RealFs), Arc::new(SystemClock::new()))
}

/// A repository in `root` with the snapshots "one" and "two" of one file, and its lock held.
pub(crate) fn two_snapshots(dir: &Path, root: &Path) -> (Repo, Worktree, SessionId, [Descriptor; 2]) {
    fs::create_dir(root).expect("writable");
    let repo = Repo::init(open_env(dir), root, LockPolicy::DEFAULT).expect("an empty directory");
    let main = repo.add_worktree(new_worktree("main", Mode::Exclusive)).expect("a new name");
    let session = repo.acquire(&main, &request()).expect("a free lock").session.session_id;
    let taken = ["one", "two"].map(|text| {
        fs::write(repo.payload(&main).join("file"), text).expect("writable");
        snapshot(&repo, &main, Some(&session), Consistency::Quiesced).expect("held").descriptor
    });
    (repo, main, session, taken)
}

fn restore(repo: &Repo, main: &Worktree, session: &SessionId, to: &Descriptor) -> Error {
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: true, progress: &NoProgress };
    repo.restore(main, to, &request).expect_err("it cannot be swapped in")
}

/// Refused with nothing committed, and everything else goes on.
fn assert_refused_and_usable(
    repo: &Repo,
    main: &Worktree,
    session: &SessionId,
    [one, two]: &[Descriptor; 2],
    reason: &str,
) {
    let error = restore(repo, main, session, one);
    assert!(error.detail().contains(reason), "{error}");
    assert_eq!((error.class(), error.facts()["restore"].as_str()), (ErrorClass::Io, Some("not_committed")));
    assert_eq!(repo.head(main).expect("whole").as_ref(), Some(&two.snapshot_id));
    let newest = repo.lock(main).view().expect("whole").newest.event;
    assert!(!matches!(newest, EntryEvent::Restore { .. } | EntryEvent::UndoRestore { .. }), "{newest:?}");
    snapshot(repo, main, Some(session), Consistency::BestEffort).expect("the worktree works as before");
    repo.lock(main).release(session).expect("held");
    let next = repo.acquire(main, &request()).expect("a free lock");
    assert!(next.settled.is_empty());
    let report =
        repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() }).expect("it can be examined");
    assert!(report.is_healthy(), "{report:?}");
}

#[test]
fn a_worktree_that_is_a_bind_mount_is_refused_before_the_commit() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let (repo, main, session, taken) = two_snapshots(dir.path(), &dir.path().join("repo"));
    let volume = dir.path().join("volume");
    fs::create_dir(&volume).expect("writable");
    fs::write(volume.join("file"), "two").expect("writable");
    let text = volume.to_string_lossy().into_owned();
    let Some(_mount) = Mount::new(&repo.payload(&main), &["--bind", &text]) else { return };
    let path = RelPath::parse("file".as_ref()).expect("plain");
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: true, progress: &NoProgress };
    let refused = repo.restore_path(&main, &taken[0], &path, &request).expect_err("another mount than .jvs");
    assert!(refused.detail().contains("another filesystem or mount than .jvs"), "{refused}");
    assert_eq!(fs::read_to_string(volume.join("file")).expect("there"), "two", "nothing was replaced");
    assert_refused_and_usable(&repo, &main, &session, &taken, "mount point");
}

#[test]
fn a_worktree_in_the_lower_layer_of_an_overlay_is_refused_before_the_commit() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| dir.path().join(name));
    for path in [&lower, &upper, &work, &merged] {
        fs::create_dir(path).expect("writable");
    }
    let (baked, main, session, taken) = two_snapshots(dir.path(), &lower.join("repo"));
    baked.lock(&main).release(&session).expect("held");
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let Some(_mount) = Mount::new(&merged, &["-t", "overlay", "overlay", "-o", &options]) else { return };
    let repo = Repo::open(open_env(dir.path()), &merged.join("repo")).expect("it is in the image");
    let session = repo.acquire(&main, &request()).expect("a free lock").session.session_id;
    assert_refused_and_usable(&repo, &main, &session, &taken, "lower layer of an overlay");
}

#[test]
fn records_on_another_filesystem_than_the_worktree_are_refused_before_the_commit() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let (repo, main, session, taken) = two_snapshots(dir.path(), &dir.path().join("repo"));
    let (jvs, moved) = (repo.layout().jvs(), dir.path().join("moved"));
    fs::rename(&jvs, &moved).expect("writable");
    fs::create_dir(&jvs).expect("writable");
    let Some(_mount) = Mount::new(&jvs, &["-t", "tmpfs", "tmpfs"]) else { return };
    let copied = Command::new("cp").args(["-a", "-T"]).args([&moved, &jvs]).status().expect("`cp` exists");
    assert!(copied.success());
    let refused = repo.add_worktree(new_worktree("other", Mode::Shared)).expect_err("another filesystem");
    assert!(refused.detail().contains("the repository's filesystem"), "{refused}");
    assert_refused_and_usable(&repo, &main, &session, &taken, "another filesystem than .jvs");
}

/// Stands for a filesystem that ignores case, on which `MAIN` is `main`: its second name was accepted beside the first.
#[test]
fn a_worktrees_directory_under_another_name_is_refused_at_any_depth() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let root = dir.path().join("repo");
    let (repo, main, ..) = two_snapshots(dir.path(), &root);
    fs::create_dir_all(root.join("area/inner")).expect("writable");
    let at = |name: &str, path: &str| NewWorktree {
        path: PathBuf::from(path).try_into().expect("valid"),
        ..new_worktree(name, Mode::Shared)
    };
    repo.add_worktree(at("inner", "area/inner")).expect("a new name");
    let mut mounts = Vec::new();
    for (name, of) in [("MAIN", repo.payload(&main)), ("AREA", root.join("area"))] {
        fs::create_dir(root.join(name)).expect("writable");
        let of = of.to_string_lossy().into_owned();
        let Some(mount) = Mount::new(&root.join(name), &["--bind", &of]) else { return };
        mounts.push(mount);
    }
    for path in ["MAIN", "MAIN/below", "AREA", "AREA/inner", "AREA/inner/below"] {
        let refused = repo.add_worktree(at("other", path)).expect_err(path);
        assert!(refused.detail().contains("under another name"), "{path}: {refused}");
    }
    repo.add_worktree(at("beside", "AREA/beside")).expect("beside the other worktree");
}

/// A filesystem that went read-only by itself: everything that only reads still works.
#[test]
fn a_read_only_mount_can_be_read_verified_and_examined() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let (repo, main, session, taken) = two_snapshots(dir.path(), &dir.path().join("repo"));
    repo.lock(&main).release(&session).expect("held");
    let at = dir.path().join("read-only");
    fs::create_dir(&at).expect("writable");
    let root = repo.layout().root().to_string_lossy().into_owned();
    let Some(_mount) = Mount::new(&at, &["--bind", &root]) else { return };
    let remounted = Command::new("mount").args(["-o", "remount,ro,bind"]).arg(&at).status();
    assert!(remounted.is_ok_and(|status| status.success()), "a bind mount can be made read-only");
    let repo = Repo::open(open_env(dir.path()), &at).expect("it can be read");
    let request = DoctorRequest { strict: true, ..DoctorRequest::default() };
    let report = repo.doctor(request).expect("it can be examined");
    assert!(report.is_healthy() && report.clock_skew_ms.is_none(), "{report:?}");
    for one in &taken {
        repo.verify(one, &NoProgress).expect("it can be verified");
    }
    assert!(repo.diff_files(&main, Some(&taken[1]), &NoProgress).expect("it can be compared").is_empty());
    repo.status(&main).expect("it can be read");
    let policy = KeepPolicy { last: Some(1), days: None };
    let plan =
        repo.collect_garbage(std::slice::from_ref(&main), policy, true).expect("a dry run writes nothing");
    assert_eq!(plan.removed, [taken[0].snapshot_id.clone()]);
    let refused = repo.collect_garbage(std::slice::from_ref(&main), policy, false).expect_err("read-only");
    assert_eq!(refused.class(), ErrorClass::Io);
    assert!(repo.acquire(&main, &crate::support::request()).is_err());
}

const NOBODY: u32 = 65_534;

/// Another user's worktree in a directory with the sticky bit. The restore was committed, and the owner's next acquire
/// replaced the owner's files without a word.
#[test]
fn a_worktree_of_another_user_in_a_sticky_directory_is_refused_before_the_commit() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can play two users");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory for the test");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    play_another_user(dir.path());
    // Now the worktree and its parent belong to others, and only what the sticky bit protects cannot be moved.
    let (root, main) = (dir.path().join("repo"), dir.path().join("repo/main"));
    for (path, owner, mode) in [(&main, 1, 0o777), (&root, 0, 0o1777)] {
        chown(path, Some(owner), None).expect("root may");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may");
    }
    play_another_user(dir.path());
}

fn play_another_user(dir: &Path) {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["mounts::part_of_another_user", "--exact", "--nocapture"]);
    child.env("JVS_TEST_STICKY", dir).uid(NOBODY).gid(NOBODY);
    let output = child.output().expect("this program starts again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// The role of the other user: the first time it makes the repository, the second time it restores.
#[test]
fn part_of_another_user() {
    let Some(dir) = std::env::var_os("JVS_TEST_STICKY").map(PathBuf::from) else { return };
    let root = dir.join("repo");
    if !root.exists() {
        let (repo, main, session, _) = two_snapshots(&dir, &root);
        fs::set_permissions(repo.payload(&main), fs::Permissions::from_mode(0o777)).expect("ours");
        snapshot(&repo, &main, Some(&session), Consistency::Quiesced).expect("held");
        repo.lock(&main).release(&session).expect("held");
        return;
    }
    let repo = Repo::open(open_env(&dir), &root).expect("ours");
    let main = repo.worktree(&"main".parse().expect("a name")).expect("ours");
    let session = repo.acquire(&main, &request()).expect("a free lock").session.session_id;
    let history = repo.history(&main, 3).expect("whole");
    let taken = [history[1].clone(), history[0].clone()];
    assert_refused_and_usable(&repo, &main, &session, &taken, "sticky");
}
