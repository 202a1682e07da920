//! A seeded world around the kernel: what is tried in it depends on the seed alone.
//!
//! **What is absent.** No clock, no threads, no randomness but the seed's. Nothing of lockd depends on
//! this crate but its tests.
//!
//! The modules in reading order: [`world`] is a kernel with a log to stamp; [`transcript`] is the text in which
//! runs are written and read;
//! [`model`] is the kernel once more, obviously right and slow; [`hostile`] makes up commands;
//! [`trial`] runs both against each other; [`shrink`] makes a failure small; [`disk`] is a disk that
//! forgets what was not synced; [`objects`] is an object store behind a bad network; [`life`] is whole servers
//! on either, and their clients; [`agents`] is agents under wait-die before such a server, who have to come to an end;
//! [`linear`] judges what threads were told.

pub mod world;
pub mod transcript;
pub mod model;
pub mod hostile;
pub mod trial;
pub mod shrink;
pub mod disk;
pub mod objects;
pub mod life;
pub mod agents;
pub mod linear;
pub mod rng;

use kernel::{Command, Lsn, Time};

/// One record that is tried: where in the log, when, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its position.
    pub lsn: Lsn,
    /// Its stamp.
    pub now: Time,
    /// What it asks.
    pub command: Command,
}
