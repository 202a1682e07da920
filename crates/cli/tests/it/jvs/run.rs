//! `jvs run`: the command runs only while the lock is held.

use rustix::process::{Pid, Signal, kill_process};

use crate::jvs::support::{Playground, ran};
use crate::running::{Running, assert_gone, spoken, until};
use crate::terminal;

#[test]
fn the_command_gets_its_token_and_its_exit_code_is_passed_on() {
    let playground = Playground::new();
    let script = "echo token=$JVS_FENCING_TOKEN worktree=$JVS_WORKTREE; exit 7";
    let run = playground.jvs(&["run", "--", "sh", "-c", script]);
    assert_eq!(run.code, 7);
    assert_eq!(run.stdout, "token=2 worktree=main\n");
    assert_eq!(playground.json(&["lock", "status"])["state"], "free", "the lock is released");
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

/// Without renewals the command would be killed when its first lease ends; it outlives that one.
#[test]
fn the_lock_is_renewed_while_the_command_runs() {
    let playground = Playground::new();
    let policy = ["--lease-duration-ms", "3000", "--renew-interval-ms", "100"];
    let args = [&["run"], &policy[..], &["--", "sh", "-c", "sleep 3.5; exit 5"]].concat();
    let run = playground.jvs(&args);
    assert_eq!(run.code, 5, "{}", run.stderr);
}

/// The lock is lost while the command and its children run: all of them are killed at once.
#[test]
fn losing_the_lock_kills_the_whole_process_group_and_exits_with_the_class() {
    let playground = Playground::new();
    let policy = ["--lease-duration-ms", "10000", "--renew-interval-ms", "20"];
    let (run, pids) = start(&playground, &policy, "sleep 600 & echo $$ $!; wait");
    assert_eq!(pids.len(), 2);

    // The lock is released with its own session: the next renewal finds that it is lost.
    let session =
        playground.json(&["lock", "status"])["lock"]["session_id"].as_str().expect("held").to_owned();
    playground.json(&["lock", "release", "--session-id", &session]);

    let (code, stderr) = run.ended();
    assert_eq!(code, Some(22), "{stderr}");
    for pid in pids {
        assert_gone(pid);
    }
}

/// A stopped jvs cannot renew; when it is continued, its lease has expired, and it must kill the command.
#[test]
fn a_run_that_slept_through_its_lease_kills_the_command_when_it_wakes() {
    let playground = Playground::new();
    let policy = ["--lease-duration-ms", "2000", "--renew-interval-ms", "200"];
    let (run, pids) = start(&playground, &policy, "echo $$; exec sleep 600");
    let jvs = run.pid();
    kill_process(jvs, Signal::STOP).expect("our own child");
    until("the lease is over", || playground.json(&["lock", "status"])["state"] != "live");
    kill_process(jvs, Signal::CONT).expect("our own child");
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(21), "{stderr}");
    assert_gone(pids[0]);
}

/// `jvs run -- cat &` on a terminal: the command reads from a terminal that belongs to another job and is
/// stopped. jvs continued it, it read again, and so on in a busy loop.
#[test]
fn a_command_in_the_background_that_wants_the_terminal_is_ended() {
    let playground = Playground::new();
    let (_master, terminal) = terminal::open();
    let mut shell = playground.program("setsid");
    // With -m the shell gives each job a group of its own, as at a prompt.
    let script = "\"$0\" run -- cat & echo $!; wait $!";
    shell.args(["--ctty", "--wait", "sh", "-m", "-c", script]).arg(playground.command().get_program());
    shell.stdin(terminal);
    let (run, _) = spoken(&mut shell);
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("foreground"), "{stderr}");
    assert_eq!(playground.json(&["lock", "status"])["state"], "free");
}

