//! Recognises the requests that nearly all traffic consists of: short calls of HTTP/1.1 in their plainest form.
//!
//! **Invariant.** What is recognised here means the same to every parser of HTTP: a known method and path, header names from
//! a list, each at most once, values of visible characters, one length in digits. Anything else, valid or not, is not
//! recognised, and goes to the complete parser with all its bytes.
//!
//! **What would break it.** To accept a little more, such as a bare line feed or `Transfer-Encoding` beside a length: a proxy
//! before the server might see the end of the request elsewhere, and a client smuggle a second one past it.

use api::path;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};

/// The longest head, in bytes.
pub(super) const HEAD_MAX: usize = 4 << 10;
/// The longest body, in bytes.
pub(super) const BODY_MAX: usize = 16 << 10;

/// The calls, and whether they take a query.
const CALLS: [(&str, bool); 4] =
    [(path::ACQUIRE, false), (path::KEEPALIVE, false), (path::RELEASE, false), (path::UPDATE_STATE, true)];

/// How each request begins.
const BEGINNING: &[u8] = b"POST /v1/";
/// The length of the method, with the space behind it.
const METHOD: usize = b"POST ".len();

/// The type of every body.
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Why bytes are not a request that is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unrecognised {
    /// They may be the beginning of one.
    Partial,
    /// They are something else.
    Other,
}

/// The head of a request.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) uri: Uri,
    /// The headers that have a meaning for the calls.
    pub(super) headers: HeaderMap,
    /// The length of the head, in bytes.
    pub(super) length: usize,
    /// The length of the body, in bytes.
    pub(super) body: usize,
}

/// Recognises the requests of one connection. Clients repeat what they send: it remembers the last values.
#[derive(Default)]
pub(super) struct Recogniser {
    host: Option<HeaderValue>,
    uris: [Option<Uri>; CALLS.len()],
}

/// The headers of a request so far.
#[derive(Default)]
struct Fields {
    /// A bit for each name that has occurred.
    seen: u32,
    body: Option<usize>,
    headers: HeaderMap,
}

/// What a header is for.
enum Field {
    Host,
    Length,
    ContentType,
    KeepAlive,
    /// It has no meaning for the calls.
    Ignored,
    Passed(&'static HeaderName),
}

/// The headers that are passed on as they are.
static PASSED: [HeaderName; 6] = [
    HeaderName::from_static(api::header::IDEMPOTENCY_KEY),
    HeaderName::from_static(api::header::CORRELATION_ID),
    HeaderName::from_static(api::header::LEASE_ID),
    HeaderName::from_static(api::header::FENCING_TOKEN),
    HeaderName::from_static(api::header::IF_VERSION),
    HeaderName::from_static(api::header::IF_STATE_ETAG),
];

impl Recogniser {
    /// Recognises the request that begins here.
    pub(super) fn recognise(&mut self, bytes: &[u8]) -> Result<Head, Unrecognised> {
        let (target, mut rest) = request_line(bytes)?;
        let uri = self.uri(target).ok_or(Unrecognised::Other)?;
        let mut fields = Fields::default();
        loop {
            let (line, behind) = split_line(rest)?;
            rest = behind;
            // Also with the empty line at its end: a head and a body of their greatest lengths fit into the input.
            if bytes.len() - rest.len() > HEAD_MAX {
                return Err(Unrecognised::Other);
            }
            if line.is_empty() {
                break;
            }
            self.add(&mut fields, line).ok_or(Unrecognised::Other)?;
        }
        let Fields { body: Some(body), headers, .. } = fields else { return Err(Unrecognised::Other) };
        if !headers.contains_key(header::HOST) {
            return Err(Unrecognised::Other);
        }
        Ok(Head { uri, headers, length: bytes.len() - rest.len(), body })
    }

    /// Adds a header; `None` if it is not plain.
    fn add(&mut self, fields: &mut Fields, line: &[u8]) -> Option<()> {
        let (name, value) = split_field(line)?;
        let (number, field) = field(name)?;
        if fields.seen & (1 << number) != 0 {
            return None;
        }
        fields.seen |= 1 << number;
        let (name, value) = match field {
            Field::Ignored => return Some(()),
            Field::Length => {
                fields.body = Some(length(value)?);
                return Some(());
            }
            Field::KeepAlive => return value.eq_ignore_ascii_case(b"keep-alive").then_some(()),
            Field::Host => (header::HOST, self.host(value)?),
            Field::ContentType => (header::CONTENT_TYPE, (value == JSON.as_bytes()).then_some(JSON)?),
            Field::Passed(name) => (name.clone(), HeaderValue::from_bytes(value).ok()?),
        };
        fields.headers.insert(name, value);
        Some(())
    }

