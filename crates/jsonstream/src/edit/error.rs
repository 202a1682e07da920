//! Why an edit cannot be read, or not be applied.

use std::fmt;

use crate::error::JsonError;

/// As much of an edit or a path as a message shows.
const SHOWN_CHARS: usize = 120;

/// An edit that cannot be read or applied. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditError {
    kind: EditErrorKind,
    /// The edit, or the path up to where it failed; nothing if the document itself is wrong.
    subject: Option<String>,
}

/// What is wrong with an edit, or with the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditErrorKind {
    /// It is not written as edits are.
    Syntax(&'static str),
    /// What stands behind `:=` is not JSON.
    Value(JsonError),
    /// Neither `NOW` nor a time as RFC 3339 has it.
    Time,
    /// The document is not JSON.
    Document(JsonError),
    /// The document would be too large or too deep.
    Result(JsonError),
    /// More than [`EDITS_MAX`](super::EDITS_MAX) edits.
    TooMany,
    /// A name is asked for in something that is no object.
    NoObject,
    /// An index is asked for in something that is no array.
    NoArray,
    /// An array has no such element.
    OutOfRange,
    /// There is something else than a number to add to.
    NoNumber,
    /// More digits than arithmetic is exact for.
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

    /// What is wrong.
    pub fn kind(&self) -> EditErrorKind {
        self.kind
    }
}

impl fmt::Display for EditErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EditErrorKind::Syntax(reason) => f.write_str(reason),
            EditErrorKind::Value(error) => write!(f, "value is not json: {error}"),
            EditErrorKind::Time => f.write_str("neither NOW nor a time as rfc 3339 has it"),
            EditErrorKind::Document(error) => write!(f, "document is not json: {error}"),
            EditErrorKind::Result(error) => write!(f, "document would not be allowed: {error}"),
            EditErrorKind::TooMany => write!(f, "too many edits limit={}", super::EDITS_MAX),
            EditErrorKind::NoObject => f.write_str("not an object, so it has no names"),
            EditErrorKind::NoArray => f.write_str("not an array, so it has no elements"),
            EditErrorKind::OutOfRange => f.write_str("no such element"),
            EditErrorKind::NoNumber => f.write_str("not a number, so nothing can be added"),
            EditErrorKind::Overflow => f.write_str("more digits than can be calculated with"),
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
