//! The wall clock of the machine. Nothing else in the server reads it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970: shown to people, and compared with the dates of certificates.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
