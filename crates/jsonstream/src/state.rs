//! The parser state between two bytes.
//!
//! **Invariant.** With [`Nesting`](crate::nesting::Nesting), this is everything that is known about the bytes before:
//! both readers, byte by byte and by blocks, start and end in a state.

use crate::number::Number;
use crate::string::StringState;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Between tokens.
    Before(Next),
    Key(StringState),
    Text(StringState),
    Number(Number),
    /// In `true`, `false` or `null`, with these bytes to come.
    Literal(&'static [u8]),
}

/// The token that may come next, after optional whitespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Value,
    /// After `[`.
    ValueOrEnd,
    /// After `{`.
    KeyOrEnd,
    /// After a comma in an object.
    Key,
    Colon,
    CommaOrEnd,
    /// After the complete value.
    Nothing,
}

/// Where the block reader stopped.
pub(crate) struct Stop {
    /// Number of bytes read.
    pub(crate) read: usize,
    /// Number of bytes written.
    pub(crate) kept: usize,
    pub(crate) state: State,
    /// Start of the rejected block. `read` may be before it: an unfinished token is left to the byte reader.
    pub(crate) refused: usize,
}
