//! Attacks on the protocol: pauses, crashes, torn files, lying clocks, and many processes at once.

#[path = "../support/mod.rs"]
mod support;

mod clocks;
mod crash;
mod damaged;
mod doctor;
mod fold;
mod interleave;
mod paused;
mod power;
mod processes;
mod repair;
mod restoring;
mod torn;
mod trees;
