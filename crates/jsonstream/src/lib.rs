//! Streaming validation and compaction of JSON text, and edits of it by path.
//!
//! **Invariant.** Everything that is not edited stays byte for byte: numbers of any length, escapes, the order of
//! keys, duplicates.
//!
//! **What is absent.** A tree of values, floating point, other crates of the workspace, I/O.
//!
//! The modules in reading order: [`error`]; [`compactor`] reads a text in chunks, built on `state` (the parser state),
//! `piece` (input and output bytes), `nesting` (open arrays and objects), `string` and `number` (their grammars).
//! `blocks` does the same 64 bytes at a time, with the vector instructions of `simd`, the only module with `unsafe`
//! code. [`edit`] changes a document by edits like `progress.count++`; its module page is their manual.

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
