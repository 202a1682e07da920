//! The part of a document that a client requests: `Range`, `If-Range` and `If-None-Match`.

use std::ops::Range;

use axum::http::{HeaderMap, HeaderValue, header};

/// The part of a document that a response contains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    Whole,
    Range(Range<u64>),
    /// The range begins after the end of the document.
    NotSatisfiable,
    /// Nothing: the client has this version.
    NotModified,
}

impl Selection {
    /// `etag` and `length` are those of the current document.
    pub(crate) fn parse(headers: &HeaderMap, etag: &str, length: u64) -> Selection {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        if text(header::IF_NONE_MATCH).is_some_and(|known| contains_etag(known, etag)) {
            return Selection::NotModified;
        }
        // A range is of use only with the rest of the same version; a weak etag does not identify one.
        let same_version = text(header::IF_RANGE).is_none_or(|known| known.trim() == format!("\"{etag}\""));
        match text(header::RANGE).filter(|_| same_version) {
            Some(range) => parse_range(range, length),
            None => Selection::Whole,
        }
    }
}

/// Is the etag in a list? Weak and strong etags are of the same content.
fn contains_etag(list: &str, etag: &str) -> bool {
    let matches = |item: &str| item.trim().trim_start_matches("W/").trim_matches('"') == etag;
    list.trim() == "*" || list.split(',').any(matches)
}

/// `bytes=` and one range. Several ranges and malformed ones select the whole document, as HTTP allows.
fn parse_range(range: &str, length: u64) -> Selection {
    let Some((from, to)) = range.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Selection::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (number(from), number(to)) {
        (Some(from), to) if to.is_some() || range.trim().ends_with('-') => {
            let end = to.map_or(length, |to| to.saturating_add(1).min(length));
            if to.is_some_and(|to| to < from) {
                Selection::Whole
            } else if from >= length {
                Selection::NotSatisfiable
            } else {
                Selection::Range(from..end)
            }
        }
        (None, Some(0)) if from.trim().is_empty() => Selection::NotSatisfiable,
        (None, Some(last)) if from.trim().is_empty() => Selection::Range(length.saturating_sub(last)..length),
        _ => Selection::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_selects_its_bytes_or_the_whole_document() {
        for (range, selection) in [
            ("bytes=0-0", Selection::Range(0..1)),
            ("bytes=2-5", Selection::Range(2..6)),
            ("bytes=2-", Selection::Range(2..10)),
            ("bytes=-3", Selection::Range(7..10)),
            ("bytes=-30", Selection::Range(0..10)),
            ("bytes=9-99", Selection::Range(9..10)),
            ("bytes=10-", Selection::NotSatisfiable),
            ("bytes=10-12", Selection::NotSatisfiable),
            ("bytes=-0", Selection::NotSatisfiable),
            ("bytes=5-2", Selection::Whole),
            ("bytes=0-1,3-4", Selection::Whole),
            ("bytes=a-b", Selection::Whole),
            ("bytes=-", Selection::Whole),
            ("bytes=", Selection::Whole),
            ("lines=0-1", Selection::Whole),
            ("bytes=0-18446744073709551615", Selection::Range(0..10)),
            ("bytes=0-99999999999999999999", Selection::Whole),
        ] {
            assert_eq!(parse_range(range, 10), selection, "{range}");
        }
    }

    #[test]
    fn an_etag_matches_in_any_spelling() {
        for list in ["*", "\"ab\"", "W/\"ab\"", "\"x\", \"ab\"", "ab"] {
            assert!(contains_etag(list, "ab"), "{list}");
        }
        for list in ["", "\"\"", "\"abc\"", "\"a\", \"b\""] {
            assert!(!contains_etag(list, "ab"), "{list}");
        }
    }
}
