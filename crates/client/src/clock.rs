//! The boot clock: it counts while the machine is suspended, and cannot be set.
//!
//! **Invariant.** The runtime's timers may stop while the machine is suspended, so no deadline relies on them alone:
//! [`sleep_until`] re-reads the clock at least every [`POLL_INTERVAL`].

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(pub(crate) u64);

/// The longest time for which a suspend goes unnoticed.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

impl BootTime {
    pub(crate) fn now() -> BootTime {
        let now = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        BootTime(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
    }

    pub(crate) fn after(self, span: Duration) -> BootTime {
        BootTime(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Time until this moment; zero once it has passed.
    pub(crate) fn remaining(self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(BootTime::now().0))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Duration::from_millis(BootTime::now().0.saturating_sub(self.0))
    }
}

/// Sleeps until `moment`.
pub(crate) async fn sleep_until(moment: BootTime) {
    loop {
        let remaining = moment.remaining();
        if remaining.is_zero() {
            return;
        }
        tokio::time::sleep(remaining.min(POLL_INTERVAL)).await;
    }
}
