//! Time for which something was watched and did not change.
//!
//! **Invariant.** An interval between two looks counts for at most a fraction of the silence. A process that was paused, or
//! a machine that was asleep, has not watched anything meanwhile: it must look several times before it may conclude that an
//! owner is silent.

use std::time::Duration;

use crate::backend::machine_clocks;

/// The fraction of the silence for which one interval counts at most.
const INTERVALS_MIN: u32 = 3;

/// The time of a look.
pub(super) fn boot_clock() -> Duration {
    Duration::from_millis(machine_clocks::since_boot().0)
}

/// Measures for how long something has been watched without a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchedTime {
    silence: Duration,
    watched: Duration,
    /// The boot clock at the last look.
    last_look: Option<Duration>,
}

impl WatchedTime {
    pub(crate) fn new(silence: Duration) -> WatchedTime {
        WatchedTime { silence, watched: Duration::ZERO, last_look: None }
    }

    /// It was looked at, at this time of the boot clock, and had changed or not.
    pub(crate) fn look(&mut self, now: Duration, has_changed: bool) {
        let since = self.last_look.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.last_look = self.last_look.max(Some(now));
        if has_changed {
            self.watched = Duration::ZERO;
        } else {
            self.watched = self.watched.saturating_add(since.min(self.silence / INTERVALS_MIN));
        }
    }

    /// How long it has been watched without a change.
    pub(crate) fn watched(&self) -> Duration {
        self.watched
    }

    /// Whether it has not changed for the silence.
    pub(crate) fn is_silent(&self) -> bool {
        self.watched >= self.silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(3);

    fn look_after(time: &mut WatchedTime, ms: u64, has_changed: bool) {
        time.look(Duration::from_millis(7_000 + ms), has_changed);
    }

    #[test]
    fn silence_is_the_time_since_the_last_change_that_was_seen() {
        let mut time = WatchedTime::new(SILENCE);
        look_after(&mut time, 0, true);
        for ms in (500..3000).step_by(500) {
            look_after(&mut time, ms, false);
            assert!(!time.is_silent(), "after {ms} ms");
        }
        look_after(&mut time, 3000, false);
        assert!(time.is_silent());
        look_after(&mut time, 3100, true);
        assert!(!time.is_silent());
    }

    /// A follower was stopped for a minute, and deposed a healthy owner with its first look.
    #[test]
    fn a_process_that_was_paused_has_not_watched() {
        let mut time = WatchedTime::new(SILENCE);
        look_after(&mut time, 0, true);
        look_after(&mut time, 60_000, false);
        assert!(!time.is_silent());
        assert_eq!(time.watched(), Duration::from_secs(1));
    }

    #[test]
    fn the_first_look_counts_for_nothing() {
        let mut time = WatchedTime::new(SILENCE);
        time.look(Duration::from_secs(7), false);
        assert_eq!(time.watched(), Duration::ZERO);
    }
}
