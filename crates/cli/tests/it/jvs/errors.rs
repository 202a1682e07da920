//! Errors: class, exit code, and what to do next.

use crate::jvs::support::{Playground, ran};

#[test]
fn each_class_has_its_exit_code_and_its_json() {
    let playground = Playground::new();
    playground.write("file", b"1");
    let session = playground.acquire();
    let wrong = "s-nobody";
    let cases: [(&[&str], i32, &str); 7] = [
        (&["lock", "acquire"], 20, "E_LOCK_CONFLICT"),
        (&["lock", "renew", "--session-id", wrong], 22, "E_LOCK_NOT_HELD"),
        (&["lock", "release"], 22, "E_LOCK_NOT_HELD"),
        (&["snapshot"], 22, "E_LOCK_NOT_HELD"),
        (&["restore", "head", "--session-id", &session], 1, "E_NOT_FOUND"),
        (&["lock", "acquire", "--worktree", "../evil"], 2, "E_INVALID"),
        (&["worktree", "add", "main"], 2, "E_INVALID"),
    ];
    for (args, code, class) in cases {
        let json = playground.jvs(&[&["--json"], args].concat());
        assert_eq!(json.code, code, "{args:?} {}", json.stdout);
        assert_eq!(json.error()["class"], class, "{args:?}");
        assert!(json.error()["detail"].as_str().expect("prose").len() > 20);
        let text = playground.jvs(args);
        assert_eq!(text.code, code);
        assert!(text.stdout.is_empty(), "errors go to standard error: {}", text.stdout);
        assert!(!text.stderr.is_empty());
    }
}

#[test]
fn a_conflict_names_the_holder_and_when_the_lock_may_be_stolen() {
    let playground = Playground::new();
    let session = playground.acquire();
    let error = playground.jvs(&["--json", "lock", "acquire"]).error();
    assert_eq!(error["session_id"], session.as_str());
    let expires = error["lease_expires_at"].as_i64().expect("a time");
    assert_eq!(error["stealable_at"].as_i64().expect("a time"), expires + 3_000);
    assert!(error["stealable_at_rfc3339"].is_string());
    assert_eq!(error["holder_id"].as_str().expect("an identity").split(':').count(), 4);
}

#[test]
fn an_expired_lease_has_its_own_code() {
    let playground = Playground::new();
    let args = ["lock", "acquire", "--lease-duration-ms", "2", "--renew-interval-ms", "1"];
    let held = playground.jvs(&[&["--json"], &args[..]].concat());
    // Such a short lease may expire before the command that acquired it returns.
    if held.code == 21 {
        return;
    }
    let session = held.data()["lock"]["session_id"].as_str().expect("a session").to_owned();
    let late = playground.jvs(&["--json", "lock", "renew", "--session-id", &session]);
    assert_eq!((late.code, &late.error()["class"]), (21, &"E_LOCK_EXPIRED".into()));
}

#[test]
fn wrong_usage_is_exit_2_and_json_when_requested() {
    let playground = Playground::new();
    let ran = playground.jvs(&["--json", "lock", "fly"]);
    assert_eq!((ran.code, &ran.error()["class"]), (2, &"E_INVALID".into()));
    assert_eq!(playground.jvs(&["lock", "fly"]).code, 2);
    let policy = playground.jvs(&["--json", "lock", "acquire", "--lease-duration-ms", "10"]);
    assert_eq!(policy.code, 2, "a policy that cannot be kept");
    assert!(policy.error()["detail"].as_str().expect("prose").contains("renew_interval_ms"));
    assert!(policy.error()["detail"].as_str().expect("prose").contains("pass --renew-interval-ms too"));
    assert_eq!(playground.jvs(&["run"]).code, 2, "no command to run");
}

/// The message of a locked worktree was to retry, although `--wait` waits; and `--wait 10s` was an unexpected argument.
#[test]
fn a_command_line_that_is_refused_names_the_one_that_was_meant() {
    let playground = Playground::new();
    playground.acquire();
    let refused = playground.jvs(&["run", "--", "true"]);
    assert_eq!(refused.code, 20, "{}", refused.stderr);
    assert!(refused.stderr.contains("`jvs run --wait`"), "{}", refused.stderr);
    for (words, tip) in [
        ("run --wait 10s -- true", "put an equals sign before the value: '--wait=10s'"),
        ("run --block 10s -- true", "a similar argument exists: '--wait'"),
        ("lock acquire --wait 10s", "put an equals sign before the value: '--wait=10s'"),
        ("run echo hi", "put -- before the command to run: '-- echo hi'"),
        ("info -o json", "write '--output json' for the format, or '> ./json' for a file"),
        ("prune", "a similar command exists: 'jvs gc'"),
        ("commit", "a similar command exists: 'jvs snapshot'"),
    ] {
        let refused = playground.jvs(&words.split(' ').collect::<Vec<_>>());
        assert!(refused.code == 2 && refused.stderr.contains(tip), "{words}: {}", refused.stderr);
    }
    let json = playground.jvs(&["--json", "run", "--wait", "10s", "--", "true"]).error();
    assert!(json["detail"].as_str().is_some_and(|detail| detail.contains("'--wait=10s'")), "{json}");
}

