//! `jvs run`: the command lives while the lock does, and no longer.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::support::{Playground, ran};

#[test]
fn the_command_gets_its_token_and_its_exit_code_is_passed_on() {
    let playground = Playground::new();
    let script = "echo token=$JVS_FENCING_TOKEN worktree=$JVS_WORKTREE; exit 7";
    let run = playground.jvs(&["run", "--", "sh", "-c", script]);
    assert_eq!(run.code, 7);
    assert_eq!(run.stdout, "token=2 worktree=main\n");
    assert_eq!(playground.json(&["lock", "status"])["state"], "free", "the lock is given back");
    assert_eq!(playground.jvs(&["run", "--", "sh", "-c", "kill -TERM $$"]).code, 128 + 15);
}

#[test]
fn a_command_that_cannot_start_leaves_no_lock_behind() {
    let playground = Playground::new();
    let run = playground.jvs(&["run", "--", "/no/such/program"]);
    assert_eq!(run.code, 127, "as a shell says it");
    assert!(run.stderr.contains("/no/such/program"), "{}", run.stderr);
    assert_eq!(playground.json(&["lock", "status"])["state"], "free");
}

#[test]
fn the_command_can_take_snapshots_under_the_lock_it_runs_under() {
    let playground = Playground::new();
    playground.write("file", b"1");
    let jvs = playground.command().get_program().to_owned();
    let run = ran(playground.command().args(["run", "--"]).arg(jvs).args(["snapshot", "from inside"]));
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(playground.json(&["info"])["note"], "from inside");
}

#[test]
fn another_run_is_refused_while_one_runs() {
    let playground = Playground::new();
    let jvs = playground.command().get_program().to_owned();
    let inner = ran(playground.command().args(["run", "--"]).arg(jvs).args(["run", "--", "true"]));
    assert_eq!(inner.code, 20, "the inner one's refusal is passed on");
}

/// Outlives many of its leases, because it renews them.
#[test]
fn the_lock_is_renewed_while_the_command_runs() {
    let playground = Playground::new();
    let policy = ["--lease-duration-ms", "4000", "--renew-interval-ms", "50"];
    let script = "i=0; while [ $i -lt 200 ]; do [ -e \"$JVS_REPO/.jvs/locks/main.d/2.renew\" ] && exit 0; \
                  sleep 0.1; i=$((i+1)); done; exit 9";
    let args = [&["run"], &policy[..], &["--", "sh", "-c", script]].concat();
    assert_eq!(playground.jvs(&args).code, 0);
}

/// The lock is lost while the command and its children run: they are all killed at once.
#[test]
fn losing_the_lock_kills_the_whole_process_group_and_exits_with_the_class() {
    let playground = Playground::new();
    let policy = ["--lease-duration-ms", "4000", "--renew-interval-ms", "20"];
    let (run, pids) = start(&playground, &policy, "sleep 600 & echo $$ $!; wait");
    assert_eq!(pids.len(), 2);

    // Its own session gives the lock back behind its back: the next renewal finds that it is gone.
    let session =
        playground.json(&["lock", "status"])["lock"]["session_id"].as_str().expect("held").to_owned();
    playground.json(&["lock", "release", "--session-id", &session]);

    let ended = run.wait_with_output().expect("it ends by itself");
    assert_eq!(ended.status.code(), Some(22), "{}", String::from_utf8_lossy(&ended.stderr));
    for pid in pids {
        assert!(is_gone(pid), "{pid:?} outlived the lock");
    }
}

/// A stopped jvs cannot renew; when it wakes, its lease is over, and it must not let the command go on.
#[test]
fn a_run_that_slept_through_its_lease_kills_the_command_when_it_wakes() {
    let playground = Playground::new();
    let policy = ["--lease-duration-ms", "200", "--renew-interval-ms", "100"];
    let (run, pids) = start(&playground, &policy, "echo $$; exec sleep 600");
    let jvs = Pid::from_child(&run);
    kill_process(jvs, Signal::STOP).expect("our own child");
    while playground.json(&["lock", "status"])["state"] == "live" {}
    kill_process(jvs, Signal::CONT).expect("our own child");
    let ended = run.wait_with_output().expect("it ends by itself");
    assert_eq!(ended.status.code(), Some(21), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(is_gone(pids[0]));
}

/// The command once inherited jvs's blocked signals, and could not be stopped by any of them.
#[test]
fn the_command_starts_with_no_signal_blocked() {
    let playground = Playground::new();
    let run = playground.jvs(&["run", "--", "grep", "SigBlk", "/proc/self/status"]);
    assert_eq!(run.stdout, "SigBlk:\t0000000000000000\n");
}

#[test]
fn the_command_dies_with_a_jvs_that_is_killed() {
    let playground = Playground::new();
    let (mut run, pids) = start(&playground, &[], "echo $$; exec sleep 600");
    run.kill().expect("our own child");
    run.wait().expect("our own child");
    assert!(is_gone(pids[0]));
}

/// A renewal can hang: here another process keeps the session's turn. The lease runs out all the same, and the
/// command must not outlive it.
#[test]
fn a_renewal_that_never_comes_through_ends_the_command_at_expiry() {
    let playground = Playground::new();
    let policy = ["--lease-duration-ms", "2000", "--renew-interval-ms", "1000"];
    let (run, pids) = start(&playground, &policy, "echo $$; exec sleep 600");
    let session =
        playground.json(&["lock", "status"])["lock"]["session_id"].as_str().expect("held").to_owned();
    let turn = std::fs::File::create(playground.session_file(&format!("{session}.turn"))).expect("writable");
    rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive).expect("nobody renews for ever");
    let ended = run.wait_with_output().expect("it ends by itself");
    assert_eq!(ended.status.code(), Some(21), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(is_gone(pids[0]));
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let playground = Playground::new();
    let script = "trap 'exit 33' TERM; echo ready; while :; do sleep 0.05; done";
    let mut run = playground
        .command()
        .args(["run", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    BufReader::new(run.stdout.take().expect("piped")).read_line(&mut line).expect("the command speaks");
    kill_process(Pid::from_child(&run), Signal::TERM).expect("our own child");
    assert_eq!(run.wait().expect("it ends").code(), Some(33));
    assert_eq!(playground.json(&["lock", "status"])["state"], "free");
}

/// Starts a script under the lock; it has to say first which processes are its own.
fn start(playground: &Playground, policy: &[&str], script: &str) -> (Child, Vec<Pid>) {
    let mut run = playground
        .command()
        .arg("run")
        .args(policy)
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let mut output = BufReader::new(run.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("the command speaks");
    let pid = |text: &str| Pid::from_raw(text.parse().expect("a number")).expect("not zero");
    (run, line.split_whitespace().map(pid).collect())
}

/// Waits a bounded while for a killed process to be reaped by whoever inherited it.
fn is_gone(pid: Pid) -> bool {
    (0..200_000).any(|_| {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        zombie || test_kill_process(pid).is_err()
    })
}
