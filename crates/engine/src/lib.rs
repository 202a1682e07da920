//! Makes the kernel's decisions durable.
//!
//! **What is absent.** No HTTP, no TLS, no command line. Clocks, chance and stores come in as arguments.
//!
//! The modules in reading order: [`record`] is how commands are written into the log, for ever; [`clock`]
//! is where stamps come from; [`decider`] applies commands and gathers them into batches; [`sequencer`] is
//! the two threads that decide and append side by side; [`recovery`] replays a log through the same entry
//! point.
//!
//! What is not here yet: waiters, snapshots, documents.

pub mod record;
pub mod clock;
pub mod decider;
pub mod sequencer;
pub mod recovery;
