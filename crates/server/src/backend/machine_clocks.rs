//! The clocks of the machine. Nothing else in the server reads them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kernel::Span;
use rustix::time::{ClockId, clock_gettime};

/// The time since 1970: shown to people, and compared with the dates of certificates.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The time since the machine was booted, including suspend: the clock that the kernel's time follows.
pub(crate) fn since_boot() -> Span {
    let time = clock_gettime(ClockId::Boottime);
    Span(time.tv_sec.unsigned_abs() * 1000 + time.tv_nsec.unsigned_abs() / 1_000_000)
}
