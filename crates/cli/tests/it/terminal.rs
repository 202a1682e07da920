//! A terminal for a program under test.

use std::fs::File;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A new terminal: the end that reads what the program wrote, and the end for the program.
pub(crate) fn open() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("there are terminals");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("our own");
    let name = ptsname(&master, Vec::new()).expect("it has a name");
    let terminal = File::options().read(true).write(true).open(name.to_str().expect("a path"));
    (File::from(master), terminal.expect("our own"))
}
