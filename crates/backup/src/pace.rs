//! How fast a copy may read and write, for how much of the time, and until when.
//!
//! **Invariant.** Every copied byte is counted here, so the rate and the timeout hold for the whole copy. Beside a server a
//! copy works for at most a tenth of the time, including its waits for the disk: even if the server could do nothing
//! meanwhile, it would lose a tenth of its throughput. Time that was lost is not made up for by a burst.
//!
//! **What would break it.** A low priority alone: Linux compares priorities within a session or a control group, and a copy
//! that a timer or an administrator starts is not in the server's. Work in the background: writeback that the copy has
//! started and does not wait for, so files are written in small parts. Counting the time in which the copy waits for a
//! processor: that costs the server nothing, and the copy on a busy machine would not end.

use std::cell::Cell;
use std::time::{Duration, Instant};

use store::{ErrorKind, StoreError};

use crate::error::BackupError;

/// Shows how far a copy is.
pub trait Progress {
    /// Begins a phase of about this many bytes.
    fn begin(&self, what: &'static str, bytes: u64);

    /// Counts bytes of the phase.
    fn advance(&self, bytes: u64);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn begin(&self, _: &'static str, _: u64) {}

    fn advance(&self, _: u64) {}
}

/// The limits of a copy.
pub struct Pace<'a> {
    progress: &'a dyn Progress,
    limits: Limits,
    timeout: Duration,
    started: Instant,
    paused: Cell<Duration>,
    stint: Cell<Stint>,
}

/// Shorter pauses are added up: the timers of the system are too coarse for them.
const PAUSE_MIN: Duration = Duration::from_millis(5);

impl<'a> Pace<'a> {
    /// Starts now, with a limit of the rate only.
    pub fn start(progress: &'a dyn Progress, rate: Option<u64>, timeout: Duration) -> Pace<'a> {
        Pace::with(progress, Limits { rate, share: 1 }, timeout)
    }

    /// Starts now. With a limit of the rate, the copy also works for at most a tenth of the time.
    pub(crate) fn beside_server(
        progress: &'a dyn Progress,
        rate: Option<u64>,
        timeout: Duration,
    ) -> Pace<'a> {
        Pace::with(progress, Limits { rate, share: if rate.is_some() { 10 } else { 1 } }, timeout)
    }

