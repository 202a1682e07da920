//! Integration tests of `jsonstream`: the compactor by hard cases, against an oracle, and with and without vector
//! instructions; edits by their rules and against a model.

mod common;
mod edit_model;
mod edits;
mod hard_cases;
mod oracle;
mod simd;
