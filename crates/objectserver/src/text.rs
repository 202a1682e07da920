//! Text on the wire: percent encoding, query strings, dates.

use std::time::{Duration, UNIX_EPOCH};

/// The parameters of a query string, decoded, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Returns `None` for a parameter that is not UTF-8.
    pub(crate) fn parse(text: Option<&str>) -> Option<Self> {
        let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let decoded = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(name, true)?, decode(value, true)?))
        });
        decoded.collect::<Option<_>>().map(Self)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|pair| pair.0 == name).map(|pair| pair.1.as_str())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The first of `names` that is present.
    pub(crate) fn first_of<'a>(&self, names: &[&'a str]) -> Option<&'a str> {
        names.iter().copied().find(|name| self.has(name))
    }
}

/// Undoes percent encoding; `plus` also turns `+` into a space, as in query strings.
pub(crate) fn decode(text: &str, plus: bool) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'%' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                decoded.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &rest[2..];
            }
            b'+' if plus => decoded.push(b' '),
            byte => decoded.push(byte),
        }
    }
    String::from_utf8(decoded).ok()
}

/// `Tue, 15 Nov 1994 08:12:31 GMT`, the form of `Last-Modified`.
pub(crate) fn http_date(since_epoch: Duration) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let date = humantime::format_rfc3339_seconds(UNIX_EPOCH + since_epoch).to_string();
    let month = date[5..7].parse().map_or(0, |month: usize| month.saturating_sub(1));
    let weekday = usize::try_from(since_epoch.as_secs() / 86_400 % 7).unwrap_or_default();
    format!("{}, {} {} {} {} GMT", DAYS[weekday], &date[8..10], MONTHS[month % 12], &date[..4], &date[11..19])
}

/// `1994-11-15T08:12:31.000Z`, the form of dates in lists.
pub(crate) fn iso_date(since_epoch: Duration) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + since_epoch).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_the_form_of_http() {
        assert_eq!(http_date(Duration::from_secs(784_887_151)), "Tue, 15 Nov 1994 08:12:31 GMT");
        assert_eq!(http_date(Duration::ZERO), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(iso_date(Duration::from_secs(784_887_151)), "1994-11-15T08:12:31.000Z");
    }

    #[test]
    fn percent_encoding_is_undone_and_bad_encoding_refused() {
        assert_eq!(decode("a%2Fb+c", false).as_deref(), Some("a/b+c"));
        assert_eq!(decode("a+b", true).as_deref(), Some("a b"));
        assert_eq!(decode("%C3%A9", false).as_deref(), Some("é"));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decode(bad, false), None, "{bad}");
        }
    }

    #[test]
    fn a_parameter_without_a_value_is_present_and_empty() {
        let query = Query::parse(Some("uploads&prefix=a%2Fb&max-keys=3")).expect("UTF-8");
        assert_eq!((query.get("uploads"), query.get("prefix")), (Some(""), Some("a/b")));
        assert!(!query.has("delete"));
    }
}
