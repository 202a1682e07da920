//! The little XML that the dialects need: text is escaped on the way out, and elements are found by name on the way in.
//!
//! **Invariant.** The scanner is only given the bodies of `DeleteObjects`, `CompleteMultipartUpload` and `BlockList`,
//! in which elements of one name never nest in each other.
//! **What would break it.** A body with attributes on these elements other than on the root, comments, or CDATA. Such
//! an element is not found, and the request is refused as malformed or as incomplete; it is never misread.

use std::fmt::Write as _;

/// Appends `<name>text</name>`, escaped.
pub(crate) fn element(into: &mut String, name: &str, text: &str) {
    into.push('<');
    into.push_str(name);
    into.push('>');
    escape(into, text);
    into.push_str("</");
    into.push_str(name);
    into.push('>');
}

/// The declaration that opens every document.
pub(crate) const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";

fn escape(into: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\'' => into.push_str("&apos;"),
            '\t' | '\n' | '\r' => {
                let _ = write!(into, "&#{};", u32::from(character));
            }
            character => into.push(character),
        }
    }
}

/// The inner texts of all elements called `name`, still escaped, in order.
pub(crate) fn elements<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(&open) {
        let inner = &rest[start + open.len()..];
        let Some(end) = inner.find(&close) else { break };
        found.push(&inner[..end]);
        rest = &inner[end + close.len()..];
    }
    found
}

/// The text of the first element called `name`, without its escapes.
pub(crate) fn text_of(text: &str, name: &str) -> Option<String> {
    unescape(elements(text, name).first()?)
}

/// Replaces character references. Returns `None` for an unknown one.
pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        plain.push_str(&rest[..start]);
        let (reference, tail) = rest[start + 1..].split_once(';')?;
        plain.push(character(reference)?);
        rest = tail;
    }
    plain.push_str(rest);
    Some(plain)
}

fn character(reference: &str) -> Option<char> {
    match reference {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        number => {
            let digits = number.strip_prefix('#')?;
            let code = match digits.strip_prefix('x') {
                Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16).ok()?,
                None => digits.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_escaping_and_back() {
        let odd = "a<b>&\"'\r\n é";
        let mut document = String::new();
        element(&mut document, "Key", odd);
        assert_eq!(text_of(&document, "Key").as_deref(), Some(odd));
    }

    #[test]
    fn elements_are_found_in_order_and_unclosed_ones_are_not() {
        let text = "<D><Object><Key>a</Key></Object>\n<Object><Key>b</Key></Object><Object><Key>c";
        let keys: Vec<_> =
            elements(text, "Object").into_iter().filter_map(|one| text_of(one, "Key")).collect();
        assert_eq!(keys, ["a", "b"]);
    }

    #[test]
    fn unknown_references_are_refused() {
        assert_eq!(unescape("&#x41;&#66;"), Some("AB".into()));
        for bad in ["&nbsp;", "&", "&#;", "&#xd800;"] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }
}
