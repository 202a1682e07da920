//! How fast a copy may read and write, and until when.
//!
//! **Invariant.** Every copied byte is counted here, so the rate and the timeout hold for the whole copy.

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

/// The rate and the timeout of a copy.
pub struct Pace<'a> {
    progress: &'a dyn Progress,
    /// Bytes per second; `None` is unlimited.
    rate: Option<u64>,
    timeout: Duration,
    started: Instant,
    bytes: Cell<u64>,
}

impl<'a> Pace<'a> {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "the clock of a copy")]
    pub fn start(progress: &'a dyn Progress, rate: Option<u64>, timeout: Duration) -> Pace<'a> {
        Pace { progress, rate, timeout, started: Instant::now(), bytes: Cell::new(0) }
    }

    /// Without a limit.
    pub(crate) fn unlimited(progress: &'a dyn Progress) -> Pace<'a> {
        Pace::start(progress, None, Duration::MAX)
    }

    pub(crate) fn begin(&self, what: &'static str, bytes: u64) {
        self.progress.begin(what, bytes);
    }

    /// Counts bytes, and waits for as long as the rate demands. Fails once the timeout is over.
    #[expect(clippy::disallowed_methods, reason = "less than a second at a time, and within the timeout")]
    pub(crate) fn advance(&self, bytes: u64) -> Result<(), BackupError> {
        self.progress.advance(bytes);
        self.bytes.set(self.bytes.get() + bytes);
        if self.started.elapsed() > self.timeout {
            let what =
                "the copy has exceeded its timeout, and was removed; allow more with --timeout or --rate";
            let what = format!("{what}: timeout={:?}", self.timeout);
            return Err(StoreError::new(ErrorKind::Io, what).into());
        }
        while let Some(ahead) = self.ahead() {
            std::thread::sleep(ahead.min(Duration::from_millis(500)));
            // A bar appears after a second, also between two parts.
            self.progress.advance(0);
        }
        Ok(())
    }

    /// The time by which the copy is faster than its rate.
    fn ahead(&self) -> Option<Duration> {
        let rate = self.rate?.max(1);
        let due = Duration::from_secs_f64(seconds(self.bytes.get(), rate));
        due.min(self.timeout).checked_sub(self.started.elapsed()).filter(|ahead| !ahead.is_zero())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
fn seconds(bytes: u64, rate: u64) -> f64 {
    bytes as f64 / rate as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_and_a_timeout_ends_the_copy() {
        let pace = Pace::start(&Quiet, Some(1_000_000), Duration::from_secs(60));
        pace.advance(50_000).expect("in time");
        assert!(pace.started.elapsed() >= Duration::from_millis(50));
        let pace = Pace::start(&Quiet, None, Duration::ZERO);
        let refused = pace.advance(1).expect_err("over").to_string();
        assert!(refused.contains("--timeout"), "{refused}");
    }
}
