//! Measures durations for metrics. No decision depends on them; at most a thread wakes up a little early.

use std::time::{Duration, Instant};

/// Measures the time since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts a stopwatch.
    #[expect(clippy::disallowed_methods, reason = "the one place that measures durations")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
