//! Randomness from the operating system: unique idempotency keys, and jitter for retries.

use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

fn bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).expect("getrandom does not fail on Linux");
    assert_eq!(filled, bytes.len(), "up to 256 bytes are never cut short");
    bytes
}

/// A key for one mutation and its retries.
pub(crate) fn idempotency_key() -> String {
    format!("{:032x}", u128::from_le_bytes(bytes()))
}

/// A random span between half of `span` and all of it.
pub(crate) fn jitter(span: Duration) -> Duration {
    let part = u32::from(bytes()[0]);
    span / 2 + span / 2 * part / 255
}