    /// Without a limit.
    pub(crate) fn unlimited(progress: &'a dyn Progress) -> Pace<'a> {
        Pace::start(progress, None, Duration::MAX)
    }

    fn with(progress: &'a dyn Progress, limits: Limits, timeout: Duration) -> Pace<'a> {
        let stint = Stint::begin(&limits);
        let (started, paused, stint) = (stint.begun, Cell::default(), Cell::new(stint));
        Pace { progress, limits, timeout, started, paused, stint }
    }

    pub(crate) fn begin(&self, what: &'static str, bytes: u64) {
        self.progress.begin(what, bytes);
    }

    /// Counts bytes, and pauses for as long as the limits demand. Fails once the timeout is over.
    pub(crate) fn advance(&self, bytes: u64) -> Result<(), BackupError> {
        let stint = self.stint.get();
        self.stint.set(Stint { bytes: stint.bytes + bytes, ..stint });
        self.pause(PAUSE_MIN, self.timeout);
        self.progress.advance(bytes);
        if self.started.elapsed() > self.timeout {
            let what =
                "the copy has exceeded its timeout, and was removed; allow more with --timeout or --rate";
            let what = format!("{what}: timeout={:?}", self.timeout);
            return Err(StoreError::new(ErrorKind::Io, what).into());
        }
        Ok(())
    }

    /// The time since the start, without pauses.
    pub(crate) fn worked(&self) -> Duration {
        self.started.elapsed().saturating_sub(self.paused.get())
    }

    /// Pauses at the end of a phase, for work that has counted no bytes.
    pub(crate) fn rest(&self) {
        self.pause(Duration::from_nanos(1), Duration::MAX);
    }

    /// Pauses if the limits demand at least `least`, until the timeout.
    #[expect(clippy::disallowed_methods, reason = "half a second at a time, and within the timeout")]
    fn pause(&self, least: Duration, timeout: Duration) {
        let stint = self.stint.get();
        let end = stint.end(&self.limits);
        let left = || end.saturating_sub(stint.begun.elapsed());
        if !left().is_zero() && left() < least {
            return;
        }
        let begun = stint.begun.elapsed();
        while !left().is_zero() && self.started.elapsed() <= timeout {
            let until_timeout = timeout.saturating_sub(self.started.elapsed()).saturating_add(PAUSE_MIN);
            std::thread::sleep(left().min(until_timeout).min(Duration::from_millis(500)));
            // A bar appears after a second, also between two parts.
            self.progress.advance(0);
        }
        self.paused.set(self.paused.get() + stint.begun.elapsed().saturating_sub(begun));
        // Also after a stint that was slower than it had to be: its time is not a credit.
        self.stint.set(Stint::begin(&self.limits));
    }
}

struct Limits {
    /// Bytes per second; `None` is unlimited.
    rate: Option<u64>,
    /// The copy works for one part in so many of the time.
    share: u32,
}

impl Limits {
    /// When the pause after a stint ends if the stint ends now, counted from its begin. `waited` is how long it had to wait for
    /// a processor.
    fn end(&self, bytes: u64, elapsed: Duration, waited: impl FnOnce() -> Duration) -> Duration {
        let at_most = self.duration(bytes, elapsed);
        // Only a pause that is due is worth the call.
        if self.share == 1 || at_most < elapsed + PAUSE_MIN {
            return at_most;
        }
        self.duration(bytes, elapsed.saturating_sub(waited()))
    }

    /// The least duration of a stint and the pause after it.
    fn duration(&self, bytes: u64, worked: Duration) -> Duration {
        let at_rate = self.rate.map_or(0.0, |rate| seconds(bytes, rate.max(1)));
        Duration::from_secs_f64(at_rate).max(worked.saturating_mul(self.share))
    }
}

/// The work since the last pause.
#[derive(Clone, Copy)]
struct Stint {
    begun: Instant,
    /// What [`processor_wait`] was.
    waited: Duration,
    bytes: u64,
}

impl Stint {
    #[expect(clippy::disallowed_methods, reason = "the clock of a copy")]
    fn begin(limits: &Limits) -> Stint {
        let waited = if limits.share > 1 { processor_wait() } else { Duration::ZERO };
        Stint { begun: Instant::now(), waited, bytes: 0 }
    }

    fn end(&self, limits: &Limits) -> Duration {
        let waited = || processor_wait().saturating_sub(self.waited);
        limits.end(self.bytes, self.begun.elapsed(), waited)
    }
}

/// How long the thread was ready to run and had no processor, since it was started. Zero if the kernel does not count it.
fn processor_wait() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').nth(1).and_then(|wait| wait.parse().ok()).unwrap_or(0))
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
fn seconds(bytes: u64, rate: u64) -> f64 {
    bytes as f64 / rate as f64
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_rate_is_kept_and_a_timeout_ends_the_copy() {
        let pace = Pace::start(&Quiet, Some(1_000_000), Duration::from_secs(60));
        pace.advance(50_000).expect("in time");
        assert!(pace.started.elapsed() >= 50 * MS);
        assert!(pace.started.elapsed().saturating_sub(pace.worked()) >= 40 * MS, "a pause is no work");
        let pace = Pace::start(&Quiet, None, Duration::ZERO);
        let refused = pace.advance(1).expect_err("over").to_string();
        assert!(refused.contains("--timeout"), "{refused}");
    }

    #[test]
    fn a_pause_ends_with_the_timeout() {
        let pace = Pace::start(&Quiet, Some(1), 20 * MS);
        pace.advance(1_000_000).expect_err("it would take eleven days");
        assert!(pace.started.elapsed() >= 20 * MS);
    }

    /// A copy took its rate as an average since its start. One that a slow disk had held back went on as fast as it could,
    /// beside the server that the disk had held back too.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the delay that the story is about")]
    fn time_that_was_lost_is_not_made_up_for() {
        let pace = Pace::start(&Quiet, Some(1_000_000), Duration::from_secs(60));
        std::thread::sleep(50 * MS);
        pace.advance(10_000).expect("in time");
        pace.rest();
        let begun = pace.started.elapsed();
        pace.advance(30_000).expect("in time");
        assert!(pace.started.elapsed().saturating_sub(begun) >= 25 * MS, "{begun:?}");
    }

    /// Within its rate, a copy kept a processor busy for as long as it could get one: the lowest priority counts within the
    /// session of the copy only.
    #[test]
    fn beside_a_server_a_copy_works_for_a_tenth_of_the_time() {
        let pace = Pace::beside_server(&Quiet, Some(u64::MAX), Duration::from_secs(60));
        let processor_time = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(
                time.tv_sec.try_into().expect("positive"),
                time.tv_nsec.try_into().expect("positive"),
            )
        };
        let (begun, mut worked) = (processor_time(), Duration::ZERO);
        for n in 1..=10 {
            while worked < n * 2 * MS {
                worked = processor_time().saturating_sub(begun);
            }
            pace.advance(1).expect("in time");
        }
        pace.rest();
        // What it works in the calls themselves is counted from the next stint on.
        assert!(pace.started.elapsed() >= worked * 9, "{:?} {worked:?}", pace.started.elapsed());
    }

    #[test]
    fn the_longer_of_the_two_limits_decides() {
        let limits = Limits { rate: Some(1_000_000), share: 10 };
        let not_waited = || Duration::ZERO;
        assert_eq!(limits.end(1000, 50 * MS, not_waited), 500 * MS);
        assert_eq!(limits.end(1_000_000, 50 * MS, not_waited), 1000 * MS);
        assert_eq!(limits.end(0, Duration::ZERO, not_waited), Duration::ZERO);
        assert_eq!(Limits { rate: None, share: 1 }.end(1 << 40, 50 * MS, not_waited), 50 * MS);
    }

    /// On a machine whose processors are all busy, a thread of the lowest priority gets one for a hundredth of the time.
    #[test]
    fn waiting_for_a_processor_is_not_work() {
        let limits = Limits { rate: Some(u64::MAX), share: 10 };
        assert_eq!(limits.end(1, 1000 * MS, || 999 * MS), 10 * MS, "less than has passed: no pause");
        let first = processor_wait();
        assert!(processor_wait() >= first, "it only grows");
    }
}
