//! Limits in bytes on the memory and documents of requests: in all, per identity and per namespace.
//!
//! **Invariant.** A request that would exceed a limit is refused before it is decided, so nothing of it is logged. The
//! limits are those of this process, not of the log: a replay does not depend on them, and leases that exist are never
//! removed to meet them. A retry of a request that was granted is exempt: it adds nothing.
//!
//! **What would break it.** A waiter that is not counted as the lease that it will get: requests within the limit could
//! queue without end, and exceed it together when they are granted. So a waiter counts twice: as a waiter, and as its
//! future lease.

mod identity_usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel::{Action, Command, Commit, Identity, Kernel, LeaseRequest, Time};

use crate::memory::identity_usage::{IdentityUsage, ReportedUsage, ShardReport};
use crate::waiting::{Waiters, lease_request_of};

/// Limits on memory, and on the documents of a namespace. Estimates in bytes, unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Leases of all shards that share the budget, live or waited for.
    pub lease_bytes_max: u64,
    /// Leases of one identity, live or waited for.
    pub lease_bytes_per_identity_max: u64,
    /// Waiters of all shards that share the budget.
    pub waiter_bytes_max: u64,
    /// Waiters of one identity.
    pub waiter_bytes_per_identity_max: u64,
    /// Names of documents of all shards that share the budget.
    pub document_name_bytes_max: u64,
    /// Names of documents of one namespace.
    pub document_name_bytes_per_namespace_max: u64,
    /// Number of namespaces in which one identity may have leases, ended leases that are still readable, or agents.
    pub namespaces_per_identity_max: u64,
    /// Length of all documents of one namespace.
    pub document_bytes_per_namespace_max: u64,
}

impl Default for MemoryLimits {
    /// No limits.
    fn default() -> MemoryLimits {
        MemoryLimits {
            lease_bytes_max: u64::MAX,
            lease_bytes_per_identity_max: u64::MAX,
            waiter_bytes_max: u64::MAX,
            waiter_bytes_per_identity_max: u64::MAX,
            document_name_bytes_max: u64::MAX,
            document_name_bytes_per_namespace_max: u64::MAX,
            namespaces_per_identity_max: u64::MAX,
            document_bytes_per_namespace_max: u64::MAX,
        }
    }
}

/// The limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceededLimit {
    /// Its name, as in [`MemoryLimits`].
    pub name: &'static str,
    /// Its value.
    pub max: u64,
    /// Whether the requester alone, or its namespace, has reached it. Otherwise all requesters together have.
    pub is_own: bool,
}

/// How much of a limit in bytes is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitUsage {
    /// Its name, as in [`MemoryLimits`].
    pub name: &'static str,
    /// The bytes in use.
    pub used: u64,
    /// The limit.
    pub max: u64,
}

/// Limits, and the memory in use by the shards that share them. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryBudget(Arc<BudgetState>);

#[derive(Debug, Default)]
struct BudgetState {
    limits: MemoryLimits,
    lease_bytes: AtomicU64,
    waiter_bytes: AtomicU64,
    document_name_bytes: AtomicU64,
    identities: ReportedUsage,
}

impl MemoryBudget {
    /// An unused budget.
    pub fn new(limits: MemoryLimits) -> MemoryBudget {
        MemoryBudget(Arc::new(BudgetState { limits, ..BudgetState::default() }))
    }

    /// The limits that all shards share, and how much of each is in use.
    pub fn usage(&self) -> [LimitUsage; 3] {
        let BudgetState { limits, lease_bytes, waiter_bytes, document_name_bytes, .. } = &*self.0;
        let usage =
            |name, used: &AtomicU64, max| LimitUsage { name, used: used.load(Ordering::Relaxed), max };
        [
            usage("lease_bytes_max", lease_bytes, limits.lease_bytes_max),
            usage("waiter_bytes_max", waiter_bytes, limits.waiter_bytes_max),
            usage("document_name_bytes_max", document_name_bytes, limits.document_name_bytes_max),
        ]
    }
}

/// The memory in use by a shard, in bytes.
#[derive(Clone, Copy, Default)]
struct ShardUsage {
    leases: u64,
    waiters: u64,
    document_names: u64,
}

impl ShardUsage {
    fn of(kernel: &Kernel, waiters: &Waiters) -> ShardUsage {
        let (footprint, waiting) = (kernel.footprint(), waiters.footprint());
        ShardUsage {
            leases: footprint.lease_bytes + waiting.lease_bytes,
            waiters: waiting.waiter_bytes,
            document_names: footprint.document_bytes,
        }
    }
}

/// The part of a budget that one shard uses.
#[derive(Default)]
pub(crate) struct ShardMemory {
    budget: MemoryBudget,
    /// The usage of this shard that the budget includes.
    published: ShardUsage,
    /// `None` before the first use.
    report: Option<ShardReport>,
}

impl ShardMemory {
    pub(crate) fn new(budget: MemoryBudget) -> ShardMemory {
        ShardMemory { budget, published: ShardUsage::default(), report: None }
    }

    /// Updates the shard's usage in the budget.
    pub(crate) fn publish(&mut self, kernel: &Kernel, waiters: &Waiters) {
        self.publish_usage(ShardUsage::of(kernel, waiters));
        let BudgetState { limits, identities, .. } = &*self.budget.0;
        if *limits == MemoryLimits::default() {
            return;
        }
        let report = self.report.get_or_insert_with(|| ShardReport::begin(identities, limits, kernel));
        report.publish(identities, limits, kernel, waiters);
    }

