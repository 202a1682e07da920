//! Signals of this process, through a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal as Mask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

/// The signals that a command is told of, and those of its end.
pub struct Signals(SignalFd);

impl Signals {
    /// From here on signals arrive through the descriptor. To be called before there is another thread: a thread that
    /// has them unblocked would be ended by one.
    ///
    /// What was ignored when the program was started stays ignored: that is how `nohup` works.
    pub fn take() -> io::Result<Signals> {
        let ignored = Ignored::read()?;
        if ignored.has(Mask::SIGCHLD) {
            // The kernel would not tell how a command ended; and nothing safe can undo it.
            let detail = "SIGCHLD is ignored, so the end of a command could not be noticed; start it from a program \
                          that does not ignore it";
            return Err(io::Error::other(detail));
        }
        let mut mask = SigSet::empty();
        // SIGTTOU too: without it, taking the terminal back would stop this process.
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

    /// Waits until there is a signal for the command, or `done` can be read or is closed.
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

    /// The next signal that says something to the command; the others are taken out.
    pub fn for_command(&self) -> Option<Signal> {
        while let Ok(Some(signal)) = self.0.read_signal() {
            let named = i32::try_from(signal.ssi_signo).ok().and_then(Signal::from_named_raw);
            if let Some(told @ (Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT)) = named {
                return Some(told);
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

/// What this process was told to ignore by whoever started it.
struct Ignored(u64);

impl Ignored {
    fn read() -> io::Result<Ignored> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        mask.map(Ignored)
            .ok_or_else(|| io::Error::other("/proc/self/status does not say which signals are ignored"))
    }

    fn has(&self, signal: Mask) -> bool {
        self.0 >> (signal as i32 - 1) & 1 == 1
    }
}
