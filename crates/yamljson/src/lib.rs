//! Converts JSON to YAML for people to edit, and back.
//!
//! **Invariant.** JSON that is converted to YAML and back is the same JSON: numbers byte for byte, however long; the order
//! of keys; all types, also for YAML 1.1 parsers and other implementations. Escapes in strings come back in their shortest
//! form. Anything that the other format cannot represent is refused with its position, never approximated.
//!
//! Refused on the way to YAML: duplicate keys, and lone surrogates. Refused on the way back: keys that are not strings,
//! duplicate keys, tags other than those of JSON's types, `.inf` and `.nan`, a node that contains itself, merge keys,
//! several documents or none, `%YAML 1.1`, numbers with a leading zero (octal to some parsers, decimal to others), aliases
//! that expand to more than 16 MiB. Other aliases become copies; `0x10`, `0o7`, `+5`, `.5` and `5.` become decimal
//! numbers. Untagged plain scalars are resolved by the core schema of YAML 1.2: `no`, `on` and dates are strings.
//!
//! **What is absent.** A tree of values, floating point, I/O. Comments: JSON cannot hold them.
//!
//! The modules in reading order: `error`; [`write`](mod@write) writes YAML, and `plain` decides which strings need no
//! quotes; [`read`] writes JSON from the parser's events, and `resolve` resolves plain scalars; [`pretty`] indents JSON.

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
