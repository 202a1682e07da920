//! Agents, and the verdicts on their manifests.

use api::agents::{Agent, AgentState as WireState, ManifestOutcome, Verdict};
use engine::Decision;
use engine::waiters::{Advice, Blocked};
use kernel::{AgentState, AgentView, Kernel, LeaseView, Namespace, Time};

use crate::backend::moment::Moment;
use crate::backend::shards::Backend;
use crate::present::leases::{self, GrantView};

/// `last_activity_unix_ms` is its last event within the hour.
pub(crate) fn agent(namespace: &Namespace, agent: &AgentView, last_activity_unix_ms: Option<u64>) -> Agent {
    Agent {
        agent_id: agent.name.as_str().to_string(),
        namespace: namespace.as_str().to_string(),
        identity: agent.identity.as_str().to_string(),
        state: match agent.state {
            AgentState::Alive => WireState::Alive,
            AgentState::Restarting => WireState::DieRestart,
            AgentState::Paused => WireState::Paused,
        },
        leases: u64::from(agent.leases),
        last_activity_unix_ms,
    }
}

/// The state in which a manifest was decided, as far as its verdict shows it.
pub(crate) struct ManifestView {
    pub(crate) grant: GrantView,
    /// The conflicting leases, if the manifest is blocked.
    holders: Vec<LeaseView>,
}

impl ManifestView {
    pub(crate) fn read(kernel: &Kernel, moment: Moment, decision: &Decision) -> ManifestView {
        let now = moment.now;
        let holders = match decision {
            Decision::Blocked(blocked) => blocked.holders.as_slice(),
            Decision::Outcome(_) => &[],
        };
        let holders = holders.iter().filter_map(|lease| kernel.lease(*lease, now).ok()).collect();
        ManifestView { grant: GrantView::read(kernel, moment, decision), holders }
    }

    pub(crate) fn now(&self) -> Time {
        self.grant.moment.now
    }
}

/// The verdict on a blocked manifest.
pub(crate) fn blocked_verdict(
    backend: &Backend,
    blocked: &Blocked,
    view: &ManifestView,
    attempt_id: String,
    backoff_ms: u64,
) -> ManifestOutcome {
    let (verdict, detail) = match blocked.advice {
        Advice::Wait => (Verdict::Wait, "blocked by younger holders or waiters; wait with wait_ms"),
        Advice::Die | Advice::Deadlock => (
            Verdict::Die,
            "release the leases in `release`, wait for backoff_ms, and retry with the same attempt_id",
        ),
    };
    let elapsed = view.grant.moment.elapsed(&backend.clocks);
    let conflicting = |lease| leases::conflicting_lease(lease, view.now(), elapsed);
    ManifestOutcome {
        verdict,
        attempt_id: Some(attempt_id),
        backoff_ms: Some(backoff_ms),
        holders: view.holders.iter().map(conflicting).collect(),
        position: Some(blocked.position as u64),
        release: blocked.release.iter().map(ToString::to_string).collect(),
        detail: Some(detail.to_string()),
        ..ManifestOutcome::default()
    }
}

/// The verdict on a manifest whose agent, identity or namespace gets no grants at this time.
pub(crate) fn paused_verdict(attempt_id: Option<String>, backoff_ms: u64, detail: String) -> ManifestOutcome {
    ManifestOutcome {
        verdict: Verdict::Paused,
        attempt_id,
        backoff_ms: Some(backoff_ms),
        detail: Some(detail),
        ..ManifestOutcome::default()
    }
}
