//! Identity files are private, written atomically, and replaced only on request.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use identity::ErrorKind;
use identity::file::{Existing, lock_beside, read, write};

use crate::support::TestRandom;

fn put(files: &[(&Path, &str)], existing: Existing) -> Result<(), ErrorKind> {
    let mut random = TestRandom::new(1);
    write(files, existing, &mut |bytes| random.fill(bytes)).map_err(|error| error.kind())
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

/// `sudo lockd auth revoke` replaced the server's file by one of root's: the service could not read it any more, so that
/// neither the reload nor the next start worked.
#[test]
fn a_replaced_file_keeps_its_owner_and_mode() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("server.pem");
    put(&[(&path, "one")], Existing::Keep).expect("new");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("ours");
    // Only root can give a file away; other users see that the mode stays.
    let is_root = std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).is_ok();
    let before = fs::metadata(&path).expect("there");
    put(&[(&path, "two")], Existing::Replace).expect("replaced");
    let after = fs::metadata(&path).expect("there");
    assert_eq!(after.permissions().mode() & 0o777, 0o640);
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    assert_eq!(after.uid() == 65_534, is_root);
    assert_eq!(fs::read_to_string(&path).expect("readable"), "two");
}

#[test]
fn only_the_owner_may_read_a_written_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.pem");
    put(&[(&path, "one")], Existing::Keep).expect("new");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);

    put(&[(&path, "two")], Existing::Replace).expect("replaced");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(read(&path).expect("ours").as_str(), "two");
    assert_eq!(names(dir.path()), ["a.pem"], "nothing is left behind");
}

#[test]
fn an_existing_file_is_kept_and_its_pair_is_not_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let [first, second] = ["a.pem", "b.pem"].map(|name| dir.path().join(name));
    fs::write(&second, "old").expect("writable");
    let files: [(&Path, &str); 2] = [(&first, "new"), (&second, "new")];
    assert_eq!(put(&files, Existing::Keep), Err(ErrorKind::Exists));
    assert_eq!(
        (names(dir.path()), fs::read_to_string(&second).expect("there")),
        (vec!["b.pem".into()], "old".into())
    );

    put(&files, Existing::Replace).expect("replaced on request");
    assert_eq!(fs::read_to_string(&second).expect("there"), "new");
}

#[test]
fn if_one_of_a_pair_cannot_be_written_neither_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let (first, nowhere) = (dir.path().join("a.pem"), dir.path().join("none/b.pem"));
    assert_eq!(put(&[(&first, "x"), (&nowhere, "x")], Existing::Keep), Err(ErrorKind::NotFound));
    assert_eq!(names(dir.path()), [""; 0]);
    // The same name twice: the second finds the first file.
    assert_eq!(put(&[(&first, "x"), (&first, "y")], Existing::Keep), Err(ErrorKind::Exists));
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_symbolic_link_is_followed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (real, link) = (dir.path().join("real.pem"), dir.path().join("link.pem"));
    fs::write(&real, "old").expect("writable");
    symlink(&real, &link).expect("a link");
    assert_eq!(put(&[(&link, "new")], Existing::Keep), Err(ErrorKind::Exists));
    put(&[(&link, "new")], Existing::Replace).expect("replaced on request");
    assert_eq!(fs::read_to_string(&real).expect("there"), "new");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
}

#[test]
fn a_directory_or_device_is_never_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    for target in [dir.path(), Path::new("/dev/null")] {
        assert_eq!(put(&[(target, "x")], Existing::Replace), Err(ErrorKind::Invalid));
    }
}

#[test]
fn a_read_error_names_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("none.pem");
    let error = read(&path).expect_err("not there");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("none.pem"), "{error}");
    fs::write(&path, b"\xff\xfe").expect("writable");
    assert_eq!(read(&path).expect_err("no text").kind(), ErrorKind::Io);
}

#[test]
fn a_second_locker_waits_for_the_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("server.pem");
    let held = lock_beside(&path).expect("lockable");
    let other = std::thread::spawn(move || lock_beside(&path).map(drop).map_err(|error| error.to_string()));
    assert!(!other.is_finished());
    drop(held);
    other.join().expect("no panic").expect("locked after the first");
}
