//! Finds the spans of values, members and elements in the text of a document.
//!
//! **Invariant.** Every function gets valid JSON and the offset of a value; so it validates nothing and reads no more
//! bytes than necessary. Nothing recurses.

use std::ops::Range;

/// A range of byte offsets.
pub(super) type Span = Range<usize>;

/// A member of an object or an element of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// From the key, if it has one, to the end of the value.
    pub(super) whole: Span,
    /// The key with its quotes; empty for an element.
    pub(super) key: Span,
    pub(super) value: Span,
}

/// The value of a text, without surrounding whitespace.
pub(super) fn root(text: &[u8]) -> Span {
    value(text, skip_whitespace(text, 0))
}

/// The items of the array or object that begins at `open`.
pub(super) fn items(text: &[u8], open: usize) -> Items<'_> {
    Items { text, at: open + 1, keyed: text[open] == b'{' }
}

pub(super) struct Items<'a> {
    text: &'a [u8],
    at: usize,
    keyed: bool,
}

impl Iterator for Items<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        let mut begin = skip_whitespace(self.text, self.at);
        if self.text[begin] == b',' {
            begin = skip_whitespace(self.text, begin + 1);
        }
        if matches!(self.text[begin], b'}' | b']') {
            return None;
        }
        let item = if self.keyed { member(self.text, begin) } else { element(self.text, begin) };
        self.at = item.whole.end;
        Some(item)
    }
}

fn member(text: &[u8], begin: usize) -> Item {
    let key = begin..string_end(text, begin);
    let colon = skip_whitespace(text, key.end);
    let value = value(text, skip_whitespace(text, colon + 1));
    Item { whole: begin..value.end, key, value }
}

fn element(text: &[u8], begin: usize) -> Item {
    let value = value(text, begin);
    Item { whole: value.clone(), key: begin..begin, value }
}

fn value(text: &[u8], begin: usize) -> Span {
    let end = match text[begin] {
        b'"' => string_end(text, begin),
        b'{' | b'[' => container_end(text, begin),
        _ => scalar_end(text, begin),
    };
    begin..end
}

fn scalar_end(text: &[u8], begin: usize) -> usize {
    let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
    text[begin..].iter().position(ends).map_or(text.len(), |length| begin + length)
}

fn string_end(text: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    loop {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn container_end(text: &[u8], begin: usize) -> usize {
    let (mut at, mut depth) = (begin, 0_usize);
    loop {
        match text[at] {
            b'"' => {
                at = string_end(text, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
}

fn skip_whitespace(text: &[u8], at: usize) -> usize {
    let solid = |byte: &u8| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    text[at..].iter().position(solid).map_or(text.len(), |length| at + length)
}

/// Whether a key, with its quotes and escapes, equals `name`.
pub(super) fn names(key: &[u8], name: &str) -> bool {
    let inside = &key[1..key.len() - 1];
    if inside.contains(&b'\\') {
        unescaped(inside).is_some_and(|key| key == name)
    } else {
        inside == name.as_bytes()
    }
}

/// An unescaped key; `None` if it has a lone surrogate.
fn unescaped(inside: &[u8]) -> Option<String> {
    let mut units = Vec::new();
    let mut rest = std::str::from_utf8(inside).ok()?.chars();
    let mut buffer = [0; 2];
    while let Some(char) = rest.next() {
        match char {
            '\\' => units.push(escape(&mut rest)?),
            _ => units.extend_from_slice(char.encode_utf16(&mut buffer)),
        }
    }
    String::from_utf16(&units).ok()
}

/// The code unit of the escape after a backslash.
fn escape(rest: &mut std::str::Chars<'_>) -> Option<u16> {
    let plain = match rest.next()? {
        'u' => {
            let (digits, behind) = rest.as_str().split_at_checked(4)?;
            *rest = behind.chars();
            return u16::from_str_radix(digits, 16).ok();
        }
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        char => u8::try_from(char).ok()?,
    };
    Some(u16::from(plain))
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> Vec<u8> {
    let mut out = vec![b'"'];
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0..0x20 => out.extend(format!("\\u{byte:04x}").bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn items_are_found_with_all_their_bounds() {
        let text = br#" { "a" : 1 , "b\"}":[ "]" , {} ], "c":"x" } "#;
        let root = root(text);
        assert_eq!(&text[root.clone()], br#"{ "a" : 1 , "b\"}":[ "]" , {} ], "c":"x" }"#.as_slice());
        let found: Vec<_> = items(text, root.start).collect();
        let wholes: Vec<_> = found.iter().map(|item| &text[item.whole.clone()]).collect();
        assert_eq!(wholes, [br#""a" : 1"#.as_slice(), br#""b\"}":[ "]" , {} ]"#, br#""c":"x""#]);
        let inner: Vec<_> = items(text, found[1].value.start).map(|item| &text[item.value]).collect();
        assert_eq!(inner, [br#""]""#.as_slice(), b"{}"]);
        assert_eq!(items(b"[ ]", 0).count(), 0);
    }

    #[test]
    fn keys_are_compared_unescaped() {
        for (key, name, same) in [
            (r#""a""#, "a", true),
            (r#""\u0061""#, "a", true),
            (r#""\ud83d\udd11""#, "🔑", true),
            (r#""\uD83D""#, "\u{FFFD}", false),
            (r#""\n\t\r\b\f\/\\\"""#, "\n\t\r\u{8}\u{c}/\\\"", true),
            (r#""é\u00e9""#, "éé", true),
            (r#""A""#, "a", false),
        ] {
            assert_eq!(names(key.as_bytes(), name), same, "{key}");
        }
    }

    #[test]
    fn every_character_can_be_quoted() {
        for char in '\0'..='\u{100}' {
            let text = char.to_string();
            assert_eq!(serde_json::from_slice::<String>(&quoted(&text)).ok(), Some(text), "{char:?}");
        }
    }

    #[test]
    fn a_number_ends_at_any_byte_that_may_follow_it() {
        for behind in [",", "}", "]", " ", "\n", "\r", "\t", ""] {
            assert_eq!(value(format!("-12.5e3{behind}").as_bytes(), 0), 0..7, "{behind:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_quoted_text_round_trips(text in any::<String>()) {
            let json = quoted(&text);
            prop_assert_eq!(serde_json::from_slice::<String>(&json).ok(), Some(text.clone()));
            prop_assert!(names(&json, &text));
            prop_assert!(names(serde_json::to_string(&text).expect("a string").as_bytes(), &text));
        }
    }
}
