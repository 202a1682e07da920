//! The terminal's foreground process group, handed to the command and taken back on drop.

use rustix::process::Pid;
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

pub(super) struct Terminal {
    owner: Pid,
}

impl Terminal {
    /// Makes `group` the foreground group, if this process is in the foreground.
    pub(super) fn hand_to(group: Pid) -> Option<Self> {
        let stdin = std::io::stdin();
        let owner = isatty(&stdin).then(|| tcgetpgrp(&stdin).ok()).flatten()?;
        (owner == rustix::process::getpgrp() && tcsetpgrp(&stdin, group).is_ok()).then_some(Self { owner })
    }

    /// Whether `group` is the foreground group. A command that used the terminal before the hand-over was stopped too.
    pub(super) fn belongs_to(group: Pid) -> bool {
        tcgetpgrp(std::io::stdin()) == Ok(group)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = tcsetpgrp(std::io::stdin(), self.owner);
    }
}
