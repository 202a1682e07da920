//! The engine's tests, in one binary.
#![allow(missing_docs, reason = "a test has no public items")]

mod build_day;
mod deadline;
mod fixture;
mod record;
mod golden_records;
mod golden_snapshots;
mod snapshots;
mod waiting;
mod shard;
mod attempts;
mod authorization;
mod batch_bound;
mod rates;
mod waiting_cost;
mod deadlock;
mod sequencer;
mod fairness;
mod engine;
mod follower;
mod tail;
mod driver;
mod checkpointing;
mod damaged_snapshots;
mod retention;
mod crashes;
mod hand_off;
mod idle_shards;
mod linearizable;
mod memory;
