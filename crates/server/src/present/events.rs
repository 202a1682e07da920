//! Events as server-sent events.

use std::fmt::Write as _;

use api::agents::Event as WireEvent;
use engine::observe::{ContentionEvent, ContentionOutcome};
use kernel::Event;

use crate::backend::event_log::event_buffer::{BufferedEvent, Subject, lease_of};
use crate::present::leases;

/// A comment, which clients ignore.
pub(crate) const KEEP_ALIVE: &str = ":\n\n";
/// Events were lost: the client must read again what it needs to know.
pub(crate) const RESET: &str = "event: reset\ndata: {}\n\n";

/// Appends one event. JSON contains no line breaks, so its data is one line.
pub(crate) fn append(text: &mut String, entry: &BufferedEvent, event: WireEvent) {
    let (id, event) = (entry.id, WireEvent { at_unix_ms: entry.unix_ms, ..event });
    let data = serde_json::to_string(&event).expect("an event serializes");
    let written = write!(text, "id: {id}\nevent: {}\ndata: {data}\n\n", event.event);
    written.expect("writing to a string");
}

/// How a blocked request went on.
pub(crate) fn outcome(outcome: ContentionOutcome) -> &'static str {
    match outcome {
        ContentionOutcome::Queued => "waits",
        ContentionOutcome::Refused => "refused",
        ContentionOutcome::Died => "died",
        ContentionOutcome::TimedOut => "timed_out",
    }
}

pub(crate) fn contention(contended: &ContentionEvent) -> WireEvent {
    WireEvent {
        event: "contention".to_string(),
        namespace: contended.namespace.as_str().to_string(),
        holder: contended.identity.as_str().to_string(),
        agent_id: contended.agent.as_ref().map(|agent| agent.as_str().to_string()),
        resources: contended.members.iter().map(leases::resource).collect(),
        how: Some(outcome(contended.outcome).to_string()),
        blocked_by: contended.holders.iter().map(ToString::to_string).collect(),
        ..WireEvent::default()
    }
}

/// The name of an event of a lease, and what qualifies it.
pub(crate) fn name(event: &Event) -> (&'static str, Option<&'static str>) {
    match event {
        Event::Granted(..) | Event::Activated(_) => ("granted", None),
        Event::Rebound(..) => ("granted", Some("rebound")),
        Event::Released(_) => ("released", None),
        Event::Expired { held_until: Some(_), .. } => ("expired", Some("held")),
        Event::Expired { .. } => ("expired", None),
        Event::Revoked(_) => ("revoked", None),
        Event::Reclaimed(_) => ("reclaimed", None),
        Event::Committed { .. } => ("committed", None),
        Event::Removed { .. } | Event::Dropped { .. } => ("committed", Some("removed")),
    }
}

/// An event of a lease. Commits and removals show only the resource that was written.
pub(crate) fn lease(event: &Event, subject: &Subject) -> WireEvent {
    let (name, how) = name(event);
    let (written, version) = match event {
        Event::Committed { key, version, .. } | Event::Removed { key, version, .. } => {
            (Some(key), Some(version.0))
        }
        _ => (None, None),
    };
    let members = subject.members.iter().filter(|member| written.is_none_or(|key| member.resource == *key));
    WireEvent {
        event: name.to_string(),
        namespace: subject.namespace.as_str().to_string(),
        public_id: lease_of(event).map(|lease| lease.to_string()),
        holder: subject.identity.as_str().to_string(),
        agent_id: subject.agent.as_ref().map(|agent| agent.as_str().to_string()),
        resources: members.map(leases::resource).collect(),
        fencing_token: match event {
            Event::Granted(_, token) | Event::Rebound(_, token) => Some(token.0),
            _ => None,
        },
        version,
        how: how.map(ToString::to_string),
        ..WireEvent::default()
    }
}
