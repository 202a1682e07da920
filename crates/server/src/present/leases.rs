//! Leases as responses of the API: to their holders, with the credential, and to everyone who may read them, without.

use api::agents::ConflictingLease;
use api::{requests, responses};
use engine::Decision;
use kernel::{
    Credential, Document, Granted, Kernel, KeyView, LeaseView, Live, Member, Namespace, OnExpiry, Owner,
    Span, State as LeaseState, Time,
};

use crate::backend::moment::Moment;
use crate::backend::shards::Backend;
use crate::present::etag::etag_text;

/// The state in which a request for a lease was decided, as far as its response shows it.
pub(crate) struct GrantView {
    pub(crate) moment: Moment,
    /// The lease, if it was granted.
    pub(crate) lease: Option<LeaseView>,
    /// The key, if the lease covers one key and no other resource.
    pub(crate) key: Option<KeyView>,
    /// A conflicting lease, if the request is blocked.
    pub(crate) blocked_by: Option<ConflictingLease>,
}

impl GrantView {
    pub(crate) fn read(kernel: &Kernel, moment: Moment, decision: &Decision) -> GrantView {
        let now = moment.now;
        let lease = granted(decision).and_then(|granted| kernel.lease(granted.lease, now).ok());
        let key = lease.as_ref().and_then(|lease| match lease.members.as_slice() {
            [member] if member.resource.is_key() => kernel.key(&lease.namespace, &member.resource),
            _ => None,
        });
        let first = match decision {
            Decision::Blocked(blocked) => blocked.holders.first(),
            Decision::Outcome(_) => None,
        };
        let blocked_by = first
            .and_then(|lease| kernel.lease(*lease, now).ok())
            .map(|lease| conflicting_lease(&lease, now, Span(0)));
        GrantView { moment, lease, key, blocked_by }
    }
}

/// The lease that a grant, the replay of one, or a rebind returned.
pub(crate) fn granted(decision: &Decision) -> Option<&Granted> {
    match decision.response()? {
        kernel::Response::Granted(granted) => Some(granted),
        _ => None,
    }
}

/// A lease for its holder, with the credential.
pub(crate) fn granted_response(backend: &Backend, granted: &Granted, view: &GrantView) -> responses::Granted {
    let lease = view.lease.as_ref();
    let members = lease.map(|lease| lease.members.as_slice()).unwrap_or_default();
    let key = match members {
        [member] if member.resource.is_key() => Some(member.resource.name().to_string()),
        _ => None,
    };
    let expires_at_unix_ms = view.moment.unix_ms_at(granted.deadline);
    let lease_id = backend.key.issue(Credential { lease: granted.lease, epoch: granted.epoch });
    responses::Granted {
        public_id: lease_id.split('.').next().unwrap_or_default().to_string(),
        lease_id,
        lease_epoch: granted.epoch.0,
        fencing_token: granted.token.0,
        namespace: lease.map(|lease| lease.namespace.as_str().to_string()).unwrap_or_default(),
        resources: key.is_none().then(|| members.iter().map(resource).collect()),
        key,
        owner: lease.map(owner_of).unwrap_or_default(),
        acquired_at_unix: view.moment.unix_ms_at(granted.granted_at) / 1000,
        expires_at_unix: expires_at_unix_ms / 1000,
        expires_at_unix_ms,
        remaining_ms: view.moment.remaining_ms(&backend.clocks, granted.deadline),
        ttl_ms: granted.ttl.0,
        version: view.key.map_or(0, |key| key.version.0),
        state_etag: document_etag(view.key.and_then(|key| key.document)),
    }
}

/// The deadline of a lease, for its holder.
pub(crate) fn extended(backend: &Backend, live: Live, moment: &Moment) -> responses::Extended {
    let remaining_ms = moment.remaining_ms(&backend.clocks, live.deadline);
    let expires_at_unix_ms = moment.unix_ms_at(live.deadline);
    responses::Extended { expires_at_unix: expires_at_unix_ms / 1000, expires_at_unix_ms, remaining_ms }
}

/// A lease in a response, without its resources and metadata, in bytes.
const LEASE_BYTES: usize = 768;
/// A resource in a response, without its name, in bytes.
const MEMBER_BYTES: usize = 80;

/// An estimate of the length of a lease in a response, in bytes.
pub(crate) fn json_bytes(lease: &LeaseView) -> usize {
    let members: usize = lease.members.iter().map(|member| MEMBER_BYTES + member.resource.name().len()).sum();
    let details = &lease.details;
    let metadata = details.metadata.as_ref().map_or(0, |metadata| 2 * metadata.as_bytes().len());
    LEASE_BYTES + members + metadata
}

