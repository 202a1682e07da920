//! What cannot be carried over, and where it is.

use std::fmt;

use granit_parser::Marker;
use jsonstream::JsonError;

/// Why a text cannot become the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    what: String,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Both count from 1.
    Line { line: usize, column: usize },
    /// Of the JSON without its whitespace.
    Offset(u64),
}

impl Error {
    pub(crate) fn at(what: impl Into<String>, marker: Marker) -> Error {
        // The parser counts columns from 0.
        let place = Place::Line { line: marker.line().max(1), column: marker.col() + 1 };
        Error { what: what.into(), place }
    }

    pub(crate) fn in_json(what: impl Into<String>, offset: usize) -> Error {
        Error { what: what.into(), place: Place::Offset(offset as u64) }
    }
}

impl From<JsonError> for Error {
    fn from(error: JsonError) -> Error {
        Error { what: error.kind.to_string(), place: Place::Offset(error.offset) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Line { line, column } => write!(f, "{}: line={line} column={column}", self.what),
            Place::Offset(offset) => write!(f, "{}: offset={offset}", self.what),
        }
    }
}

impl std::error::Error for Error {}
