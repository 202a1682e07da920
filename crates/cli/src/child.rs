//! A command that runs while, and only while, something is held: a lock, a lease.
//!
//! **Invariant.** Once a [`Job`] has ended, no process of the command's group runs, or the caller is told that some may.
//! While a rule says that the command may run, it is asked again no later than it said, on the clock that also counts
//! while the machine sleeps.
//!
//! The command is started by way of the same program again, which puts the signal mask right and asks the kernel to kill
//! it if the program dies, before it becomes the command ([`become_command`]). Its group is signalled only while its
//! leader is not reaped: until then nobody else can have that number.
//!
//! What remains: processes that leave the group (`setsid`) are not reached. If the program itself is killed with SIGKILL,
//! only the command dies with it, not its children, and not a command that is setuid or has capabilities. If the program
//! is stopped (SIGSTOP, a debugger) it can neither renew nor kill: the command runs on until the program is continued,
//! and is killed then, if its time is over. That is what fencing tokens are for.
//!
//! The modules in reading order: `job` is the command and its group; `signals` arrive through a descriptor; `terminal` is
//! lent to the command; `alarm` is the clock.

mod job;
mod signals;
mod terminal;
mod alarm;

use std::os::unix::process::CommandExt;

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

pub use alarm::Moment;
pub use job::{Ended, Job, Order, WANTS_TERMINAL};
pub use signals::Signals;

/// The word that `Job::start` gives to the program that it starts, before its own pid and the command.
const BECOME: &str = "become";

/// Becomes the command, if that is what this program was started for: nothing blocked, and killed when the process that
/// holds things for it is gone. To be asked first of all. Returns the exit code that a shell would give if it cannot, and
/// nothing if it was started for something else. No part of the command line that is for people, and of its completions.
pub fn become_command(program: &str) -> Option<u8> {
    let mut words = std::env::args_os().skip(1);
    let (word, parent) = (words.next()?, words.next()?);
    let parent = parent.to_str().and_then(|parent| parent.parse::<i32>().ok()).filter(|_| word == BECOME)?;
    let command = words.next()?;
    let ready = SigSet::empty().thread_set_mask().is_ok()
        && set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    // If the parent went before the kernel was asked, nobody would ever be told.
    let still_there = getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == parent);
    if !ready || !still_there {
        return Some(126);
    }
    let cause = std::process::Command::new(&command).args(words).exec();
    eprintln!("{program}: could not start the command: {cause} command={}", command.display());
    Some(if cause.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}
