//! Every command, in the order in which a user meets them, with its JSON shape.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::jvs::support::Playground;

#[test]
fn a_lock_shows_what_readers_of_its_copy_see_and_no_secret() {
    let playground = Playground::new();
    let data = playground.json(&["lock", "acquire", "--lease-duration-ms", "60000"]);
    let lock = &data["lock"];
    assert_eq!(lock["lease_duration_ms"], 60_000);
    assert_eq!(lock["renew_interval_ms"], 10_000, "the others keep their defaults");
    let text = lock["lease_expires_at_rfc3339"].as_str().expect("readable times stand beside the others");
    assert!(text.ends_with('Z'));

    let copy = std::fs::read_to_string(playground.root().join(".jvs/locks/main.lock")).expect("for readers");
    let copy: Value = serde_json::from_str(&copy).expect("JSON");
    assert_eq!(&copy, lock, "the copy for readers is the same record");

    let session = lock["session_id"].as_str().expect("a session");
    let secret = playground.session_file(&format!("{session}.json"));
    let mode = std::fs::metadata(&secret).expect("the holder's own file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let secret: Value = serde_json::from_slice(&std::fs::read(secret).expect("readable")).expect("JSON");
    let nonce = secret["holder_nonce"].as_str().expect("a secret");
    let everything = walk(&playground.root());
    assert!(!everything.contains(nonce), "the secret is nowhere in the repository");
}

/// All bytes of all files below `dir`.
fn walk(dir: &std::path::Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(dir).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            text.push_str(&walk(&path));
        } else {
            text.push_str(&String::from_utf8_lossy(&std::fs::read(&path).expect("readable")));
        }
    }
    text
}

#[test]
fn acquire_renew_status_release_and_release_again() {
    let playground = Playground::new();
    let session = playground.acquire();
    let status = playground.json(&["lock", "status"]);
    assert_eq!(status["state"], "live");
    assert_eq!(status["holder"], "running", "the holder is the process that ran the command");
    let before = status["lock"]["lease_expires_at"].as_i64().expect("a time");
    let renewed = playground.json(&["lock", "renew", "--session-id", &session]);
    assert!(renewed["lock"]["lease_expires_at"].as_i64().expect("a time") >= before);
    let released = playground.json(&["lock", "release", "--session-id", &session]);
    assert_eq!((&released["released"], &released["already"]), (&true.into(), &false.into()));
    let again = playground.json(&["lock", "release", "--session-id", &session]);
    assert_eq!(again["already"], true);
    assert_eq!(playground.json(&["lock", "status"])["state"], "free");
    assert!(!playground.root().join(".jvs/locks/main.lock").exists(), "the copy goes at release");
}

#[test]
fn a_session_can_come_from_the_environment() {
    let playground = Playground::new();
    let session = playground.acquire();
    let renewed =
        crate::jvs::support::ran(playground.command().args(["lock", "renew"]).env("JVS_SESSION_ID", session));
    assert_eq!(renewed.code, 0, "{}", renewed.stderr);
}

#[test]
fn an_expired_lock_is_stolen_by_steal_and_by_acquire() {
    let playground = Playground::new();
    let brief = ["--lease-duration-ms", "20", "--renew-interval-ms", "5", "--max-clock-skew-ms", "100"];
    for command in ["steal", "acquire"] {
        let held = playground.jvs(&[&["lock", "acquire"], &brief[..], &["--steal-grace-ms", "0"]].concat());
        // On a slow machine the lease is over before the command returns: then it says so, and it stands.
        assert!([0, 21].contains(&held.code), "{}", held.stderr);
        let held = playground.json(&["lock", "status"]);
        let stolen = until_stealable(&playground, command);
        assert_eq!(stolen["stolen_from"], held["lock"]["fencing_token"]);
        assert_eq!(
            stolen["lock"]["acquire_seq"],
            held["lock"]["acquire_seq"].as_u64().expect("a number") + 1
        );
        let session = stolen["lock"]["session_id"].as_str().expect("a session");
        playground.json(&["lock", "release", "--session-id", session]);
    }
}

