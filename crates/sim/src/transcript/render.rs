//! Renders outcomes and query results as output lines.

use kernel::{
    Age, BoundedTable, Conflict, Event, KeyView, LeaseView, Live, Outcome, Rejection, Response, Time,
    Verdict, judge,
};

use super::LeaseNames;

pub(super) fn outcome(outcome: &Outcome, names: &LeaseNames) -> Vec<String> {
    match outcome {
        Outcome::Applied(answer, events) => {
            let first = format!("= {}", render_answer(answer, names));
            std::iter::once(first)
                .chain(events.iter().map(|event| format!("+ {}", render_event(event, names))))
                .collect()
        }
        Outcome::Unchanged(answer) => vec![format!("~ {}", render_answer(answer, names))],
        Outcome::Rejected(rejection) => vec![format!("! {}", render_rejection(rejection, names))],
    }
}

fn render_answer(answer: &Response, names: &LeaseNames) -> String {
    match answer {
        Response::Opened => "opened".into(),
        Response::Closed => "closed".into(),
        Response::Ticked => "ticked".into(),
        Response::Granted(granted) => format!(
            "granted {} epoch={} token={} deadline={}",
            names.of(granted.lease),
            granted.epoch.0,
            granted.token.0,
            granted.deadline.0
        ),
        Response::Live(live) => render_live(live, names),
        Response::Renewed(results) => {
            let each = |result: &Result<Live, Rejection>| match result {
                Ok(live) => render_live(live, names),
                Err(rejection) => render_rejection(rejection, names),
            };
            format!("renewed: {}", results.iter().map(each).collect::<Vec<_>>().join("; "))
        }
        Response::Released => "released".into(),
        Response::Revoking(lease) => format!("revoking {}", names.of(*lease)),
        Response::RevokedAll { revoked, more } => format!("revoked-all count={revoked} more={more}"),
        Response::Reclaimed(lease) => format!("reclaimed {}", names.of(*lease)),
        Response::Dropped { more } => format!("dropped more={more}"),
        Response::Committed(version) => format!("committed version={}", version.0),
        Response::Removed { removed, version } => format!("removed={removed} version={}", version.0),
        Response::Relocated { moved } => format!("relocated moved={moved}"),
        Response::Done => "done".into(),
        Response::Retracted { undone } => format!("retracted undone={undone}"),
    }
}

fn render_live(live: &Live, names: &LeaseNames) -> String {
    format!("live {} epoch={} deadline={}", names.of(live.lease), live.epoch.0, live.deadline.0)
}

fn render_rejection(rejection: &Rejection, names: &LeaseNames) -> String {
    match rejection {
        Rejection::InvalidRecord(why) => format!("misplaced {why:?}"),
        Rejection::InvalidTtl { max } => format!("invalid_ttl max={}", max.0),
        Rejection::InvalidHold { max } => format!("invalid_hold max={}", max.0),
        Rejection::InvalidBatch => "invalid_batch".into(),
        Rejection::RequestMismatch => "idempotency_mismatch".into(),
        Rejection::NotFound => "not_found".into(),
        Rejection::Retired => "retired".into(),
        Rejection::NotHeld => "not_held".into(),
        Rejection::LeaseRevoked => "lease_revoked".into(),
        Rejection::LeaseExpired => "lease_expired".into(),
        Rejection::StaleEpoch { current } => format!("stale_epoch current={}", current.0),
        Rejection::FencingMismatch { current } => format!("fencing_mismatch current={}", current.0),
        Rejection::InvalidState(state) => format!("invalid_state state={}", state.as_str()),
        Rejection::InUse { leases } => format!("invalid_state leases={leases}"),
        Rejection::AgentTaken => "agent_taken".into(),
        Rejection::Behind => "behind".into(),
        Rejection::Moved { to: None } => "moved".into(),
        Rejection::Moved { to: Some(server) } => format!("moved to={server}"),
        Rejection::Conflict(conflict) => render_conflict(conflict, names),
        Rejection::AlreadyHeld(lease) => format!("already_held {}", names.of(*lease)),
        Rejection::VersionConflict(tag) => format!("version_conflict current={}", tag.version.0),
        Rejection::EtagMismatch(tag) => format!("etag_mismatch current={}", render_etag(tag.etag)),
        Rejection::Paused => "paused".into(),
        Rejection::QuotaExceeded { max } => format!("quota_exceeded max={max}"),
        Rejection::Full { table, .. } => {
            let table = match table {
                BoundedTable::AgentsPerIdentity => BoundedTable::Agents,
                BoundedTable::RequestsPerIdentity => BoundedTable::Requests,
                table => *table,
            };
            format!("full table={table:?}")
        }
    }
}

