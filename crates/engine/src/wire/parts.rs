//! The encodings of kernel types that records and snapshots share.
//!
//! These encodings never change. A new field needs a new tag or format version in every format that uses it.

use kernel::{
    Age, Bundle, ClockReading, Close, LeaseId, Limits, Location, Lsn, Member, Metadata, OnExpiry, Open,
    Predicate, Quota, ResourceName, Scope, Shard, Slot, Slots, Span, Store, Time,
};

use super::{Format, Reader, Writer, legacy};
use crate::record::DecodeError;

pub(crate) type Read<T> = Result<T, DecodeError>;

pub(crate) fn encode_open(open: &Open, to: &mut Writer<'_>) {
    to.number(u64::from(open.store.shard.0));
    to.number(u64::from(open.store.shards));
    to.fixed(&open.store.hash_seed.to_le_bytes());
    to.fixed(&open.writer.to_le_bytes());
    to.number(open.term);
    to.fixed(&open.clocks.boot.to_le_bytes());
    to.number(open.clocks.boot_clock.0);
    to.number(open.clocks.unix_ms);
    to.number(u64::from(open.kernel_version));
    encode_limits(&open.limits, to);
    encode_slots(&open.slots, to);
}

fn encode_limits(limits: &Limits, to: &mut Writer<'_>) {
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

pub(crate) fn decode_open(from: &mut Reader<'_>, format: Format) -> Read<Open> {
    if matches!(format, Format::One(_)) {
        return legacy::decode_open(from);
    }
    Ok(Open {
        store: Store {
            shard: Shard(from.small()?),
            shards: from.small()?,
            hash_seed: u64::from_le_bytes(from.fixed()?),
        },
        writer: u128::from_le_bytes(from.fixed()?),
        term: from.number()?,
        clocks: ClockReading {
            boot: u128::from_le_bytes(from.fixed()?),
            boot_clock: Span(from.number()?),
            unix_ms: from.number()?,
        },
        kernel_version: from.small()?,
        limits: decode_limits(from)?,
        slots: decode_slots(from)?,
    })
}

pub(super) fn decode_limits(from: &mut Reader<'_>) -> Read<Limits> {
    Ok(Limits {
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
    })
}

/// As ranges: the number of slots before each that are not in the set, then the number in it.
fn encode_slots(slots: &Slots, to: &mut Writer<'_>) {
    to.count(slots.ranges().count());
    let mut next = 0;
    for (first, last) in slots.ranges() {
        to.count(first.number() - next);
        to.count(last.number() + 1 - first.number());
        next = last.number() + 1;
    }
}

fn decode_slots(from: &mut Reader<'_>) -> Read<Slots> {
    let count = from.count(Slot::COUNT / 2)?;
    let (mut slots, mut next) = (Vec::new(), 0_usize);
    for range in 0..count {
        let (gap, length) = (from.count(Slot::COUNT)?, from.count(Slot::COUNT)?);
        let first = next + gap;
        next = first + length;
        if length == 0 || next > Slot::COUNT || (gap == 0 && range > 0) {
            return Err(from.error("ranges of slots are not in canonical form"));
        }
        slots.extend((first..next).filter_map(|number| Slot::new(u16::try_from(number).ok()?)));
    }
    Ok(slots.into_iter().collect())
}

pub(crate) fn encode_location(location: Location, to: &mut Writer<'_>) {
    let Location { shard, term, number, random } = location;
    to.number(u64::from(shard.0));
    to.number(term);
    to.number(number);
    if term > 0 {
        to.fixed(&random.to_le_bytes());
    }
}

pub(crate) fn decode_location(from: &mut Reader<'_>, format: Format) -> Read<Location> {
    if let Format::One(shard) = format {
        return legacy::decode_location(from, shard);
    }
    let (shard, term, number) = (Shard(from.small()?), from.number()?, from.number()?);
    let random = if term > 0 { u64::from_le_bytes(from.fixed()?) } else { 0 };
    Ok(Location { shard, term, number, random })
}

pub(crate) fn encode_close(close: Close, to: &mut Writer<'_>) {
    to.maybe(close.to, |to, server| to.fixed(&server.to_le_bytes()));
}

pub(crate) fn decode_close(from: &mut Reader<'_>) -> Read<Close> {
    Ok(Close { to: from.maybe(|from| from.fixed().map(u128::from_le_bytes))? })
}

pub(crate) fn encode_members(members: &[Member], to: &mut Writer<'_>) {
    to.count(members.len());
    for member in members {
        to.byte(predicate_number(member.predicate));
        to.text(member.resource.as_str());
    }
}

pub(crate) fn decode_members(from: &mut Reader<'_>) -> Read<Vec<Member>> {
    let count = from.count(Bundle::MAX_MEMBERS)?;
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        members.push(decode_member(from)?);
    }
    Ok(members)
}

