//! Times and durations in the output.

use std::time::{Duration, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A duration for people: whole seconds, or milliseconds below one second.
pub fn duration_text(span: Duration) -> String {
    let whole = if span < Duration::from_secs(1) {
        Duration::from_millis(span.as_millis().try_into().unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(span.as_secs())
    };
    humantime::format_duration(whole).to_string()
}

/// The same for milliseconds.
pub fn ms_text(ms: u64) -> String {
    duration_text(Duration::from_millis(ms))
}

/// A time in Unix milliseconds as RFC 3339, in whole seconds.
pub fn unix_ms_text(unix_ms: u64) -> String {
    let since = Duration::from_millis(unix_ms);
    UNIX_EPOCH.checked_add(since).map_or_else(
        || format!("unix_ms={unix_ms}"),
        |time| humantime::format_rfc3339_seconds(time).to_string(),
    )
}

/// The same with milliseconds.
pub fn unix_ms_text_precise(unix_ms: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms));
    time.map_or_else(
        || format!("unix_ms={unix_ms}"),
        |time| humantime::format_rfc3339_millis(time).to_string(),
    )
}

/// The wall-clock time in Unix milliseconds.
pub fn now_unix_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds * 1000 + nanos / 1_000_000
}

/// The wall-clock time as RFC 3339.
pub fn now() -> String {
    unix_ms_text(now_unix_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_no_more_digits_than_people_read() {
        for (ms, text) in [
            (0, "0s"),
            (450, "450ms"),
            (1_999, "1s"),
            (19_400, "19s"),
            (125_000, "2m 5s"),
            (86_400_000, "1day"),
        ] {
            assert_eq!(ms_text(ms), text);
        }
        assert_eq!(unix_ms_text(1_794_855_903_250), "2026-11-16T19:05:03Z");
    }
}
