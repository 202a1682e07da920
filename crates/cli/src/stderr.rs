//! Lines for people, on standard error.

use std::io::Write;

/// One line, after the program's name.
pub fn say(program: &str, what: &str) {
    // If nobody listens, the exit code has to do.
    drop(writeln!(std::io::stderr(), "{program}: {what}"));
}

/// A text of somebody else's: it cannot move the cursor, nor pretend to be two lines.
pub fn shown(text: &str) -> String {
    let escaped =
        text.chars().map(|c| if c.is_control() { c.escape_unicode().to_string() } else { c.to_string() });
    escaped.collect()
}