/// A daemon that ignores SIGCHLD passes that on to jvs: the kernel then reaped the command itself, jvs never
/// noticed its end, and renewed the lock for ever.
#[test]
fn a_command_is_not_started_while_sigchld_is_ignored() {
    let playground = Playground::new();
    let mut deaf = playground.program("env");
    deaf.arg("--ignore-signal=CHLD").arg(playground.command().get_program());
    let run = ran(deaf.args(["run", "--", "echo", "started"]));
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{}", run.stderr);
    assert!(run.stderr.contains("SIGCHLD"), "{}", run.stderr);
    assert_eq!(playground.json(&["lock", "status"])["state"], "free");
}

#[test]
fn a_signal_that_jvs_ignores_does_not_end_the_command() {
    let playground = Playground::new();
    let script = "trap '' HUP; \"$0\" run -- sh -c 'kill -HUP $PPID $$; sleep 0.2; exit 4'";
    let run = ran(playground.program("sh").args(["-c", script]).arg(playground.command().get_program()));
    assert_eq!(run.code, 4, "{}", run.stderr);
}

/// The rest of the process group is dead and reaped before the lock is released.
#[test]
fn nothing_of_the_command_is_left_when_jvs_has_ended() {
    let playground = Playground::new();
    let script = "sh -c 'trap \"\" TERM HUP; while :; do sleep 600; done' & (sleep 600 &) ; echo $! $$";
    let (run, pids) = start(&playground, &[], script);
    assert_eq!(run.ended().0, Some(0));
    let stopped = rustix::process::test_kill_process_group(pids[1]);
    assert_eq!(stopped, Err(rustix::io::Errno::SRCH), "not even a process that nobody has reaped");
}

/// Orphans of the command become children of jvs; without reaping they would fill the process table.
#[test]
fn orphans_of_the_command_are_reaped_while_it_runs() {
    let playground = Playground::new();
    let script = r#"for i in 1 2 3 4 5 6 7 8 9; do (true &); done
        for i in $(seq 300); do
            sleep 0.2
            grep -qs "^[0-9]* (.*) Z $PPID " /proc/[0-9]*/stat || exit 3
        done"#;
    let run = playground.jvs(&["run", "--", "sh", "-c", script]);
    assert_eq!(run.code, 3, "{}", run.stdout);
}

#[test]
fn a_command_that_stops_itself_is_continued() {
    let playground = Playground::new();
    let run = playground.jvs(&["run", "--", "sh", "-c", "kill -STOP $$; exit 6"]);
    assert_eq!(run.code, 6, "{}", run.stderr);
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
    let (run, pids) = start(&playground, &[], "echo $$; exec sleep 600");
    kill_process(run.pid(), Signal::KILL).expect("our own child");
    assert_eq!(run.ended().0, None, "killed");
    assert_gone(pids[0]);
}

/// A renewal can block: here another process holds the session's renewal guard. The lease still expires, and
/// the command must not outlive it.
#[test]
fn a_renewal_that_never_comes_through_ends_the_command_at_expiry() {
    let playground = Playground::new();
    let policy = ["--lease-duration-ms", "2000", "--renew-interval-ms", "1000"];
    let (run, pids) = start(&playground, &policy, "echo $$; exec sleep 600");
    let session =
        playground.json(&["lock", "status"])["lock"]["session_id"].as_str().expect("held").to_owned();
    let turn = std::fs::File::create(playground.session_file(&format!("{session}.turn"))).expect("writable");
    rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive).expect("nobody renews for ever");
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(21), "{stderr}");
    assert_gone(pids[0]);
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let playground = Playground::new();
    let script = "trap 'exit 33' TERM; echo $$; while :; do sleep 0.05; done";
    let (run, _) = start(&playground, &[], script);
    kill_process(run.pid(), Signal::TERM).expect("our own child");
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(33), "{stderr}");
    assert_eq!(playground.json(&["lock", "status"])["state"], "free");
}

/// Starts a script under the lock; its first line of output lists its processes.
fn start(playground: &Playground, policy: &[&str], script: &str) -> (Running, Vec<Pid>) {
    let mut command = playground.command();
    command.arg("run").args(policy).args(["--", "sh", "-c", script]);
    spoken(&mut command)
}
