//! The terminal, while the command has it.

use rustix::process::Pid;
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

pub(super) struct Terminal {
    owner: Pid,
}

impl Terminal {
    /// Gives the terminal to `group`, if it is ours to give.
    pub(super) fn hand_to(group: Pid) -> Option<Self> {
        let stdin = std::io::stdin();
        let owner = isatty(&stdin).then(|| tcgetpgrp(&stdin).ok()).flatten()?;
        (owner == rustix::process::getpgrp() && tcsetpgrp(&stdin, group).is_ok()).then_some(Self { owner })
    }

    /// Whether `group` has it. A command that asked before it was handed over was stopped all the same.
    pub(super) fn belongs_to(group: Pid) -> bool {
        tcgetpgrp(std::io::stdin()) == Ok(group)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = tcsetpgrp(std::io::stdin(), self.owner);
    }
}
