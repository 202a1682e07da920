//! Extended attributes and access control lists are kept, and a copy is never more open than its source.
//!
//! The story: a file was readable by one user by an access control list, and closed to its owning group. Its mode was
//! 0660, because with a list the group bits are the mask. The snapshot kept the mode and dropped the list, and every
//! member of the group could read the copy, and the restored file.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use worktree::restore::RestoreRequest;
use worktree::tree::NoProgress;

use crate::support::Fixture;

/// owner rw, the user `daemon` (1) rw, owning group nothing, mask rw, others nothing.
fn secret_list() -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in [
        (0x01_u16, 6_u16, u32::MAX),
        (0x02, 6, 1),
        (0x04, 0, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1024];
    let len = getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

const LIST: &str = "system.posix_acl_access";

#[test]
fn lists_and_attributes_survive_a_snapshot_and_a_restore() {
    let fixture = Fixture::new();
    fixture.write("secret", b"secret");
    fixture.write("dir/plain", b"plain");
    let (secret, dir) = (fixture.payload("secret"), fixture.payload("dir"));
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("ours");
    if setxattr(&secret, LIST, &secret_list(), XattrFlags::empty()).is_err() {
        println!("skipped: this filesystem has no access control lists");
        return;
    }
    let has_user_attributes = setxattr(&dir, "user.origin", b"elsewhere", XattrFlags::empty()).is_ok();
    assert_eq!(fs::metadata(&secret).expect("there").mode() & 0o777, 0o660, "the mask shows as group bits");

    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("ours").descriptor;
    let stored = fixture.repo.layout().snapshot_tree(&taken.snapshot_id);
    assert_eq!(attribute(&stored.join("secret"), LIST), Some(secret_list()), "the copy is as closed");
    let request = RestoreRequest { session: Some(session), discard_changes: true, progress: &NoProgress };
    fixture.repo.restore(&fixture.main, &taken, &request).expect("ours");
    assert_eq!(attribute(&secret, LIST), Some(secret_list()), "and so is the restored file");
    assert_eq!(attribute(&fixture.payload("dir/plain"), LIST), None);
    if has_user_attributes {
        assert_eq!(attribute(&stored.join("dir"), "user.origin").as_deref(), Some(&b"elsewhere"[..]));
        assert_eq!(attribute(&dir, "user.origin").as_deref(), Some(&b"elsewhere"[..]));
    }
}

/// The directory of snapshots has a default list, which every new file below it inherits. A private file's copy
/// was readable by the users that the default list names.
#[test]
fn a_list_that_a_copy_would_inherit_is_not_kept() {
    let fixture = Fixture::new();
    fixture.write("private", b"mine");
    fs::set_permissions(fixture.payload("private"), fs::Permissions::from_mode(0o640)).expect("ours");
    let snapshots = fixture.repo.layout().snapshots();
    if setxattr(&snapshots, "system.posix_acl_default", &secret_list(), XattrFlags::empty()).is_err() {
        println!("skipped: this filesystem has no access control lists");
        return;
    }
    File::create(snapshots.join("probe")).expect("writable");
    assert!(attribute(&snapshots.join("probe"), LIST).is_some(), "new files inherit the list");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("ours").descriptor;
    let copy = fixture.repo.layout().snapshot_tree(&taken.snapshot_id).join("private");
    assert_eq!(attribute(&copy, LIST), None);
    assert_eq!(fs::metadata(&copy).expect("there").mode() & 0o777, 0o640);
}

/// `restore head` dropped attributes, lists and owners that were set since, without being asked to discard anything.
#[test]
fn a_restore_asks_before_it_drops_attributes_that_no_snapshot_has() {
    let fixture = Fixture::new();
    fixture.write("file", b"same");
    let session = fixture.acquire().expect("a free lock").session.session_id;
    let taken = fixture.snapshot(&session).expect("ours").descriptor;
    let request = |discard_changes| RestoreRequest {
        session: Some(session.clone()),
        discard_changes,
        progress: &NoProgress,
    };
    fixture.repo.restore(&fixture.main, &taken, &request(false)).expect("nothing would be dropped");
    let file = fixture.payload("file");
    if setxattr(&file, LIST, &secret_list(), XattrFlags::empty()).is_err() {
        println!("skipped: this filesystem has no access control lists");
        return;
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
    let refused =
        fixture.repo.restore(&fixture.main, &taken, &request(false)).expect_err("the list would be dropped");
    assert!(refused.detail().contains("first=file"), "{refused}");
    // It said that nothing would change.
    let preview = fixture.repo.preview_restore(&fixture.main, &taken, &NoProgress).expect("readable");
    assert_eq!((preview.attributes, preview.changes.is_empty()), (vec!["file".to_owned()], true));
    assert_eq!(refused.facts()["restore"], "not_committed");
    assert!(attribute(&file, LIST).is_some(), "it is still there");
    fixture.repo.restore(&fixture.main, &taken, &request(true)).expect("asked for");
    assert_eq!(attribute(&file, LIST), None);
    let preview = fixture.repo.preview_restore(&fixture.main, &taken, &NoProgress).expect("readable");
    assert!(preview.attributes.is_empty(), "{preview:?}");
}
