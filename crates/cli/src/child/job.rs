//! A command and its process group, from its start until nothing of it is left.

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Read};
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

use super::alarm::{Alarm, Moment};
use super::signals::Signals;
use super::terminal::Terminal;

/// How long a group that was killed may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// What to say of [`Ended::WantsTerminal`].
pub const WANTS_TERMINAL: &str = "the command was ended, because it wanted the terminal, which is another job's; run it in \
                                  the foreground, or with its input from a file or /dev/null";

/// What becomes of the command next.
pub enum Order<L> {
    /// It may run. Ask again within this time.
    Run(Duration),
    /// It has to end: it is told so, once, with SIGTERM. Ask again within this time.
    End(Duration),
    /// It must not run any more.
    Kill(L),
}

/// How it ended.
pub enum Ended<L> {
    /// By itself, or by a signal: the exit code as a shell gives it, 128 and the signal that killed it.
    Exited(u8),
    /// It was ordered to be killed.
    Killed(L),
    /// It waited for a terminal that it would never have had.
    WantsTerminal,
}

/// A command that runs.
pub struct Job<'a> {
    /// The command: the leader of its group, and reaped last.
    leader: Pid,
    signals: &'a Signals,
    rung: PipeReader,
    alarm: Alarm,
    terminal: Option<Terminal>,
    /// It was told to end.
    told: bool,
}

impl<'a> Job<'a> {
    /// Starts the command in a group of its own, and lends it the terminal. To be called on the main thread: the
    /// kernel kills the command when the thread that started it ends. `rung` is a pipe that wakes whoever watches.
    pub fn start<V: AsRef<OsStr>>(
        command: &[OsString],
        variables: impl IntoIterator<Item = (&'static str, V)>,
        signals: &'a Signals,
        rung: PipeReader,
    ) -> io::Result<Job<'a>> {
        // Made first: once the command runs, nothing may fail before it is watched.
        let alarm = Alarm::new()?;
        // What the command leaves behind becomes our child, so that we can tell when it is gone.
        set_child_subreaper(Some(getpid()))?;
        let child = Command::new("/proc/self/exe")
            .args([super::BECOME, &std::process::id().to_string()])
            .args(command)
            .envs(variables)
            .process_group(0)
            .spawn()?;
        let leader = Pid::from_child(&child);
        Ok(Job { leader, signals, rung, alarm, terminal: Terminal::hand_to(leader), told: false })
    }

    /// Keeps the command and its rule together until one of them ends.
    pub fn watch<L>(&mut self, mut rule: impl FnMut() -> Order<L>) -> Ended<L> {
        loop {
            if let Some(ended) = self.look() {
                return ended;
            }
            // Read before the rule reads its clock: if the machine sleeps in between, the alarm is early, never late.
            let asked_at = Moment::now();
            let within = match rule() {
                Order::Run(within) => within,
                Order::End(within) => {
                    self.tell_to_end();
                    within
                }
                Order::Kill(why) => return Ended::Killed(why),
            };
            self.wait(asked_at.after(within));
            while let Some(signal) = self.signals.for_command() {
                let _ = kill_process_group(self.leader, signal);
            }
        }
    }

    fn tell_to_end(&mut self) {
        if !self.told {
            self.told = true;
            let _ = kill_process_group(self.leader, Signal::TERM);
            let _ = kill_process_group(self.leader, Signal::CONT);
        }
    }

    /// Kills what is left of the group, and waits until it is gone: false if it is not, within some seconds.
    #[must_use = "what may still run must not lose its protection"]
    pub fn end(mut self) -> bool {
        let _ = kill_process_group(self.leader, Signal::KILL);
        let gone = self.is_gone_by(Moment::now().after(GONE_WITHIN));
        drop(self.terminal);
        gone
    }

    fn is_gone_by(&mut self, last: Moment) -> bool {
        loop {
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            if test_kill_process_group(self.leader).is_err() {
                return true;
            }
            if Moment::now() >= last {
                return false;
            }
            self.wait(Moment::now().after(Duration::from_millis(20)).min(last));
            while self.signals.for_command().is_some() {}
        }
    }

    /// Waits for a signal, the bell or a moment; a little early is fine, since the caller looks again.
    fn wait(&mut self, until: Moment) {
        self.alarm.set(until).expect("a timer of our own");
        let (signals, alarm) = (self.signals.as_fd(), self.alarm.as_fd());
        let mut fds = [&signals, &alarm].map(|fd| PollFd::new(fd, PollFlags::IN)).to_vec();
        fds.push(PollFd::new(&self.rung, PollFlags::IN));
        let ready = poll(&mut fds, None).is_ok();
        if ready && fds[2].revents().contains(PollFlags::IN) {
            drop(self.rung.read(&mut [0; 16]));
        }
    }

    /// Whether the command has ended, without reaping it; a command that was stopped is continued.
    fn look<L>(&self) -> Option<Ended<L>> {
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.leader), peek) {
            return Some(Ended::Exited(exit_code(&status)));
        }
        self.reap_orphans();
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while let Ok(Some(status)) = waitid(WaitId::Pid(self.leader), stopped) {
            // Continued, it would ask for the terminal again, and be stopped again, as fast as a core can go.
            if wants_terminal(&status) && !Terminal::belongs_to(self.leader) {
                return Some(Ended::WantsTerminal);
            }
            // A lease cannot be suspended: it would run out. So neither can its command.
            let _ = kill_process_group(self.leader, Signal::CONT);
        }
        None
    }

    /// Without this a command that leaves many processes behind would fill the process table.
    fn reap_orphans(&self) {
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Some(pid) = waitid_of_any(Id::All, peek).ok().and_then(|status| status.pid()) {
            match Pid::from_raw(pid.as_raw()) {
                // It has just ended: the next look finds it.
                Some(pid) if pid != self.leader => drop(waitpid(Some(pid), WaitOptions::NOHANG)),
                _ => return,
            }
        }
    }
}

fn wants_terminal(status: &WaitIdStatus) -> bool {
    let by = status.stopping_signal();
    [Signal::TTIN, Signal::TTOU].iter().any(|signal| by == Some(signal.as_raw()))
}

fn exit_code(status: &WaitIdStatus) -> u8 {
    let by_signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or(by_signal).and_then(|code| u8::try_from(code).ok());
    code.expect("a process ends with a code, or by a signal")
}
