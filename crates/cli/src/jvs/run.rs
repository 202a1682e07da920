//! `jvs run`: a command that runs while, and only while, the lock is held.
//!
//! Invariant: while jvs gets to run, the command's process group is dead once the lease is over on this
//! machine's boot clock. The lease is renewed by another thread, because a renewal may hang with the filesystem; this thread only
//! waits, with the expiry as its deadline, so a hang ends the command in time.
//!
//! The command is started by way of this program again, which puts the signal mask right and asks the
//! kernel to kill it if jvs dies, before it becomes the command.
//!
//! What remains: processes that leave the group (`setsid`) are not reached, and if jvs itself is killed
//! with SIGKILL only the command dies with it, not its children. If jvs itself is stopped (SIGSTOP, a debugger)
//! it can neither renew nor kill: the command runs past the loss of the lock, until jvs is continued. Fencing
//! refuses what they would publish.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as Mask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process_group, set_parent_process_death_signal, waitpid,
};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};
use serde_json::json;
use worktree::clock::{BootMs, Clock};
use worktree::error::{Class, Error, Result};
use worktree::holder::HolderId;
use worktree::lock::{Grant, Request};
use worktree::worktree::Worktree;

use crate::answer::Answer;
use crate::args::{Run, RunChild};
use crate::commands::announce_watch;
use crate::context::Context;

/// Runs the command under the lock, and passes its exit code on.
pub(crate) fn run(context: &Context, args: &Run) -> Result<Answer> {
    let worktree = context.worktree(&args.target)?;
    let grant = context.repo.acquire(
        &worktree,
        &Request {
            holder: HolderId::this_process(),
            policy: worktree.policy.with(&args.policy.changes())?,
            only_steal: false,
            on_watch: &announce_watch,
        },
    )?;
    // Taken over only now, so that a long wait for the lock can be interrupted; and before there is a command
    // or another thread, so that every signal from here on arrives through the descriptor.
    let ended = take_signals().and_then(|signals| {
        // Made first: once the command runs, nothing may fail before it is watched.
        let bell = std::io::pipe().map_err(|cause| Error::io("make", "pipe".as_ref(), &cause))?;
        let child = start(context, &worktree, &grant, args)?;
        supervise(context, &worktree, &grant, &signals, bell, &child)
    });
    let released = context.repo.lock(&worktree).release(&grant.session.session_id);
    let exit_code = ended?;
    released?;
    let data = json!({"exit_code": exit_code, "fencing_token": grant.lock.fencing_token});
    Ok(Answer::new(data, "").with_exit_code(exit_code))
}

/// What a renewal came to.
enum Renewed {
    Until(BootMs),
    Lost(Error),
}

fn start(context: &Context, worktree: &Worktree, grant: &Grant, args: &Run) -> Result<Child> {
    std::process::Command::new("/proc/self/exe")
        .args(["run-child", &std::process::id().to_string(), "--"])
        .args(&args.command)
        .env("JVS_FENCING_TOKEN", grant.lock.fencing_token.to_string())
        .env("JVS_SESSION_ID", grant.session.session_id.as_str())
        .env("JVS_WORKTREE", worktree.worktree_id.as_str())
        .env("JVS_REPO", context.repo.layout().root())
        .process_group(0)
        .spawn()
        .map_err(|cause| Error::io("start", "/proc/self/exe".as_ref(), &cause))
}

/// Becomes the command: nothing blocked, and killed when the process that renews its lock is gone. Returns
/// only if it cannot, with the exit code that a shell would give.
pub(crate) fn become_child(args: &RunChild) -> Answer {
    let (program, arguments) = args.command.split_first().expect("clap asks for at least one");
    let ready = SigSet::empty().thread_set_mask().is_ok()
        && set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    // If the parent went before the kernel was asked, nobody would ever be told.
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if !ready || parent != args.parent {
        return Answer::new(json!({}), "").with_exit_code(126);
    }
    let cause = std::process::Command::new(program).args(arguments).exec();
    eprintln!("jvs: could not start the command: {cause} command={}", program.display());
    Answer::new(json!({}), "").with_exit_code(if cause.kind() == std::io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}

/// Keeps the lease and the command together until one of them ends.
fn supervise(
    context: &Context,
    worktree: &Worktree,
    grant: &Grant,
    signals: &SignalFd,
    (rung, bell): (PipeReader, PipeWriter),
    child: &Child,
) -> Result<u8> {
    let group = Pid::from_child(child);
    let terminal = Terminal::hand_to(group);
    let (stop, stopped) = mpsc::channel();
    let (report, reports) = mpsc::channel();
    let ended = std::thread::scope(|scope| {
        let renewing = std::thread::Builder::new()
            .spawn_scoped(scope, move || renew(context, worktree, grant, &stopped, &report, bell))
            .map_err(|cause| Error::io("start", "thread".as_ref(), &cause));
        let mut watch = Watch { clock: &*context.repo.env().clock, reports, rung, signals, group };
        let ended = renewing.and_then(|_| watch.until_the_end(grant.lock.boot.expires_boot_ms));
        // Whatever is left of the group must not write once the lock is another's.
        let _ = kill_process_group(group, Signal::KILL);
        drop(stop);
        ended
    });
    if ended.is_err() {
        // The leader was just killed; reap it, so that it is gone before the lock is given back.
        let _ = waitpid(Some(group), WaitOptions::empty());
    }
    drop(terminal);
    ended
}

/// Renews until told to stop, and rings the bell after each try.
fn renew(
    context: &Context,
    worktree: &Worktree,
    grant: &Grant,
    stopped: &Receiver<()>,
    report: &Sender<Renewed>,
    mut bell: PipeWriter,
) {
    let interval = Duration::from_millis(grant.lock.policy.renew_interval_ms());
    while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let renewed = context.repo.lock(worktree).renew(&grant.session.session_id);
        let lost = renewed.is_err();
        let message = renewed.map_or_else(Renewed::Lost, |lock| Renewed::Until(lock.boot.expires_boot_ms));
        if report.send(message).is_err() || bell.write_all(b".").is_err() || lost {
            return;
        }
    }
}

