//! Feeds the histories of resources and agents from the event buffer.
//!
//! An event names its lease only, and an ended lease is forgotten after a while: so the feed looks up each lease soon
//! after its event, and no later than the next request for a history.
//!
//! **Invariant.** Events are appended once and in order. Events that were overwritten, or whose lease is already
//! forgotten, raise the time from which histories are complete.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Event, LeaseView, Shard};
use tokio::sync::watch;

use crate::backend::error::BackendError;
use crate::backend::event_log::event_buffer::{BufferRead, BufferedEvent, EventKind, lease_of};
use crate::backend::history::{HistoryFact, HistoryRecord, HistorySubject};
use crate::backend::shards::{Backend, ShardView};

/// How many events are looked up in one query.
const EVENTS_MAX: usize = 64;
/// Pause between two runs: a busy server looks up many events at once, and the buffer has capacity for many times more.
const INTERVAL: Duration = Duration::from_millis(10);

/// Feeds the histories until the server stops.
pub(crate) async fn watch(backend: Arc<Backend>, mut stopped: watch::Receiver<bool>) {
    let mut changed = backend.event_log.events.watch();
    loop {
        tokio::select! {
            more = changed.changed() => if more.is_err() { return },
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
        // A shard that does not respond now is queried again with the next event, or by a request.
        let _ = catch_up(&backend).await;
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Appends all events that are durable now.
pub(crate) async fn catch_up(backend: &Backend) -> Result<(), BackendError> {
    let mut position = backend.history.fed.lock().await;
    loop {
        match backend.event_log.events.read(*position, EVENTS_MAX) {
            BufferRead::Events(events, _) if events.is_empty() => return Ok(()),
            BufferRead::Events(events, next) => {
                append(backend, &events).await?;
                *position = next;
            }
            BufferRead::Overwritten => {
                *position = backend.event_log.events.end();
                backend.history.lost(backend.clocks.unix_ms());
            }
        }
    }
}

async fn append(backend: &Backend, events: &[Arc<BufferedEvent>]) -> Result<(), BackendError> {
    let leases = look_up(backend, events).await?;
    for (entry, lease) in events.iter().zip(leases) {
        match (&entry.kind, lease) {
            (EventKind::Lease(event), Some(lease)) => append_lease(backend, entry, event, lease),
            (EventKind::Lease(_), None) => backend.history.lost(entry.unix_ms),
            (EventKind::Contention(_), _) => append_contention(backend, entry),
        }
    }
    Ok(())
}

/// The lease of each event; `None` for conflicts, and for a lease that is forgotten.
async fn look_up(
    backend: &Backend,
    events: &[Arc<BufferedEvent>],
) -> Result<Vec<Option<LeaseView>>, BackendError> {
    let mut leases = vec![None; events.len()];
    for shard in backend.shards() {
        let wanted = of_shard(events, shard);
        if wanted.is_empty() {
            continue;
        }
        let read = move |view: &ShardView<'_>| {
            let found = wanted.into_iter().map(|(at, lease)| (at, view.kernel.lease(lease, view.now).ok()));
            found.collect::<Vec<_>>()
        };
        let found = match backend.query(shard, read).await {
            // Another server has the shard, and its history.
            Err(BackendError::Moved(_)) => continue,
            found => found?,
        };
        for (at, lease) in found {
            leases[at] = lease;
        }
    }
    Ok(leases)
}

/// The leases of a shard among those of the events, each with the index of its event.
fn of_shard(events: &[Arc<BufferedEvent>], shard: Shard) -> Vec<(usize, kernel::LeaseId)> {
    let lease = |entry: &BufferedEvent| match &entry.kind {
        EventKind::Lease(event) => lease_of(event).filter(|lease| lease.shard == shard),
        EventKind::Contention(_) => None,
    };
    let leases = events.iter().enumerate().map(|(at, entry)| lease(entry).map(|lease| (at, lease)));
    leases.flatten().collect()
}

fn append_lease(backend: &Backend, entry: &BufferedEvent, event: &Event, lease: LeaseView) {
    let written = match event {
        Event::Committed { key, .. } | Event::Removed { key, .. } => Some(key),
        _ => None,
    };
    let members = lease.members.iter().map(|member| &member.resource);
    let members = members.filter(|resource| written.is_none_or(|key| key == *resource));
    let mut subjects: Vec<_> =
        members.map(|resource| HistorySubject::resource(&lease.namespace, resource)).collect();
    // A new lease has no entry: the search for it would visit the whole ring.
    let known = subjects.first().filter(|_| !matches!(event, Event::Granted(..)));
    let before = known.and_then(|subject| backend.history.epoch(*subject, lease.id));
    let token = match event {
        Event::Granted(_, token) | Event::Rebound(_, token) => *token,
        _ => lease.token,
    };
    let epoch = epoch_after(event, before, lease.epoch.0);
    let fact = HistoryFact::Lease { event: event.clone(), lease: lease.id, token, epoch };
    subjects.extend(lease.details.agent.as_ref().map(|name| HistorySubject::agent(&lease.namespace, name)));
    let (identity, agent) = (lease.identity, lease.details.agent);
    let (id, unix_ms, members) = (entry.id, entry.unix_ms, lease.members.len());
    backend.history.record(&subjects, HistoryRecord { id, unix_ms, identity, agent, fact, members });
}

/// The epoch after an event, from that before it, or else from the current one: the lease may have changed since.
fn epoch_after(event: &Event, before: Option<u64>, current: u64) -> u64 {
    let has_authority = |epoch: u64| epoch % 2 == 1;
    match (event, before) {
        (Event::Granted(..), _) => 1,
        (
            Event::Rebound(..) | Event::Released(_) | Event::Expired { .. } | Event::Revoked(_),
            Some(before),
        ) => {
            // A lease on hold that is released or revoked has lost its authority before.
            let gains = matches!(event, Event::Rebound(..));
            if has_authority(before) == gains { before } else { before + 1 }
        }
        (_, Some(before)) => before,
        (Event::Released(_) | Event::Expired { .. } | Event::Revoked(_), None) if has_authority(current) => {
            current - 1
        }
        (_, None) => current,
    }
}

fn append_contention(backend: &Backend, entry: &BufferedEvent) {
    let EventKind::Contention(contended) = &entry.kind else { return };
    let namespace = &contended.namespace;
    let members = contended.members.iter();
    let mut subjects: Vec<_> =
        members.map(|member| HistorySubject::resource(namespace, &member.resource)).collect();
    subjects.extend(contended.agent.as_ref().map(|agent| HistorySubject::agent(namespace, agent)));
    let fact = HistoryFact::Contention { outcome: contended.outcome, holders: contended.holders.clone() };
    let (identity, agent) = (contended.identity.clone(), contended.agent.clone());
    let (id, unix_ms, members) = (entry.id, entry.unix_ms, contended.members.len());
    backend.history.record(&subjects, HistoryRecord { id, unix_ms, identity, agent, fact, members });
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{LeaseId, Lsn, Token};

    #[test]
    fn epochs_rise_with_each_gain_and_loss_of_authority() {
        let lease = LeaseId { shard: Shard(0), lsn: Lsn(7) };
        let expired = Event::Expired { lease, held_until: None };
        let (rebound, revoked) = (Event::Rebound(lease, Token(9)), Event::Revoked(lease));
        assert_eq!(epoch_after(&Event::Granted(lease, Token(7)), None, 4), 1);
        assert_eq!(epoch_after(&expired, Some(1), 4), 2);
        assert_eq!(epoch_after(&rebound, Some(2), 4), 3);
        assert_eq!(epoch_after(&revoked, Some(3), 4), 4);
        assert_eq!(epoch_after(&Event::Reclaimed(lease), Some(4), 4), 4);
        assert_eq!(epoch_after(&Event::Released(lease), Some(2), 2), 2, "it was on hold");
        assert_eq!(epoch_after(&expired, None, 3), 2, "it was rebound since");
    }
}
