//! Decodes the entries of a snapshot. Anything malformed or not in canonical order is refused.

use kernel::{
    AgentData, AgentName, Bundle, Document, EndReason, EndedLeaseData, Epoch, Etag, Granted,
    IdempotencyEntry, IdempotencyKey, Identity, KeyData, LeaseAttributes, LeaseData, Live, Lsn, Member,
    Namespace, NamespaceData, Owner, Phase, Policy, Reason, RequestKey, Response, Restart, Scope,
    SessionName, Snapshot, Span, Tenure, Time, Token, Version,
};

use super::chunk::ChunkReader;
use super::encode::{counts, response, tag};
use super::{Header, SnapshotError, store_of};
use crate::wire::parts::{
    Read, decode_age, decode_close, decode_label, decode_lease_id, decode_location, decode_members,
    decode_metadata, decode_on_expiry, decode_open, decode_quota, decode_resource, decode_scope,
};
use crate::wire::{Format, Reader};

/// Decodes all entries, up to the end.
pub(super) fn entries(header: &Header, chunks: &mut ChunkReader<'_, '_>) -> Result<Snapshot, SnapshotError> {
    let decoder =
        Decoder { snapshot: empty(header), kind: 0, names: Names::default(), format: header.format };
    let mut decoder = decoder;
    loop {
        let chunk = chunks.chunk()?;
        let start = usize::try_from(chunk.offset).expect("a snapshot is far smaller than the address space");
        let mut reader = Reader::within(chunk.payload, start);
        while !reader.is_empty() {
            if decoder.entry(&mut reader)? {
                decoder.check_end(header, &reader)?;
                return Ok(decoder.snapshot);
            }
        }
    }
}

fn empty(header: &Header) -> Snapshot {
    Snapshot {
        tenure: None,
        last: header.last,
        now: header.now,
        clocks: header.clocks,
        state_hash: header.state_hash,
        floor: header.floor,
        namespaces: Vec::new(),
        policies: Vec::new(),
        agents: Vec::new(),
        keys: Vec::new(),
        leases: Vec::new(),
        history: Vec::new(),
        requests: Vec::new(),
    }
}

struct Decoder {
    snapshot: Snapshot,
    /// The tag of the previous entry.
    kind: u8,
    names: Names,
    format: Format,
}

impl Decoder {
    /// Decodes the next entry; `true` if it was the end.
    fn entry(&mut self, from: &mut Reader<'_>) -> Read<bool> {
        let kind = from.byte()?;
        if kind < self.kind || (kind == tag::TENURE && self.kind == tag::TENURE) {
            return Err(from.error(format!("an entry is out of order: kind={kind} previous={}", self.kind)));
        }
        if (tag::NAMESPACE..tag::END).contains(&kind) && self.snapshot.tenure.is_none() {
            return Err(from.error("an entry without a tenure"));
        }
        self.kind = kind;
        let (snapshot, names, format) = (&mut self.snapshot, &mut self.names, self.format);
        match kind {
            tag::TENURE => snapshot.tenure = Some(decode_tenure(from, format)?),
            tag::NAMESPACE => {
                let data = decode_namespace(from)?;
                push(from, &mut snapshot.namespaces, data, |a, b| a.name < b.name)?;
            }
            tag::POLICY => {
                let data = decode_policy(from)?;
                push(from, &mut snapshot.policies, data, |a, b| a.0 < b.0)?;
            }
            tag::AGENT => {
                let data = decode_agent(from, names)?;
                push(from, &mut snapshot.agents, data, |a, b| {
                    (&a.namespace, &a.name) < (&b.namespace, &b.name)
                })?;
            }
            tag::KEY => {
                let data = decode_key(from, names, format)?;
                push(from, &mut snapshot.keys, data, |a, b| (&a.namespace, &a.key) < (&b.namespace, &b.key))?;
            }
            tag::LEASE => {
                let data = decode_lease(from, names)?;
                push(from, &mut snapshot.leases, data, |a, b| a.lsn < b.lsn)?;
            }
            // In the order in which they ended; one record may end several leases.
            tag::PAST => {
                let data = decode_past(from, names)?;
                push(from, &mut snapshot.history, data, |a, b| a.ended_lsn <= b.ended_lsn)?;
            }
            tag::REQUEST => {
                let data = decode_request(from, names, format)?;
                push(from, &mut snapshot.requests, data, |a, b| a.lapses_at <= b.lapses_at)?;
            }
            tag::END => {
                self.check_counts(from)?;
                return Ok(true);
            }
            other => return Err(from.error(format!("an entry is not supported by this build: kind={other}"))),
        }
        Ok(false)
    }

