//! How the memory of `--memory-max` is divided.
//!
//! **Invariant.** The shares together, with a snapshot of the state in progress and the memory of an idle server, stay
//! within the maximum. Every share has a part that one identity may use, so that it alone cannot use up any of them.
//!
//! | use | share | of which one identity |
//! |---|---|---|
//! | leases, live or waited for | 1/6 | 1/2 |
//! | names of documents | 1/24 | 1/2 (one namespace) |
//! | ended leases that are readable | 1/48 | |
//! | stored responses (idempotency) | 1/24 | 1/8 |
//! | agents | 1/48 | 1/8 |
//! | waiters | 1/16 | 1/4 |
//! | request bodies being received | 1/12 | 1/4 |
//! | responses being sent | 1/12 | 1/4 |
//! | HTTP/2 requests in progress | 1/24 | 1/4 |
//! | refusals of such requests | 1/96 | 1/4 |
//! | connections | 1/12 | 1/2 |
//! | histories of resources | 1/96 | |
//!
//! The first five are the state, 7/24 together. A snapshot in progress has a copy of it and its encoded parts.

use engine::limits::MemoryLimits;
use kernel::Limits;

/// The most memory for the histories of resources, in bytes: about a hundred thousand events.
const HISTORY_BYTES_MAX: u64 = 32 << 20;
/// An ended lease and one member, in bytes.
const ENDED_LEASE_BYTES: u64 = 320;
/// A member of an ended lease with a long name, in bytes.
const ENDED_MEMBER_BYTES: u64 = 512;
/// A stored response with its indexes, in bytes.
const REQUEST_BYTES: u64 = 384;
/// An agent with a long name and its indexes, in bytes.
const AGENT_BYTES: u64 = 768;
/// A connection with mutual TLS and its buffers while it is idle, in bytes. Measured: 28 KiB with HTTP/2.
const CONNECTION_BYTES: u64 = 32 << 10;
/// The fewest rows that a table of a shard has, whatever the memory.
const ROWS_MIN: u64 = 64;
/// Number of namespaces in which one identity may have leases.
const NAMESPACES_PER_IDENTITY: u64 = 10_000;

/// The kernel's limits in each shard of a store. The number of shards is known once the store is open.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardLimits {
    configured: Limits,
    /// `None`: the configured limits, whatever the memory.
    plan: Option<MemoryPlan>,
}

impl ShardLimits {
    pub(crate) fn new(configured: Limits, plan: MemoryPlan) -> ShardLimits {
        ShardLimits { configured, plan: Some(plan) }
    }

    /// The limits in each of a number of shards, which share the memory.
    pub(crate) fn in_each_of(&self, shards: u32) -> Limits {
        let ShardLimits { configured, plan } = *self;
        let fitted = plan.map_or(configured, |plan| plan.fit(configured, shards));
        // A history of another length than the default is the operator's choice.
        if configured.history_max == Limits::default().history_max {
            fitted
        } else {
            let (history_max, history_members_max) = (configured.history_max, configured.history_members_max);
            Limits { history_max, history_members_max, ..fitted }
        }
    }
}

/// The division of a maximum, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryPlan {
    memory_max: u64,
}

/// A share, and the part of it that one identity may use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// All requests together.
    pub all: u64,
    /// Requests of one identity.
    pub per_identity: u64,
}

impl MemoryPlan {
    pub(crate) const fn new(memory_max: u64) -> MemoryPlan {
        MemoryPlan { memory_max }
    }

    /// Request bodies being received.
    pub(crate) const fn request_bodies(self) -> Share {
        let all = self.memory_max / 12;
        Share { all, per_identity: all / 4 }
    }

    /// Responses being sent.
    pub(crate) fn responses(self) -> Share {
        self.request_bodies()
    }

    /// HTTP/2 requests in progress.
    pub(crate) fn requests(self) -> Share {
        let all = self.memory_max / 24;
        Share { all, per_identity: all / 4 }
    }

    /// Refusals of HTTP/2 requests that wait to be sent.
    pub(crate) fn request_refusals(self) -> Share {
        let all = self.memory_max / 96;
        Share { all, per_identity: all / 4 }
    }

    /// Histories of resources, in bytes. They are for people who look at a console: a large server needs no larger ones, and
    /// its memory is for leases.
    pub(crate) fn history_bytes_max(self) -> u64 {
        (self.memory_max / 96).min(HISTORY_BYTES_MAX)
    }

