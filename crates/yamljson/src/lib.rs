//! JSON as YAML for people to edit, and back.
//!
//! **Invariant.** JSON that is written as YAML and read again is the same JSON: numbers byte for byte, however long; the
//! order of keys; the type of everything, also for a reader of YAML 1.1 or of another implementation. Escapes in strings
//! come back in their shortest form. Whatever one side cannot hold is refused, with its place, and never changed into
//! something like it.
//!
//! What is refused on the way to YAML: a key that is there twice, and half of a surrogate pair. What is refused on the way
//! back: keys that are no strings or are there twice, tags beyond those of JSON's types, `.inf` and `.nan`, a node that
//! contains itself, merge keys, several documents, none at all, `%YAML 1.1`, numbers with a leading zero (octal to some
//! readers, decimal to others), aliases that would fill the memory. Other aliases become copies; `0x10`, `0o7`, `+5`,
//! `.5` and `5.` become the decimal numbers that they are. Untagged plain text is read by the core schema of YAML 1.2:
//! `no`, `on` and dates are strings.
//!
//! **What is absent.** A tree of values, floating point, I/O. Comments: JSON has no place for them.
//!
//! The modules in reading order: `error`; [`write`](mod@write) makes YAML, and decides by `plain` which strings need no
//! quotes; [`read`] makes JSON from the parser's events, and resolves plain text in `resolve`; [`pretty`] indents JSON.

mod error;
pub mod write;
mod plain;
pub mod read;
mod resolve;
pub mod pretty;

pub use error::Error;
pub use pretty::indent;
pub use read::to_json;
pub use write::from_json;
