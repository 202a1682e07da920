//! The shards of the store and everything that requests share: opening, submitting commands, events, metrics.
//!
//! **What is absent.** HTTP: a command comes in, a decision goes out.

pub mod boot_error;
pub mod open_options;
pub(crate) mod private_files;
pub mod store;
pub mod boot;
pub mod credential;
pub(crate) mod error;
pub(crate) mod cluster;
pub mod shards;
pub(crate) mod blocking_thread;
pub(crate) mod batch_end;
pub(crate) mod leases;
pub(crate) mod lists;
pub(crate) mod bulk;
pub(crate) mod agents;
pub mod memory_plan;
pub(crate) mod byte_budget;
pub(crate) mod turns;
pub(crate) mod upload;
pub(crate) mod download;
pub(crate) mod audit_log;
pub mod engine_observer;
pub(crate) mod event_log;
pub(crate) mod history;
pub(crate) mod history_feed;
pub(crate) mod certificate_dates;
pub(crate) mod metrics;
pub(crate) mod readiness;
pub(crate) mod disk_space;
pub(crate) mod log_space;
pub(crate) mod machine_clocks;
pub(crate) mod moment;
