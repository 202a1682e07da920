//! Makes the kernel's decisions durable.
//!
//! **What is absent.** No HTTP, no TLS, no command line. Clocks, chance and stores come in as arguments.
//!
//! So far there is the [`record`] format: how commands are written into the log, for ever.

pub mod record;
