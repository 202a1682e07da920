//! Messages on standard error.

use std::io::Write;

use crate::untrusted::escape_lines;

/// Prints a message, prefixed with the program's name. What others wrote in it cannot direct the terminal; callers escape
/// line breaks.
pub fn notice(program: &str, what: &str) {
    // With standard error closed, the exit code is all that is left to report with.
    drop(writeln!(std::io::stderr(), "{program}: {}", escape_lines(what)));
}
