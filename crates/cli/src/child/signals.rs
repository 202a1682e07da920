//! Signals to this process, read from a signalfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal as Mask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

/// A signalfd for SIGCHLD and for the signals that are forwarded to the command.
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals and reads them from a descriptor from here on. Must be called before any other thread is started:
    /// a thread with the signals unblocked would be terminated by one.
    ///
    /// Signals that were ignored at start stay ignored: `nohup` relies on it.
    pub fn take() -> io::Result<Signals> {
        let ignored = IgnoredSignals::read()?;
        if ignored.has(Mask::SIGCHLD) {
            // With SIGCHLD ignored the kernel discards exit statuses, and resetting the disposition needs unsafe code.
            let detail = "SIGCHLD is ignored, so the exit of a command could not be detected; start this program from a \
                          parent that does not ignore SIGCHLD";
            return Err(io::Error::other(detail));
        }
        let mut mask = SigSet::empty();
        // SIGTTOU too: otherwise taking the terminal back would stop this process.
        mask.add(Mask::SIGTTOU);
        mask.add(Mask::SIGCHLD);
        for signal in [Mask::SIGINT, Mask::SIGTERM, Mask::SIGHUP, Mask::SIGQUIT] {
            if !ignored.has(signal) {
                mask.add(signal);
            }
        }
        mask.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Waits for a signal to forward, or until `done` is readable or closed.
    pub fn wait_or(&self, done: &impl AsFd) -> io::Result<Option<Signal>> {
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(done, PollFlags::IN)];
            poll(&mut fds, None)?;
            let is_done = !fds[1].revents().is_empty();
            let signal = self.for_command();
            if signal.is_some() || is_done {
                return Ok(signal);
            }
        }
    }

    /// The next pending signal to forward to the command; others are discarded.
    pub fn for_command(&self) -> Option<Signal> {
        while let Ok(Some(signal)) = self.0.read_signal() {
            let named = i32::try_from(signal.ssi_signo).ok().and_then(Signal::from_named_raw);
            if let Some(signal @ (Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT)) = named {
                return Some(signal);
            }
        }
        None
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether this process was started with the signal ignored, as `nohup` does with SIGHUP.
pub fn is_ignored(signal: Mask) -> bool {
    IgnoredSignals::read().is_ok_and(|ignored| ignored.has(signal))
}

/// The mask of signals that this process ignores, inherited from its parent.
struct IgnoredSignals(u64);

impl IgnoredSignals {
    fn read() -> io::Result<IgnoredSignals> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        mask.map(IgnoredSignals)
            .ok_or_else(|| io::Error::other("/proc/self/status has no readable SigIgn line"))
    }

    fn has(&self, signal: Mask) -> bool {
        self.0 >> (signal as i32 - 1) & 1 == 1
    }
}
