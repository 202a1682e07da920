//! Durations, sizes and counts: their ranges, and how they are written.

use std::fmt;
use std::time::Duration;

use engine::document::INLINE_MAX;

/// The smallest and the largest value of a setting, both allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// A length of time.
    Duration(Duration, Duration),
    /// Bytes.
    Size(u64, u64),
    /// A number of things.
    Count(u64, u64),
}

const MS: Duration = Duration::from_millis(1);
/// The kernel counts milliseconds in 32 bits.
const SPAN_MAX: Duration = Duration::from_millis(kernel::Limits::SPAN_MAX.0);

impl Range {
    /// A duration that may be zero.
    pub(crate) const SPAN: Range = Range::Duration(Duration::ZERO, SPAN_MAX);
    /// A duration of at least a millisecond.
    pub(crate) const SPAN_FROM_1_MS: Range = Range::Duration(MS, SPAN_MAX);
    /// A duration of at most an hour.
    pub(crate) const UP_TO_AN_HOUR: Range = Range::Duration(Duration::ZERO, Duration::from_secs(3600));
    /// The largest integer of TOML is the largest size.
    pub(crate) const DOCUMENT: Range = Range::Size(1, i64::MAX as u64);
    /// What fits into a record.
    pub(crate) const INLINE: Range = Range::Size(0, INLINE_MAX as u64);

    /// A count that the kernel keeps in 32 bits.
    pub(crate) const fn count_from(min: u64) -> Range {
        Range::Count(min, u32::MAX as u64)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::Duration(min, max) => write!(f, "from {} to {}", duration_text(*min), duration_text(*max)),
            Range::Size(min, max) => write!(f, "from {} to {}", size_text(*min), size_text(*max)),
            Range::Count(min, max) => write!(f, "from {min} to {max}"),
        }
    }
}

/// A value that has a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Duration(Duration),
    /// Bytes, or a number of things.
    Number(u64),
}

impl Quantity {
    pub(crate) fn is_within(self, range: Range) -> bool {
        match (self, range) {
            (Quantity::Duration(value), Range::Duration(min, max)) => (min..=max).contains(&value),
            (Quantity::Number(value), Range::Size(min, max) | Range::Count(min, max)) => {
                (min..=max).contains(&value)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantity::Duration(duration) => f.write_str(&duration_text(*duration)),
            Quantity::Number(number) => number.fmt(f),
        }
    }
}

/// As it may be given to a flag: `1m 30s`. Exact to the nanosecond.
pub fn duration_text(duration: Duration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (u64::from(nanos / 1_000_000), "ms"),
        (u64::from(nanos / 1000 % 1000), "us"),
        (u64::from(nanos % 1000), "ns"),
    ];
    let parts: Vec<String> =
        parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    if parts.is_empty() { "0s".into() } else { parts.join(" ") }
}

/// As it may be given to a flag: `100MB`, `64KiB`, `1000`.
pub fn size_text(bytes: u64) -> String {
    let units: [(u64, &str); 6] = [
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1_000_000_000, "GB"),
        (1_000_000, "MB"),
        (1 << 10, "KiB"),
        (1000, "KB"),
    ];
    let whole = units.iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    whole.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_written_as_flags_take_them() {
        for (duration, text) in [
            (Duration::ZERO, "0s"),
            (Duration::from_secs(60 * 86_400), "60d"),
            (Duration::from_millis(90_250), "1m 30s 250ms"),
            (SPAN_MAX, "49d 17h 2m 47s 295ms"),
            (Duration::new(0, 1_002), "1us 2ns"),
        ] {
            assert_eq!(duration_text(duration), text);
        }
        for (bytes, text) in
            [(0, "0"), (100_000_000, "100MB"), (65_536, "64KiB"), (1001, "1001"), (3 << 30, "3GiB")]
        {
            assert_eq!(size_text(bytes), text);
        }
    }
}
