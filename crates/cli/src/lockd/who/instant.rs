//! A point in time on the command line.

use std::time::{Duration, UNIX_EPOCH};

use cli::times::now_unix_ms;

/// A point in time, absolute or before now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instant {
    /// Unix milliseconds.
    At(u64),
    /// This long before now.
    Ago(Duration),
}

/// Unix seconds above this are milliseconds by mistake: the year 5138.
const SECONDS_MAX: f64 = 1e11;

impl Instant {
    /// Parses RFC 3339 in UTC, Unix seconds, or `-10m`.
    pub(super) fn parse(text: &str) -> Result<Instant, String> {
        let text = text.trim();
        if let Some(duration) = text.strip_prefix('-') {
            let ago = humantime::parse_duration(duration).map_err(|error| error.to_string())?;
            return Ok(Instant::Ago(ago));
        }
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if let Some(seconds) = text.parse::<f64>().ok().filter(|_| is_number) {
            if seconds > SECONDS_MAX {
                return Err("Unix seconds are needed, and these are more than a thousand years".into());
            }
            return Ok(Instant::At(Duration::from_secs_f64(seconds).as_millis().try_into().unwrap_or(0)));
        }
        let time = humantime::parse_rfc3339_weak(text).map_err(|error| {
            format!("{error}; write 2026-11-18T02:13:04Z (UTC), Unix seconds, or -10m for ten minutes ago")
        })?;
        let since = time.duration_since(UNIX_EPOCH).map_err(|_| "a time before 1970".to_string())?;
        Ok(Instant::At(since.as_millis().try_into().unwrap_or(u64::MAX)))
    }

    /// The time in Unix milliseconds; an error if it is in the future.
    pub(super) fn unix_ms(self) -> Result<u64, String> {
        let now = now_unix_ms();
        match self {
            Instant::At(unix_ms) if unix_ms > now => Err("the time is in the future".into()),
            Instant::At(unix_ms) => Ok(unix_ms),
            Instant::Ago(ago) => Ok(now.saturating_sub(ago.as_millis().try_into().unwrap_or(u64::MAX))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_rfc_3339_unix_seconds_or_a_duration_ago() {
        let at = Ok(Instant::At(1_794_968_584_000));
        for text in ["2026-11-18T02:23:04Z", "2026-11-18 02:23:04", "1794968584", "1794968584.0"] {
            assert_eq!(Instant::parse(text), at, "{text}");
        }
        assert_eq!(Instant::parse("1794968584.25"), Ok(Instant::At(1_794_968_584_250)));
        assert_eq!(Instant::parse("-10m"), Ok(Instant::Ago(Duration::from_secs(600))));
        for bad in ["", "-", "-10", "yesterday", "1794968584000", "2026-11-18T02:23:04+02:00", "1e5", "inf"] {
            assert!(Instant::parse(bad).is_err(), "{bad}");
        }
        assert!(Instant::At(u64::MAX).unix_ms().is_err(), "the future is not in the log");
    }
}
