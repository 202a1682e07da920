//! How long things take, for figures that people look at. Nothing is ever decided by it: at most a thread wakes a little early.

use std::time::{Duration, Instant};

/// Runs from when it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "the one place that measures durations")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// How long it has been running.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
