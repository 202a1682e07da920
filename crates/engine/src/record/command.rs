//! A command as bytes: a tag, then its fields in order.
//!
//! Tags and the order of fields are for ever. A new action gets a new tag; a new field, a new tag too.

use kernel::{
    Action, Age, AgentName, AgentNews, Bundle, Command, Commit, Epoch, Etag, Grant, Held, Identity, LeaseId,
    Limits, Location, Lsn, Member, Metadata, Namespace, OnExpiry, Open, Owner, Party, Pause, Paused,
    Predicate, Quota, Reason, Relocation, Removal, Renewal, Request, RequestKey, ResourceName, Retraction,
    Scope, SessionName, SetQuota, Shard, Span, Store, Time, Token, Version, Write,
};

use super::DecodeError;
use super::wire::{Reader, Writer};

type Read<T> = Result<T, DecodeError>;

/// Each action's number in the log.
mod tag {
    pub(super) const OPEN: u8 = 1;
    pub(super) const TICK: u8 = 2;
    pub(super) const ACQUIRE: u8 = 3;
    pub(super) const RESERVE: u8 = 4;
    pub(super) const ACTIVATE: u8 = 5;
    pub(super) const RENEW: u8 = 6;
    pub(super) const RELEASE: u8 = 7;
    pub(super) const REBIND: u8 = 8;
    pub(super) const TOUCH: u8 = 9;
    pub(super) const COMMIT: u8 = 10;
    pub(super) const REMOVE: u8 = 11;
    pub(super) const RELOCATE: u8 = 12;
    pub(super) const REVOKE: u8 = 13;
    pub(super) const REVOKE_ALL: u8 = 14;
    pub(super) const RECLAIM: u8 = 15;
    pub(super) const PAUSE: u8 = 16;
    pub(super) const SET_QUOTA: u8 = 17;
    pub(super) const AGENT: u8 = 18;
    pub(super) const RETRACT: u8 = 19;
}

/// Appends a command.
pub fn encode(command: &Command, to: &mut Writer<'_>) {
    to.maybe(command.identity.as_ref(), |to, identity| to.text(identity.as_str()));
    to.maybe(command.request, |to, request| {
        to.fixed(&request.key.0);
        to.fixed(&request.fingerprint);
    });
    encode_action(&command.action, to);
}

fn encode_action(action: &Action, to: &mut Writer<'_>) {
    match action {
        Action::Open(open) => encode_open(open, to),
        Action::Tick => to.byte(tag::TICK),
        Action::Acquire(grant) => encode_grant(tag::ACQUIRE, grant, to),
        Action::Reserve(grant) => encode_grant(tag::RESERVE, grant, to),
        Action::Activate(held) => encode_held(tag::ACTIVATE, *held, to),
        Action::Renew(renewals) => encode_renewals(renewals, to),
        Action::Release(held) => encode_held(tag::RELEASE, *held, to),
        Action::Rebind(held) => encode_held(tag::REBIND, *held, to),
        Action::Touch(held) => encode_held(tag::TOUCH, *held, to),
        Action::Commit(commit) => {
            encode_write(tag::COMMIT, &commit.write, to);
            to.fixed(&commit.etag.0);
            to.number(commit.bytes);
            to.fixed(&commit.location.0.to_le_bytes());
        }
        Action::Remove(removal) => encode_write(tag::REMOVE, &removal.write, to),
        Action::Relocate(relocation) => {
            to.byte(tag::RELOCATE);
            to.text(relocation.namespace.as_str());
            to.text(relocation.key.as_str());
            to.number(relocation.version.0);
            to.fixed(&relocation.location.0.to_le_bytes());
        }
        Action::Revoke(lease) => encode_lease(tag::REVOKE, *lease, to),
        Action::Reclaim(lease) => encode_lease(tag::RECLAIM, *lease, to),
        Action::RevokeAll(party) => encode_party(party, to),
        Action::Pause(pause) => encode_pause(pause, to),
        Action::SetQuota(set) => encode_quota(set, to),
        Action::Agent(news) => {
            to.byte(tag::AGENT);
            to.text(news.namespace.as_str());
            to.text(news.agent.as_str());
            to.flag(news.restarting);
            to.flag(news.operator);
        }
        Action::Retract(retraction) => {
            encode_lease(tag::RETRACT, retraction.lease, to);
            to.maybe(retraction.request, |to, key| to.fixed(&key.0));
        }
    }
}

