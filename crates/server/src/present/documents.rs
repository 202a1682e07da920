//! Documents as HTTP responses: whole, a range, unchanged, or none.

use std::ops::Range;

use api::{Code, Refusal, header as wire};
use axum::body::Body;
use axum::http::response::Builder;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kernel::{Document, KeyView};

use crate::present::etag::etag_text;
use crate::present::refusals::RefusalResponse;

/// The key has no document, or was never written.
pub(crate) fn no_document(view: Option<KeyView>) -> Response {
    let version = view.map_or(0, |view| view.version.0);
    let response = Response::builder().status(StatusCode::NO_CONTENT).header(wire::KEY_VERSION, version);
    response.body(Body::empty()).expect("its parts are valid")
}

/// The client has this version already.
pub(crate) fn not_modified(view: KeyView, document: &Document) -> Response {
    let response = head(view, document).status(StatusCode::NOT_MODIFIED).body(Body::empty());
    response.expect("its parts are valid")
}

/// The range begins after the end of the document.
pub(crate) fn range_not_satisfiable(length: u64) -> Response {
    let detail = format!("the range begins after the end of the document: bytes={length}");
    let mut response = RefusalResponse(Refusal::new(Code::InvalidRange, detail)).into_response();
    let content_range = HeaderValue::from_str(&format!("bytes */{length}")).expect("digits");
    response.headers_mut().insert(header::CONTENT_RANGE, content_range);
    response
}

/// The whole document.
pub(crate) fn whole(view: KeyView, document: &Document, body: Body) -> Response {
    content(head(view, document), document.bytes, body)
}

/// A range of the document.
pub(crate) fn partial(view: KeyView, document: &Document, range: &Range<u64>, body: Body) -> Response {
    let content_range = format!("bytes {}-{}/{}", range.start, range.end - 1, document.bytes);
    let head =
        head(view, document).status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, content_range);
    content(head, range.end - range.start, body)
}

fn head(view: KeyView, document: &Document) -> Builder {
    Response::builder()
        .header(header::ETAG, format!("\"{}\"", etag_text(document.etag)))
        .header(header::VARY, "accept-encoding")
        .header(wire::KEY_VERSION, view.version.0)
}

fn content(head: Builder, length: u64, body: Body) -> Response {
    let response = head
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::CONTENT_LENGTH, length)
        .body(body);
    response.expect("its parts are valid")
}
