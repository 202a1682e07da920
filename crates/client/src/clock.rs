//! The boot clock: it counts while the machine sleeps, and nobody sets it.
//!
//! **Invariant.** Timers of the runtime may stand still while the machine sleeps, so nothing trusts them for a
//! deadline: [`until`] looks at the clock again and again.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment since this machine started, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(pub(crate) u64);

/// The longest that a sleep of the machine goes unnoticed.
const LOOK: Duration = Duration::from_millis(500);

impl BootTime {
    pub(crate) fn now() -> BootTime {
        let now = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        BootTime(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
    }

    pub(crate) fn after(self, span: Duration) -> BootTime {
        BootTime(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Nothing if it is over.
    pub(crate) fn left(self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(BootTime::now().0))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Duration::from_millis(BootTime::now().0.saturating_sub(self.0))
    }
}

/// Waits until a moment has come.
pub(crate) async fn until(moment: BootTime) {
    loop {
        let left = moment.left();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK)).await;
    }
}
