//! Runs a command only while a lock or lease is held.
//!
//! **Invariant.** After [`Job::end`] returns true, no process of the command's group runs. While the command runs, the
//! caller's rule is evaluated again within the interval that it returned, measured on the boot clock, which also advances
//! during suspend.
//!
//! The command is started through a re-exec of this program, which resets the signal mask and sets the parent-death signal
//! before it execs the command ([`become_command`]). The group is signalled only while its leader is not reaped: until then
//! its process id cannot be reused.
//!
//! Limits: processes that leave the group (`setsid`) are not reached. If this program is killed with SIGKILL, the kernel
//! kills the command but not its children, and not a command that is setuid or has capabilities. While this program is
//! stopped (SIGSTOP, a debugger) it can neither renew nor kill: the command runs on, and is killed after SIGCONT if the
//! deadline has passed. Fencing tokens cover these cases.
//!
//! The modules in reading order: `job` is the command and its process group; `signals` reads a signalfd; `terminal` hands
//! the terminal to the command; `boot_clock` is the clock; `waker` interrupts the wait from another thread.

mod job;
mod signals;
mod terminal;
mod boot_clock;
mod waker;

use std::os::unix::process::CommandExt;

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

pub use boot_clock::BootInstant;
pub use job::{Job, JobExit, Order, WANTS_TERMINAL, unkilled};
pub use signals::{Signals, is_ignored};
pub use waker::{WakeReader, Waker, waker};

/// First argument of the re-exec in `Job::start`, followed by the parent's pid and the command.
const BECOME: &str = "become";

/// Execs the command if this process is a re-exec by [`Job::start`]: with an empty signal mask, and SIGKILL as its
/// parent-death signal. Must be called first in `main`. Returns `None` for any other command line, and the exit code that a
/// shell would use if the exec fails. Not part of the documented command line.
pub fn become_command(program: &str) -> Option<u8> {
    let mut words = std::env::args_os().skip(1);
    let (word, parent) = (words.next()?, words.next()?);
    let parent = parent.to_str().and_then(|parent| parent.parse::<i32>().ok()).filter(|_| word == BECOME)?;
    let command = words.next()?;
    let ready = SigSet::empty().thread_set_mask().is_ok()
        && set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    // A parent that died before the death signal was set would never trigger it.
    let parent_alive = getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == parent);
    if !ready || !parent_alive {
        return Some(126);
    }
    let cause = std::process::Command::new(&command).args(words).exec();
    eprintln!("{program}: could not start the command: {cause}: command={}", command.display());
    Some(if cause.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}
