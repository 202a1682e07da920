//! The moment at which a command was decided, and the times that responses show.
//!
//! **Invariant.** No time in a response is later than the deadline that the kernel enforces, however long the sync and
//! the response took.
//!
//! **What would break it.** To read the wall clock when the response is written, and add the time that remained when the
//! command was decided: too late by as much as the sync took. To read kernel time before the other clocks: a thread that
//! is preempted in between publishes an expiry that is too late by the pause.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Span, Time};

/// Returns the time since 1970.
pub(crate) type WallClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Returns the time since the machine was booted.
pub(crate) type BootClock = Box<dyn Fn() -> Span + Send + Sync>;

/// The clocks beside the kernel's own: for display, and for elapsed time.
pub(crate) struct Clocks {
    pub(crate) wall: WallClock,
    pub(crate) boot: BootClock,
}

impl Clocks {
    /// Milliseconds since 1970, by the wall clock. Only shown to clients: the kernel has its own time.
    pub(crate) fn unix_ms(&self) -> u64 {
        unix_ms(&self.wall)
    }
}

/// Milliseconds since 1970, by a wall clock.
pub(crate) fn unix_ms(wall: &WallClock) -> u64 {
    u64::try_from(wall().as_millis()).unwrap_or(u64::MAX)
}

/// One moment on three clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Kernel time.
    pub(crate) now: Time,
    unix_ms: u64,
    boot_clock: Span,
}

impl Moment {
    /// Reads the clocks, kernel time last.
    pub(crate) fn read(clocks: &Clocks, now: impl FnOnce() -> Time) -> Moment {
        let (unix_ms, boot_clock) = (clocks.unix_ms(), (clocks.boot)());
        Moment { now: now(), unix_ms, boot_clock }
    }

    /// A kernel time, past or future, by the wall clock of this moment.
    pub(crate) fn unix_ms_at(&self, at: Time) -> u64 {
        let past = self.unix_ms.saturating_sub(at.until(self.now).0);
        past.saturating_add(self.now.until(at).0)
    }

    /// Milliseconds since this moment.
    pub(crate) fn elapsed(&self, clocks: &Clocks) -> Span {
        Span((clocks.boot)().0.saturating_sub(self.boot_clock.0))
    }

    /// Milliseconds that remain until a deadline, as of this call.
    pub(crate) fn remaining_ms(&self, clocks: &Clocks, deadline: Time) -> u64 {
        let elapsed = if planted!(RemainingAtDecision) { Span(0) } else { self.elapsed(clocks) };
        self.now.after(elapsed).until(deadline).0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Both clocks advance by 10 ms whenever one is read, as if the thread were preempted each time.
    fn slow_clocks() -> (Clocks, Arc<AtomicU64>) {
        let elapsed = Arc::new(AtomicU64::new(0));
        let (wall, boot) = (Arc::clone(&elapsed), Arc::clone(&elapsed));
        let advance = |clock: &AtomicU64| clock.fetch_add(10, Ordering::Relaxed);
        let wall: WallClock = Arc::new(move || Duration::from_millis(1_000_000 + advance(&wall)));
        let boot: BootClock = Box::new(move || Span(advance(&boot)));
        (Clocks { wall, boot }, elapsed)
    }

    #[test]
    fn a_preempted_thread_publishes_no_time_after_the_deadline() {
        let (clocks, elapsed) = slow_clocks();
        let moment = Moment::read(&clocks, || Time(500 + elapsed.fetch_add(10, Ordering::Relaxed)));
        // Kernel time is 500 ms ahead of the boot clock, and the wall clock 1,000,000 ms.
        let deadline = Time(500 + 300);
        assert!(moment.unix_ms_at(deadline) <= 1_000_000 + 300);
        let remaining = moment.remaining_ms(&clocks, deadline);
        assert!(elapsed.load(Ordering::Relaxed) - 10 + remaining <= 300, "{remaining}");
    }

    #[test]
    fn past_and_future_are_shown_by_the_wall_clock() {
        let moment = Moment { now: Time(1000), unix_ms: 50_000, boot_clock: Span(7) };
        assert_eq!(moment.unix_ms_at(Time(400)), 49_400);
        assert_eq!(moment.unix_ms_at(Time(1000)), 50_000);
        assert_eq!(moment.unix_ms_at(Time(61_000)), 110_000);
        assert_eq!(moment.unix_ms_at(Time::NEVER), u64::MAX, "it does not overflow");
    }
}
