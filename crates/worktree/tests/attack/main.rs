//! Attacks on the protocol: pauses, crashes, torn files, lying clocks, and many processes at once.

#[path = "../support/mod.rs"]
mod support;

mod paused;
