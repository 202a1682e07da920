//! Validates times in RFC 3339.
//!
//! **What is absent.** Arithmetic, and the list of leap seconds: `:60` is accepted in every minute.

/// Whether the text is a `date-time` of RFC 3339, section 5.6.
pub(super) fn is_date_time(text: &str) -> bool {
    date_time(&mut text.as_bytes()).is_some() && text.is_ascii()
}

fn date_time(rest: &mut &[u8]) -> Option<()> {
    date(rest)?;
    one_of(rest, b"Tt")?;
    time_of_day(rest)?;
    fraction(rest)?;
    offset(rest)?;
    rest.is_empty().then_some(())
}

fn date(rest: &mut &[u8]) -> Option<()> {
    let year = digits(rest, 4)?;
    one_of(rest, b"-")?;
    let month = digits(rest, 2).filter(|month| (1..=12).contains(month))?;
    one_of(rest, b"-")?;
    digits(rest, 2).filter(|day| (1..=days(year, month)).contains(day)).map(drop)
}

fn days(year: u32, month: u32) -> u32 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn time_of_day(rest: &mut &[u8]) -> Option<()> {
    hour_and_minute(rest)?;
    one_of(rest, b":")?;
    digits(rest, 2).filter(|second| *second <= 60).map(drop)
}

fn hour_and_minute(rest: &mut &[u8]) -> Option<()> {
    digits(rest, 2).filter(|hour| *hour < 24)?;
    one_of(rest, b":")?;
    digits(rest, 2).filter(|minute| *minute < 60).map(drop)
}

fn fraction(rest: &mut &[u8]) -> Option<()> {
    if one_of(rest, b".").is_none() {
        return Some(());
    }
    digits(rest, 1)?;
    while digits(rest, 1).is_some() {}
    Some(())
}

fn offset(rest: &mut &[u8]) -> Option<()> {
    match one_of(rest, b"Zz+-")? {
        b'+' | b'-' => hour_and_minute(rest),
        _ => Some(()),
    }
}

fn digits(rest: &mut &[u8], count: usize) -> Option<u32> {
    let (digits, behind) = rest.split_at_checked(count)?;
    let value = digits
        .iter()
        .try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + u32::from(byte - b'0')))?;
    *rest = behind;
    Some(value)
}

fn one_of(rest: &mut &[u8], bytes: &[u8]) -> Option<u8> {
    let (first, behind) = rest.split_first().filter(|(first, _)| bytes.contains(first))?;
    *rest = behind;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_accepted_and_other_texts_refused() {
        for text in [
            "2026-11-15T08:42:00Z",
            "2024-02-29t23:59:60z",
            "2000-02-29T00:00:00.1+00:00",
            "0000-01-01T00:00:00-23:59",
            "1985-04-12T23:20:50.520000000001Z",
        ] {
            assert!(is_date_time(text), "{text}");
        }
        for text in [
            "",
            "NOW",
            "2026-11-15",
            "2026-11-15 08:42:00Z",
            "2026-11-15T08:42Z",
            "2026-11-15T08:42:00",
            "2026-13-15T08:42:00Z",
            "2026-00-15T08:42:00Z",
            "2026-11-31T08:42:00Z",
            "2023-02-29T08:42:00Z",
            "1900-02-29T08:42:00Z",
            "2026-11-00T08:42:00Z",
            "2026-11-15T24:00:00Z",
            "2026-11-15T08:60:00Z",
            "2026-11-15T08:42:61Z",
            "2026-11-15T08:42:00.Z",
            "2026-11-15T08:42:00+0100",
            "2026-11-15T08:42:00+24:00",
            "2026-11-15T08:42:00ZZ",
            "+2026-11-15T08:42:00Z",
            "2026-11-15T08:42:00Z ",
            "２026-11-15T08:42:00Z",
        ] {
            assert!(!is_date_time(text), "{text}");
        }
    }
}
