//! All integration tests of the crate, in one binary.
//!
//! `spec` proves the specification sentence by sentence and `model` checks the protocol in every
//! interleaving; the other modules attack it with pauses, crashes, power cuts, torn files, wrong clocks and
//! many processes. With `LOCKD_LONG=1` the randomised and exhaustive ones run their long form
//! (`support::short_or_long`).

mod support;

mod model;
mod model_loss;
mod spec;

mod attributes;
mod clocks;
mod copies;
mod crash;
mod damaged;
mod doctor;
mod edges;
mod faults;
mod filesystems;
mod fold;
mod interleave;
mod juicefs;
mod lost_entries;
mod mounts;
mod paused;
mod power;
mod processes;
mod repair;
mod restoring;
mod rescue;
mod retention;
mod sharing;
mod single_paths;
mod torn;
mod trees;
mod waiting;
