//! Chance, from the machine: keys that nobody else has, and waits that do not fall together.

use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

fn bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel has chance to give");
    assert_eq!(filled, bytes.len(), "so few bytes come whole");
    bytes
}

/// A key for one mutation and its retries.
pub(crate) fn idempotency_key() -> String {
    format!("{:032x}", u128::from_le_bytes(bytes()))
}

/// Between half of a span and all of it.
pub(crate) fn jitter(span: Duration) -> Duration {
    let part = u32::from(bytes()[0]);
    span / 2 + span / 2 * part / 255
}