fn encode_open(open: &Open, to: &mut Writer<'_>) {
    to.byte(tag::OPEN);
    to.number(u64::from(open.store.shard.0));
    to.number(u64::from(open.store.shards));
    to.fixed(&open.store.hash_seed.to_le_bytes());
    to.fixed(&open.writer.to_le_bytes());
    to.number(open.term);
    to.fixed(&open.boot_id.to_le_bytes());
    to.number(open.boot_clock.0);
    to.number(u64::from(open.kernel_version));
    let limits = &open.limits;
    for span in [limits.ttl_max, limits.hold_max, limits.history_window, limits.request_window] {
        to.number(span.0);
    }
    for count in [
        limits.leases_max,
        limits.leases_per_identity_max,
        limits.namespaces_max,
        limits.nodes_max,
        limits.documents_max,
        limits.agents_max,
        limits.agents_per_identity_max,
        limits.policies_max,
        limits.history_max,
        limits.history_members_max,
        limits.requests_max,
        limits.requests_per_identity_max,
        limits.step_max,
    ] {
        to.number(u64::from(count));
    }
}

fn encode_grant(tag: u8, grant: &Grant, to: &mut Writer<'_>) {
    to.byte(tag);
    to.text(grant.namespace.as_str());
    to.count(grant.bundle.members().len());
    for member in grant.bundle.members() {
        to.byte(predicate_number(member.predicate));
        to.text(member.resource.as_str());
    }
    to.number(grant.ttl.0);
    match grant.on_expiry {
        OnExpiry::Free => to.byte(0),
        OnExpiry::Hold(span) => {
            to.byte(1);
            to.number(span.0);
        }
        OnExpiry::Manual => to.byte(2),
    }
    to.maybe(grant.owner.as_ref(), |to, owner| to.text(owner.as_str()));
    to.maybe(grant.agent.as_ref(), |to, agent| to.text(agent.as_str()));
    to.maybe(grant.session.as_ref(), |to, session| to.text(session.as_str()));
    to.maybe(grant.attempt, |to, age| {
        to.number(age.at.0);
        to.fixed(&age.tie.to_le_bytes());
    });
    to.maybe(grant.reason.as_ref(), |to, reason| to.text(reason.as_str()));
    to.maybe(grant.metadata.as_ref(), |to, metadata| to.bytes(metadata.as_bytes()));
}

/// Predicates have numbers of their own, whatever order the kernel lists them in.
fn predicate_number(predicate: Predicate) -> u8 {
    match predicate {
        Predicate::Provides => 1,
        Predicate::Consumes => 2,
        Predicate::Mutates => 3,
        Predicate::Deletes => 4,
        Predicate::DependsOn => 5,
        Predicate::Renames => 6,
    }
}

fn encode_lease(tag: u8, lease: LeaseId, to: &mut Writer<'_>) {
    to.byte(tag);
    lease_id(lease, to);
}

fn lease_id(lease: LeaseId, to: &mut Writer<'_>) {
    to.number(u64::from(lease.shard.0));
    to.number(lease.lsn.0);
}

fn held(held: Held, to: &mut Writer<'_>) {
    lease_id(held.lease, to);
    to.number(held.epoch.0);
}

fn encode_held(tag: u8, credential: Held, to: &mut Writer<'_>) {
    to.byte(tag);
    held(credential, to);
}

fn encode_renewals(renewals: &[Renewal], to: &mut Writer<'_>) {
    to.byte(tag::RENEW);
    to.count(renewals.len());
    for renewal in renewals {
        held(renewal.held, to);
        to.maybe(renewal.ttl, |to, ttl| to.number(ttl.0));
    }
}

fn encode_write(tag: u8, write: &Write, to: &mut Writer<'_>) {
    to.byte(tag);
    held(write.held, to);
    to.text(write.key.as_str());
    to.maybe(write.token, |to, token| to.number(token.0));
    to.maybe(write.if_version, |to, version| to.number(version.0));
    to.maybe(write.if_etag, |to, etag| to.maybe(etag, |to, etag| to.fixed(&etag.0)));
    to.flag(write.release);
}

fn encode_party(party: &Party, to: &mut Writer<'_>) {
    to.byte(tag::REVOKE_ALL);
    match party {
        Party::Identity(namespace, identity) => {
            to.byte(0);
            to.text(namespace.as_str());
            to.text(identity.as_str());
        }
        Party::Agent(namespace, agent) => {
            to.byte(1);
            to.text(namespace.as_str());
            to.text(agent.as_str());
        }
    }
}

fn encode_pause(pause: &Pause, to: &mut Writer<'_>) {
    to.byte(tag::PAUSE);
    match &pause.whom {
        Paused::Scope(scope) => {
            to.byte(0);
            encode_scope(scope, to);
        }
        Paused::Agent(namespace, agent) => {
            to.byte(1);
            to.text(namespace.as_str());
            to.text(agent.as_str());
        }
    }
    to.flag(pause.paused);
}

fn encode_scope(scope: &Scope, to: &mut Writer<'_>) {
    to.maybe(scope.namespace.as_ref(), |to, namespace| to.text(namespace.as_str()));
    to.maybe(scope.identity.as_ref(), |to, identity| to.text(identity.as_str()));
}

