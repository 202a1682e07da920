//! `jvs fork`, `restore --path`, `jvs clone`, `init --shared`, and backups.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::jvs::support::{Playground, ran};

/// A repository with the snapshots `one` and `two` of a file, and its lock's session.
fn with_two_snapshots() -> (Playground, String, [String; 2]) {
    let playground = Playground::new();
    let session = playground.acquire();
    let take = |text: &str| {
        playground.write("file", text.as_bytes());
        let taken = playground.json(&["snapshot", text, "--session-id", &session]);
        taken["snapshot_id"].as_str().expect("an id").to_owned()
    };
    let ids = ["one", "two"].map(take);
    (playground, session, ids)
}

#[test]
fn fork_makes_a_worktree_of_the_head_or_of_a_snapshot() {
    let (playground, _, [one, two]) = with_two_snapshots();
    let forked = playground.json(&["fork", "latest"]);
    assert_eq!((&forked["snapshot_id"], &forked["worktree"]["worktree_id"]), (&json!(two), &json!("latest")));
    playground.json(&["fork", &one, "older", "--path", "old/one"]);
    assert_eq!(std::fs::read(playground.root().join("worktrees/latest/file")).expect("there"), b"two");
    assert_eq!(std::fs::read(playground.root().join("old/one/file")).expect("there"), b"one");
    let run = playground.jvs(&["run", "--worktree", "older", "--", "true"]);
    assert_eq!(run.code, 0, "its lock is free: {}", run.stderr);
    assert_eq!(playground.jvs(&["fork", "latest"]).code, 2, "the name is taken");
    assert_eq!(playground.jvs(&["fork", "no-such-snapshot", "x"]).code, 1);
}

#[test]
fn restore_path_brings_one_file_back() {
    let (playground, session, [one, two]) = with_two_snapshots();
    let restored = playground.json(&["restore", &one, "--path", "file", "--session-id", &session]);
    assert_eq!(restored["paths"], json!([{"path": "file", "replaced": true, "rescued": null}]));
    assert_eq!(std::fs::read(playground.file("file")).expect("there"), b"one");
    assert_eq!(playground.json(&["lock", "status"])["head"], json!(two));
    let unsaved = playground.jvs(&["restore", &two, "--path", "file", "--session-id", &session]);
    assert!(unsaved.code == 2 && unsaved.stderr.contains("--discard-changes"), "{}", unsaved.stderr);
    let without = playground.jvs(&["restore", &two, "--path", "file", "--discard-changes"]);
    assert_eq!(without.code, 22, "it needs the lock");
}

/// `worktree list` showed a head, and `history` said "no snapshots yet" and nothing of it.
#[test]
fn history_names_a_head_that_is_another_worktrees_snapshot() {
    let (playground, _, [one, _]) = with_two_snapshots();
    playground.json(&["worktree", "add", "other"]);
    let acquired = playground.json(&["lock", "acquire", "--worktree", "other"]);
    let session = acquired["lock"]["session_id"].as_str().expect("a session").to_owned();
    let restored = playground.jvs(&["restore", &one, "--worktree", "other", "--session-id", &session]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    let history = playground.jvs(&["history", "--worktree", "other"]);
    let line = format!("the head is a snapshot of another worktree: {one}");
    assert!(history.stdout.contains(&line), "{}", history.stdout);
    assert_eq!(playground.json(&["history", "--worktree", "other"])["head"], json!(one));
}

/// A copy made with `cp -a` keeps the id: a session works in the copy, and releasing there made the original
/// unreleasable.
#[test]
fn a_clone_is_another_repository() {
    let (playground, session, _) = with_two_snapshots();
    let clone = playground.root().parent().expect("a directory").join("clone");
    let cloned = playground.json(&["clone", clone.to_str().expect("text")]);
    assert_eq!((&cloned["worktrees"], &cloned["snapshots"]), (&1.into(), &2.into()));
    let there = |args: &[&str]| playground.jvs_in(&clone, args);
    assert_eq!(
        there(&["lock", "release", "--session-id", &session]).code,
        22,
        "no session of this repository"
    );
    assert_eq!(there(&["doctor", "--strict"]).code, 0);
    assert_eq!(there(&["show", "head:file"]).stdout, "two");
    playground.json(&["lock", "renew", "--session-id", &session]);
    assert_eq!(playground.jvs(&["clone", clone.to_str().expect("text")]).code, 2, "a repository is there");
}

/// A second user of the group could not even probe the clock.
#[test]
fn a_shared_repository_is_writable_for_the_group_whatever_the_umask() {
    let playground = Playground::new();
    let dir = playground.root().join("shared");
    let jvs = playground.command().get_program().to_owned();
    let script = r#"umask 077; "$0" init shared --shared && cd shared && echo x > main/f &&
        "$0" run -- "$0" snapshot && "$0" tag add first"#;
    let shell = ran(playground.program("sh").args(["-c", script]).arg(jvs));
    assert_eq!(shell.code, 0, "{}{}", shell.stdout, shell.stderr);
    for name in [".jvs/tmp", ".jvs/locks", ".jvs/locks/main.d", ".jvs/tags", "main"] {
        let mode = dir.join(name).metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o2070, 0o2070, "{name} {mode:o}");
    }
    let entry = dir.join(".jvs/locks/main.d/2").metadata().expect("there").permissions().mode();
    assert_eq!(entry & 0o060, 0o060, "{entry:o}");
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("`cp` exists");
    assert!(copied.success());
}

/// The order of the page about backups: what was published before the locks were copied is whole, and a snapshot
/// that was published later is listed again once its loss is accepted.
#[test]
fn a_backup_that_copies_the_locks_first_loses_no_snapshot() {
    let (playground, session, [one, two]) = with_two_snapshots();
    let backup = playground.root().parent().expect("a directory").join("backup");
    std::fs::create_dir_all(backup.join(".jvs")).expect("writable");
    let jvs = playground.root().join(".jvs");
    for name in ["repo.json", "worktrees", "locks", "tags", "pins"] {
        copy(&jvs.join(name), &backup.join(".jvs").join(name));
    }
    playground.write("file", b"three");
    let three = playground.json(&["snapshot", "--session-id", &session])["snapshot_id"].clone();
    copy(&jvs.join("snapshots"), &backup.join(".jvs/snapshots"));
    for name in ["intents", "restores", "tmp"] {
        std::fs::create_dir(backup.join(".jvs").join(name)).expect("writable");
    }
    copy(&playground.root().join("main"), &backup.join("main"));
    let there = |args: &[&str]| playground.jvs_in(&backup, args);
    let found = there(&["doctor", "--strict", "--json"]);
    let codes: Vec<Value> =
        found.data()["findings"].as_array().expect("a list").iter().map(|one| one["code"].clone()).collect();
    assert!(codes.contains(&json!("snapshot_unlisted")), "{codes:?}");
    assert!(!codes.contains(&json!("snapshot_damaged")), "{codes:?}");
    let accepted = there(&["doctor", "--accept-loss"]);
    let listed = there(&["history", "--json"]);
    let ids: Vec<Value> = listed.data()["snapshots"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["snapshot_id"].clone())
        .collect();
    assert_eq!(ids.len(), 3, "{}", accepted.stdout);
    assert!([json!(one), json!(two), three].iter().all(|id| ids.contains(id)));
    assert_eq!(there(&["verify", "--all"]).code, 0);
}
