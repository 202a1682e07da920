//! The usage of identities across the shards that share a budget.
//!
//! **Invariant.** An identity occupies at most its limit in all shards together, plus an eighth, and what one batch adds.
//! The eighth is what shards do not report: an identity that occupies less than the eighth part of a shard's share of
//! its limit in that shard. So a shard reports few identities, and an acquire of any other costs no more than before.
//!
//! **What would break it.** A limit for each shard alone: an identity with rights on many namespaces could occupy all of
//! the memory that the shards share, and the others would be refused.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kernel::{Identity, IdentityFootprint, Kernel};

use super::MemoryLimits;
use crate::waiting::Waiters;

/// The part of its limit that an identity may occupy without being reported, with one shard.
const UNREPORTED_PART: u64 = 8;

/// What one identity occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IdentityUsage {
    /// Bytes of its leases, live or waited for.
    pub(super) leases: u64,
    /// Bytes of its waiters.
    pub(super) waiters: u64,
    /// Number of namespaces.
    pub(super) namespaces: u64,
}

impl IdentityUsage {
    /// The usage of an identity in a shard.
    pub(super) fn of(kernel: &Kernel, waiters: &Waiters, identity: &Identity) -> IdentityUsage {
        let (mine, waiting) = (kernel.identity_footprint(identity), waiters.footprint_of(identity));
        IdentityUsage {
            leases: mine.lease_bytes + waiting.lease_bytes,
            waiters: waiting.waiter_bytes,
            namespaces: u64::from(mine.namespaces),
        }
    }

    fn is_reported(self, limits: &MemoryLimits, shards: u64) -> bool {
        let exceeds = |used: u64, max: u64| used > max / UNREPORTED_PART / shards;
        exceeds(self.leases, limits.lease_bytes_per_identity_max)
            || exceeds(self.waiters, limits.waiter_bytes_per_identity_max)
            || exceeds(self.namespaces, limits.namespaces_per_identity_max)
    }

    fn plus(self, other: IdentityUsage) -> IdentityUsage {
        IdentityUsage {
            leases: self.leases + other.leases,
            waiters: self.waiters + other.waiters,
            namespaces: self.namespaces + other.namespaces,
        }
    }

    fn minus(self, other: IdentityUsage) -> IdentityUsage {
        IdentityUsage {
            leases: self.leases - other.leases,
            waiters: self.waiters - other.waiters,
            namespaces: self.namespaces - other.namespaces,
        }
    }
}

/// The reported usage of all shards, by identity.
#[derive(Debug, Default)]
pub(super) struct ReportedUsage(Mutex<Reports>);

#[derive(Debug, Default)]
struct Reports {
    shards: u64,
    identities: BTreeMap<Identity, IdentityUsage>,
}

impl ReportedUsage {
    fn lock(&self) -> MutexGuard<'_, Reports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reports {
    fn replace(&mut self, identity: &Identity, before: IdentityUsage, now: IdentityUsage) {
        let usage = self.identities.entry(identity.clone()).or_default();
        *usage = usage.minus(before).plus(now);
        if *usage == IdentityUsage::default() {
            self.identities.remove(identity);
        }
    }
}

/// The identities that one shard reports, with the usage that it has reported.
#[derive(Default)]
pub(super) struct ShardReport(BTreeMap<Identity, IdentityUsage>);

impl ShardReport {
    /// Registers the shard, with the large identities that it recovered.
    pub(super) fn begin(reported: &ReportedUsage, limits: &MemoryLimits, kernel: &Kernel) -> ShardReport {
        let mut reports = reported.lock();
        reports.shards += 1;
        let is_large = |footprint: IdentityFootprint| {
            let (leases, namespaces) = (footprint.lease_bytes, u64::from(footprint.namespaces));
            let usage = IdentityUsage { leases, namespaces, ..IdentityUsage::default() };
            usage.is_reported(limits, reports.shards)
        };
        let large = kernel.identity_footprints().filter(|(_, footprint)| is_large(*footprint));
        ShardReport(large.map(|(identity, _)| (identity, IdentityUsage::default())).collect())
    }

    /// What an identity occupies in the other shards. `own` is its usage in this one with the request that is checked: if
    /// that is large, it is reported from now on.
    pub(super) fn elsewhere(
        &mut self,
        reported: &ReportedUsage,
        limits: &MemoryLimits,
        identity: &Identity,
        own: IdentityUsage,
    ) -> IdentityUsage {
        let reports = reported.lock();
        if reports.shards <= 1 {
            return IdentityUsage::default();
        }
        let all = reports.identities.get(identity).copied().unwrap_or_default();
        let mine = self.0.get(identity).copied();
        if mine.is_none() && own.is_reported(limits, reports.shards) {
            self.0.insert(identity.clone(), IdentityUsage::default());
        }
        all.minus(mine.unwrap_or_default())
    }

    /// Reports the present usage, and forgets identities that have become small.
    pub(super) fn publish(
        &mut self,
        reported: &ReportedUsage,
        limits: &MemoryLimits,
        kernel: &Kernel,
        waiters: &Waiters,
    ) {
        if self.0.is_empty() {
            return;
        }
        let mut reports = reported.lock();
        let shards = reports.shards;
        self.0.retain(|identity, before| {
            let now = IdentityUsage::of(kernel, waiters, identity);
            let is_kept = now.is_reported(limits, shards);
            let now = if is_kept { now } else { IdentityUsage::default() };
            if now != *before {
                reports.replace(identity, *before, now);
                *before = now;
            }
            is_kept
        });
    }

    /// Withdraws everything that the shard has reported.
    pub(super) fn end(&mut self, reported: &ReportedUsage) {
        let mut reports = reported.lock();
        reports.shards -= 1;
        for (identity, before) in std::mem::take(&mut self.0) {
            reports.replace(&identity, before, IdentityUsage::default());
        }
    }
}
