//! JSON as it is: validated and compacted while it streams, and edited by path.
//!
//! **Invariant.** What is not asked to change stays byte for byte: numbers of any length, escapes, the order of
//! keys, duplicates.
//!
//! **What is absent.** A tree of values, floating point, any other crate of ours, I/O.
//!
//! The modules in reading order: [`error`] says what can be wrong; [`compactor`] takes a text in pieces, and
//! stands on `state` (where in the text it is), `piece` (the bytes), `nesting` (arrays and objects), `string` and
//! `number` (the grammar of each). `blocks` does the same 64 bytes at a time, with the vector instructions of
//! `simd`, the one module with `unsafe` code. [`edit`] changes a document by edits like `progress.count++`, and its
//! page is their manual.

pub mod error;
pub mod compactor;
mod state;
mod piece;
mod nesting;
mod string;
mod number;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod simd;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_simd.rs"]
mod simd;
pub mod edit;

pub use compactor::{Compactor, Limits, Summary, check, compact};
pub use edit::{Edit, EditError, EditErrorKind, apply, parse_edit};
pub use error::{JsonError, JsonErrorKind};
pub use nesting::DEPTH_MAX;
