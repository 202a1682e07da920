//! Errors of parsing and applying edits.

use std::fmt;

use crate::error::JsonError;

/// Maximum number of characters of an edit or a path in a message.
const SHOWN_CHARS: usize = 120;

/// An edit that cannot be parsed or applied. The document is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditError {
    kind: EditErrorKind,
    /// The edit, or the path up to where it failed; `None` if the document itself is invalid.
    subject: Option<String>,
}

/// Kind of an [`EditError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditErrorKind {
    /// Invalid syntax of an edit.
    Syntax(&'static str),
    /// The value after `:=` is not JSON.
    Value(JsonError),
    /// Neither `NOW` nor a time in RFC 3339.
    Time,
    /// The document is not JSON.
    Document(JsonError),
    /// The document would be too large or too deep.
    Result(JsonError),
    /// More than [`EDITS_MAX`](super::EDITS_MAX) edits.
    TooMany,
    /// A name is used on a value that is not an object.
    NoObject,
    /// An index is used on a value that is not an array.
    NoArray,
    /// The array has no such element.
    OutOfRange,
    /// The value to add to is not a number.
    NoNumber,
    /// More than 38 digits.
    Overflow,
}

impl EditError {
    pub(super) fn new(kind: EditErrorKind, subject: impl fmt::Display) -> EditError {
        let shown = subject.to_string().chars().take(SHOWN_CHARS).collect();
        EditError { kind, subject: Some(shown) }
    }

    pub(super) fn of_document(kind: EditErrorKind) -> EditError {
        EditError { kind, subject: None }
    }

    /// The kind of error.
    pub fn kind(&self) -> EditErrorKind {
        self.kind
    }
}

impl fmt::Display for EditErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EditErrorKind::Syntax(reason) => f.write_str(reason),
            EditErrorKind::Value(error) => write!(f, "value is not json: {error}"),
            EditErrorKind::Time => f.write_str("neither NOW nor a time in rfc 3339"),
            EditErrorKind::Document(error) => write!(f, "document is not json: {error}"),
            EditErrorKind::Result(error) => write!(f, "document would exceed a limit: {error}"),
            EditErrorKind::TooMany => write!(f, "too many edits limit={}", super::EDITS_MAX),
            EditErrorKind::NoObject => f.write_str("not an object, so it has no members"),
            EditErrorKind::NoArray => f.write_str("not an array, so it has no elements"),
            EditErrorKind::OutOfRange => f.write_str("no such element"),
            EditErrorKind::NoNumber => f.write_str("not a number, so nothing can be added to it"),
            EditErrorKind::Overflow => f.write_str("too many digits for exact arithmetic"),
        }
    }
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match &self.subject {
            Some(subject) => write!(f, " edit={subject:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for EditError {}
