//! Decides which strings need no quotes, and quotes the others.
//!
//! **Invariant.** An unquoted string is a string to every parser of YAML 1.1 and 1.2: any string that some parser may
//! resolve to another type is quoted. The check is an allowlist.

use std::fmt::Write as _;

/// Words that some parser resolves to a boolean, null or a number; compared without case.
const WORDS: [&str; 13] =
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nil", "none", "nan", "inf"];

/// Whether the string needs no quotes.
pub(crate) fn is_plain(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '/');
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | '/' | '@' | '+');
    let letter = |c: char| !c.is_ascii() && c.is_alphabetic() && is_printable(c);
    begins
        && text.chars().all(|c| safe(c) || letter(c))
        && !text.ends_with(' ')
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Whether the string can be a block scalar. Editors strip trailing blanks, so a text with trailing blanks is quoted.
pub(crate) fn is_block(text: &str) -> bool {
    text.contains('\n')
        && !text.starts_with([' ', '\n'])
        && !text.ends_with("\n\n")
        && text.split('\n').all(|line| !line.ends_with(' ') && line.chars().all(is_printable))
}

/// The string in double quotes, on one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) > 0xffff => {
                write!(out, "\\U{:08x}", u32::from(c)).expect("writing to a string");
            }
            c => write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a string"),
        }
    }
    out.push('"');
    out
}

/// Whether every parser reads the character verbatim, on one line. Some break lines at U+0085, U+2028 and U+2029; U+FEFF
/// may be read as a byte order mark.
fn is_printable(c: char) -> bool {
    let breaks = matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}');
    let noncharacter = u32::from(c) & 0xfffe == 0xfffe;
    !c.is_control() && !breaks && !noncharacter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_strings_are_quoted() {
        let ambiguous = [
            "",
            " ",
            "a ",
            " a",
            "no",
            "NO",
            "No",
            "y",
            "on",
            "True",
            "null",
            "~",
            "-",
            "- a",
            "?",
            ":",
            "a: b",
            "a:b",
            "a #b",
            "#a",
            "1",
            "1e3",
            "0x10",
            "0o7",
            "010",
            "1_000",
            "12:30",
            "2026-11-15",
            ".5",
            ".inf",
            "+1",
            "-1",
            "<<",
            "=",
            "!a",
            "&a",
            "*a",
            "|",
            ">",
            "%a",
            "@a",
            "`a",
            "'a",
            "\"a",
            "[a",
            "{a",
            "a,b",
            "a\tb",
            "a\nb",
            "---",
            "...",
            "\u{feff}a",
            "a\u{85}b",
            "a\u{2028}b",
        ];
        for text in ambiguous {
            assert!(!is_plain(text), "{text:?}");
        }
        for text in ["a", "orders", "a b", "a-b", "/var/lib", "user@example", "fetch.2", "Größe", "nothing"]
        {
            assert!(is_plain(text), "{text:?}");
        }
    }
}
