//! Messages on standard error.

use std::io::Write;

/// Prints one line, prefixed with the program's name.
pub fn notice(program: &str, what: &str) {
    // With standard error closed, the exit code is all that is left to report with.
    drop(writeln!(std::io::stderr(), "{program}: {what}"));
}

/// Escapes control characters in untrusted text, so that it can neither move the cursor nor start a new line.
pub fn escape_control(text: &str) -> String {
    let escaped =
        text.chars().map(|c| if c.is_control() { c.escape_unicode().to_string() } else { c.to_string() });
    escaped.collect()
}
