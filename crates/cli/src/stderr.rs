//! Messages on standard error.

use std::io::Write;

/// Prints one line, prefixed with the program's name.
pub fn notice(program: &str, what: &str) {
    // With standard error closed, the exit code is all that is left to report with.
    drop(writeln!(std::io::stderr(), "{program}: {what}"));
}
