//! The encoding of a command: a tag, then its fields in order.
//!
//! Tags and the order of fields never change. A new action or a new field needs a new tag.

use kernel::{
    Action, AgentAnnouncement, AgentName, Bundle, Command, Commit, Credential, Epoch, Etag, IdempotencyKey,
    Identity, LeaseId, LeaseRequest, Namespace, Owner, Party, Pause, Paused, Reason, Relocation, Removal,
    Renewal, RequestKey, Retraction, SessionName, SetQuota, Span, Token, Version, Write,
};

use crate::wire::parts::{self, Read, decode_label, decode_lease_id, decode_resource, decode_scope};
use crate::wire::{Format, Reader, Writer};

/// The tag of each action.
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
    pub(super) const DROP_NAMESPACE: u8 = 20;
    pub(super) const CLOSE: u8 = 21;
}

/// Encodes a command.
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
        Action::Open(open) => {
            to.byte(tag::OPEN);
            parts::encode_open(open, to);
        }
        Action::Close(close) => {
            to.byte(tag::CLOSE);
            parts::encode_close(*close, to);
        }
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
            parts::encode_location(commit.location, to);
        }
        Action::Remove(removal) => encode_write(tag::REMOVE, &removal.write, to),
        Action::Relocate(relocation) => {
            to.byte(tag::RELOCATE);
            to.text(relocation.namespace.as_str());
            to.text(relocation.key.as_str());
            to.number(relocation.version.0);
            parts::encode_location(relocation.location, to);
        }
        Action::Revoke(lease) => encode_lease(tag::REVOKE, *lease, to),
        Action::Reclaim(lease) => encode_lease(tag::RECLAIM, *lease, to),
        Action::RevokeAll(party) => encode_party(party, to),
        Action::Pause(pause) => encode_pause(pause, to),
        Action::SetQuota(set) => encode_quota(set, to),
        Action::DropNamespace(namespace) => {
            to.byte(tag::DROP_NAMESPACE);
            to.text(namespace.as_str());
        }
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

fn encode_grant(tag: u8, grant: &LeaseRequest, to: &mut Writer<'_>) {
    to.byte(tag);
    to.text(grant.namespace.as_str());
    parts::encode_members(grant.bundle.members(), to);
    to.number(grant.ttl.0);
    parts::encode_on_expiry(grant.on_expiry, to);
    to.maybe(grant.owner.as_ref(), |to, owner| to.text(owner.as_str()));
    to.maybe(grant.agent.as_ref(), |to, agent| to.text(agent.as_str()));
    to.maybe(grant.session.as_ref(), |to, session| to.text(session.as_str()));
    to.maybe(grant.attempt, |to, age| parts::encode_age(age, to));
    to.maybe(grant.reason.as_ref(), |to, reason| to.text(reason.as_str()));
    to.maybe(grant.metadata.as_ref(), |to, metadata| to.bytes(metadata.as_bytes()));
}

fn encode_lease(tag: u8, lease: LeaseId, to: &mut Writer<'_>) {
    to.byte(tag);
    parts::encode_lease_id(lease, to);
}

fn encode_credential(held: Credential, to: &mut Writer<'_>) {
    parts::encode_lease_id(held.lease, to);
    to.number(held.epoch.0);
}

fn encode_held(tag: u8, held: Credential, to: &mut Writer<'_>) {
    to.byte(tag);
    encode_credential(held, to);
}

fn encode_renewals(renewals: &[Renewal], to: &mut Writer<'_>) {
    to.byte(tag::RENEW);
    to.count(renewals.len());
    for renewal in renewals {
        encode_credential(renewal.held, to);
        to.maybe(renewal.ttl, |to, ttl| to.number(ttl.0));
    }
}

fn encode_write(tag: u8, write: &Write, to: &mut Writer<'_>) {
    to.byte(tag);
    encode_credential(write.held, to);
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
            parts::encode_scope(scope, to);
        }
        Paused::Agent(namespace, agent) => {
            to.byte(1);
            to.text(namespace.as_str());
            to.text(agent.as_str());
        }
    }
    to.flag(pause.paused);
}

fn encode_quota(set: &SetQuota, to: &mut Writer<'_>) {
    to.byte(tag::SET_QUOTA);
    parts::encode_scope(&set.scope, to);
    parts::encode_quota(&set.quota, to);
}

