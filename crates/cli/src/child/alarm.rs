//! A clock that counts while the machine sleeps, and a descriptor that tells when a moment has come on it.
//!
//! The time-out of `poll` stands still while the machine sleeps: a command would run on after its machine has woken up,
//! for as long as was left when it fell asleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

pub(super) struct Alarm(OwnedFd);

/// A moment since the machine started, which is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// By the clock that counts while the machine sleeps.
    pub fn now() -> Moment {
        let now = clock_gettime(ClockId::Boottime);
        Moment(Duration::try_from(now).expect("the clock counts from 0"))
    }

    /// So much later.
    #[must_use]
    pub fn after(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(span))
    }

    /// How long it is from `earlier`; nothing if that is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Alarm(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// From `at` on it can be read, and not before.
    pub(super) fn set(&self, at: Moment) -> io::Result<()> {
        let never = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval: zero, it_value: Timespec::try_from(at.0).unwrap_or(never) };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
