//! The integration tests of the simulator, in one binary, in the order in which a newcomer should read them.
#![allow(missing_docs, reason = "a test has no public items")]

mod trial;
mod reach;
mod segment_files;
mod store_crashes;
mod store_recovery;
mod store_orders;
mod store_capacity;
mod object_blobs;
mod object_takeover;
mod object_model;
mod crash_points;
mod servers;
mod cluster;
mod agents;

/// The size of a randomised test: `usual`, or `long` with `LOCKD_LONG=1` in the environment.
fn sized(usual: u64, long: u64) -> u64 {
    if std::env::var("LOCKD_LONG").is_ok_and(|value| value == "1") { long } else { usual }
}
