//! What is wrong with a text that is not JSON, and where.
//!
//! **Invariant.** The offset counts bytes from the beginning of the whole text, however it was cut into
//! pieces, and is that of the first byte that no JSON text could have there.
//!
//! **What is absent.** The text itself: documents are private, and messages end up in logs.

use std::fmt;

/// A text that is no JSON, or more of it than is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// What is wrong.
    pub kind: JsonErrorKind,
    /// The first wrong byte; the length of the text if it ends too early.
    pub offset: u64,
}

/// What can be wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonErrorKind {
    /// More bytes than the limit, whitespace included.
    TooLarge,
    /// More than [`DEPTH_MAX`](crate::DEPTH_MAX) arrays and objects inside each other.
    TooDeep,
    /// The first byte is 0xEF, with which a byte order mark begins.
    ByteOrderMark,
    /// The text ends before its value does; also if there is no value at all.
    UnexpectedEnd,
    /// A byte that cannot stand here.
    UnexpectedByte,
    /// Something other than whitespace behind the value.
    TrailingByte,
    /// Not a number as JSON writes them: `01`, `1.`, `1e`, `-`.
    InvalidNumber,
    /// A backslash in a string with something behind it that it cannot have.
    InvalidEscape,
    /// A byte below 0x20 in a string.
    ControlCharacter,
    /// A string that is not UTF-8.
    InvalidUtf8,
}

impl fmt::Display for JsonErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JsonErrorKind::TooLarge => "more bytes than the limit",
            JsonErrorKind::TooDeep => "nested deeper than 512",
            JsonErrorKind::ByteOrderMark => "begins with a byte order mark",
            JsonErrorKind::UnexpectedEnd => "ends too early",
            JsonErrorKind::UnexpectedByte => "unexpected byte",
            JsonErrorKind::TrailingByte => "more than one value",
            JsonErrorKind::InvalidNumber => "not a number",
            JsonErrorKind::InvalidEscape => "unknown escape in a string",
            JsonErrorKind::ControlCharacter => "control character in a string",
            JsonErrorKind::InvalidUtf8 => "string is not utf-8",
        })
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} offset={}", self.kind, self.offset)
    }
}

impl std::error::Error for JsonError {}
