//! Encodes the entries of a snapshot. Tags and the order of fields never change: a new field needs a new tag
//! or a new format version.

use kernel::{
    AgentData, Document, EndReason, EndedLeaseData, Granted, IdempotencyEntry, KeyData, LeaseAttributes,
    LeaseData, Live, NamespaceData, Phase, Policy, Response, Restart, Scope, Snapshot, Tenure, Time,
};
use store::StoreError;

use super::chunk::ChunkWriter;
use crate::wire::Writer;
use crate::wire::parts::{
    encode_age, encode_close, encode_lease_id, encode_location, encode_members, encode_on_expiry,
    encode_open, encode_quota, encode_scope,
};

/// The tag of each kind of entry. Entries are written in the order of their tags.
pub(super) mod tag {
    pub(crate) const TENURE: u8 = 1;
    pub(crate) const NAMESPACE: u8 = 2;
    pub(crate) const POLICY: u8 = 3;
    pub(crate) const AGENT: u8 = 4;
    pub(crate) const KEY: u8 = 5;
    pub(crate) const LEASE: u8 = 6;
    pub(crate) const PAST: u8 = 7;
    pub(crate) const REQUEST: u8 = 8;
    pub(crate) const END: u8 = 255;
}

/// The tags of responses stored for replays. Responses to renewals and releases are not stored.
pub(super) mod response {
    pub(crate) const OPENED: u8 = 1;
    pub(crate) const TICKED: u8 = 2;
    pub(crate) const GRANTED: u8 = 3;
    pub(crate) const LIVE: u8 = 4;
    pub(crate) const REVOKING: u8 = 5;
    pub(crate) const REVOKED_ALL: u8 = 6;
    pub(crate) const RECLAIMED: u8 = 7;
    pub(crate) const COMMITTED: u8 = 8;
    pub(crate) const REMOVED: u8 = 9;
    pub(crate) const RELOCATED: u8 = 10;
    pub(crate) const DONE: u8 = 11;
    pub(crate) const RETRACTED: u8 = 12;
    pub(crate) const DROPPED: u8 = 13;
    pub(crate) const CLOSED: u8 = 14;
}

/// The number of entries of each kind, in the order of their tags.
pub(super) fn counts(snapshot: &Snapshot) -> [usize; 8] {
    [
        usize::from(snapshot.tenure.is_some()),
        snapshot.namespaces.len(),
        snapshot.policies.len(),
        snapshot.agents.len(),
        snapshot.keys.len(),
        snapshot.leases.len(),
        snapshot.history.len(),
        snapshot.requests.len(),
    ]
}

/// Encodes all entries, and the end.
pub(super) fn entries(snapshot: &Snapshot, to: &mut ChunkWriter<'_, '_>) -> Result<(), StoreError> {
    snapshot.tenure.iter().try_for_each(|tenure| to.entry(|to| encode_tenure(tenure, to)))?;
    snapshot.namespaces.iter().try_for_each(|data| to.entry(|to| encode_namespace(data, to)))?;
    snapshot
        .policies
        .iter()
        .try_for_each(|(scope, policy)| to.entry(|to| encode_policy(scope, policy, to)))?;
    snapshot.agents.iter().try_for_each(|data| to.entry(|to| encode_agent(data, to)))?;
    snapshot.keys.iter().try_for_each(|data| to.entry(|to| encode_key(data, to)))?;
    snapshot.leases.iter().try_for_each(|data| to.entry(|to| encode_lease(data, to)))?;
    snapshot.history.iter().try_for_each(|data| to.entry(|to| encode_past(data, to)))?;
    snapshot.requests.iter().try_for_each(|entry| to.entry(|to| encode_request(entry, to)))?;
    to.entry(|to| {
        to.byte(tag::END);
        for count in counts(snapshot) {
            to.count(count);
        }
    })
}

fn encode_tenure(tenure: &Tenure, to: &mut Writer<'_>) {
    to.byte(tag::TENURE);
    to.number(tenure.opened_lsn.0);
    to.number(tenure.opened_at.0);
    encode_open(&tenure.open, to);
    to.maybe(tenure.closed, |to, close| encode_close(close, to));
}

fn encode_namespace(data: &NamespaceData, to: &mut Writer<'_>) {
    to.byte(tag::NAMESPACE);
    to.text(data.name.as_str());
    to.number(data.floor.0);
}

fn encode_policy(scope: &Scope, policy: &Policy, to: &mut Writer<'_>) {
    to.byte(tag::POLICY);
    encode_scope(scope, to);
    to.flag(policy.paused);
    encode_quota(&policy.quota, to);
}

fn encode_agent(data: &AgentData, to: &mut Writer<'_>) {
    to.byte(tag::AGENT);
    to.text(data.namespace.as_str());
    to.text(data.name.as_str());
    to.text(data.identity.as_str());
    to.number(data.since.0);
    to.flag(data.paused);
    to.maybe(data.restart, |to, Restart { since, until }| {
        to.number(since.0);
        encode_maybe_time(until, to);
    });
    encode_maybe_time(data.forget_at, to);
}

fn encode_maybe_time(time: Option<Time>, to: &mut Writer<'_>) {
    to.maybe(time, |to, time| to.number(time.0));
}