struct Watch<'a> {
    clock: &'a dyn Clock,
    reports: Receiver<Renewed>,
    rung: PipeReader,
    signals: &'a SignalFd,
    group: Pid,
}

impl Watch<'_> {
    /// The command's exit code, or how the lock was lost.
    fn until_the_end(&mut self, mut expires: BootMs) -> Result<u8> {
        loop {
            if let Some(exit_code) = self.exit_code()? {
                return Ok(exit_code);
            }
            for renewed in self.reports.try_iter() {
                match renewed {
                    Renewed::Until(later) => expires = later,
                    Renewed::Lost(error) => return Err(error),
                }
            }
            let now = self.clock.boot();
            if now > expires {
                return Err(Error::new(
                    Class::LockExpired,
                    "no renewal came through before the lease ran out, so the command was stopped; look at the \
                     filesystem, and run it again",
                ));
            }
            self.wait(expires.since(now) + 1);
            self.pass_signals_on();
        }
    }

    /// Waits for a signal, a report or the deadline; a little early is fine, since the caller looks again.
    fn wait(&mut self, ms: u64) {
        let bounded = i64::try_from(ms).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: bounded / 1000, tv_nsec: bounded % 1000 * 1_000_000 };
        let signals = self.signals.as_fd();
        let mut fds = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&self.rung, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&timeout)).is_ok();
        if ready && fds[1].revents().contains(PollFlags::IN) {
            drop(self.rung.read(&mut [0; 16]));
        }
    }

    fn pass_signals_on(&self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            let passed = i32::try_from(signal.ssi_signo).ok().and_then(Signal::from_named_raw);
            if let Some(passed @ (Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT)) = passed {
                let _ = kill_process_group(self.group, passed);
            }
        }
    }

    /// The exit code once the command has ended, as a shell gives it: 128 and the signal that killed it.
    fn exit_code(&self) -> Result<Option<u8>> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Ok(Some((_, status))) = waitpid(Some(self.group), options) {
            if let Some(code) = ended_with(status) {
                return Ok(Some(code));
            }
            // Continued, it would ask for the terminal again, and be stopped again, as fast as a core can go.
            if wants_terminal(status) && !Terminal::belongs_to(self.group) {
                return Err(Error::invalid(
                    "the command was ended, because it wanted the terminal, which is another job's; run it in \
                     the foreground, or with its input from a file or /dev/null",
                ));
            }
            // A lock cannot be suspended: its lease would run out. So neither can its command.
            let _ = kill_process_group(self.group, Signal::CONT);
        }
        Ok(None)
    }
}

fn wants_terminal(status: WaitStatus) -> bool {
    let by = status.stopping_signal();
    [Signal::TTIN, Signal::TTOU].iter().any(|signal| by == Some(signal.as_raw()))
}

fn ended_with(status: WaitStatus) -> Option<u8> {
    let by_signal = status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or(by_signal).and_then(|code| u8::try_from(code).ok())
}

fn take_signals() -> Result<SignalFd> {
    let mut mask = SigSet::empty();
    // SIGTTOU too: without it, taking the terminal back would stop this process.
    for signal in [Mask::SIGINT, Mask::SIGTERM, Mask::SIGHUP, Mask::SIGQUIT, Mask::SIGCHLD, Mask::SIGTTOU] {
        mask.add(signal);
    }
    mask.thread_block()
        .and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK))
        .map_err(|cause| Error::io("listen for signals with", "signalfd".as_ref(), &cause.into()))
}

/// The terminal, while the command has it.
struct Terminal {
    owner: Pid,
}

impl Terminal {
    /// Gives the terminal to `group`, if it is ours to give.
    fn hand_to(group: Pid) -> Option<Self> {
        let stdin = std::io::stdin();
        let owner = isatty(&stdin).then(|| tcgetpgrp(&stdin).ok()).flatten()?;
        (owner == rustix::process::getpgrp() && tcsetpgrp(&stdin, group).is_ok()).then_some(Self { owner })
    }

    /// Whether `group` has it. A command that asked before it was handed over was stopped all the same.
    fn belongs_to(group: Pid) -> bool {
        tcgetpgrp(std::io::stdin()) == Ok(group)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = tcsetpgrp(std::io::stdin(), self.owner);
    }
}
