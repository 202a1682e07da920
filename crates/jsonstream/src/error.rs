//! Errors of JSON texts, with their offset.
//!
//! **Invariant.** The offset counts bytes from the beginning of the text, regardless of chunks, and is that of the first
//! byte that no JSON text could have there.
//!
//! **What is absent.** The text itself: documents are private, and messages end up in logs.

use std::fmt;

/// A text that is not JSON, or exceeds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// The kind of error.
    pub kind: JsonErrorKind,
    /// Offset of the first invalid byte; the length of the text if it ends too early.
    pub offset: u64,
}

/// Kind of a [`JsonError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonErrorKind {
    /// More bytes than the limit, whitespace included.
    TooLarge,
    /// More than [`DEPTH_MAX`](crate::DEPTH_MAX) nested arrays and objects.
    TooDeep,
    /// The first byte is 0xEF, with which a byte order mark begins.
    ByteOrderMark,
    /// The text ends before its value does; also if there is no value at all.
    UnexpectedEnd,
    /// A byte that is not allowed here.
    UnexpectedByte,
    /// Something other than whitespace after the value.
    TrailingByte,
    /// Not a number as JSON writes them: `01`, `1.`, `1e`, `-`.
    InvalidNumber,
    /// An unknown escape sequence in a string.
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
