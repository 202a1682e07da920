//! Randomness from the operating system: unique idempotency keys, and jitter for retries.

use std::time::Duration;

use system::{hex, random};

/// A key for one mutation and its retries.
pub(crate) fn idempotency_key() -> String {
    hex::encode(&random::bytes::<16>())
}

/// A random span between half of `span` and all of it.
pub(crate) fn jitter(span: Duration) -> Duration {
    let part = u32::from(random::bytes::<1>()[0]);
    span / 2 + span / 2 * part / 255
}