    /// The target of a request for one of the calls.
    fn uri(&mut self, target: &[u8]) -> Option<Uri> {
        let length = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let call = CALLS.iter().position(|(path, _)| path.as_bytes() == &target[..length])?;
        let (path, takes_query) = CALLS[call];
        if length == target.len() {
            return Some(self.uris[call].get_or_insert_with(|| Uri::from_static(path)).clone());
        }
        if takes_query { Uri::from_maybe_shared(Bytes::copy_from_slice(target)).ok() } else { None }
    }

    fn host(&mut self, value: &[u8]) -> Option<HeaderValue> {
        if self.host.as_ref().is_none_or(|host| host.as_bytes() != value) {
            self.host = Some(HeaderValue::from_bytes(value).ok()?);
        }
        self.host.clone()
    }
}

/// The target of the request, and the bytes behind the line.
fn request_line(bytes: &[u8]) -> Result<(&[u8], &[u8]), Unrecognised> {
    let length = bytes.len().min(BEGINNING.len());
    if bytes[..length] != BEGINNING[..length] {
        return Err(Unrecognised::Other);
    }
    let (line, rest) = split_line(bytes)?;
    let target = line[METHOD..].strip_suffix(b" HTTP/1.1").ok_or(Unrecognised::Other)?;
    if target.iter().all(u8::is_ascii_graphic) { Ok((target, rest)) } else { Err(Unrecognised::Other) }
}

/// The first line without its end, and the bytes behind it.
fn split_line(bytes: &[u8]) -> Result<(&[u8], &[u8]), Unrecognised> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return Err(if bytes.len() < HEAD_MAX { Unrecognised::Partial } else { Unrecognised::Other });
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or(Unrecognised::Other)?;
    Ok((line, &bytes[end + 1..]))
}

/// Name and value of a header; `None` unless both are plain.
fn split_field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let mut value = &line[colon + 1..];
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value.iter().all(|byte| (b' '..=b'~').contains(byte)).then_some((&line[..colon], value))
}

/// The header of this name, with a number for each name.
fn field(name: &[u8]) -> Option<(usize, Field)> {
    let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
    Some(match name.len() {
        4 if is("host") => (0, Field::Host),
        14 if is("content-length") => (1, Field::Length),
        12 if is("content-type") => (2, Field::ContentType),
        10 if is("connection") => (3, Field::KeepAlive),
        10 if is("user-agent") => (4, Field::Ignored),
        6 if is("accept") => (5, Field::Ignored),
        15 if is("accept-encoding") => (6, Field::Ignored),
        _ => {
            let at = PASSED.iter().position(|known| is(known.as_str()))?;
            (7 + at, Field::Passed(&PASSED[at]))
        }
    })
}

