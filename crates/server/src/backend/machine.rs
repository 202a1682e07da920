//! The machine's wall clock: the one place that a server reads it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970: for people to read, and for certificates.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