/// Tries again while it is too early; every try takes a few milliseconds.
fn until_stealable(playground: &Playground, command: &str) -> Value {
    for _ in 0..3_000 {
        let ran = playground.jvs(&["--json", "lock", command]);
        if ran.code == 0 {
            return ran.data();
        }
        assert_eq!(ran.error()["class"], "E_LOCK_CONFLICT");
    }
    panic!("it never became stealable");
}

#[test]
fn snapshot_history_info_verify_and_restore() {
    let playground = Playground::new();
    playground.write("file", b"one");
    let session = playground.acquire();
    let first = playground.json(&["snapshot", "the first", "--session-id", &session]);
    assert_eq!((&first["files"], &first["bytes"], &first["is_head"]), (&1.into(), &3.into(), &true.into()));
    assert_eq!(first["risk"], Value::Null);
    playground.write("file", b"two!");
    let second = playground.json(&["snapshot", "--session-id", &session]);
    assert_eq!(second["parent"], first["snapshot_id"]);

    let history = playground.json(&["history"]);
    let ids: Vec<&Value> =
        history["snapshots"].as_array().expect("a list").iter().map(|one| &one["snapshot_id"]).collect();
    assert_eq!(ids, [&second["snapshot_id"], &first["snapshot_id"]]);
    assert_eq!(history["head"], second["snapshot_id"]);
    let id = first["snapshot_id"].as_str().expect("an id");
    assert_eq!(playground.json(&["info", id])["note"], "the first");
    assert_eq!(
        playground.json(&["info", &id[..id.len() - 1]])["snapshot_id"],
        id,
        "a unique beginning will do"
    );
    assert_eq!(playground.json(&["verify", "--all"])["verified"].as_array().expect("a list").len(), 2);

    playground.json(&["restore", id, "--session-id", &session]);
    assert_eq!(std::fs::read(playground.file("file")).expect("there"), b"one");
    assert_eq!(playground.json(&["lock", "status"])["head"], id);
}

#[test]
fn best_effort_shows_its_risk_in_snapshot_history_and_info() {
    let playground = Playground::new();
    playground.write("file", b"one");
    let taken = playground.json(&["snapshot", "--consistency", "best_effort"]);
    let id = taken["snapshot_id"].as_str().expect("an id");
    let history = playground.json(&["history"]);
    for shown in [&taken, &history["snapshots"][0], &playground.json(&["info", id])] {
        assert_eq!(shown["consistency"], "best_effort");
        assert!(shown["risk"].as_str().expect("a label").starts_with("best_effort"), "{shown}");
        assert_eq!(shown["is_head"], false, "taken without the lock, it does not move the head");
    }
    assert!(playground.jvs(&["history"]).stdout.contains("[risk: best_effort]"));
}

#[test]
fn worktrees_are_added_listed_and_removed() {
    let playground = Playground::new();
    let added = playground.json(&["worktree", "add", "scratch", "--mode", "shared", "--steal-grace-ms", "7"]);
    assert_eq!((&added["mode"], &added["steal_grace_ms"]), (&"shared".into(), &7.into()));
    assert!(playground.root().join("worktrees/scratch").is_dir());
    let listed = playground.json(&["worktree", "list"]);
    let names: Vec<&Value> =
        listed["worktrees"].as_array().expect("a list").iter().map(|one| &one["worktree_id"]).collect();
    assert_eq!(names, ["main", "scratch"]);
    let inside =
        playground.jvs_in(&playground.root().join("worktrees/scratch"), &["--json", "lock", "status"]);
    assert_eq!(inside.data()["worktree_id"], "scratch", "the worktree around the working directory is meant");
    let shared = playground.jvs(&["snapshot", "--worktree", "scratch"]);
    assert!(shared.stdout.contains("no single writer"), "a shared worktree says what it does not promise");
    playground.json(&["worktree", "remove", "scratch"]);
    assert!(playground.root().join("worktrees/scratch").is_dir(), "the files stay");
    assert_eq!(playground.jvs(&["lock", "status", "--worktree", "scratch"]).code, 1);
    playground.json(&["worktree", "add", "scratch"]);
    let session = playground.json(&["lock", "acquire", "--worktree", "scratch"]);
    assert!(
        session["lock"]["fencing_token"].as_u64().expect("a number") > 3,
        "numbers go on where they were"
    );
}