/// A length in digits, within the limit.
fn length(value: &[u8]) -> Option<usize> {
    if value.is_empty() || value.len() > 6 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length = value.iter().fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    (length <= BODY_MAX).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "POST /v1/acquire HTTP/1.1\r\nHost: a:1\r\ncontent-type: application/json\r\n\
        Content-Length: 13\r\nUser-Agent: x/1\r\nx-idempotency-key:  k \r\n\r\n{\"key\":\"a\"}";

    fn recognise(text: &str) -> Result<Head, Unrecognised> {
        Recogniser::default().recognise(text.as_bytes())
    }

    #[test]
    fn a_plain_call_is_recognised_once_its_head_is_complete() {
        let head = recognise(PLAIN).expect("plain");
        assert_eq!((head.uri.path(), head.body), ("/v1/acquire", 13));
        assert_eq!(&PLAIN[head.length..], "{\"key\":\"a\"}");
        let names: Vec<&str> = head.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["host", "content-type", "x-idempotency-key"]);
        assert_eq!(head.headers["x-idempotency-key"], "k");
        for cut in 0..head.length {
            assert_eq!(recognise(&PLAIN[..cut]).unwrap_err(), Unrecognised::Partial, "{cut}");
        }
    }

    #[test]
    fn the_query_of_an_update_is_kept_and_that_of_other_calls_is_not_recognised() {
        let update = PLAIN.replace("/v1/acquire", "/v1/update_state?key=a%20b&namespace=n");
        assert_eq!(recognise(&update).expect("plain").uri, "/v1/update_state?key=a%20b&namespace=n");
        let acquire = PLAIN.replace("/v1/acquire", "/v1/acquire?include_state=1");
        assert_eq!(recognise(&acquire).unwrap_err(), Unrecognised::Other);
    }

    /// Each of these is another request, an invalid one, or one that two parsers may end at different bytes.
    #[test]
    fn anything_else_is_left_to_the_complete_parser() {
        let changes = [
            ("POST ", "GET "),
            ("POST ", "post "),
            ("POST ", "POST  "),
            ("/v1/acquire", "/v1/acquire/"),
            ("/v1/acquire", "http://a:1/v1/acquire"),
            ("/v1/acquire", "/v1/%61cquire"),
            ("/v1/acquire", "/v1/metrics"),
            (" HTTP/1.1", " HTTP/1.0"),
            (" HTTP/1.1", ""),
            ("HTTP/1.1\r\n", "HTTP/1.1\n"),
            ("Host: a:1\r\n", ""),
            ("Host: a:1\r\n", "Host: a:1\r\nHost: a:1\r\n"),
            ("Host: a:1\r\n", "Host : a:1\r\n"),
            ("Host: a:1\r\n", "Host: a:1\n"),
            ("Host: a:1\r\n", "Host: a:1\r\r\n"),
            ("Host: a:1\r\n", "Host: a:1\r\n folded\r\n"),
            ("Host: a:1\r\n", "Host: a\u{e9}\r\n"),
            ("Host: a:1\r\n", "Host: a\0b\r\n"),
            ("Content-Length: 13", "Content-Length: 13\r\ncontent-length: 13"),
            ("Content-Length: 13", "Content-Length: +13"),
            ("Content-Length: 13", "Content-Length: 13, 13"),
            ("Content-Length: 13", "Content-Length:"),
            ("Content-Length: 13", "Content-Length: 16385"),
            ("Content-Length: 13", "Content-Length: 99999999999999999999"),
            ("Content-Length: 13", "Transfer-Encoding: chunked"),
            ("User-Agent: x/1", "Transfer-Encoding: chunked"),
            ("User-Agent: x/1", "Expect: 100-continue"),
            ("User-Agent: x/1", "Connection: close"),
            ("User-Agent: x/1", "Connection: keep-alive, upgrade"),
            ("User-Agent: x/1", "Upgrade: h2c"),
            ("User-Agent: x/1", "Origin: https://evil.example"),
            ("User-Agent: x/1", "Sec-Fetch-Site: cross-site"),
            ("User-Agent: x/1", "X-Lockd-Forwarded: a"),
            ("User-Agent: x/1", "X-Idempotency-Key: j"),
            ("User-Agent: x/1", "no colon"),
            ("application/json", "text/plain"),
            ("application/json", "application/json; charset=utf-8"),
        ];
        for (from, to) in changes {
            let text = PLAIN.replacen(from, to, 1);
            assert_ne!(text, PLAIN, "{from}");
            assert_eq!(recognise(&text).unwrap_err(), Unrecognised::Other, "{text}");
        }
        assert_eq!(recognise("PRI * HTTP/2.0\r\n\r\n").unwrap_err(), Unrecognised::Other);
    }

    /// A head of two bytes more was recognised. With the longest body it did not fit into the input, of which no more was
    /// read: the request was never complete, and no timeout ran.
    #[test]
    fn the_longest_head_is_within_the_limit_with_its_last_line() {
        let head = |length: usize| {
            let value = "x".repeat(length - PLAIN.find("\r\n\r\n").expect("a head") - 4 + "x/1".len());
            PLAIN.replace("User-Agent: x/1", &format!("User-Agent: {value}"))
        };
        assert_eq!(recognise(&head(HEAD_MAX)).expect("plain").length, HEAD_MAX);
        for length in [HEAD_MAX + 1, HEAD_MAX + 2] {
            assert_eq!(recognise(&head(length)).unwrap_err(), Unrecognised::Other, "{length}");
        }
    }

    #[test]
    fn a_head_that_never_ends_is_not_kept() {
        let endless =
            format!("{}{}", &PLAIN[..PLAIN.find("x-idem").expect("there")], "User-Agent".repeat(500));
        assert_eq!(recognise(&endless).unwrap_err(), Unrecognised::Other);
    }
}
