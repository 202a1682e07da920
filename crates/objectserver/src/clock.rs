//! The only place of this crate that reads clocks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time: ages of changes, deadlines.
#[expect(clippy::disallowed_methods, reason = "this module is the clock component")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Wall-clock time since the Unix epoch, for `Last-Modified`.
#[expect(clippy::disallowed_methods, reason = "this module is the clock component")]
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
