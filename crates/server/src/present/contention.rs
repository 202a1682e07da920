//! Contention as responses of the API: waiters, the most contended resources, and the most frequent timeouts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use api::agents::{Contention, Hotspot, Timeouts, Victim, Waiting};
use engine::observe::{ContentionEvent, ContentionOutcome};
use engine::waiters::{Ticket, Waiter};
use kernel::{
    AgentName, Conflict, Identity, LeaseView, Namespace, Owner, ResourceName, SessionName, Span,
    State as LeaseState,
};

use crate::backend::shards::ShardView;
use crate::present::leases;

/// The most waiters in a response.
pub(crate) const WAITERS_MAX: usize = 100;
/// No further waiters are added to a response of this length, in bytes.
pub(crate) const WAITERS_BYTES: usize = 1 << 20;
/// The most hotspots, and the most parties with timeouts, in a response.
const TOP_MAX: usize = 20;

/// A namespace, an identity, and its agent if it named one.
pub(crate) type Contender = (Namespace, Identity, Option<AgentName>);

/// `active` or `reserved` while a lease has authority, `active` if one is; `revoking` while the resource is only not free
/// yet.
pub(crate) fn resource_state(leases: &[LeaseView]) -> &'static str {
    let any = |state: LeaseState| leases.iter().any(|lease| lease.state == state);
    match leases {
        [] => "available",
        _ if any(LeaseState::Active) => "active",
        _ if any(LeaseState::Reserved) => "reserved",
        _ => "revoking",
    }
}

/// The times that remain are those of the moment of the view.
pub(crate) fn waiter(view: &ShardView<'_>, ticket: Ticket, waiter: &Waiter) -> Waiting {
    let request = waiter.request();
    let (holders, _) =
        view.kernel.some_conflicts(&request.namespace, &request.bundle, Conflict::SHOWN_MAX, view.now);
    let position = view.waiters.position(ticket).unwrap_or_default();
    view.count_waiters(position + 1);
    let identity = waiter.command.identity.as_ref().map_or("", Identity::as_str);
    Waiting {
        namespace: request.namespace.as_str().to_string(),
        identity: identity.to_string(),
        owner: request.owner.as_ref().map_or(identity, Owner::as_str).to_string(),
        agent_id: request.agent.as_ref().map(|name| name.as_str().to_string()),
        session_id: request.session.as_ref().map(SessionName::as_str).map(ToString::to_string),
        reason: request.reason.as_ref().map(|reason| reason.as_str().to_string()),
        resources: request.bundle.members().iter().map(leases::resource).collect(),
        blocked_by: holders.iter().map(|lease| leases::conflicting_lease(lease, view.now, Span(0))).collect(),
        position: position as u64,
        age_ms: waiter.age.at.until(view.now).0,
    }
}

/// An estimate of the length of a waiter in a response, in bytes.
pub(crate) fn json_bytes(waiter: &Waiting) -> usize {
    let names: usize = waiter.resources.iter().map(|resource| RESOURCE_BYTES + resource.name.len()).sum();
    WAITER_BYTES * (1 + waiter.blocked_by.len()) + names
}

/// A waiter in a response without its resources, or a lease that blocks it, in bytes.
const WAITER_BYTES: usize = 1280;
/// A resource in a response, without its name, in bytes.
const RESOURCE_BYTES: usize = 80;

/// The resources that blocked the most requests, the most contended first.
pub(crate) fn hotspots<'a>(contended: impl Iterator<Item = &'a ContentionEvent>) -> Vec<Hotspot> {
    let mut counts: BTreeMap<(&Namespace, &ResourceName), (u64, u64)> = BTreeMap::new();
    for contention in contended {
        for member in &contention.members {
            let resource = (&contention.namespace, &member.resource);
            let (blocked, timed_out) = counts.entry(resource).or_default();
            match contention.outcome {
                ContentionOutcome::Queued | ContentionOutcome::Refused | ContentionOutcome::Died => {
                    *blocked += 1;
                }
                ContentionOutcome::TimedOut => *timed_out += 1,
            }
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, counts)| Reverse(*counts));
    let hotspots = counts.into_iter().take(TOP_MAX).map(|((namespace, name), counts)| Hotspot {
        namespace: namespace.as_str().to_string(),
        kind: name.kind().to_string(),
        name: name.name().to_string(),
        blocked: counts.0,
        timed_out: counts.1,
    });
    hotspots.collect()
}