fn encode_key(data: &KeyData, to: &mut Writer<'_>) {
    to.byte(tag::KEY);
    to.text(data.namespace.as_str());
    to.text(data.key.as_str());
    to.number(data.version.0);
    to.maybe(data.document, |to, Document { etag, bytes, location, committed_at }| {
        to.fixed(&etag.0);
        to.number(bytes);
        encode_location(location, to);
        to.number(committed_at.0);
    });
}

fn encode_lease(data: &LeaseData, to: &mut Writer<'_>) {
    to.byte(tag::LEASE);
    to.number(data.lsn.0);
    to.text(data.namespace.as_str());
    to.text(data.identity.as_str());
    encode_phase(data.phase, to);
    to.number(data.epoch.0);
    to.number(data.token.0);
    for time in [data.granted_at, data.ttl_until, data.active_at, data.deadline] {
        to.number(time.0);
    }
    to.number(data.ttl.0);
    to.flag(data.capped);
    to.flag(data.used);
    encode_members(&data.members, to);
    encode_details(&data.details, to);
}

fn encode_phase(phase: Phase, to: &mut Writer<'_>) {
    match phase {
        Phase::Reserved => to.byte(0),
        Phase::Active => to.byte(1),
        Phase::OnHold { until, rebindable } => {
            to.byte(2);
            to.number(until.0);
            to.flag(rebindable);
        }
        Phase::Revoking => to.byte(3),
    }
}

fn encode_past(data: &EndedLeaseData, to: &mut Writer<'_>) {
    to.byte(tag::PAST);
    to.number(data.lsn.0);
    to.text(data.namespace.as_str());
    to.text(data.identity.as_str());
    to.byte(match data.end {
        EndReason::Released => 0,
        EndReason::Expired => 1,
        EndReason::Revoked => 2,
    });
    to.number(data.ended_at.0);
    to.number(data.ended_lsn.0);
    to.number(data.epoch.0);
    to.number(data.token.0);
    to.number(data.granted_at.0);
    to.number(data.deadline.0);
    to.number(data.ttl.0);
    encode_members(&data.members, to);
    encode_details(&data.details, to);
}

/// Optional as a whole: most leases have default details.
fn encode_details(details: &LeaseAttributes, to: &mut Writer<'_>) {
    let details = (!details.is_default()).then_some(details);
    to.maybe(details, |to, details| {
        encode_on_expiry(details.on_expiry, to);
        to.maybe(details.owner.as_ref(), |to, owner| to.text(owner.as_str()));
        to.maybe(details.agent.as_ref(), |to, agent| to.text(agent.as_str()));
        to.maybe(details.session.as_ref(), |to, session| to.text(session.as_str()));
        to.maybe(details.age, |to, age| encode_age(age, to));
        to.maybe(details.reason.as_ref(), |to, reason| to.text(reason.as_str()));
        to.maybe(details.metadata.as_ref(), |to, metadata| to.bytes(metadata.as_bytes()));
    });
}

fn encode_request(entry: &IdempotencyEntry, to: &mut Writer<'_>) {
    to.byte(tag::REQUEST);
    to.text(entry.identity.as_str());
    to.maybe(entry.namespace.as_ref(), |to, namespace| to.text(namespace.as_str()));
    to.fixed(&entry.request.key.0);
    to.fixed(&entry.request.fingerprint);
    to.number(entry.lapses_at.0);
    encode_response(&entry.answer, to);
}

fn encode_response(stored: &Response, to: &mut Writer<'_>) {
    match stored {
        Response::Opened => to.byte(response::OPENED),
        Response::Closed => to.byte(response::CLOSED),
        Response::Ticked => to.byte(response::TICKED),
        Response::Granted(granted) => encode_granted(granted, to),
        Response::Live(Live { lease, epoch, deadline }) => {
            to.byte(response::LIVE);
            encode_lease_id(*lease, to);
            to.number(epoch.0);
            to.number(deadline.0);
        }
        Response::Revoking(lease) => {
            to.byte(response::REVOKING);
            encode_lease_id(*lease, to);
        }
        Response::RevokedAll { revoked, more } => {
            to.byte(response::REVOKED_ALL);
            to.number(u64::from(*revoked));
            to.flag(*more);
        }
        Response::Dropped { more } => encode_flagged(response::DROPPED, *more, to),
        Response::Reclaimed(lease) => {
            to.byte(response::RECLAIMED);
            encode_lease_id(*lease, to);
        }
        Response::Committed(version) => {
            to.byte(response::COMMITTED);
            to.number(version.0);
        }
        Response::Removed { removed, version } => {
            to.byte(response::REMOVED);
            to.flag(*removed);
            to.number(version.0);
        }
        Response::Relocated { moved } => encode_flagged(response::RELOCATED, *moved, to),
        Response::Done => to.byte(response::DONE),
        Response::Retracted { undone } => encode_flagged(response::RETRACTED, *undone, to),
        Response::Renewed(_) | Response::Released => {
            unreachable!("renewals and releases are idempotent, so their responses are not stored")
        }
    }
}

fn encode_granted(granted: &Granted, to: &mut Writer<'_>) {
    to.byte(response::GRANTED);
    encode_lease_id(granted.lease, to);
    to.number(granted.epoch.0);
    to.number(granted.token.0);
    to.number(granted.granted_at.0);
    to.number(granted.deadline.0);
    to.number(granted.ttl.0);
}

fn encode_flagged(number: u8, flag: bool, to: &mut Writer<'_>) {
    to.byte(number);
    to.flag(flag);
}
