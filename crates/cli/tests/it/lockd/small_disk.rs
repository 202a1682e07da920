//! A small disk: refused at the first start with figures, and logged when it is full. The disk is a tmpfs in a mount
//! namespace of the server's own; without the right to make one the tests skip with a message.

use std::path::Path;
use std::process::{Command, Output};

use crate::lockd::serve::Running;

/// The arguments of `unshare` before the command that it runs.
const NAMESPACES: [&str; 3] = ["--user", "--map-root-user", "--mount"];

/// Whether this user may mount a tmpfs in namespaces of its own; says so if not.
fn can_mount(dir: &Path) -> bool {
    let mount = mount(dir, "1m");
    let tried = Command::new("unshare").args(NAMESPACES).args(["sh", "-c", &mount]).output();
    let can = tried.as_ref().is_ok_and(|ran| ran.status.success());
    if !can {
        println!("skipped: no right to mount a tmpfs in a user namespace: {tried:?}");
    }
    can
}

fn mount(dir: &Path, size: &str) -> String {
    format!("mount -t tmpfs -o size={size} tmpfs '{}'", dir.display())
}

/// On a disk of 20 MB the server said `serving`, and then ended because the log could not be made, with the advice to
/// start it again.
#[test]
fn a_disk_too_small_for_a_new_store_is_refused_with_what_is_needed_and_what_is_there() {
    let (data, disk) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    if !can_mount(disk.path()) {
        return;
    }
    let script = format!("{}; exec \"$0\" \"$@\"", mount(disk.path(), "8m"));
    let store = format!("disk://{}/store", disk.path().display());
    let Output { status, stderr, .. } = Command::new("unshare")
        .args(NAMESPACES)
        .args(["sh", "-c", &script])
        .arg(assert_cmd::cargo::cargo_bin!("lockd"))
        .args(["serve", "--listen", "127.0.0.1:0", "--store", &store, "--data-dir"])
        .arg(data.path())
        .output()
        .expect("unshare runs");
    let stderr = String::from_utf8(stderr).expect("text");
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("not enough free disk space for a new store"), "{stderr}");
    let free: u64 =
        stderr.trim().rsplit("free_bytes=").next().and_then(|text| text.parse().ok()).expect("a figure");
    assert!(free > 0 && free <= 8 << 20, "{stderr}");
    assert!(stderr.contains("needed_bytes=13631488"), "{stderr}");
}

/// Uploads were refused for lack of space, and the log had no line about it.
#[test]
fn uploads_that_a_full_disk_refuses_are_logged() {
    let (data, disk) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    if !can_mount(disk.path()) {
        return;
    }
    let store = format!("disk://{}/store", disk.path().display());
    let prelude = mount(disk.path(), "24m");
    let mut server = Running::start_unshared(&NAMESPACES, &prelude, data.path(), &["--store", &store]);
    let mut client = server.connect(&data.path().join("client.pem"));
    let document = format!(r#"{{"text":"{}"}}"#, "x".repeat(1 << 20));
    let refused = (0..40).find_map(|n| {
        let (_, granted) =
            client.ask("POST", "/v1/acquire", &format!(r#"{{"key":"k{n}"}}"#)).expect("a response");
        let granted: serde_json::Value = serde_json::from_str(&granted).expect("JSON");
        let held = format!("x-lease-id: {}\r\n", granted["lease_id"].as_str().unwrap_or_default());
        let (status, reply) = client.send("POST", &format!("/v1/update_state?key=k{n}"), &held, &document)?;
        (status != 200).then_some((status, reply))
    });
    let (status, reply) = refused.expect("the disk is full in the end");
    assert!(status == 503 && reply.contains("no_space"), "{status} {reply}");
    let line = server.log.wait_for("request refused: no free disk space");
    assert!(line.contains("WARN") && line.contains("update_state"), "{line}");
}