    /// The number of connections that fit. One identity has at most half of them.
    pub(crate) fn connections_max(self) -> usize {
        usize::try_from(self.memory_max / 12 / CONNECTION_BYTES).unwrap_or(usize::MAX)
    }

    /// The limits of the engine.
    pub(crate) fn engine_limits(self, documents_per_namespace: u64) -> MemoryLimits {
        let (leases, waiters) = (self.memory_max / 6, self.memory_max / 16);
        let document_names = self.memory_max / 24;
        MemoryLimits {
            lease_bytes_max: leases,
            lease_bytes_per_identity_max: leases / 2,
            waiter_bytes_max: waiters,
            waiter_bytes_per_identity_max: waiters / 4,
            document_name_bytes_max: document_names,
            document_name_bytes_per_namespace_max: document_names / 2,
            namespaces_per_identity_max: NAMESPACES_PER_IDENTITY,
            document_bytes_per_namespace_max: documents_per_namespace,
        }
    }

    /// Lowers the kernel's limits, which are numbers of rows, to what fits into each of a number of shards.
    fn fit(self, limits: Limits, shards: u32) -> Limits {
        let shards = u64::from(shards.max(1));
        let at_most = |limit: u32, bytes: u64, row: u64| {
            let rows = (bytes / row / shards).max(ROWS_MIN);
            limit.min(u32::try_from(rows).unwrap_or(u32::MAX))
        };
        let history = self.memory_max / 48;
        let requests_max = at_most(limits.requests_max, self.memory_max / 24, REQUEST_BYTES);
        let agents_max = at_most(limits.agents_max, self.memory_max / 48, AGENT_BYTES);
        Limits {
            history_max: at_most(limits.history_max, history, ENDED_LEASE_BYTES),
            history_members_max: at_most(limits.history_members_max, history, ENDED_MEMBER_BYTES),
            requests_max,
            requests_per_identity_max: limits.requests_per_identity_max.min(requests_max / 8),
            agents_max,
            agents_per_identity_max: limits.agents_per_identity_max.min(agents_max / 8),
            ..limits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_machine_keeps_the_kernels_limits_but_for_the_shares_of_identities() {
        let usual = Limits::default();
        let fitted = MemoryPlan::new(64 << 30).fit(usual, 1);
        assert_eq!(fitted, usual);
    }

    #[test]
    fn a_small_machine_lowers_them_and_none_to_zero() {
        let fitted = MemoryPlan::new(64 << 20).fit(Limits::default(), 1);
        assert_eq!(fitted.requests_max, 7281);
        assert_eq!(fitted.requests_per_identity_max, 910);
        let all = [
            fitted.history_max,
            fitted.history_members_max,
            fitted.agents_max,
            fitted.agents_per_identity_max,
        ];
        assert!(all.iter().all(|limit| (100..10_000).contains(limit)), "{fitted:?}");
    }
    /// Each shard had the tables of a whole server: sixteen shards stored idempotency keys, agents and ended leases for more
    /// than all of the memory, and an identity with keys in every shard had sixteen times its part.
    #[test]
    fn the_tables_of_all_shards_together_stay_within_the_shares() {
        let limits = ShardLimits::new(Limits::default(), MemoryPlan::new(256 << 20));
        let (whole, shard) = (limits.in_each_of(1), limits.in_each_of(16));
        let sum = |of: fn(&Limits) -> u32| (16 * of(&shard), of(&whole));
        for (shards, server) in [
            sum(|limits| limits.requests_max),
            sum(|limits| limits.requests_per_identity_max),
            sum(|limits| limits.agents_max),
            sum(|limits| limits.agents_per_identity_max),
            sum(|limits| limits.history_max),
            sum(|limits| limits.history_members_max),
        ] {
            assert!(shards <= server && shards * 10 > server * 9, "{shards} {server}");
        }
    }

    #[test]
    fn many_shards_on_a_small_machine_have_tables() {
        let shard = ShardLimits::new(Limits::default(), MemoryPlan::new(16 << 20)).in_each_of(1024);
        assert!(shard.requests_per_identity_max > 0 && shard.agents_per_identity_max > 0, "{shard:?}");
    }
}
