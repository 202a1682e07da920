//! Lists: one page of keys in order, with prefix, delimiter, start and page size. Pure functions over an iterator.

use std::fmt::Write as _;

use crate::call::{ListQuery, Start};
use crate::object::ObjectHead;
use crate::outcome::Page;

/// Makes a page of `entries`, which are in order and hold all keys from the start of the query on.
pub(crate) fn page<'a>(
    query: &ListQuery,
    page_size: usize,
    entries: impl Iterator<Item = (&'a str, &'a ObjectHead)>,
) -> Page {
    let max = query.max.unwrap_or(page_size).min(page_size);
    let mut page =
        Page { prefix: query.prefix.clone(), delimiter: query.delimiter.clone(), max, ..Page::default() };
    let mut last: Option<String> = None;
    for (key, head) in entries.take_while(|entry| entry.0.starts_with(&query.prefix)) {
        if !begins_before(&query.start, key) {
            continue;
        }
        let common = common_prefix(query, key);
        if common.is_some_and(|common| page.common_prefixes.last().is_some_and(|last| last == common)) {
            continue;
        }
        if page.objects.len() + page.common_prefixes.len() >= max {
            page.next = last;
            break;
        }
        last = Some(token(common.map_or('k', |_| 'p'), common.unwrap_or(key)));
        match common {
            Some(common) => page.common_prefixes.push(common.to_owned()),
            None => page.objects.push((key.to_owned(), head.clone())),
        }
    }
    page
}

/// The lowest key that a page of this query can hold.
pub(crate) fn lower_bound(query: &ListQuery) -> &str {
    let start = match &query.start {
        Start::Beginning => "",
        Start::After(key) | Start::At(key) | Start::AfterPrefix(key) => key.as_str(),
    };
    start.max(query.prefix.as_str())
}

fn begins_before(start: &Start, key: &str) -> bool {
    match start {
        Start::Beginning => true,
        Start::After(after) => key > after.as_str(),
        Start::At(at) => key >= at.as_str(),
        Start::AfterPrefix(prefix) => key > prefix.as_str() && !key.starts_with(prefix),
    }
}

fn common_prefix<'a>(query: &ListQuery, key: &'a str) -> Option<&'a str> {
    let delimiter = query.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
    let within = key[query.prefix.len()..].find(delimiter)?;
    Some(&key[..query.prefix.len() + within + delimiter.len()])
}

/// A continuation token: `k` (a key) or `p` (a common prefix), and the text in hexadecimal.
fn token(kind: char, text: &str) -> String {
    let mut token = String::from(kind);
    for byte in text.bytes() {
        let _ = write!(token, "{byte:02x}");
    }
    token
}

/// The start that a continuation token stands for. Returns `None` for a token that this module did not make.
pub(crate) fn resume(token: &str) -> Option<Start> {
    let hexadecimal = token.get(1..)?;
    if hexadecimal.len() % 2 != 0 || !hexadecimal.is_ascii() {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&hexadecimal[at..at + 2], 16).ok();
    let bytes = (0..hexadecimal.len()).step_by(2).map(byte).collect::<Option<Vec<_>>>()?;
    let text = String::from_utf8(bytes).ok()?;
    match token.chars().next()? {
        'k' => Some(Start::After(text)),
        'p' => Some(Start::AfterPrefix(text)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use hyper::body::Bytes;

    use super::*;
    use crate::object::Object;

    /// All pages of a query, as one list of objects and common prefixes, and the number of pages.
    fn all(keys: &[&str], mut query: ListQuery, page_size: usize) -> (Vec<String>, usize) {
        let head = Object::new(Bytes::new(), None, 1, Duration::ZERO).head;
        let map: BTreeMap<_, _> = keys.iter().map(|key| (*key, head.clone())).collect();
        let (mut found, mut pages) = (Vec::new(), 0);
        loop {
            let from = lower_bound(&query).to_owned();
            let page = page(&query, page_size, map.range(from.as_str()..).map(|(key, head)| (*key, head)));
            pages += 1;
            found.extend(page.objects.into_iter().map(|object| object.0));
            found.extend(page.common_prefixes);
            let Some(next) = page.next else { return (found, pages) };
            query.start = resume(&next).expect("own token");
        }
    }

    fn query(prefix: &str, delimiter: Option<&str>) -> ListQuery {
        ListQuery {
            prefix: prefix.into(),
            delimiter: delimiter.map(Into::into),
            start: Start::Beginning,
            max: None,
        }
    }

    #[test]
    fn pages_together_hold_every_key_once() {
        let keys = ["a", "b/1", "b/2", "b/3", "c", "d/1/x"];
        for size in 1..8 {
            let (found, pages) = all(&keys, query("", None), size);
            assert_eq!(found, keys);
            assert_eq!(pages, keys.len().div_ceil(size));
            assert_eq!(all(&keys, query("b/", None), size).0, ["b/1", "b/2", "b/3"]);
        }
    }

    #[test]
    fn a_common_prefix_is_listed_once_however_small_the_page() {
        let keys = ["a", "b/1", "b/2", "b/3", "b0", "d/1/x"];
        for size in 1..8 {
            let (mut found, _) = all(&keys, query("", Some("/")), size);
            found.sort();
            assert_eq!(found, ["a", "b/", "b0", "d/"], "size={size}");
        }
    }

    #[test]
    fn starts_are_exclusive_or_inclusive() {
        let keys = ["a", "b", "c"];
        let from = |start| all(&keys, ListQuery { start, ..query("", None) }, 9).0;
        assert_eq!(from(Start::After("b".into())), ["c"]);
        assert_eq!(from(Start::At("b".into())), ["b", "c"]);
        assert_eq!(from(Start::After("bb".into())), ["c"]);
    }

    #[test]
    fn foreign_tokens_are_refused() {
        for bad in ["", "k", "kz", "x61", "k6", "é61"] {
            let start = resume(bad);
            assert!(start.is_none() || bad == "k", "{bad}");
        }
    }
}
