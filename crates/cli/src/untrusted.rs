//! Text that other clients, servers or files supplied, made safe to show.
//!
//! **Invariant.** Shown text cannot move the cursor, start a new line, or be displayed in another order than it is stored:
//! every control character and every character that directs the order of text or breaks lines is written as `\uXXXX`,
//! which is also how JSON writes it. A quoted text ends at its closing quote: it cannot pass for the words around it.
//!
//! **What is absent.** Documents: `get` writes them byte for byte, for programs.

use std::fmt::Write as _;

/// Writes the characters that are not what they look like as `\uXXXX`.
pub fn escape(text: &str) -> String {
    escape_where(text, is_deceptive)
}

/// The same for several lines, or for JSON, which has line breaks between its values only.
pub fn escape_lines(text: &str) -> String {
    escape_where(text, |c| c != '\n' && is_deceptive(c))
}

/// The text in double quotes, as JSON writes it.
pub fn quote(text: &str) -> String {
    escape(&serde_json::to_string(text).expect("a string serializes"))
}

/// For `name=value` on a line: quoted unless it is one plain word.
pub fn word(text: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !is_deceptive(c) && !matches!(c, '"' | '\\' | '=' | '`');
    if !text.is_empty() && text.chars().all(plain) { text.to_string() } else { quote(text) }
}

fn escape_where(text: &str, escaped: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if escaped(c) {
            write!(shown, "\\u{:04x}", u32::from(c)).expect("writing to a string");
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Control characters (C0, DEL, C1), and those that direct bidirectional text or separate lines and paragraphs.
fn is_deceptive(c: char) -> bool {
    let directs =
        matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let separates = matches!(c, '\u{2028}' | '\u{2029}');
    c.is_control() || directs || separates
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys and owners with U+202E or U+2028 reached the terminal as they were, and `--output json` printed U+009B, which
    /// begins a control sequence.
    #[test]
    fn no_character_is_left_that_directs_a_terminal_or_a_reader() {
        let marks = (0x202a..=0x202e).chain(0x2066..=0x2069).chain([0x200e, 0x200f, 0x2028, 0x2029, 0x061c]);
        let codes = (0..0x20).chain(0x7f..0xa0).chain(marks);
        let hostile: String = codes.filter_map(char::from_u32).collect();
        for shown in
            [escape(&hostile), quote(&hostile), word(&hostile), escape_lines(&hostile).replace('\n', "")]
        {
            assert!(shown.chars().all(|c| (' '..='~').contains(&c)), "{shown:?}");
        }
        assert_eq!(
            serde_json::from_str::<String>(&quote(&hostile)).expect("JSON"),
            hostile,
            "nothing is lost"
        );
        assert_eq!(escape("a\u{202e}b\u{9b}c\nd"), r"a\u202eb\u009bc\u000ad");
        let json = serde_json::to_string_pretty(&["a\u{2028}", "\u{1b}"]).expect("JSON");
        assert_eq!(escape_lines(&json), "[\n  \"a\\u2028\",\n  \"\\u001b\"\n]");
        let plain = "Grüße, 東京 🚀 \u{1f468}\u{200d}\u{1f469}";
        assert_eq!(escape(plain), plain);
    }

    #[test]
    fn what_is_quoted_ends_at_its_closing_quote() {
        assert_eq!(quote("bob\". NEXT: \\"), r#""bob\". NEXT: \\""#);
        for (text, shown) in
            [("ada", "ada"), ("team/é", "team/é"), ("", "\"\""), ("a b", "\"a b\""), ("a=b", "\"a=b\"")]
        {
            assert_eq!(word(text), shown);
        }
    }
}
