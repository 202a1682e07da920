//! A command and its process group, from its start until the last process is reaped.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::wait::{Id, WaitPidFlag, waitid as waitid_of_any};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpid, kill_process_group,
    set_child_subreaper, test_kill_process_group, wait, waitid, waitpid,
};

use super::boot_clock::{BootInstant, BootTimer};
use super::signals::Signals;
use super::terminal::Terminal;
use super::waker::WakeReader;

/// How long to wait for the processes of a killed group to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The error message for [`JobExit::WantsTerminal`].
pub const WANTS_TERMINAL: &str = "the command was killed: it tried to use the terminal, which belongs to another job; run \
                                  it in the foreground, or redirect its input from a file or /dev/null";

/// The error message for a group that [`Job::end`] could not kill; `held` is the lock or lease that protects it.
pub fn unkilled(held: &str) -> String {
    format!(
        "some processes of the command could not be killed, so the {held} is not released and will expire; find out what \
         blocks them"
    )
}

/// The next step of the supervising loop.
pub enum Order<L> {
    /// Let it run; evaluate the rule again within this time.
    Run(Duration),
    /// Send SIGTERM, once; evaluate the rule again within this time.
    End(Duration),
    /// Stop watching: the caller then kills the group with [`Job::end`].
    Kill(L),
}

/// Why [`Job::watch`] returned.
pub enum JobExit<L> {
    /// The command exited. A shell's exit code: 128 plus the signal number if a signal killed it.
    Exited(u8),
    /// The rule returned [`Order::Kill`].
    Killed(L),
    /// The command was stopped by SIGTTIN or SIGTTOU, and the terminal belongs to another job.
    WantsTerminal,
}

/// A running command.
pub struct Job<'a> {
    /// The command's pid, which is also its process group; reaped last.
    leader: Pid,
    signals: &'a Signals,
    wakeups: WakeReader,
    timer: BootTimer,
    terminal: Option<Terminal>,
    /// SIGTERM was sent.
    term_sent: bool,
}

impl<'a> Job<'a> {
    /// Starts the command in its own process group and makes it the terminal's foreground group. Must be called on the
    /// main thread: the kernel kills the command when the thread that started it ends. `wakeups` interrupts `watch`.
    pub fn start<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        command: &[OsString],
        variables: impl IntoIterator<Item = (K, V)>,
        signals: &'a Signals,
        wakeups: WakeReader,
    ) -> io::Result<Job<'a>> {
        // Created first: once the command runs, nothing may fail before it is watched.
        let timer = BootTimer::new()?;
        // Orphans of the command are reparented to this process, so that it can wait for them.
        set_child_subreaper(Some(getpid()))?;
        let child = Command::new("/proc/self/exe")
            .args([super::BECOME, &std::process::id().to_string()])
            .args(command)
            .envs(variables)
            .process_group(0)
            .spawn()?;
        let leader = Pid::from_child(&child);
        Ok(Job { leader, signals, wakeups, timer, terminal: Terminal::hand_to(leader), term_sent: false })
    }

    /// Supervises the command until it exits or `rule` orders the kill. Signals to this process are forwarded to the group.
    pub fn watch<L>(&mut self, mut rule: impl FnMut() -> Order<L>) -> JobExit<L> {
        loop {
            if let Some(exit) = self.poll_exit() {
                return exit;
            }
            // Read before the rule reads its clock: a suspend in between makes the timer early, never late.
            let read_at = BootInstant::now();
            let within = match rule() {
                Order::Run(within) => within,
                Order::End(within) => {
                    self.send_term();
                    within
                }
                Order::Kill(why) => return JobExit::Killed(why),
            };
            self.wait(read_at.plus(within));
            while let Some(signal) = self.signals.for_command() {
                let _ = kill_process_group(self.leader, signal);
            }
        }
    }

    fn send_term(&mut self) {
        if !self.term_sent {
            self.term_sent = true;
            let _ = kill_process_group(self.leader, Signal::TERM);
            let _ = kill_process_group(self.leader, Signal::CONT);
        }
    }

    /// Kills the group and waits until no process of it is left; false if some remain after 10 s.
    #[must_use = "processes that may still run must keep their lock"]
    pub fn end(mut self) -> bool {
        let _ = kill_process_group(self.leader, Signal::KILL);
        let gone = self.wait_until_gone(BootInstant::now().plus(KILL_TIMEOUT));
        drop(self.terminal);
        gone
    }

    fn wait_until_gone(&mut self, deadline: BootInstant) -> bool {
        loop {
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            if test_kill_process_group(self.leader).is_err() {
                return true;
            }
            if BootInstant::now() >= deadline {
                return false;
            }
            self.wait(BootInstant::now().plus(Duration::from_millis(20)).min(deadline));
            while self.signals.for_command().is_some() {}
        }
    }

    /// Waits for a signal, a wakeup or the deadline. Spurious returns are fine: the caller re-evaluates everything.
    fn wait(&mut self, until: BootInstant) {
        self.timer.set(until).expect("a timer of our own");
        let (signals, timer) = (self.signals.as_fd(), self.timer.as_fd());
        let mut fds = [&signals, &timer].map(|fd| PollFd::new(fd, PollFlags::IN)).to_vec();
        fds.push(PollFd::new(&self.wakeups, PollFlags::IN));
        let ready = poll(&mut fds, None).is_ok();
        if ready && fds[2].revents().contains(PollFlags::IN) {
            drop(self.wakeups.read(&mut [0; 16]));
        }
    }

    /// Checks for the command's exit without reaping it. A stopped command is continued.
    fn poll_exit<L>(&self) -> Option<JobExit<L>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.leader), options) {
            return Some(JobExit::Exited(exit_code(&status)));
        }
        self.reap_orphans();
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while let Ok(Some(status)) = waitid(WaitId::Pid(self.leader), stopped) {
            // Continued, it would access the terminal and be stopped again, in a busy loop.
            if wants_terminal(&status) && !Terminal::belongs_to(self.leader) {
                return Some(JobExit::WantsTerminal);
            }
            // A lease expires while its command is stopped, so a command cannot be suspended.
            let _ = kill_process_group(self.leader, Signal::CONT);
        }
        None
    }

    /// Keeps the zombies of reparented orphans from filling the process table.
    fn reap_orphans(&self) {
        let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Some(pid) = waitid_of_any(Id::All, options).ok().and_then(|status| status.pid()) {
            match Pid::from_raw(pid.as_raw()) {
                Some(pid) if pid != self.leader => drop(waitpid(Some(pid), WaitOptions::NOHANG)),
                // The leader has just exited: the next `poll_exit` finds it.
                _ => return,
            }
        }
    }
}

fn wants_terminal(status: &WaitIdStatus) -> bool {
    let stopped_by = status.stopping_signal();
    [Signal::TTIN, Signal::TTOU].iter().any(|signal| stopped_by == Some(signal.as_raw()))
}

fn exit_code(status: &WaitIdStatus) -> u8 {
    let by_signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or(by_signal).and_then(|code| u8::try_from(code).ok());
    code.expect("a process ends with a code, or by a signal")
}