/// Decodes a command, and validates all its fields.
pub fn decode(from: &mut Reader<'_>, format: Format) -> Read<Command> {
    let identity = from.maybe(|from| decode_label(from, Identity::new))?;
    let request = from.maybe(|from| {
        let key = RequestKey(from.fixed()?);
        Ok(IdempotencyKey { key, fingerprint: from.fixed()? })
    })?;
    Ok(Command { identity, request, action: decode_action(from, format)? })
}

fn decode_action(from: &mut Reader<'_>, format: Format) -> Read<Action> {
    Ok(match from.byte()? {
        tag::OPEN => Action::Open(parts::decode_open(from, format)?),
        tag::CLOSE => Action::Close(parts::decode_close(from)?),
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
            let location = parts::decode_location(from, format)?;
            Action::Commit(Commit { write, etag, bytes, location })
        }
        tag::REMOVE => Action::Remove(Removal { write: decode_write(from)? }),
        tag::RELOCATE => Action::Relocate(Relocation {
            namespace: decode_label(from, Namespace::new)?,
            key: decode_resource(from)?,
            version: Version(from.number()?),
            location: parts::decode_location(from, format)?,
        }),
        tag::REVOKE => Action::Revoke(decode_lease_id(from)?),
        tag::RECLAIM => Action::Reclaim(decode_lease_id(from)?),
        tag::REVOKE_ALL => Action::RevokeAll(decode_party(from)?),
        tag::PAUSE => Action::Pause(decode_pause(from)?),
        tag::SET_QUOTA => Action::SetQuota(decode_quota(from)?),
        tag::DROP_NAMESPACE => Action::DropNamespace(decode_label(from, Namespace::new)?),
        tag::AGENT => Action::Agent(AgentAnnouncement {
            namespace: decode_label(from, Namespace::new)?,
            agent: decode_label(from, AgentName::new)?,
            restarting: from.flag()?,
            operator: from.flag()?,
        }),
        tag::RETRACT => {
            let lease = decode_lease_id(from)?;
            let request = from.maybe(|from| Ok(RequestKey(from.fixed()?)))?;
            Action::Retract(Retraction { lease, request })
        }
        other => return Err(from.error(format!("action not supported by this build: tag={other}"))),
    })
}

fn decode_grant(from: &mut Reader<'_>) -> Read<LeaseRequest> {
    let namespace = decode_label(from, Namespace::new)?;
    let bundle = Bundle::new(parts::decode_members(from)?).map_err(|error| from.error(error.to_string()))?;
    let ttl = Span(from.number()?);
    let on_expiry = parts::decode_on_expiry(from)?;
    Ok(LeaseRequest {
        namespace,
        bundle,
        ttl,
        on_expiry,
        owner: from.maybe(|from| decode_label(from, Owner::new))?,
        agent: from.maybe(|from| decode_label(from, AgentName::new))?,
        session: from.maybe(|from| decode_label(from, SessionName::new))?,
        attempt: from.maybe(parts::decode_age)?,
        reason: from.maybe(|from| decode_label(from, Reason::new))?,
        metadata: from.maybe(parts::decode_metadata)?,
    })
}

fn decode_held(from: &mut Reader<'_>) -> Read<Credential> {
    Ok(Credential { lease: decode_lease_id(from)?, epoch: Epoch(from.number()?) })
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
        key: decode_resource(from)?,
        token: from.maybe(|from| from.number().map(Token))?,
        if_version: from.maybe(|from| from.number().map(Version))?,
        if_etag: from.maybe(|from| from.maybe(|from| from.fixed().map(Etag)))?,
        release: from.flag()?,
    })
}

fn decode_party(from: &mut Reader<'_>) -> Read<Party> {
    match from.byte()? {
        0 => Ok(Party::Identity(decode_label(from, Namespace::new)?, decode_label(from, Identity::new)?)),
        1 => Ok(Party::Agent(decode_label(from, Namespace::new)?, decode_label(from, AgentName::new)?)),
        other => Err(from.error(format!("unknown kind of party: kind={other}"))),
    }
}

fn decode_pause(from: &mut Reader<'_>) -> Read<Pause> {
    let whom = match from.byte()? {
        0 => Paused::Scope(decode_scope(from)?),
        1 => Paused::Agent(decode_label(from, Namespace::new)?, decode_label(from, AgentName::new)?),
        other => return Err(from.error(format!("unknown kind of party: kind={other}"))),
    };
    Ok(Pause { whom, paused: from.flag()? })
}

fn decode_quota(from: &mut Reader<'_>) -> Read<SetQuota> {
    let scope = decode_scope(from)?;
    Ok(SetQuota { scope, quota: parts::decode_quota(from)? })
}