/// The parties with the most waits that timed out and leases that expired, the most frequent first.
pub(crate) fn timeouts<'a>(
    contended: impl Iterator<Item = &'a ContentionEvent>,
    expired: Vec<Contender>,
) -> Vec<Timeouts> {
    let mut counts: BTreeMap<Contender, (u64, u64)> = BTreeMap::new();
    for contention in contended.filter(|contention| contention.outcome == ContentionOutcome::TimedOut) {
        let party = (contention.namespace.clone(), contention.identity.clone(), contention.agent.clone());
        counts.entry(party).or_default().0 += 1;
    }
    for party in expired {
        counts.entry(party).or_default().1 += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, (waits, leases))| Reverse(waits + leases));
    let top =
        counts.into_iter().take(TOP_MAX).map(|((namespace, identity, agent), (waits, leases))| Timeouts {
            namespace: namespace.as_str().to_string(),
            identity: identity.as_str().to_string(),
            agent_id: agent.map(|name| name.as_str().to_string()),
            waits,
            leases,
        });
    top.collect()
}

/// The parties that wait-die or a deadlock cycle refused most often.
pub(crate) fn victims<'a>(contended: impl Iterator<Item = &'a ContentionEvent>) -> Vec<Victim> {
    let mut counts: BTreeMap<(&Namespace, &Identity, Option<&AgentName>), (u64, &ContentionEvent)> =
        BTreeMap::new();
    for contention in contended.filter(|contention| contention.outcome == ContentionOutcome::Died) {
        let party = (&contention.namespace, &contention.identity, contention.agent.as_ref());
        let (died, last) = counts.entry(party).or_insert((0, contention));
        (*died, *last) = (*died + 1, contention);
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, (died, _))| Reverse(*died));
    let top = counts.into_iter().take(TOP_MAX).map(|((namespace, identity, agent), (died, last))| Victim {
        namespace: namespace.as_str().to_string(),
        identity: identity.as_str().to_string(),
        agent_id: agent.map(|name| name.as_str().to_string()),
        died,
        resource: last.members.first().map(leases::resource),
    });
    top.collect()
}

/// The contention of several shards as one response. A namespace is in one shard: nothing is counted twice.
pub(crate) fn merged(parts: Vec<Contention>) -> Contention {
    let (mut all, mut bytes) = (Contention::default(), 0);
    for part in parts {
        all.more |= part.more;
        for waiter in part.waiting {
            if all.waiting.len() == WAITERS_MAX || bytes >= WAITERS_BYTES {
                all.more = true;
                break;
            }
            bytes += json_bytes(&waiter);
            all.waiting.push(waiter);
        }
        all.hotspots.extend(part.hotspots);
        all.timeouts.extend(part.timeouts);
        all.victims.extend(part.victims);
    }
    all.hotspots.sort_by_key(|hotspot| Reverse((hotspot.blocked, hotspot.timed_out)));
    all.timeouts.sort_by_key(|timeouts| Reverse(timeouts.waits + timeouts.leases));
    all.victims.sort_by_key(|victim| Reverse(victim.died));
    all.hotspots.truncate(TOP_MAX);
    all.timeouts.truncate(TOP_MAX);
    all.victims.truncate(TOP_MAX);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(first: usize, waiters: usize) -> Contention {
        let names = (first..first + waiters).map(|number| format!("n-{number}"));
        let waiting = names.map(|namespace| Waiting { namespace, ..Waiting::default() });
        let hotspots =
            (first..first + TOP_MAX).map(|number| Hotspot { blocked: number as u64, ..Hotspot::default() });
        let died = |number: usize| Victim { died: number as u64, ..Victim::default() };
        let victims = vec![died(first), died(first + 1)];
        Contention {
            waiting: waiting.collect(),
            hotspots: hotspots.collect(),
            victims,
            ..Contention::default()
        }
    }

    #[test]
    fn parts_become_one_list_with_the_limits_of_one() {
        let all = merged(vec![part(0, 60), part(1000, 60)]);
        assert_eq!((all.waiting.len(), all.more), (WAITERS_MAX, true));
        assert_eq!(
            (all.waiting[0].namespace.as_str(), all.waiting[60].namespace.as_str()),
            ("n-0", "n-1000")
        );
        let blocked: Vec<u64> = all.hotspots.iter().map(|hotspot| hotspot.blocked).collect();
        assert_eq!(blocked, (1000..1020).rev().collect::<Vec<_>>());
        let died: Vec<u64> = all.victims.iter().map(|victim| victim.died).collect();
        assert_eq!(died, [1001, 1000, 1, 0]);
        let few = merged(vec![part(0, 1), Contention { more: true, ..Contention::default() }]);
        assert_eq!((few.waiting.len(), few.more), (1, true));
    }
}
