//! Test processes that run a command, and the cleanup of their process groups.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use worktree::clock::{Clock, SystemClock};

/// Starts a command whose first line of output is the pids of its processes; the first is the group leader.
pub(crate) fn spoken(command: &mut Command) -> (Running, Vec<Pid>) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut run = Running::new(child);
    let mut line = String::new();
    let mut output = BufReader::new(run.child.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("the command speaks");
    let pid = |text: &str| Pid::from_raw(text.parse().expect("a number")).expect("not zero");
    let pids: Vec<Pid> = line.split_whitespace().map(pid).collect();
    run.group = pids.first().copied();
    (run, pids)
}

/// A running program. Dropping it kills the program and its command, even if stopped, so that a failed test leaves none.
pub(crate) struct Running {
    child: Child,
    group: Option<Pid>,
}

impl Running {
    pub(crate) fn new(child: Child) -> Self {
        Self { child, group: None }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for it to exit: its exit code and standard error.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let mut status = None;
        until("it ends by itself", || {
            status = self.child.try_wait().expect("our own child");
            status.is_some()
        });
        let mut stderr = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        (status.expect("it ended").code(), stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Once reaped, its pid may be reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = kill_process(self.pid(), Signal::KILL);
            let _ = kill_process(self.pid(), Signal::CONT);
            let _ = self.child.wait();
        }
    }
}

/// Waits for a condition; fails after a minute, far more than any machine needs.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let began = clock.boot();
    while !condition() {
        assert!(clock.boot().since(began) < 60_000, "timed out waiting until {what}");
        clock.wait(5);
    }
}

/// Waits until a killed process is a zombie or reaped by its new parent.
pub(crate) fn assert_gone(pid: Pid) {
    until("the process is gone", || {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        zombie || test_kill_process(pid).is_err()
    });
}
