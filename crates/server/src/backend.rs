//! The store's shards and everything that requests share: opening them, submitting commands, events, metrics.
//!
//! **What is absent.** HTTP: a command comes in, a decision goes out.

pub mod boot;
pub mod credential;
pub mod shards;
pub mod watch;
pub(crate) mod event_log;
pub(crate) mod metrics;
pub(crate) mod machine;
