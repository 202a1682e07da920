//! The dialects: HTTP requests become calls, outcomes become HTTP responses. No dialect touches the store.

mod azure;
mod azure_responses;
mod batch;
mod s3;
mod s3_responses;

use std::ops::Range;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Response, StatusCode};

use crate::call::{ByteRange, Call, Operation};
use crate::object::{Object, ObjectHead};
use crate::options::Dialect;
use crate::outcome::{Outcome, Refusal};
use crate::text::{self, Query};

/// An HTTP request whose body has been received.
#[derive(Debug)]
pub(crate) struct Received<'a> {
    pub(crate) method: &'a Method,
    /// The path, still encoded.
    pub(crate) path: &'a str,
    pub(crate) query: &'a Query,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) type HttpResponse = Response<Full<Bytes>>;

/// Understands a request. `has_bucket` tells an Azure account from a container.
pub(crate) fn parse(
    dialect: Dialect,
    request: &Received<'_>,
    has_bucket: &dyn Fn(&str) -> bool,
) -> Result<Call, Refusal> {
    match dialect {
        Dialect::S3 | Dialect::Gcs => s3::parse(request, dialect),
        Dialect::Azure => azure::parse(request, has_bucket),
    }
}

/// The response to a request. `call` is absent if the request was not understood.
pub(crate) fn respond(dialect: Dialect, call: Option<&Call>, outcome: Outcome) -> HttpResponse {
    let is_head = call.is_some_and(|call| call.operation() == Operation::Head);
    let response = match dialect {
        Dialect::S3 | Dialect::Gcs => s3_responses::respond(dialect, call, outcome),
        Dialect::Azure => azure_responses::respond(call, outcome),
    };
    if is_head && !response.status().is_success() { response.map(|_| Full::default()) } else { response }
}

impl Received<'_> {
    /// A header as text. A header that is not ASCII counts as absent.
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn owned_header(&self, name: &str) -> Option<String> {
        self.header(name).map(ToOwned::to_owned)
    }

    fn parameter(&self, name: &str) -> Result<String, Refusal> {
        self.query.get(name).map(ToOwned::to_owned).ok_or(Refusal::Malformed("a query parameter is missing"))
    }

    fn body_text(&self) -> Result<&str, Refusal> {
        std::str::from_utf8(&self.body).map_err(|_| Refusal::Malformed("the body is not UTF-8"))
    }

    /// The number in a query parameter that limits the keys of a page.
    fn limit(&self, name: &str) -> Result<Option<usize>, Refusal> {
        let number = self.query.get(name).map(str::parse).transpose();
        number.map_err(|_| Refusal::Malformed("the limit of keys is not a number"))
    }
}

/// Splits `/first/rest` and decodes both.
fn split_path(path: &str) -> Result<(String, String), Refusal> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let decoded = text::decode(first, false).zip(text::decode(rest, false));
    decoded.ok_or(Refusal::Malformed("the path is not UTF-8"))
}

/// Parses `bytes=first-last`, `bytes=first-` and `bytes=-suffix`. Any other range is ignored, as HTTP demands.
fn byte_range(text: &str) -> Option<ByteRange> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        return last.parse().ok().map(ByteRange::Suffix);
    }
    let first = first.parse().ok()?;
    let last = if last.is_empty() { None } else { Some(last.parse().ok()?) };
    if last.is_some_and(|last| last < first) { None } else { Some(ByteRange::From { first, last }) }
}

/// A response without a body. `Content-Length: 0` is stated unless the status forbids it.
fn empty(status: StatusCode) -> HttpResponse {
    with_body(status, None, Bytes::new())
}

fn xml(status: StatusCode, body: String) -> HttpResponse {
    with_body(status, Some(HeaderValue::from_static("application/xml")), Bytes::from(body))
}

fn with_body(status: StatusCode, content_type: Option<HeaderValue>, body: Bytes) -> HttpResponse {
    let length = body.len();
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some(content_type) = content_type {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    response
}

/// The response to a `GET` or `HEAD` that found its object, without what only one dialect adds.
fn found(object: &Object, range: Option<Range<u64>>, head: bool) -> HttpResponse {
    let (status, bytes) = match &range {
        Some(range) => (StatusCode::PARTIAL_CONTENT, range.clone()),
        None => (StatusCode::OK, 0..object.head.size),
    };
    let index = |offset: u64| usize::try_from(offset).expect("an object fits into memory");
    let body = object.body.slice(index(bytes.start)..index(bytes.end));
    let length = body.len();
    let default_type = HeaderValue::from_static("application/octet-stream");
    let content_type = object.head.content_type.clone().unwrap_or(default_type);
    let mut response = with_body(status, Some(content_type), if head { Bytes::new() } else { body });
    add_head(&mut response, &object.head);
    add(&mut response, header::CONTENT_LENGTH, &length.to_string());
    add(&mut response, header::ACCEPT_RANGES, "bytes");
    if let Some(range) = range {
        let text = format!("bytes {}-{}/{}", range.start, range.end - 1, object.head.size);
        add(&mut response, header::CONTENT_RANGE, &text);
    }
    response
}

fn add_head(response: &mut HttpResponse, head: &ObjectHead) {
    add(response, header::ETAG, &head.etag);
    add(response, header::LAST_MODIFIED, &text::http_date(head.modified));
}

/// Sets a header, unless its text cannot be one.
fn add(response: &mut HttpResponse, name: impl Into<HeaderName>, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name.into(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_http_does_not_define_are_ignored() {
        assert_eq!(byte_range("bytes=2-5"), Some(ByteRange::From { first: 2, last: Some(5) }));
        assert_eq!(byte_range("bytes=2-"), Some(ByteRange::From { first: 2, last: None }));
        assert_eq!(byte_range("bytes=-3"), Some(ByteRange::Suffix(3)));
        for odd in ["bytes=5-2", "bytes=a-b", "bytes=-", "items=1-2", "bytes=1-2,4-5", ""] {
            assert_eq!(byte_range(odd), None, "{odd}");
        }
    }

    #[test]
    fn an_encoded_slash_is_a_part_of_the_key() {
        assert_eq!(split_path("/b/a%2Fc/d"), Ok(("b".into(), "a/c/d".into())));
        assert_eq!(split_path("/b"), Ok(("b".into(), String::new())));
    }
}