/// A lease without its credential.
pub(crate) fn public_lease(backend: &Backend, lease: &LeaseView, moment: &Moment) -> responses::Lease {
    let authority_until = authority_until(lease, moment.now);
    let members = lease.members.iter().enumerate().map(|(index, member)| responses::Member {
        kind: member.resource.kind().to_string(),
        name: member.resource.name().to_string(),
        predicate: member.predicate.as_str().to_string(),
        member_index: index as u64,
    });
    responses::Lease {
        public_id: lease.id.to_string(),
        namespace: lease.namespace.as_str().to_string(),
        holder: lease.identity.as_str().to_string(),
        owner: owner_of(lease),
        agent_id: lease.details.agent.as_ref().map(|agent| agent.as_str().to_string()),
        state: lease.state.as_str().to_string(),
        lease_epoch: lease.epoch.0,
        fencing_token: lease.token.0,
        resources: members.collect(),
        member_count: lease.members.len() as u64,
        ttl_ms: lease.ttl.0,
        acquired_at_unix_ms: moment.unix_ms_at(lease.granted_at),
        expires_at_unix_ms: moment.unix_ms_at(authority_until),
        remaining_ms: moment.remaining_ms(&backend.clocks, authority_until),
        on_expiry: match lease.details.on_expiry {
            OnExpiry::Free => requests::OnExpiry::Free,
            OnExpiry::Manual => requests::OnExpiry::Manual,
            OnExpiry::Hold(span) => requests::OnExpiry::HoldMs(span.0),
        },
        created_lsn: lease.id.lsn.0,
        ended_lsn: lease.ended.map(|ended| ended.lsn.0),
        retire_after_ms: lease.ended.map(|ended| moment.now.until(ended.retire_after).0),
        metadata: lease
            .details
            .metadata
            .as_ref()
            .map(|metadata| String::from_utf8_lossy(metadata.as_bytes()).into_owned()),
    }
}

/// When the authority of a lease ends, or ended: at the deadline, unless its holder or an operator ended it before.
fn authority_until(lease: &LeaseView, now: Time) -> Time {
    let has_authority = matches!(lease.state, LeaseState::Active | LeaseState::Reserved);
    let ended_at = lease.ended.map(|ended| ended.at).or((!has_authority).then_some(now));
    ended_at.map_or(lease.deadline, |at| at.min(lease.deadline))
}

/// A key, its current lease, and how many requests wait for it.
pub(crate) struct KeyDescription {
    pub(crate) key: KeyView,
    pub(crate) lease: Option<LeaseView>,
    pub(crate) waiters: usize,
    pub(crate) moment: Moment,
}

pub(crate) fn described(
    name: &str,
    namespace: &Namespace,
    description: &KeyDescription,
) -> responses::Described {
    let KeyDescription { key, lease, waiters, moment } = description;
    let lease = lease.as_ref();
    let updated_at_unix = |document: Document| moment.unix_ms_at(document.committed_at) / 1000;
    let expires_at_unix = |lease: &LeaseView| moment.unix_ms_at(authority_until(lease, moment.now)) / 1000;
    responses::Described {
        key: name.to_string(),
        namespace: namespace.as_str().to_string(),
        lease: lease.map(|lease| responses::DescribedLease {
            lease_id: lease.id.to_string(),
            owner: owner_of(lease),
            expires_at_unix: expires_at_unix(lease),
        }),
        version: key.version.0,
        state_etag: document_etag(key.document),
        state_bytes: key.document.map(|document| document.bytes),
        updated_at_unix: key.document.map(updated_at_unix),
        waiters: *waiters as u64,
        holder: lease.map(|lease| lease.identity.as_str().to_string()),
        public_id: lease.map(|lease| lease.id.to_string()),
        owner: lease.map(owner_of),
        lease_id: lease.map(|lease| lease.id.to_string()),
        expires_at_unix: lease.map(expires_at_unix),
        state: lease.map(|lease| lease.state.as_str().to_string()),
        lease_epoch: lease.map(|lease| lease.epoch.0),
        fencing_token: lease.map(|lease| lease.token.0),
    }
}

/// A key in a list of keys that have a document; `None` if it has none.
pub(crate) fn stored_key(name: &str, key: &KeyView, moment: &Moment) -> Option<responses::StoredKey> {
    let document = key.document?;
    Some(responses::StoredKey {
        key: name.to_string(),
        version: key.version.0,
        state_etag: etag_text(document.etag),
        state_bytes: document.bytes,
        updated_at_unix: moment.unix_ms_at(document.committed_at) / 1000,
    })
}

/// A lease that blocks a request. `elapsed` is the time since `now`, at which the lease was read.
pub(crate) fn conflicting_lease(lease: &LeaseView, now: Time, elapsed: Span) -> ConflictingLease {
    ConflictingLease {
        public_id: lease.id.to_string(),
        holder: lease.identity.as_str().to_string(),
        owner: owner_of(lease),
        agent_id: lease.details.agent.as_ref().map(|agent| agent.as_str().to_string()),
        reason: lease.details.reason.as_ref().map(|reason| reason.as_str().to_string()),
        state: lease.state.as_str().to_string(),
        remaining_ms: now.after(elapsed).until(authority_until(lease, now)).0,
    }
}

pub(crate) fn resource(member: &Member) -> requests::Resource {
    requests::Resource {
        kind: member.resource.kind().to_string(),
        name: member.resource.name().to_string(),
        predicate: Some(member.predicate.as_str().to_string()),
    }
}

/// The owner that the request named; otherwise its identity.
fn owner_of(lease: &LeaseView) -> String {
    let owner = lease.details.owner.as_ref().map(Owner::as_str);
    owner.unwrap_or(lease.identity.as_str()).to_string()
}

/// Empty if there is no document.
fn document_etag(document: Option<Document>) -> String {
    document.map(|document| etag_text(document.etag)).unwrap_or_default()
}