    fn check_counts(&self, from: &mut Reader<'_>) -> Read<()> {
        for (number, found) in (1..).zip(counts(&self.snapshot)) {
            let expected: usize = from.small()?;
            if expected != found {
                let what =
                    format!("wrong number of entries: kind={number} expected={expected} found={found}");
                return Err(from.error(what));
            }
        }
        Ok(())
    }

    /// Checks that nothing follows the end, and that header and tenure are of the same store.
    fn check_end(&self, header: &Header, from: &Reader<'_>) -> Read<()> {
        from.end()?;
        if header.store == store_of(&self.snapshot) {
            Ok(())
        } else {
            Err(from.error("the header and the tenure belong to different stores"))
        }
    }
}

/// Appends an entry, which must sort after the last one of its kind.
fn push<T>(from: &Reader<'_>, list: &mut Vec<T>, item: T, in_order: impl FnOnce(&T, &T) -> bool) -> Read<()> {
    if list.last().is_some_and(|last| !in_order(last, &item)) {
        return Err(from.error("an entry is out of order or repeated"));
    }
    list.push(item);
    Ok(())
}

/// The last names decoded. Neighbouring entries mostly have the same names, and so share their memory.
#[derive(Default)]
struct Names {
    namespace: Option<Namespace>,
    identity: Option<Identity>,
}

impl Names {
    fn namespace(&mut self, from: &mut Reader<'_>) -> Read<Namespace> {
        let text = from.text()?;
        if let Some(same) = self.namespace.as_ref().filter(|last| last.as_str() == text) {
            return Ok(same.clone());
        }
        let name = Namespace::new(text).map_err(|error| from.error(format!("an invalid name: {error}")))?;
        Ok(self.namespace.insert(name).clone())
    }

    fn identity(&mut self, from: &mut Reader<'_>) -> Read<Identity> {
        let text = from.text()?;
        if let Some(same) = self.identity.as_ref().filter(|last| last.as_str() == text) {
            return Ok(same.clone());
        }
        let name = Identity::new(text).map_err(|error| from.error(format!("an invalid name: {error}")))?;
        Ok(self.identity.insert(name).clone())
    }
}

fn decode_time(from: &mut Reader<'_>) -> Read<Time> {
    from.number().map(Time)
}

fn decode_tenure(from: &mut Reader<'_>, format: Format) -> Read<Tenure> {
    let (opened_lsn, opened_at) = (Lsn(from.number()?), decode_time(from)?);
    let open = decode_open(from, format)?;
    let closed = if format == Format::Two { from.maybe(decode_close)? } else { None };
    Ok(Tenure { open, opened_lsn, opened_at, closed })
}

fn decode_namespace(from: &mut Reader<'_>) -> Read<NamespaceData> {
    Ok(NamespaceData { name: decode_label(from, Namespace::new)?, floor: Version(from.number()?) })
}

fn decode_policy(from: &mut Reader<'_>) -> Read<(Scope, Policy)> {
    let scope = decode_scope(from)?;
    let policy = Policy { paused: from.flag()?, quota: decode_quota(from)? };
    if policy == Policy::default() {
        return Err(from.error("an empty policy"));
    }
    Ok((scope, policy))
}

fn decode_agent(from: &mut Reader<'_>, names: &mut Names) -> Read<AgentData> {
    Ok(AgentData {
        namespace: names.namespace(from)?,
        name: decode_label(from, AgentName::new)?,
        identity: names.identity(from)?,
        since: Lsn(from.number()?),
        paused: from.flag()?,
        restart: from.maybe(|from| {
            let since = decode_time(from)?;
            Ok(Restart { since, until: from.maybe(decode_time)? })
        })?,
        forget_at: from.maybe(decode_time)?,
    })
}

fn decode_key(from: &mut Reader<'_>, names: &mut Names, format: Format) -> Read<KeyData> {
    Ok(KeyData {
        namespace: names.namespace(from)?,
        key: decode_resource(from)?,
        version: Version(from.number()?),
        document: from.maybe(|from| {
            Ok(Document {
                etag: Etag(from.fixed()?),
                bytes: from.number()?,
                location: decode_location(from, format)?,
                committed_at: decode_time(from)?,
            })
        })?,
    })
}

fn decode_lease(from: &mut Reader<'_>, names: &mut Names) -> Read<LeaseData> {
    Ok(LeaseData {
        lsn: Lsn(from.number()?),
        namespace: names.namespace(from)?,
        identity: names.identity(from)?,
        phase: decode_phase(from)?,
        epoch: Epoch(from.number()?),
        token: Token(from.number()?),
        granted_at: decode_time(from)?,
        ttl_until: decode_time(from)?,
        active_at: decode_time(from)?,
        deadline: decode_time(from)?,
        ttl: Span(from.number()?),
        capped: from.flag()?,
        used: from.flag()?,
        members: decode_bundle(from)?,
        details: decode_details(from)?,
    })
}

