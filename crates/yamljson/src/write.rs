//! Converts JSON to YAML in block style.

use std::collections::BTreeSet;

use jsonstream::{Limits, compact};

use crate::error::Error;
use crate::plain::{is_block, is_plain, quoted};

/// YAML allows at most 1,024 characters up to the colon of an implicit key; longer keys are written with `?`.
const KEY_CHARS_MAX: usize = 500;

/// Converts JSON to YAML, with a final line break.
///
/// ```
/// let yaml = yamljson::from_json(br#"{"no":"no","n":1.50,"list":[true,{}]}"#)?;
/// assert_eq!(yaml, "\"no\": \"no\"\n\"n\": 1.50\nlist:\n  - true\n  - {}\n");
/// # Ok::<(), yamljson::Error>(())
/// ```
pub fn from_json(json: &[u8]) -> Result<String, Error> {
    let json = compact(json, Limits { bytes_max: u64::MAX })?;
    let mut writer = Writer { json: &json, at: 0, out: String::with_capacity(json.len() * 2) };
    writer.value(0, Context::Start)?;
    writer.out.push('\n');
    Ok(writer.out)
}

/// The token before a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Start,
    AfterColon,
    AfterDash,
}

/// Walks through valid compact JSON, whose depth is bounded.
struct Writer<'a> {
    json: &'a [u8],
    at: usize,
    out: String,
}

impl Writer<'_> {
    fn value(&mut self, indent: usize, context: Context) -> Result<(), Error> {
        match (self.json[self.at], self.json.get(self.at + 1)) {
            (b'{', Some(b'}')) | (b'[', Some(b']')) => {
                let empty = if self.json[self.at] == b'{' { "{}" } else { "[]" };
                self.at += 2;
                self.scalar(empty, context);
            }
            (b'{', _) => self.object(indent, context)?,
            (b'[', _) => self.array(indent, context)?,
            (b'"', _) => self.text(indent, context)?,
            (b't' | b'f' | b'n', _) => {
                let word = self.token();
                self.scalar(&word, context);
            }
            _ => {
                let number = self.token();
                let tag = if is_number_everywhere(&number) { "" } else { "!!float " };
                self.scalar(&format!("{tag}{number}"), context);
            }
        }
        Ok(())
    }

    fn object(&mut self, indent: usize, context: Context) -> Result<(), Error> {
        let (mut first, mut seen) = (true, BTreeSet::new());
        loop {
            self.at += 1; // the brace, or a comma
            let at = self.at;
            let key = self.string()?;
            self.entry(indent, context, first);
            let text = if is_plain(&key) { key.clone() } else { quoted(&key) };
            if text.chars().count() > KEY_CHARS_MAX {
                self.out.push_str("? ");
                self.out.push_str(&text);
                self.line(indent);
            } else {
                self.out.push_str(&text);
            }
            self.out.push(':');
            if !seen.insert(key) {
                return Err(Error::in_json("duplicate key, which YAML does not allow; use JSON", at));
            }
            self.at += 1; // the colon
            self.value(indent + 2, Context::AfterColon)?;
            first = false;
            if self.json[self.at] == b'}' {
                self.at += 1;
                return Ok(());
            }
        }
    }

    fn array(&mut self, indent: usize, context: Context) -> Result<(), Error> {
        let mut first = true;
        loop {
            self.at += 1; // the bracket, or a comma
            self.entry(indent, context, first);
            self.out.push('-');
            self.value(indent + 2, Context::AfterDash)?;
            first = false;
            if self.json[self.at] == b']' {
                self.at += 1;
                return Ok(());
            }
        }
    }

    fn text(&mut self, indent: usize, context: Context) -> Result<(), Error> {
        let text = self.string()?;
        if !is_block(&text) {
            let text = if is_plain(&text) { text } else { quoted(&text) };
            self.scalar(&text, context);
            return Ok(());
        }
        self.scalar(if text.ends_with('\n') { "|" } else { "|-" }, context);
        for line in text.lines() {
            if line.is_empty() {
                self.out.push('\n');
            } else {
                self.line(indent.max(2));
                self.out.push_str(line);
            }
        }
        Ok(())
    }

    fn scalar(&mut self, text: &str, context: Context) {
        if context != Context::Start {
            self.out.push(' ');
        }
        self.out.push_str(text);
    }

    /// Moves to the start of an entry. The first one after a dash is on the line of the dash.
    fn entry(&mut self, indent: usize, context: Context, first: bool) {
        match context {
            Context::Start if first => {}
            Context::AfterDash if first => self.out.push(' '),
            _ => self.line(indent),
        }
    }

    fn line(&mut self, indent: usize) {
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n(' ', indent));
    }

    /// Reads a number or literal.
    fn token(&mut self) -> String {
        let rest = &self.json[self.at..];
        let length = rest.iter().position(|byte| matches!(byte, b',' | b']' | b'}')).unwrap_or(rest.len());
        self.at += length;
        String::from_utf8_lossy(&rest[..length]).into_owned()
    }

    fn string(&mut self) -> Result<String, Error> {
        let (start, mut end) = (self.at, self.at + 1);
        while self.json[end] != b'"' {
            end += if self.json[end] == b'\\' { 2 } else { 1 };
        }
        self.at = end + 1;
        let text = serde_json::from_slice(&self.json[start..=end]);
        let what = "lone surrogate, which YAML cannot represent; use JSON";
        text.map_err(|_| Error::in_json(what, start))
    }
}

/// Whether YAML 1.1 parsers also read it as a number: there an exponent needs a point before it and a sign.
fn is_number_everywhere(number: &str) -> bool {
    match number.split_once(['e', 'E']) {
        None => true,
        Some((before, power)) => before.contains('.') && power.starts_with(['+', '-']),
    }
}
