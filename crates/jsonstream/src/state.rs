//! Where in a text the scanner is.
//!
//! **Invariant.** With [`Nesting`](crate::nesting::Nesting), this is all that is known of what came before: both
//! ways of reading, byte by byte and by blocks, begin and end in a state.

use crate::number::Number;
use crate::string::Inside;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Between tokens.
    Before(Next),
    Key(Inside),
    Text(Inside),
    Number(Number),
    /// In `true`, `false` or `null`, with this much to come.
    Literal(&'static [u8]),
}

/// What may come next, whitespace aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Value,
    /// Behind `[`.
    ValueOrEnd,
    /// Behind `{`.
    KeyOrEnd,
    /// Behind a comma in an object.
    Key,
    Colon,
    CommaOrEnd,
    /// Behind the whole value.
    Nothing,
}

/// Where reading by blocks ended.
pub(crate) struct Stop {
    /// How many bytes were read.
    pub(crate) read: usize,
    /// How many of them were kept.
    pub(crate) kept: usize,
    pub(crate) state: State,
    /// Where the block begins that was not taken. What was read of an unfinished token before it is given back.
    pub(crate) refused: usize,
}
