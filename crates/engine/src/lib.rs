//! Makes the kernel's decisions durable.
//!
//! **What is absent.** No HTTP, no TLS, no command line. Clocks, chance and stores come in as arguments.
//!
//! The modules in reading order: [`record`] is how commands are written into the log, for ever, and
//! [`snapshot`] how a whole state is; [`clock`] is where stamps come from; [`decider`] applies commands and
//! gathers them into batches; [`waiters`] are those that it serves later, and `deadlock` those that it does
//! not let wait; `rates` are how often somebody asks; [`documents`] says where documents are; [`shard`] is all of that turn by turn; [`sequencer`]
//! is the threads that drive it; [`recovery`] goes from a store back to a state; [`checkpoint`] does so beside
//! the live one, and lets go what is no longer needed; [`uploads`] are documents too long for the log; [`engine`]
//! is all of it running. [`stopwatch`] is for figures only.

// `planted!(Fault)`: whether a deliberate fault is switched on; `false` without the feature `planted`.
#[macro_use]
extern crate planted;

mod wire;
pub mod record;
pub mod snapshot;
pub mod clock;
pub mod decider;
pub mod waiters;
mod deadlock;
mod rates;
pub mod documents;
pub mod shard;
pub mod sequencer;
pub mod recovery;
pub mod checkpoint;
pub mod uploads;
pub mod engine;
pub mod stopwatch;
