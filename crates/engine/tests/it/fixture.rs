//! The tenure and the clock of tests that are not about either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Clock, Executor, TenureConfig, Workers};
use kernel::{Limits, Slots, Span, Store};

/// Limits that no test reaches by accident.
pub(crate) const TENURE: TenureConfig = TenureConfig {
    store: Store { shard: kernel::Shard(0), shards: 1, hash_seed: 1 },
    writer: 1,
    limits: Limits {
        ttl_max: Span(300_000),
        hold_max: Span(300_000),
        leases_max: 100_000,
        leases_per_identity_max: 100_000,
        namespaces_max: 10,
        nodes_max: 100_000,
        documents_max: 1000,
        agents_max: 100,
        agents_per_identity_max: 100,
        policies_max: 100,
        history_max: 1000,
        history_members_max: 1000,
        history_window: Span(60_000),
        requests_max: 1000,
        requests_per_identity_max: 1000,
        request_window: Span(60_000),
        step_max: 256,
    },
    slots: Slots::ALL,
};

/// Threads of the test's own.
pub(crate) fn executor() -> Arc<dyn Executor> {
    Arc::new(Workers::default())
}

/// A boot clock that the test advances, in milliseconds.
#[derive(Clone, Default)]
pub(crate) struct TestClock(pub(crate) Arc<AtomicU64>);

impl Clock for TestClock {
    fn boot_clock(&self) -> Span {
        Span(self.0.load(Ordering::Relaxed))
    }

    fn boot_id(&self) -> u128 {
        1
    }

    fn unix_micros(&self) -> u64 {
        1_800_000_000_000_000 + self.boot_clock().0 * 1000
    }
}
