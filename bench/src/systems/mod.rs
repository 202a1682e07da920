//! The systems, in the order of tables. One file each.

use std::sync::Arc;

use crate::system::System;

pub mod empty;
mod etcd;
pub mod frames;
mod lockd;
mod postgres;
pub mod raw_commit;
mod redis;
mod zookeeper;

/// All systems that serve clients.
pub fn all() -> Vec<Arc<dyn System>> {
    vec![
        Arc::new(lockd::Lockd::http()),
        Arc::new(lockd::Lockd::frames()),
        Arc::new(lockd::Lockd::one_connection()),
        Arc::new(redis::Redis::always()),
        Arc::new(redis::Redis::one_connection()),
        Arc::new(redis::Redis::every_second()),
        Arc::new(etcd::Etcd::lock()),
        Arc::new(etcd::Etcd::mutex()),
        Arc::new(etcd::Etcd::transaction()),
        Arc::new(postgres::Postgres::row()),
        Arc::new(postgres::Postgres::advisory()),
        Arc::new(zookeeper::Zookeeper),
        Arc::new(empty::Empty),
        Arc::new(frames::Frames),
        Arc::new(raw_commit::RawCommit),
    ]
}

/// Pause between two tries of a client that polls, in milliseconds: random, so that clients do not try in step.
fn poll_pause(state: &mut u64) -> std::time::Duration {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    std::time::Duration::from_millis(1 + *state % 10)
}

/// A seed for [`poll_pause`] and tokens: different for each client of this process.
fn client_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
