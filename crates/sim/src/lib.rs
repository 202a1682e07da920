//! Deterministic simulation of the kernel and of whole servers: every run follows from its seed.
//!
//! **What is absent.** No clock, no threads, no randomness but the seed's. Of lockd's crates only tests depend on
//! this one.
//!
//! The modules in reading order: [`fixture`] is a kernel with LSNs and time, for tests; [`transcript`] is the text format
//! of a run; [`model`] is a slow, obviously correct reference of the kernel; [`generator`] generates random commands;
//! [`trial`] runs kernel and model against each other; [`shrink`] minimises a failure; [`disk`] is a disk that loses
//! unsynced writes; [`objects`] is an object store behind an unreliable network; [`servers`] simulates whole servers on
//! either, with their clients; [`agents`] simulates agents under wait-die against such a server, and checks liveness;
//! [`properties`] states what clients may rely on, and checks it in both; [`linearizability`] checks recorded histories of
//! threads for linearizability.

pub mod fixture;
pub mod transcript;
pub mod model;
pub mod generator;
pub mod trial;
pub mod shrink;
pub mod disk;
pub mod objects;
pub mod servers;
pub mod agents;
pub mod properties;
pub mod linearizability;
pub mod rng;

use kernel::{Command, Lsn, Time};

/// One record to apply: LSN, time stamp and command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its position in the log.
    pub lsn: Lsn,
    /// Its time stamp.
    pub now: Time,
    /// The command.
    pub command: Command,
}
