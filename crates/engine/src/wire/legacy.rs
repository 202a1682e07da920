//! The encodings of format 1 that differ from the present ones, read-only.

use kernel::{ClockReading, Location, Open, Shard, Slots, Span, Store};

use super::Reader;
use super::parts::{Read, decode_limits};

/// An `open` with a boot id instead of the boot identity, without wall clock and slots. No boot identity equals a boot
/// id, so that its boot clock is never compared with another. The log took every namespace.
pub(super) fn decode_open(from: &mut Reader<'_>) -> Read<Open> {
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
            unix_ms: 0,
        },
        kernel_version: from.small()?,
        limits: decode_limits(from)?,
        slots: Slots::ALL,
    })
}

/// 128 bits: the term of a blob, 0 for an inline document; then the blob's number or the LSN. The bytes are in the
/// shard itself.
pub(super) fn decode_location(from: &mut Reader<'_>, shard: Shard) -> Read<Location> {
    let number = u64::from_le_bytes(from.fixed()?);
    Ok(Location { shard, term: u64::from_le_bytes(from.fixed()?), number, random: 0 })
}