    fn publish_usage(&mut self, usage: ShardUsage) {
        let (state, before) = (&self.budget.0, std::mem::replace(&mut self.published, usage));
        let add = |counter: &AtomicU64, before: u64, now: u64| {
            if before != now {
                counter.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        add(&state.lease_bytes, before.leases, usage.leases);
        add(&state.waiter_bytes, before.waiters, usage.waiters);
        add(&state.document_name_bytes, before.document_names, usage.document_names);
    }

    /// Whether a command is within the limits. `waits`: it may become a waiter.
    pub(crate) fn check(
        &mut self,
        kernel: &Kernel,
        waiters: &Waiters,
        now: Time,
        command: &Command,
        waits: bool,
    ) -> Result<(), ExceededLimit> {
        if self.budget.0.limits == MemoryLimits::default() || planted!(MemoryUnlimited) {
            return Ok(());
        }
        let checked = match &command.action {
            Action::Commit(commit) => self.check_commit(kernel, waiters, commit),
            _ => match lease_request_of(command) {
                Some(request) => self.check_request(kernel, waiters, command, request, waits),
                None => return Ok(()),
            },
        };
        checked.or_else(|exceeded| if kernel.is_retry(now, command) { Ok(()) } else { Err(exceeded) })
    }

    fn check_request(
        &mut self,
        kernel: &Kernel,
        waiters: &Waiters,
        command: &Command,
        request: &LeaseRequest,
        waits: bool,
    ) -> Result<(), ExceededLimit> {
        let bytes = request.footprint();
        if let Some(identity) = &command.identity {
            let mut usage = IdentityUsage::of(kernel, waiters, identity);
            usage.leases += bytes;
            usage.waiters += if waits { Waiters::bytes_of(request) } else { 0 };
            let is_new = !kernel.has_account(&request.namespace, identity);
            usage.namespaces += u64::from(is_new);
            self.check_identity(identity, usage, waits, is_new)?;
        }
        let limits = &self.budget.0.limits;
        let (all, own) = (self.others(), ShardUsage::of(kernel, waiters));
        let leases = all.leases + own.leases + bytes;
        within("lease_bytes_max", leases, limits.lease_bytes_max, false)?;
        if waits {
            let waiters = all.waiters + own.waiters + Waiters::bytes_of(request);
            within("waiter_bytes_max", waiters, limits.waiter_bytes_max, false)?;
        }
        Ok(())
    }

    /// Checks what an identity would occupy in all shards. `usage` is its usage in this one, with the request.
    fn check_identity(
        &mut self,
        identity: &Identity,
        usage: IdentityUsage,
        waits: bool,
        is_new: bool,
    ) -> Result<(), ExceededLimit> {
        let BudgetState { limits, identities, .. } = &*self.budget.0;
        let elsewhere = self.report.as_mut().map(|it| it.elsewhere(identities, limits, identity, usage));
        let elsewhere = elsewhere.unwrap_or_default();
        let (leases, max) = (usage.leases + elsewhere.leases, limits.lease_bytes_per_identity_max);
        within("lease_bytes_per_identity_max", leases, max, true)?;
        if waits {
            let (waiters, max) = (usage.waiters + elsewhere.waiters, limits.waiter_bytes_per_identity_max);
            within("waiter_bytes_per_identity_max", waiters, max, true)?;
        }
        if is_new {
            let namespaces = usage.namespaces + elsewhere.namespaces;
            within("namespaces_per_identity_max", namespaces, limits.namespaces_per_identity_max, true)?;
        }
        Ok(())
    }

    /// A new version of a document counts instead of the present one.
    fn check_commit(&self, kernel: &Kernel, waiters: &Waiters, commit: &Commit) -> Result<(), ExceededLimit> {
        let limits = &self.budget.0.limits;
        let namespace = kernel.namespace_of_lease(commit.write.held.lease);
        let Some(namespace) = namespace else { return Ok(()) };
        let present = kernel.key(&namespace, &commit.write.key).and_then(|key| key.document);
        let documents = kernel.documents_bytes(&namespace) + commit.bytes;
        let documents = documents - present.map_or(0, |document| document.bytes);
        let max = limits.document_bytes_per_namespace_max;
        within("document_bytes_per_namespace_max", documents, max, true)?;
        if present.is_some() {
            return Ok(());
        }
        let (names, max) =
            (kernel.document_name_bytes(&namespace), limits.document_name_bytes_per_namespace_max);
        within("document_name_bytes_per_namespace_max", names.saturating_add(1), max, true)?;
        let names = self.others().document_names + ShardUsage::of(kernel, waiters).document_names;
        within("document_name_bytes_max", names + 1, limits.document_name_bytes_max, false)
    }

    /// The memory in use by the other shards.
    fn others(&self) -> ShardUsage {
        let (state, mine) = (&self.budget.0, &self.published);
        let read = |counter: &AtomicU64, mine: u64| counter.load(Ordering::Relaxed).saturating_sub(mine);
        ShardUsage {
            leases: read(&state.lease_bytes, mine.leases),
            waiters: read(&state.waiter_bytes, mine.waiters),
            document_names: read(&state.document_name_bytes, mine.document_names),
        }
    }
}

impl Drop for ShardMemory {
    fn drop(&mut self) {
        self.publish_usage(ShardUsage::default());
        if let Some(report) = &mut self.report {
            report.end(&self.budget.0.identities);
        }
    }
}

fn within(name: &'static str, used: u64, max: u64, is_own: bool) -> Result<(), ExceededLimit> {
    if used <= max { Ok(()) } else { Err(ExceededLimit { name, max, is_own }) }
}
