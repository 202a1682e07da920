//! The syntax of edits.
//!
//! **Invariant.** Applying an [`Edit`] can only fail because of the document: its path, value and time are valid, and its
//! value is compact JSON.

use super::EDIT_BYTES_MAX;
use super::decimal::Decimal;
use super::error::{EditError, EditErrorKind};
use super::path::Path;
use super::rfc3339::is_date_time;
use super::text::quoted;
use crate::{Limits, check, compact};

const LIMITS: Limits = Limits { bytes_max: EDIT_BYTES_MAX as u64 };

/// One change to a document; the result of [`parse_edit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub(super) path: Path,
    pub(super) action: Action,
}

/// The change at the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Sets this JSON.
    Set(Vec<u8>),
    /// Sets the caller's time.
    SetNow,
    Add(Decimal),
    Remove,
}

/// Parses one edit; the table in [`edit`](super) has the syntax.
pub fn parse_edit(text: &str) -> Result<Edit, EditError> {
    read(text).map_err(|kind| EditError::new(kind, text))
}

fn read(text: &str) -> Result<Edit, EditErrorKind> {
    if text.len() > EDIT_BYTES_MAX {
        return Err(EditErrorKind::Syntax("edit is too long"));
    }
    if let Some(path) = prefixed(text, "rm:").or_else(|| prefixed(text, "delete:")) {
        return removal(path);
    }
    if let Some(rest) = prefixed(text, "time:") {
        return time(rest);
    }
    match split_at_equals(text) {
        Some((path, value)) => assignment(path, value),
        None => counting(text),
    }
}

/// The text after a prefix. `rm:=1` has none: it sets `rm`.
fn prefixed<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    text.strip_prefix(prefix).filter(|rest| !rest.starts_with('='))
}

fn removal(path: &str) -> Result<Edit, EditErrorKind> {
    let path = parse_path(path)?;
    if path.appends() {
        return Err(EditErrorKind::Syntax("nothing can be removed at [+]"));
    }
    Ok(Edit { path, action: Action::Remove })
}

fn time(text: &str) -> Result<Edit, EditErrorKind> {
    let (path, value) = split_at_equals(text).ok_or(EditErrorKind::Syntax("time: needs path=NOW"))?;
    let action = match value {
        "NOW" => Action::SetNow,
        time if is_date_time(time) => Action::Set(quoted(time)),
        _ => return Err(EditErrorKind::Time),
    };
    Ok(Edit { path: assigned_path(path)?, action })
}

fn assignment(path: &str, value: &str) -> Result<Edit, EditErrorKind> {
    if let Some(path) = without_end(path, ":") {
        let json = compact(value.as_bytes(), LIMITS).map_err(EditErrorKind::Value)?;
        return Ok(Edit { path: parse_path(path)?, action: Action::Set(json) });
    }
    let path = assigned_path(path)?;
    let action = match value.split_at_checked(1) {
        Some(("+", number)) if is_unsigned(number) => Action::Add(decimal(number)?),
        Some(("-", number)) if is_unsigned(number) => Action::Add(negative(number)?),
        _ if is_scalar(value) => Action::Set(value.as_bytes().to_vec()),
        _ => Action::Set(quoted(value)),
    };
    Ok(Edit { path, action })
}

fn counting(text: &str) -> Result<Edit, EditErrorKind> {
    let (path, step) = match (without_end(text, "++"), without_end(text, "--")) {
        (Some(path), _) => (path, Some(Decimal::ONE)),
        (_, Some(path)) => (path, Decimal::ONE.negated()),
        _ => return Err(EditErrorKind::Syntax("edit has neither = nor ++ nor -- nor rm:")),
    };
    Ok(Edit { path: parse_path(path)?, action: Action::Add(step.ok_or(EditErrorKind::Overflow)?) })
}

/// A path before `=`. `n+=5` would name `n+`, which is hardly ever intended.
fn assigned_path(path: &str) -> Result<Path, EditErrorKind> {
    if [":", "+", "-"].iter().any(|end| without_end(path, end).is_some()) {
        return Err(EditErrorKind::Syntax(
            "name before = ends with : + or -, which needs a backslash; to add, write =+N",
        ));
    }
    parse_path(path)
}

fn parse_path(text: &str) -> Result<Path, EditErrorKind> {
    Path::parse(text).map_err(EditErrorKind::Syntax)
}

/// Splits path and value at the first unescaped `=`.
fn split_at_equals(text: &str) -> Option<(&str, &str)> {
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'=' => return Some((&text[..at], &text[at + 1..])),
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    None
}

/// The text without its suffix, if it has it unescaped.
fn without_end<'a>(text: &'a str, end: &str) -> Option<&'a str> {
    let rest = text.strip_suffix(end)?;
    let backslashes = rest.bytes().rev().take_while(|byte| *byte == b'\\').count();
    backslashes.is_multiple_of(2).then_some(rest)
}

/// A number, `true`, `false`, `null` or a string, without surrounding whitespace.
fn is_scalar(text: &str) -> bool {
    let bare = |bytes: u64| bytes == text.len() as u64;
    !text.starts_with(['{', '['])
        && check(text.as_bytes(), LIMITS).is_ok_and(|summary| bare(summary.compact_bytes))
}

fn is_unsigned(text: &str) -> bool {
    text.starts_with(|char: char| char.is_ascii_digit()) && is_scalar(text)
}

fn decimal(number: &str) -> Result<Decimal, EditErrorKind> {
    Decimal::parse(number).ok_or(EditErrorKind::Overflow)
}

fn negative(number: &str) -> Result<Decimal, EditErrorKind> {
    decimal(number)?.negated().ok_or(EditErrorKind::Overflow)
}
