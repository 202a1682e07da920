//! Commands that wait for a lease go on when the server is killed and started again, and say what they wait for.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::lockd::serve::{LogLines, Running};
use crate::running::{assert_gone, until};

fn lockd(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.env("LOCKD_CLIENT_SERVER", format!("unix:{}", socket.display()));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(data: &Path, socket: &Path) -> Running {
    // A socket has the same name after a restart; another test could get the port.
    Running::start(data, &["--mtls=false", "--unix", socket.to_str().expect("UTF-8")])
}

fn wait(socket: &Path, args: &[&str]) -> (Child, LogLines) {
    let mut child = lockd(socket, args).spawn().expect("the program");
    let mut log = LogLines::new(child.stderr.take().expect("piped"));
    log.wait_for("waiting for the lease, next in the queue: holder=anonymous");
    (child, log)
}

fn goes_on_after_a_restart(args: &[&str], output: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, socket) = (dir.path().join("data"), dir.path().join("socket"));
    let server = start(&data, &socket);
    let mut acquire = lockd(&socket, &["client", "acquire", "--output", "json", "--ttl", "300s", "orders"]);
    let held = acquire.output().expect("the program");
    let held: Value = serde_json::from_slice(&held.stdout).expect("JSON");
    let (child, mut log) = wait(&socket, args);
    // SIGKILL.
    drop(server);
    log.wait_for("waiting for the server: ");
    let _server = start(&data, &socket);
    let lease_id = held["lease_id"].as_str().expect("a credential");
    let released = lockd(&socket, &["client", "release", "--lease-id", lease_id, "orders"]).output();
    let released = released.expect("the program");
    assert!(released.status.success(), "{}", String::from_utf8_lossy(&released.stderr));
    let ran = child.wait_with_output().expect("the program");
    let printed = String::from_utf8(ran.stdout).expect("text");
    assert!(ran.status.success() && printed.contains(output), "{} {printed}", ran.status);
}

#[test]
fn an_acquire_goes_on_when_the_server_is_killed_and_started_again() {
    goes_on_after_a_restart(&["client", "acquire", "--block", "120s", "orders"], "LOCKD_CLIENT_LEASE_ID");
}

#[test]
fn a_command_that_waits_for_its_lease_runs_after_the_server_is_killed_and_started_again() {
    goes_on_after_a_restart(&["run", "--key", "orders", "--block", "120s", "--", "echo", "ran"], "ran");
}

/// Every restart of the server put its waiters into an order of chance: each came back to the end of the queue.
fn waiters_keep_their_order(stop: impl FnOnce(Running)) {
    const WAITERS: usize = 20;
    let dir = tempfile::tempdir().expect("a directory");
    let (data, socket, order) =
        (dir.path().join("data"), dir.path().join("socket"), dir.path().join("order"));
    let server = start(&data, &socket);
    let mut acquire = lockd(&socket, &["client", "acquire", "--output", "json", "--ttl", "300s", "orders"]);
    let held: Value = serde_json::from_slice(&acquire.output().expect("the program").stdout).expect("JSON");
    let mut waiting = Vec::new();
    for number in 0..WAITERS {
        let script = format!("echo {number} >> {}", order.display());
        let args = ["run", "--key", "orders", "--ttl", "60s", "--block", "300s", "--", "sh", "-c", &script];
        let mut child = lockd(&socket, &args).spawn().expect("the program");
        let log = LogLines::new(child.stderr.take().expect("piped"));
        // It has its place before the next one comes.
        until("it waits", || waiters(&socket) == Some(number as u64 + 1));
        waiting.push((child, log));
    }
    stop(server);
    for (_, log) in &mut waiting {
        log.wait_for("waiting for the server: ");
    }
    let _server = start(&data, &socket);
    until("all wait again", || waiters(&socket) == Some(WAITERS as u64));
    let lease_id = held["lease_id"].as_str().expect("a credential");
    let released = lockd(&socket, &["client", "release", "--lease-id", lease_id, "orders"]).output();
    assert!(released.expect("the program").status.success());
    for (child, _log) in waiting {
        let ran = child.wait_with_output().expect("the program");
        assert!(ran.status.success(), "{}", ran.status);
    }
    let order = std::fs::read_to_string(&order).expect("they ran");
    let order: Vec<usize> = order.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(order, (0..WAITERS).collect::<Vec<usize>>());
}

/// The number of waiters, if the server responds.
fn waiters(socket: &Path) -> Option<u64> {
    let described = lockd(socket, &["client", "describe", "--output", "json", "orders"]).output();
    let described: Value = serde_json::from_slice(&described.expect("the program").stdout).ok()?;
    described["waiters"].as_u64()
}

#[test]
fn twenty_waiters_keep_their_order_when_the_server_is_killed() {
    waiters_keep_their_order(drop);
}

#[test]
fn twenty_waiters_keep_their_order_when_the_server_is_stopped() {
    waiters_keep_their_order(|server| {
        server.signal(rustix::process::Signal::TERM);
        assert_gone(rustix::process::Pid::from_raw(server.pid().cast_signed()).expect("a process"));
        drop(server);
    });
}
