//! Limits on everything that can grow, and the quotas of each identity.

use crate::units::{Span, Time};

/// The limits in force between one `open` and the next.
///
/// Lowering a limit rejects new entries but removes none, except from history, which shrinks to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest TTL; longer ones are rejected, not truncated.
    pub ttl_max: Span,
    /// The longest hold after expiry.
    pub hold_max: Span,
    /// The number of leases that cover resources.
    pub leases_max: u32,
    /// The same for each identity in one namespace, unless a quota overrides it.
    pub leases_per_identity_max: u32,
    /// The number of namespaces in use.
    pub namespaces_max: u32,
    /// The number of names that are leased or have a document, including the directories above them.
    pub nodes_max: u32,
    /// The number of keys with a document.
    pub documents_max: u32,
    /// The number of remembered agents.
    pub agents_max: u32,
    /// The same for each identity in one namespace.
    pub agents_per_identity_max: u32,
    /// The number of scopes with their own quota or pause.
    pub policies_max: u32,
    /// The number of ended leases that stay readable.
    pub history_max: u32,
    /// The number of members of all ended leases together.
    pub history_members_max: u32,
    /// How long an ended lease stays readable.
    pub history_window: Span,
    /// The number of idempotency entries.
    pub requests_max: u32,
    /// The same for each identity.
    pub requests_per_identity_max: u32,
    /// How long an entry replays its response to retries.
    pub request_window: Span,
    /// The work one command spends on overdue leases, counted in their claims. Part of the log, so that
    /// a replay takes the same steps as the original run.
    pub step_max: u32,
}

impl Limits {
    /// The longest that any span among the limits may be: about 49 days.
    pub const SPAN_MAX: Span = Span(u32::MAX as u64);

    /// The limits before the first `open`: nothing may grow.
    pub(crate) const NONE: Limits = Limits {
        ttl_max: Span(0),
        hold_max: Span(0),
        leases_max: 0,
        leases_per_identity_max: 0,
        namespaces_max: 0,
        nodes_max: 0,
        documents_max: 0,
        agents_max: 0,
        agents_per_identity_max: 0,
        policies_max: 0,
        history_max: 0,
        history_members_max: 0,
        history_window: Span(0),
        requests_max: 0,
        requests_per_identity_max: 0,
        request_window: Span(0),
        step_max: 0,
    };

    /// Every limit by name; spans are in milliseconds.
    pub fn named(&self) -> [(&'static str, u64); 17] {
        [
            ("ttl_max", self.ttl_max.0),
            ("hold_max", self.hold_max.0),
            ("leases_max", self.leases_max.into()),
            ("leases_per_identity_max", self.leases_per_identity_max.into()),
            ("namespaces_max", self.namespaces_max.into()),
            ("nodes_max", self.nodes_max.into()),
            ("documents_max", self.documents_max.into()),
            ("agents_max", self.agents_max.into()),
            ("agents_per_identity_max", self.agents_per_identity_max.into()),
            ("policies_max", self.policies_max.into()),
            ("history_max", self.history_max.into()),
            ("history_members_max", self.history_members_max.into()),
            ("history_window", self.history_window.0),
            ("requests_max", self.requests_max.into()),
            ("requests_per_identity_max", self.requests_per_identity_max.into()),
            ("request_window", self.request_window.0),
            ("step_max", self.step_max.into()),
        ]
    }

    pub(crate) fn are_valid(&self) -> bool {
        let spans = [self.ttl_max, self.hold_max, self.history_window, self.request_window];
        self.ttl_max.0 > 0 && self.step_max > 0 && spans.iter().all(|span| *span <= Limits::SPAN_MAX)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            ttl_max: Span(300_000),
            hold_max: Span(86_400_000),
            leases_max: 20_000_000,
            leases_per_identity_max: 1_000_000,
            namespaces_max: 100_000,
            nodes_max: 40_000_000,
            documents_max: 20_000_000,
            agents_max: 1_000_000,
            agents_per_identity_max: 100_000,
            policies_max: 100_000,
            history_max: 100_000,
            history_members_max: 200_000,
            history_window: Span(600_000),
            requests_max: 1_000_000,
            requests_per_identity_max: 100_000,
            request_window: Span(60_000),
            step_max: 256,
        }
    }
}

/// The quota of an identity in a namespace. A missing value is taken from the next wider scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The number of leases it may hold at the same time.
    pub leases_max: Option<u32>,
    /// The longest total lifetime of a lease, renewals included.
    pub total_max: Option<Span>,
    /// The longest time a lease may go without a commit or a touch. Renewals do not count.
    pub idle_max: Option<Span>,
    /// Acquire attempts per second, rejected ones included. Stored here, enforced by the engine.
    pub acquires_per_second: Option<u32>,
}

impl Quota {
    /// Whether no value is set.
    pub fn is_empty(&self) -> bool {
        *self == Quota::default()
    }

    /// The latest time to which a lease may live.
    pub(crate) fn cap(&self, granted_at: Time, active_at: Time) -> Time {
        let total = self.total_max.map_or(Time::NEVER, |span| granted_at.after(span));
        let idle = self.idle_max.map_or(Time::NEVER, |span| active_at.after(span));
        if planted!(TotalQuotaIgnored) { idle } else { total.min(idle) }
    }

    /// This quota, with missing values taken from `wider`.
    #[must_use]
    pub fn or(self, wider: Quota) -> Quota {
        Quota {
            leases_max: self.leases_max.or(wider.leases_max),
            total_max: self.total_max.or(wider.total_max),
            idle_max: self.idle_max.or(wider.idle_max),
            acquires_per_second: self.acquires_per_second.or(wider.acquires_per_second),
        }
    }
}
