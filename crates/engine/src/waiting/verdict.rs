//! The verdict on a blocked request: its age, wait-die, and the reply to its client.

use kernel::{Age, Bundle, Command, Conflict, LeaseRequest, Member, Rejection, Time, Verdict};

use super::attempts::Attempt;
use super::queues::{Ticket, Waiters, lease_request_of, session_of};
use crate::decider::Decider;
use crate::decision::{Advice, Blocked, ContentionEvent, ContentionOutcome};

/// Whether wait-die refuses the wait. `oldest_ahead` is the age of the oldest conflicting waiter.
pub(super) fn dies(request: &LeaseRequest, age: Age, conflict: &Conflict, oldest_ahead: Option<Age>) -> bool {
    let verdict = || kernel::judge(age, [conflict.oldest], oldest_ahead);
    request.is_wait_die() && verdict() == Verdict::Die && !planted!(AttemptsAlwaysWait)
}

/// The rejection of a request that has to queue behind other waiters: one that waiting cannot resolve takes precedence
/// over the conflict.
pub(super) fn rejection_behind(decider: &Decider, now: Time, command: &Command) -> Rejection {
    let conflict = || Rejection::Conflict(Box::new(Conflict { holders: Vec::new(), oldest: Age::YOUNGEST }));
    let request = lease_request_of(command).zip(command.identity.as_ref());
    let refusal = request.and_then(|(request, identity)| decider.kernel().refusal(now, identity, request));
    refusal.unwrap_or_else(conflict)
}

/// A request that may wait at this place, with the leases and waiters that block it.
pub(super) fn blocked(
    waiters: &Waiters,
    request: &LeaseRequest,
    attempt: Attempt,
    place: Ticket,
    conflict: Conflict,
) -> Blocked {
    Blocked {
        advice: Advice::Wait,
        holders: conflict.holders,
        position: waiters.count_ahead(&request.namespace, &request.bundle, place),
        release: Vec::new(),
        attempt,
    }
}

/// The same request, refused by wait-die or because of a deadlock cycle: with what its session has to release.
pub(super) fn refused(decider: &Decider, command: &Command, blocked: Blocked) -> Blocked {
    let is_wait_die = lease_request_of(command).is_some_and(LeaseRequest::is_wait_die);
    let held = session_of(command).map(|(namespace, identity, session)| {
        decider.kernel().leases_of_session(&namespace, &identity, &session, decider.now())
    });
    Blocked {
        advice: if is_wait_die { Advice::Die } else { Advice::Deadlock },
        release: held.into_iter().flatten().map(|lease| lease.id).collect(),
        ..blocked
    }
}

/// The present state of a waiter's request.
pub(super) fn still_blocked(decider: &Decider, waiters: &Waiters, ticket: Ticket) -> Option<Blocked> {
    let waiter = waiters.get(ticket)?;
    let request = waiter.request();
    let conflict = decider.kernel().conflict(&request.namespace, &request.bundle, decider.now());
    Some(Blocked {
        advice: Advice::Wait,
        holders: conflict.map(|conflict| conflict.holders).unwrap_or_default(),
        position: waiters.position(ticket)?,
        release: Vec::new(),
        attempt: Attempt { last: decider.now(), ..waiter.attempt },
    })
}

/// The event for a blocked request.
pub(super) fn contention(
    decider: &Decider,
    command: &Command,
    outcome: ContentionOutcome,
    blocked: &Blocked,
) -> Option<ContentionEvent> {
    let (request, identity) = lease_request_of(command).zip(command.identity.as_ref())?;
    Some(ContentionEvent {
        after: decider.kernel().last_lsn(),
        outcome,
        identity: identity.clone(),
        agent: request.agent.clone(),
        namespace: request.namespace.clone(),
        members: contended_members(decider, request),
        holders: blocked.holders.clone(),
    })
}

/// The members that leases conflict with; if only waiters block the request, any of its members may be contended.
fn contended_members(decider: &Decider, request: &LeaseRequest) -> Vec<Member> {
    let members = request.bundle.members();
    let max = ContentionEvent::SHOWN_MAX;
    let held: Vec<Member> = match members {
        [only] => vec![only.clone()],
        several => {
            let held = several.iter().filter(|member| is_held(decider, request, member));
            held.take(max).cloned().collect()
        }
    };
    if held.is_empty() { members.iter().take(max).cloned().collect() } else { held }
}

/// Whether a lease conflicts with this member of a request.
pub(super) fn is_held(decider: &Decider, request: &LeaseRequest, member: &Member) -> bool {
    let alone = Bundle::new(vec![member.clone()]).expect("one member is a bundle");
    decider.kernel().conflict(&request.namespace, &alone, decider.now()).is_some()
}
