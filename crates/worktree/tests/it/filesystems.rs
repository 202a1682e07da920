//! What filesystems have that most do not: subvolumes, layers on two devices, files without copy-on-write, files that
//! nobody may remove, and paths that are longer than a system call takes. Real ones, where the tests run as root; else they
//! are skipped with a message.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode as Bits, OFlags, mkdirat, openat};
use worktree::error::ErrorClass;
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::snapshot::Consistency;
use worktree::tree::NoProgress;

use crate::mounts::{Mount, open_env, two_snapshots};
use crate::support::{Fixture, request, snapshot};

/// Whether a command exists and succeeds.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    let status = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// An overlay whose layers are on two filesystems gives the files of its lower layer a device of their own. Every snapshot
/// was refused: "another filesystem is mounted inside".
#[test]
fn a_worktree_with_files_of_another_layer_is_no_mount() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| dir.path().join(name));
    for path in [&lower, &upper, &work, &merged] {
        fs::create_dir(path).expect("writable");
    }
    let Some(_lower) = Mount::new(&lower, &["-t", "tmpfs", "tmpfs"]) else { return };
    let (baked, main, session, taken) = two_snapshots(dir.path(), &lower.join("repo"));
    baked.lock(&main).release(&session).expect("held");
    let layers = format!("lowerdir={},upperdir={},workdir={}", text(&lower), text(&upper), text(&work));
    let options = format!("{layers},xino=off");
    let Some(_merged) = Mount::new(&merged, &["-t", "overlay", "overlay", "-o", &options]) else { return };
    let repo = Repo::open(open_env(dir.path()), &merged.join("repo")).expect("it is in the image");
    let session = repo.acquire(&main, &request()).expect("a free lock").session.session_id;
    fs::write(repo.payload(&main).join("new"), b"of the upper layer").expect("writable");
    let third = snapshot(&repo, &main, Some(&session), Consistency::Quiesced).expect("no mount").descriptor;
    assert_eq!(third.files, taken[1].files + 1);
    repo.verify(&third, &NoProgress).expect("whole");
}

/// A subvolume has a device of its own, and every snapshot was refused. And one file that cannot share its blocks, because
/// it is written in place, made all others be copied.
#[test]
fn on_btrfs_a_subvolume_is_a_directory_and_files_share_their_blocks() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let (image, at) = (dir.path().join("image"), dir.path().join("btrfs"));
    fs::create_dir(&at).expect("writable");
    fs::File::create(&image).and_then(|file| file.set_len(256 << 20)).expect("writable");
    if !succeeds("mkfs.btrfs", &["-q", text(&image)]) {
        return println!("skipped: no mkfs.btrfs");
    }
    let Some(_mount) = Mount::new(&at, &["-o", "loop", text(&image)]) else { return };
    let (repo, main, session, [one, _]) = two_snapshots(dir.path(), &at.join("repo"));
    let files = repo.payload(&main);
    assert!(succeeds("btrfs", &["subvolume", "create", text(&files.join("volume"))]));
    fs::write(files.join("volume/file"), b"of the subvolume").expect("writable");
    fs::write(files.join("00-in-place"), b"").expect("writable");
    assert!(succeeds("chattr", &["+C", text(&files.join("00-in-place"))]));
    for name in (0..40).map(|n| format!("{n:02}")).chain(["00-in-place".to_owned()]) {
        fs::write(files.join(name), vec![7; 64 << 10]).expect("writable");
    }
    let third = snapshot(&repo, &main, Some(&session), Consistency::Quiesced).expect("no mount").descriptor;
    let stored = repo.layout().snapshot_tree(&third.snapshot_id);
    assert!(succeeds("sync", &["--file-system", text(&at)]));
    for n in 0..40 {
        let extents = Command::new("filefrag").arg("-v").arg(stored.join(format!("{n:02}"))).output();
        let extents = extents.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        assert!(extents.as_ref().is_ok_and(|text| text.contains("shared")), "{n:02}: {extents:?}");
    }
    let request = |discard_changes| RestoreRequest {
        session: Some(session.clone()),
        discard_changes,
        progress: &NoProgress,
    };
    repo.restore(&main, &one, &request(true)).expect("ours");
    repo.restore(&main, &third, &request(false)).expect("ours");
    assert_eq!(fs::read(files.join("volume/file")).expect("there"), b"of the subvolume");
}

/// The error was "could not open the directory: Not a directory", and named the whole tree.
#[test]
fn a_file_that_may_not_be_removed_is_named_and_the_restore_stands() {
    let fixture = Fixture::new();
    fixture.write("file", b"one");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let one = fixture.snapshot(&session).expect("ours").descriptor;
    fixture.write("file", b"two");
    fixture.write("below/fixed", b"for ever");
    if !succeeds("chattr", &["+i", text(&fixture.payload("below/fixed"))]) {
        return println!("skipped: no immutable files here");
    }
    let request = RestoreRequest { session: Some(session), discard_changes: true, progress: &NoProgress };
    let error = fixture.repo.restore(&fixture.main, &one, &request).map(drop);
    let left = fixture.repo.layout().restores(&fixture.main.worktree_id);
    let kept = find(&left, "fixed").expect("it cannot be removed");
    assert!(succeeds("chattr", &["-i", text(&kept)]));
    let error = error.expect_err("it cannot be removed");
    assert_eq!(error.facts()["restore"], "done", "{error}");
    assert!(error.detail().contains("not permitted") && error.detail().ends_with("below/fixed"), "{error}");
    assert_eq!(fs::read(fixture.payload("file")).expect("there"), b"one");
    fixture.acquire().map(drop).expect_err("it is still held");
    let repair = worktree::doctor::DoctorRequest { repair: true, ..Default::default() };
    fixture.repo.doctor(repair).expect("readable");
}

/// The file of this name at or below a directory.
fn find(dir: &Path, name: &str) -> Option<std::path::PathBuf> {
    fs::read_dir(dir).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if entry.file_name() == name { Some(path) } else { find(&path, name) }
    })
}

/// The error was that of a system call, with the whole path in it.
#[test]
fn a_path_that_no_call_can_open_is_refused_and_can_be_ignored() {
    let fixture = Fixture::new();
    fixture.write("file", b"one");
    let mut dir: OwnedFd =
        openat(CWD, fixture.payload("."), OFlags::DIRECTORY, Bits::empty()).expect("there");
    for level in 0..21 {
        let name = format!("{level:02}-{}", "x".repeat(200));
        mkdirat(&dir, &name, Bits::RWXU).expect("writable");
        dir = openat(&dir, &name, OFlags::DIRECTORY, Bits::empty()).expect("there");
    }
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let refused = fixture.snapshot(&session).expect_err("it cannot be copied");
    assert_eq!(refused.class(), ErrorClass::Invalid);
    assert!(refused.detail().contains("longer than 4095 bytes") && refused.detail().len() < 400, "{refused}");
    fixture.write(".jvsignore", b"/00-*\n");
    fixture.snapshot(&session).expect("the long path is left out");
}
