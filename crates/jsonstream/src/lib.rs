//! JSON as it is: validated and compacted while it streams.
//!
//! **Invariant.** What is not asked to change stays byte for byte: numbers of any length, escapes, the order of
//! keys, duplicates.
//!
//! **What is absent.** A tree of values, floating point, any other crate of ours, I/O.
//!
//! The modules in reading order: [`error`] says what can be wrong; [`compactor`] takes a text in pieces, and
//! stands on `piece` (the bytes), `nesting` (arrays and objects), `string` and `number` (the grammar of each).

pub mod error;
pub mod compactor;
mod piece;
mod nesting;
mod string;
mod number;

pub use compactor::{Compactor, Limits, Summary, check, compact};
pub use error::{JsonError, JsonErrorKind};
pub use nesting::DEPTH_MAX;
