//! Makes the kernel's decisions durable.
//!
//! **What is absent.** No HTTP, no TLS, no command line. Clocks, chance and stores come in as arguments.
//!
//! The modules in reading order: [`record`] is how commands are written into the log, for ever; [`clock`]
//! is where stamps come from; [`decider`] applies commands and gathers them into batches; [`waiters`] are
//! those that it serves later; [`sequencer`] is the two threads that decide and append side by side;
//! [`recovery`] replays a log through the same entry point.
//!
//! What is not here yet: snapshots, documents, wait-die and deadlock among sessions.

pub mod record;
pub mod clock;
pub mod decider;
pub mod waiters;
pub mod sequencer;
pub mod recovery;
