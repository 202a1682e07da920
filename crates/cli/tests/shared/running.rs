//! Programs that run a command, and what becomes of their processes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use worktree::clock::{Clock, SystemClock};

/// Starts something that says first which processes are its own; the first of them leads a group.
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

/// A program that runs. A test that fails leaves neither it nor its command behind, stopped or not.
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

    /// Waits for its end: its exit code, and what it said about it.
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
        // Once it is reaped, its pid may be another's.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = kill_process(self.pid(), Signal::KILL);
            let _ = kill_process(self.pid(), Signal::CONT);
            let _ = self.child.wait();
        }
    }
}

/// Fails if it takes a minute: far more than any machine needs, far less than for ever.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let began = clock.boot();
    while !is_so() {
        assert!(clock.boot().since(began) < 60_000, "waited in vain: {what}");
        clock.wait(5);
    }
}

/// Waits for a killed process to be reaped by whoever inherited it.
pub(crate) fn assert_gone(pid: Pid) {
    until("the process is gone", || {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        zombie || test_kill_process(pid).is_err()
    });
}
