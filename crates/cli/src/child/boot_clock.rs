//! `CLOCK_BOOTTIME`, which advances during suspend, and a timerfd on it.
//!
//! The timeout of `poll` stops during suspend: after a resume the command would run on for the time that was left when the
//! machine was suspended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// A timerfd on the boot clock.
pub(super) struct BootTimer(OwnedFd);

/// A point in time on the boot clock. The default is the boot itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// The current time.
    pub fn now() -> BootInstant {
        let now = clock_gettime(ClockId::Boottime);
        BootInstant(Duration::try_from(now).expect("the clock counts from 0"))
    }

    /// This time plus `span`, saturating.
    #[must_use]
    pub fn plus(self, span: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(span))
    }

    /// Time elapsed since `earlier`; zero if that is later.
    pub fn since(self, earlier: BootInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl BootTimer {
    pub(super) fn new() -> io::Result<BootTimer> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(BootTimer(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Makes the descriptor readable from `at` on.
    pub(super) fn set(&self, at: BootInstant) -> io::Result<()> {
        let never = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval: zero, it_value: Timespec::try_from(at.0).unwrap_or(never) };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