fn render_conflict(conflict: &Conflict, names: &LeaseNames) -> String {
    let holders: Vec<String> = conflict.holders.iter().map(|lease| names.of(*lease)).collect();
    format!("conflict holders={} oldest={}", holders.join(","), render_age(conflict.oldest))
}

fn render_event(event: &Event, names: &LeaseNames) -> String {
    match event {
        Event::Granted(lease, _) => format!("granted {}", names.of(*lease)),
        Event::Activated(lease) => format!("activated {}", names.of(*lease)),
        Event::Rebound(lease, token) => format!("rebound {} token={}", names.of(*lease), token.0),
        Event::Released(lease) => format!("released {}", names.of(*lease)),
        Event::Expired { lease, held_until: None } => format!("expired {}", names.of(*lease)),
        Event::Expired { lease, held_until: Some(until) } => {
            format!("expired {} held_until={}", names.of(*lease), render_time(*until))
        }
        Event::Revoked(lease) => format!("revoked {}", names.of(*lease)),
        Event::Reclaimed(lease) => format!("reclaimed {}", names.of(*lease)),
        Event::Committed { lease, key, version, .. } => {
            format!("committed {key} version={} by={}", version.0, names.of(*lease))
        }
        Event::Removed { lease, key, version, .. } => {
            format!("removed {key} version={} by={}", version.0, names.of(*lease))
        }
        Event::Dropped { namespace, key, .. } => format!("dropped {key} ns={namespace}"),
    }
}

pub(super) fn lease(view: &Result<LeaseView, Rejection>, names: &LeaseNames) -> String {
    let view = match view {
        Ok(view) => view,
        Err(rejection) => return format!("> {}", render_rejection(rejection, names)),
    };
    let members: Vec<String> = view
        .members
        .iter()
        .map(|member| format!("{}:{}", member.predicate.as_str(), member.resource))
        .collect();
    format!(
        "> {} {} of {} epoch={} token={} deadline={} {}",
        names.of(view.id),
        view.state.as_str(),
        view.identity,
        view.epoch.0,
        view.token.0,
        view.deadline.0,
        members.join(" ")
    )
}

pub(super) fn key(view: Option<&KeyView>) -> String {
    match view {
        None => "> unknown".into(),
        Some(KeyView { version, document: None }) => format!("> version={} no document", version.0),
        Some(KeyView { version, document: Some(document) }) => {
            format!(
                "> version={} etag={} bytes={}",
                version.0,
                render_etag(Some(document.etag)),
                document.bytes
            )
        }
    }
}

pub(super) fn verdict(
    attempt: Age,
    conflict: Option<&Conflict>,
    waiters: &[Age],
    names: &LeaseNames,
) -> String {
    let holders = conflict.map(|conflict| conflict.oldest);
    if conflict.is_none() && waiters.is_empty() {
        return "> nobody is in the way".into();
    }
    let verdict = match judge(attempt, holders, waiters.iter().copied()) {
        Verdict::Wait => "wait",
        Verdict::Die => "die",
    };
    match conflict {
        Some(conflict) => format!("> {verdict}: {}", render_conflict(conflict, names)),
        None => format!("> {verdict}: waiters alone"),
    }
}

pub(super) fn due(due: Option<Time>) -> String {
    due.map_or_else(|| "> nothing is due".into(), |due| format!("> due at {}", due.0))
}

fn render_time(time: Time) -> String {
    if time == Time::NEVER { "never".into() } else { time.0.to_string() }
}

fn render_age(age: Age) -> String {
    if age == Age::YOUNGEST { "youngest".into() } else { format!("{}.{}", age.at.0, age.tie) }
}

fn render_etag(etag: Option<kernel::Etag>) -> String {
    etag.map_or_else(|| "none".into(), |etag| format!("{:02x}", etag.0[0]))
}