#[test]
fn doctor_reports_healthy_finds_litter_and_repairs_it() {
    let playground = Playground::new();
    let healthy = playground.jvs(&["doctor"]);
    assert_eq!(healthy.code, 0);
    assert!(healthy.stdout.starts_with("healthy"));
    std::fs::write(playground.root().join(".jvs/locks/main.lock"), b"left by a crash").expect("writable");
    std::fs::create_dir(playground.root().join(".jvs/snapshots/20260101t000000000z-deadbeef"))
        .expect("writable");
    let intent = json!({
        "v": 1, "snapshot_id": "20260101t000000000z-deadbeef", "worktree_id": "main", "fencing_token": null,
        "maker": "unknown", "created_at": 0,
    });
    std::fs::write(
        playground.root().join(".jvs/intents/20260101t000000000z-deadbeef.json"),
        intent.to_string(),
    )
    .expect("writable");
    let found = playground.jvs(&["doctor", "--strict", "--json"]);
    assert_eq!(found.code, 1);
    let codes: Vec<Value> =
        found.data()["findings"].as_array().expect("a list").iter().map(|one| one["code"].clone()).collect();
    assert_eq!(codes, ["lock_copy_stale", "partial_snapshot"]);
    let partial = playground.jvs(&["--json", "info", "20260101t000000000z-deadbeef"]);
    assert_eq!((partial.code, &partial.error()["class"]), (26, &"E_PARTIAL_SNAPSHOT".into()));
    let repaired = playground.jvs(&["doctor", "--repair"]);
    assert_eq!(repaired.code, 0);
    assert!(repaired.stdout.contains("in the trash: items=3"), "{}", repaired.stdout);
    assert_eq!(playground.jvs(&["doctor", "--strict"]).code, 0);
    let purged = playground.json(&["doctor", "--purge"]);
    assert_eq!((&purged["purged"]["items"], &purged["trash"]["items"]), (&3.into(), &0.into()));
    assert_eq!(playground.jvs(&["info", "20260101t000000000z-deadbeef"]).code, 1, "and now it is unknown");
}

/// An entry of the sequence was removed, and repair took the snapshots published after it for unfinished
/// ones.
#[test]
fn doctor_repair_keeps_published_snapshots_when_an_entry_is_missing() {
    let playground = Playground::new();
    let session =
        playground.json(&["lock", "acquire"])["lock"]["session_id"].as_str().expect("text").to_owned();
    for note in ["one", "two", "three"] {
        playground.json(&["snapshot", note, "--session-id", &session]);
    }
    std::fs::remove_file(playground.root().join(".jvs/locks/main.d/4")).expect("there");
    let found = playground.jvs(&["doctor", "--repair", "--json"]);
    assert_eq!(found.code, 1);
    assert_eq!(found.data()["findings"][0]["code"], "audit_broken");
    let kept = std::fs::read_dir(playground.root().join(".jvs/snapshots")).expect("readable").count();
    assert_eq!(kept, 3);
}

#[test]
fn a_failed_examination_has_its_own_exit_code() {
    let playground = Playground::new();
    std::fs::write(playground.root().join(".jvs/repo.json"), b"{").expect("writable");
    assert_eq!(playground.jvs(&["doctor"]).code, 2);
}

#[test]
fn a_preview_lists_what_a_restore_would_change_and_changes_nothing() {
    let playground = Playground::new();
    std::fs::write(playground.root().join("main/file"), b"one").expect("writable");
    let session = playground.acquire();
    playground.json(&["snapshot", "--session-id", &session]);
    std::fs::write(playground.root().join("main/file"), b"changed").expect("writable");
    let preview = playground.json(&["restore", "head", "--preview"]);
    assert_eq!(preview["changes"][0]["path"], "file");
    assert_eq!(preview["unsaved"][0]["change"], "modified");
    let text = playground.jvs(&["restore", "head", "--preview"]);
    assert!(text.code == 0 && text.stdout.contains("--discard-changes"), "{}", text.stdout);
    assert_eq!(std::fs::read(playground.root().join("main/file")).expect("there"), b"changed");
    let restored = playground.json(&["restore", "head", "--session-id", &session, "--discard-changes"]);
    assert_eq!((&restored["rescued"], &restored["settled"]), (&Value::Null, &json!([])));
}