fn encode_quota(set: &SetQuota, to: &mut Writer<'_>) {
    to.byte(tag::SET_QUOTA);
    encode_scope(&set.scope, to);
    let quota = &set.quota;
    to.maybe(quota.leases_max, |to, max| to.number(u64::from(max)));
    to.maybe(quota.total_max, |to, span| to.number(span.0));
    to.maybe(quota.idle_max, |to, span| to.number(span.0));
    to.maybe(quota.acquires_per_second, |to, max| to.number(u64::from(max)));
}

/// Reads a command back; everything in it is valid, or it is refused.
pub fn decode(from: &mut Reader<'_>) -> Read<Command> {
    let identity = from.maybe(|from| label(from, Identity::new))?;
    let request = from.maybe(|from| {
        let key = RequestKey(from.fixed()?);
        Ok(Request { key, fingerprint: from.fixed()? })
    })?;
    Ok(Command { identity, request, action: decode_action(from)? })
}

fn decode_action(from: &mut Reader<'_>) -> Read<Action> {
    Ok(match from.byte()? {
        tag::OPEN => Action::Open(decode_open(from)?),
        tag::TICK => Action::Tick,
        tag::ACQUIRE => Action::Acquire(decode_grant(from)?),
        tag::RESERVE => Action::Reserve(decode_grant(from)?),
        tag::ACTIVATE => Action::Activate(decode_held(from)?),
        tag::RENEW => Action::Renew(decode_renewals(from)?),
        tag::RELEASE => Action::Release(decode_held(from)?),
        tag::REBIND => Action::Rebind(decode_held(from)?),
        tag::TOUCH => Action::Touch(decode_held(from)?),
        tag::COMMIT => {
            let write = decode_write(from)?;
            let (etag, bytes) = (Etag(from.fixed()?), from.number()?);
            let location = Location(u128::from_le_bytes(from.fixed()?));
            Action::Commit(Commit { write, etag, bytes, location })
        }
        tag::REMOVE => Action::Remove(Removal { write: decode_write(from)? }),
        tag::RELOCATE => Action::Relocate(Relocation {
            namespace: label(from, Namespace::new)?,
            key: resource(from)?,
            version: Version(from.number()?),
            location: Location(u128::from_le_bytes(from.fixed()?)),
        }),
        tag::REVOKE => Action::Revoke(decode_lease(from)?),
        tag::RECLAIM => Action::Reclaim(decode_lease(from)?),
        tag::REVOKE_ALL => Action::RevokeAll(decode_party(from)?),
        tag::PAUSE => Action::Pause(decode_pause(from)?),
        tag::SET_QUOTA => Action::SetQuota(decode_quota(from)?),
        tag::AGENT => Action::Agent(AgentNews {
            namespace: label(from, Namespace::new)?,
            agent: label(from, AgentName::new)?,
            restarting: from.flag()?,
            operator: from.flag()?,
        }),
        tag::RETRACT => {
            let lease = decode_lease(from)?;
            let request = from.maybe(|from| Ok(RequestKey(from.fixed()?)))?;
            Action::Retract(Retraction { lease, request })
        }
        other => return Err(from.error(format!("action {other} is not known to this build"))),
    })
}

fn decode_open(from: &mut Reader<'_>) -> Read<Open> {
    Ok(Open {
        store: Store {
            shard: Shard(from.small()?),
            shards: from.small()?,
            hash_seed: u64::from_le_bytes(from.fixed()?),
        },
        writer: u128::from_le_bytes(from.fixed()?),
        term: from.number()?,
        boot_id: u128::from_le_bytes(from.fixed()?),
        boot_clock: Span(from.number()?),
        kernel_version: from.small()?,
        limits: Limits {
            ttl_max: Span(from.number()?),
            hold_max: Span(from.number()?),
            history_window: Span(from.number()?),
            request_window: Span(from.number()?),
            leases_max: from.small()?,
            leases_per_identity_max: from.small()?,
            namespaces_max: from.small()?,
            nodes_max: from.small()?,
            documents_max: from.small()?,
            agents_max: from.small()?,
            agents_per_identity_max: from.small()?,
            policies_max: from.small()?,
            history_max: from.small()?,
            history_members_max: from.small()?,
            requests_max: from.small()?,
            requests_per_identity_max: from.small()?,
            step_max: from.small()?,
        },
    })
}