/// A note with a line break made one snapshot look like two in `jvs history`.
#[test]
fn a_note_is_one_line_without_control_characters() {
    let playground = Playground::new();
    let session = playground.acquire();
    for note in ["one\ntwo", "\u{1b}[2Jgone", "tab\there", "\u{85}"] {
        let refused = playground.jvs(&["--json", "snapshot", note, "--session-id", &session]);
        assert_eq!((refused.code, &refused.error()["class"]), (2, &"E_INVALID".into()), "{note:?}");
    }
    assert_eq!(playground.jvs(&["snapshot", "größer: ✓", "--session-id", &session]).code, 0);
}

/// A note of 100 KB was accepted, and every `jvs history` printed all of it.
#[test]
fn a_note_has_at_most_a_kilobyte() {
    let playground = Playground::new();
    let session = playground.acquire();
    let long = "x".repeat(1025);
    let refused = playground.jvs(&["--json", "snapshot", &long, "--session-id", &session]);
    assert_eq!((refused.code, &refused.error()["class"]), (2, &"E_INVALID".into()));
    assert_eq!(playground.jvs(&["snapshot", &long[1..], "--session-id", &session]).code, 0);
}

/// `JVS_SESSION_ID= jvs …`, which unsets the variable for one command, was rejected as an invalid id.
#[test]
fn an_empty_variable_counts_as_unset() {
    let playground = Playground::new();
    let mut status = playground.command();
    status.env("JVS_WORKTREE", "").env("JVS_REPO", "").args(["lock", "status"]);
    assert_eq!(ran(&mut status).code, 0);
    let mut release = playground.command();
    release.env("JVS_SESSION_ID", "").args(["lock", "release"]);
    let refused = ran(&mut release);
    assert_eq!(refused.code, 22);
    assert!(refused.stderr.contains("no session given"), "{}", refused.stderr);
    let mut wrong = playground.command();
    wrong.env("JVS_WORKTREE", "../evil").args(["lock", "status"]);
    assert_eq!(ran(&mut wrong).code, 2, "any other value counts");
}

#[test]
fn a_repository_that_is_not_there_is_named() {
    let playground = Playground::new();
    let refused = playground.jvs(&["--json", "--repo", "/no/such/place", "lock", "status"]);
    assert_eq!((refused.code, &refused.error()["class"]), (1, &"E_NOT_FOUND".into()));
    let detail = refused.error()["detail"].as_str().expect("prose").to_owned();
    assert!(detail.contains("--repo") && detail.contains("/no/such/place"), "{detail}");
}

#[test]
fn a_history_limit_of_zero_shows_nothing() {
    let playground = Playground::new();
    playground.write("file", b"1");
    let session = playground.acquire();
    playground.json(&["snapshot", "--session-id", &session]);
    let shown = |limit: &str| playground.json(&["history", "--limit", limit])["snapshots"].clone();
    assert_eq!(shown("0").as_array().expect("a list").len(), 0);
    assert_eq!(shown("1").as_array().expect("a list").len(), 1);
}

#[test]
fn outside_any_repository_the_error_names_jvs_init() {
    let empty = tempfile::tempdir().expect("a directory for the test");
    let playground = Playground::new();
    let ran = playground.jvs_in(empty.path(), &["lock", "status"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("jvs init"), "{}", ran.stderr);
    let elsewhere = ran_with_repo(&playground, empty.path());
    assert_eq!(elsewhere.code, 0, "--repo works from anywhere");
}

fn ran_with_repo(playground: &Playground, from: &std::path::Path) -> crate::jvs::support::RunResult {
    let root = playground.root();
    ran(playground.command().current_dir(from).arg("--repo").arg(root).args(["lock", "status"]))
}

#[test]
fn init_refuses_to_change_a_repository_that_exists() {
    let playground = Playground::new();
    let before = std::fs::read(playground.root().join(".jvs/repo.json")).expect("readable");
    assert_eq!(playground.jvs(&["init", "--lease-duration-ms", "60000"]).code, 2);
    assert_eq!(std::fs::read(playground.root().join(".jvs/repo.json")).expect("readable"), before);
}
