//! Histories of resources as responses of the API.

use api::history::{HistoryEntry, HistoryLimit};
use kernel::Event;

use crate::backend::history::{HistoryBound, HistoryFact, HistoryRecord};
use crate::present::events;

pub(crate) fn limit(bound: HistoryBound) -> HistoryLimit {
    match bound {
        HistoryBound::Age => HistoryLimit::Age,
        HistoryBound::Start => HistoryLimit::Start,
        HistoryBound::Size => HistoryLimit::Size,
    }
}

pub(crate) fn entry(record: &HistoryRecord) -> HistoryEntry {
    let common = HistoryEntry {
        id: record.id.to_string(),
        at_unix_ms: record.unix_ms,
        holder: record.identity.as_str().to_string(),
        agent_id: record.agent.as_ref().map(|agent| agent.as_str().to_string()),
        member_count: record.members as u64,
        ..HistoryEntry::default()
    };
    match &record.fact {
        HistoryFact::Contention { outcome, holders } => HistoryEntry {
            event: "contention".to_string(),
            how: Some(events::outcome(*outcome).to_string()),
            blocked_by: holders.iter().map(ToString::to_string).collect(),
            ..common
        },
        HistoryFact::Lease { event, lease, token, epoch } => {
            let (name, how) = events::name(event);
            HistoryEntry {
                event: name.to_string(),
                how: how.map(ToString::to_string),
                public_id: Some(lease.to_string()),
                lease_epoch: Some(*epoch),
                fencing_token: Some(token.0),
                version: match event {
                    Event::Committed { version, .. } | Event::Removed { version, .. } => Some(version.0),
                    _ => None,
                },
                ..common
            }
        }
    }
}