fn decode_grant(from: &mut Reader<'_>) -> Read<Grant> {
    let namespace = label(from, Namespace::new)?;
    let count = from.count(Bundle::MAX_MEMBERS)?;
    let members = (0..count).map(|_| decode_member(from)).collect::<Read<Vec<Member>>>()?;
    let bundle = Bundle::new(members).map_err(|error| from.error(error.to_string()))?;
    let ttl = Span(from.number()?);
    let on_expiry = match from.byte()? {
        0 => OnExpiry::Free,
        1 => OnExpiry::Hold(Span(from.number()?)),
        2 => OnExpiry::Manual,
        other => return Err(from.error(format!("no such policy on expiry: {other}"))),
    };
    Ok(Grant {
        namespace,
        bundle,
        ttl,
        on_expiry,
        owner: from.maybe(|from| label(from, Owner::new))?,
        agent: from.maybe(|from| label(from, AgentName::new))?,
        session: from.maybe(|from| label(from, SessionName::new))?,
        attempt: from.maybe(|from| {
            let at = Time(from.number()?);
            Ok(Age { at, tie: u64::from_le_bytes(from.fixed()?) })
        })?,
        reason: from.maybe(|from| label(from, Reason::new))?,
        metadata: from.maybe(|from| {
            let bytes = from.bytes(Metadata::MAX_BYTES)?;
            Metadata::new(bytes).map_err(|error| from.error(error.to_string()))
        })?,
    })
}

fn decode_member(from: &mut Reader<'_>) -> Read<Member> {
    let number = from.byte()?;
    let predicate = Predicate::ALL.into_iter().find(|predicate| predicate_number(*predicate) == number);
    let predicate = predicate.ok_or_else(|| from.error(format!("no such predicate: {number}")))?;
    Ok(Member { resource: resource(from)?, predicate })
}

fn decode_lease(from: &mut Reader<'_>) -> Read<LeaseId> {
    Ok(LeaseId { shard: Shard(from.small()?), lsn: Lsn(from.number()?) })
}

fn decode_held(from: &mut Reader<'_>) -> Read<Held> {
    Ok(Held { lease: decode_lease(from)?, epoch: Epoch(from.number()?) })
}

fn decode_renewals(from: &mut Reader<'_>) -> Read<Vec<Renewal>> {
    let count = from.count(Action::MAX_BATCH)?;
    let renewal = |from: &mut Reader<'_>| {
        let held = decode_held(from)?;
        Ok(Renewal { held, ttl: from.maybe(|from| from.number().map(Span))? })
    };
    (0..count).map(|_| renewal(from)).collect()
}

fn decode_write(from: &mut Reader<'_>) -> Read<Write> {
    Ok(Write {
        held: decode_held(from)?,
        key: resource(from)?,
        token: from.maybe(|from| from.number().map(Token))?,
        if_version: from.maybe(|from| from.number().map(Version))?,
        if_etag: from.maybe(|from| from.maybe(|from| from.fixed().map(Etag)))?,
        release: from.flag()?,
    })
}

fn decode_party(from: &mut Reader<'_>) -> Read<Party> {
    match from.byte()? {
        0 => Ok(Party::Identity(label(from, Namespace::new)?, label(from, Identity::new)?)),
        1 => Ok(Party::Agent(label(from, Namespace::new)?, label(from, AgentName::new)?)),
        other => Err(from.error(format!("no such party: {other}"))),
    }
}

fn decode_pause(from: &mut Reader<'_>) -> Read<Pause> {
    let whom = match from.byte()? {
        0 => Paused::Scope(decode_scope(from)?),
        1 => Paused::Agent(label(from, Namespace::new)?, label(from, AgentName::new)?),
        other => return Err(from.error(format!("no such party: {other}"))),
    };
    Ok(Pause { whom, paused: from.flag()? })
}

fn decode_scope(from: &mut Reader<'_>) -> Read<Scope> {
    Ok(Scope {
        namespace: from.maybe(|from| label(from, Namespace::new))?,
        identity: from.maybe(|from| label(from, Identity::new))?,
    })
}

fn decode_quota(from: &mut Reader<'_>) -> Read<SetQuota> {
    let scope = decode_scope(from)?;
    let quota = Quota {
        leases_max: from.maybe(Reader::small)?,
        total_max: from.maybe(|from| from.number().map(Span))?,
        idle_max: from.maybe(|from| from.number().map(Span))?,
        acquires_per_second: from.maybe(Reader::small)?,
    };
    Ok(SetQuota { scope, quota })
}

fn label<T, E: std::fmt::Display>(from: &mut Reader<'_>, make: impl FnOnce(&str) -> Result<T, E>) -> Read<T> {
    let text = from.text()?;
    make(text).map_err(|error| from.error(format!("a name that is none: {error}")))
}

/// A name in another spelling than its canonical one was not written by us.
fn resource(from: &mut Reader<'_>) -> Read<ResourceName> {
    let text = from.text()?;
    let name = ResourceName::parse(text, None)
        .map_err(|error| from.error(format!("a resource that is none: {error}")))?;
    if name.as_str() == text {
        Ok(name)
    } else {
        Err(from.error("a resource in another spelling than its own"))
    }
}
