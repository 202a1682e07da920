//! Bounded waiting: a regression fails after a minute instead of hanging the suite.

use std::time::{Duration, Instant};

/// Maximum time that a test waits for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Polls until the condition holds; fails after [`DEADLINE`].
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "the deadline is real time: other threads run")]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        std::thread::yield_now();
    }
}
