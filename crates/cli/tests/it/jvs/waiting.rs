//! `--wait`, and durations beside milliseconds.

use std::process::Stdio;

use crate::jvs::support::{Playground, ran};

/// `jvs run` beside a running one failed at once with 20, and its advice was to wait.
#[test]
fn run_waits_for_the_lock_and_names_the_holder() {
    let playground = Playground::new();
    let session = playground.acquire();
    let mut second = playground.command();
    second
        .args(["run", "--wait", "--", "sh", "-c", "echo ran"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let second = second.spawn().expect("it starts");
    let queue = playground.root().join(".jvs/waiters/main");
    crate::running::until("the second run waits", || {
        std::fs::read_dir(&queue).is_ok_and(|mut names| names.next().is_some())
    });
    playground.json(&["lock", "release", "--session-id", &session]);
    let ended = second.wait_with_output().expect("it ends");
    let stderr = String::from_utf8(ended.stderr).expect("text");
    assert!(ended.status.success(), "{stderr}");
    assert_eq!(ended.stdout, b"ran\n");
    let holder = format!(":{}:", std::process::id());
    assert!(
        stderr.lines().any(|line| line.starts_with("jvs: waiting for the lock: worktree=main holder=")
            && line.contains(&holder)),
        "{stderr}"
    );
}

#[test]
fn acquire_waits_no_longer_than_told() {
    let playground = Playground::new();
    playground.acquire();
    let refused = playground.jvs(&["--json", "lock", "acquire", "--wait=30ms"]);
    assert_eq!(refused.code, 20);
    let error = refused.error();
    assert!(error["waited_ms"].as_u64().expect("a number") >= 30, "{error}");
    assert!(error["holder_id"].is_string() && error["stealable_at_rfc3339"].is_string(), "{error}");
    let run = playground.jvs(&["run", "--wait=30ms", "--", "true"]);
    assert_eq!(run.code, 20);
    assert!(
        run.stderr.contains("still locked after the wait") && run.stderr.contains("holder="),
        "{}",
        run.stderr
    );
    let wrong = playground.jvs(&["lock", "acquire", "--wait=soon"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("write 30s, 5m or 1h"), "{}", wrong.stderr);
}

#[test]
fn policies_are_durations_or_milliseconds() {
    let playground = Playground::new();
    let args =
        ["lock", "acquire", "--lease-duration", "2m", "--renew-interval", "20s", "--steal-grace-ms", "7"];
    let lock = playground.json(&args)["lock"].clone();
    assert_eq!((&lock["lease_duration_ms"], &lock["renew_interval_ms"]), (&120_000.into(), &20_000.into()));
    assert_eq!(lock["steal_grace_ms"], 7);
    let both = ["lock", "acquire", "--lease-duration", "2m", "--lease-duration-ms", "1000"];
    assert_eq!(ran(playground.command().args(both)).code, 2, "one spelling at a time");
    let long = playground.jvs(&["lock", "acquire", "--lease-duration", "900y"]);
    assert!(long.code == 2 && long.stderr.contains("a year"), "{}", long.stderr);
}