fn decode_phase(from: &mut Reader<'_>) -> Read<Phase> {
    match from.byte()? {
        0 => Ok(Phase::Reserved),
        1 => Ok(Phase::Active),
        2 => Ok(Phase::OnHold { until: decode_time(from)?, rebindable: from.flag()? }),
        3 => Ok(Phase::Revoking),
        other => Err(from.error(format!("unknown phase: number={other}"))),
    }
}

fn decode_past(from: &mut Reader<'_>, names: &mut Names) -> Read<EndedLeaseData> {
    Ok(EndedLeaseData {
        lsn: Lsn(from.number()?),
        namespace: names.namespace(from)?,
        identity: names.identity(from)?,
        end: decode_end(from)?,
        ended_at: decode_time(from)?,
        ended_lsn: Lsn(from.number()?),
        epoch: Epoch(from.number()?),
        token: Token(from.number()?),
        granted_at: decode_time(from)?,
        deadline: decode_time(from)?,
        ttl: Span(from.number()?),
        members: decode_bundle(from)?,
        details: decode_details(from)?,
    })
}

fn decode_end(from: &mut Reader<'_>) -> Read<EndReason> {
    match from.byte()? {
        0 => Ok(EndReason::Released),
        1 => Ok(EndReason::Expired),
        2 => Ok(EndReason::Revoked),
        other => Err(from.error(format!("unknown end of a lease: number={other}"))),
    }
}

/// Checks that there is at least one member and none is repeated; a single one needs no check.
fn decode_bundle(from: &mut Reader<'_>) -> Read<Vec<Member>> {
    let members = decode_members(from)?;
    if members.len() == 1 {
        return Ok(members);
    }
    Bundle::new(members.clone()).map_err(|error| from.error(error.to_string()))?;
    Ok(members)
}

fn decode_details(from: &mut Reader<'_>) -> Read<LeaseAttributes> {
    let details = from.maybe(|from| {
        Ok(LeaseAttributes {
            on_expiry: decode_on_expiry(from)?,
            owner: from.maybe(|from| decode_label(from, Owner::new))?,
            agent: from.maybe(|from| decode_label(from, AgentName::new))?,
            session: from.maybe(|from| decode_label(from, SessionName::new))?,
            age: from.maybe(decode_age)?,
            reason: from.maybe(|from| decode_label(from, Reason::new))?,
            metadata: from.maybe(decode_metadata)?,
        })
    })?;
    match details {
        Some(details) if details.is_default() => Err(from.error("empty details")),
        details => Ok(details.unwrap_or_default()),
    }
}

fn decode_request(from: &mut Reader<'_>, names: &mut Names, format: Format) -> Read<IdempotencyEntry> {
    let identity = names.identity(from)?;
    let namespace = if format == Format::Two { from.maybe(|from| names.namespace(from))? } else { None };
    let request = IdempotencyKey { key: RequestKey(from.fixed()?), fingerprint: from.fixed()? };
    let (lapses_at, answer) = (decode_time(from)?, decode_response(from)?);
    Ok(IdempotencyEntry { identity, namespace, request, lapses_at, answer })
}

fn decode_response(from: &mut Reader<'_>) -> Read<Response> {
    Ok(match from.byte()? {
        response::OPENED => Response::Opened,
        response::CLOSED => Response::Closed,
        response::TICKED => Response::Ticked,
        response::GRANTED => Response::Granted(decode_granted(from)?),
        response::LIVE => Response::Live(Live {
            lease: decode_lease_id(from)?,
            epoch: Epoch(from.number()?),
            deadline: decode_time(from)?,
        }),
        response::REVOKING => Response::Revoking(decode_lease_id(from)?),
        response::REVOKED_ALL => Response::RevokedAll { revoked: from.small()?, more: from.flag()? },
        response::DROPPED => Response::Dropped { more: from.flag()? },
        response::RECLAIMED => Response::Reclaimed(decode_lease_id(from)?),
        response::COMMITTED => Response::Committed(Version(from.number()?)),
        response::REMOVED => Response::Removed { removed: from.flag()?, version: Version(from.number()?) },
        response::RELOCATED => Response::Relocated { moved: from.flag()? },
        response::DONE => Response::Done,
        response::RETRACTED => Response::Retracted { undone: from.flag()? },
        other => return Err(from.error(format!("a response is not supported by this build: kind={other}"))),
    })
}

fn decode_granted(from: &mut Reader<'_>) -> Read<Granted> {
    Ok(Granted {
        lease: decode_lease_id(from)?,
        epoch: Epoch(from.number()?),
        token: Token(from.number()?),
        granted_at: decode_time(from)?,
        deadline: decode_time(from)?,
        ttl: Span(from.number()?),
    })
}