fn decode_member(from: &mut Reader<'_>) -> Read<Member> {
    let number = from.byte()?;
    let predicate = Predicate::ALL.into_iter().find(|predicate| predicate_number(*predicate) == number);
    let predicate = predicate.ok_or_else(|| from.error(format!("unknown predicate: number={number}")))?;
    Ok(Member { resource: decode_resource(from)?, predicate })
}

/// The numbers of predicates in the format, independent of the kernel's order.
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

pub(crate) fn encode_on_expiry(on_expiry: OnExpiry, to: &mut Writer<'_>) {
    match on_expiry {
        OnExpiry::Free => to.byte(0),
        OnExpiry::Hold(span) => {
            to.byte(1);
            to.number(span.0);
        }
        OnExpiry::Manual => to.byte(2),
    }
}

pub(crate) fn decode_on_expiry(from: &mut Reader<'_>) -> Read<OnExpiry> {
    match from.byte()? {
        0 => Ok(OnExpiry::Free),
        1 => Ok(OnExpiry::Hold(Span(from.number()?))),
        2 => Ok(OnExpiry::Manual),
        other => Err(from.error(format!("unknown policy on expiry: number={other}"))),
    }
}

pub(crate) fn encode_age(age: Age, to: &mut Writer<'_>) {
    to.number(age.at.0);
    to.fixed(&age.tie.to_le_bytes());
}

pub(crate) fn decode_age(from: &mut Reader<'_>) -> Read<Age> {
    let at = Time(from.number()?);
    Ok(Age { at, tie: u64::from_le_bytes(from.fixed()?) })
}

pub(crate) fn decode_metadata(from: &mut Reader<'_>) -> Read<Metadata> {
    let bytes = from.bytes(Metadata::MAX_BYTES)?;
    Metadata::new(bytes).map_err(|error| from.error(error.to_string()))
}

pub(crate) fn encode_lease_id(lease: LeaseId, to: &mut Writer<'_>) {
    to.number(u64::from(lease.shard.0));
    to.number(lease.lsn.0);
}

pub(crate) fn decode_lease_id(from: &mut Reader<'_>) -> Read<LeaseId> {
    Ok(LeaseId { shard: Shard(from.small()?), lsn: Lsn(from.number()?) })
}

pub(crate) fn encode_scope(scope: &Scope, to: &mut Writer<'_>) {
    to.maybe(scope.namespace.as_ref(), |to, namespace| to.text(namespace.as_str()));
    to.maybe(scope.identity.as_ref(), |to, identity| to.text(identity.as_str()));
}

pub(crate) fn decode_scope(from: &mut Reader<'_>) -> Read<Scope> {
    Ok(Scope {
        namespace: from.maybe(|from| decode_label(from, kernel::Namespace::new))?,
        identity: from.maybe(|from| decode_label(from, kernel::Identity::new))?,
    })
}

pub(crate) fn encode_quota(quota: &Quota, to: &mut Writer<'_>) {
    to.maybe(quota.leases_max, |to, max| to.number(u64::from(max)));
    to.maybe(quota.total_max, |to, span| to.number(span.0));
    to.maybe(quota.idle_max, |to, span| to.number(span.0));
    to.maybe(quota.acquires_per_second, |to, max| to.number(u64::from(max)));
}

pub(crate) fn decode_quota(from: &mut Reader<'_>) -> Read<Quota> {
    Ok(Quota {
        leases_max: from.maybe(Reader::small)?,
        total_max: from.maybe(|from| from.number().map(Span))?,
        idle_max: from.maybe(|from| from.number().map(Span))?,
        acquires_per_second: from.maybe(Reader::small)?,
    })
}

/// Decodes a name of any kind except a resource name.
pub(crate) fn decode_label<T, E: std::fmt::Display>(
    from: &mut Reader<'_>,
    make: impl FnOnce(&str) -> Result<T, E>,
) -> Read<T> {
    let text = from.text()?;
    make(text).map_err(|error| from.error(format!("an invalid name: {error}")))
}

/// Decodes a resource name, which must be in canonical form: lockd writes no other.
pub(crate) fn decode_resource(from: &mut Reader<'_>) -> Read<ResourceName> {
    let text = from.text()?;
    let name = ResourceName::parse(text, None)
        .map_err(|error| from.error(format!("an invalid resource name: {error}")))?;
    if name.as_str() == text { Ok(name) } else { Err(from.error("a resource name is not in canonical form")) }
}
