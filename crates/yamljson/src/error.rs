//! Errors of conversion, with their position.

use std::fmt;

use granit_parser::Marker;
use jsonstream::JsonError;

/// Why a text cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    what: String,
    position: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Both are counted from 1.
    Line { line: usize, column: usize },
    /// A byte offset in the compact JSON, or in text that is not UTF-8.
    Offset(u64),
}

impl Error {
    pub(crate) fn at(what: impl Into<String>, marker: Marker) -> Error {
        // The parser counts columns from 0.
        let position = Position::Line { line: marker.line().max(1), column: marker.col() + 1 };
        Error { what: what.into(), position }
    }

    pub(crate) fn in_json(what: impl Into<String>, offset: usize) -> Error {
        Error { what: what.into(), position: Position::Offset(offset as u64) }
    }
}

impl From<JsonError> for Error {
    fn from(error: JsonError) -> Error {
        Error { what: error.kind.to_string(), position: Position::Offset(error.offset) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Position::Line { line, column } => write!(f, "{}: line={line} column={column}", self.what),
            Position::Offset(offset) => write!(f, "{}: offset={offset}", self.what),
        }
    }
}

impl std::error::Error for Error {}
