//! Counts the memory of responses until they are sent.
//!
//! **Invariant.** The bytes of all long responses that are not sent yet are within the server's share of memory for
//! them, and those of each identity within its part. A response that would exceed either is replaced by a refusal; if
//! it carries a lease, its delivery has failed, and the grant is undone.
//!
//! **What is absent.** Streams of documents, whose memory is taken before the first chunk is read; streams of events, whose number is limited per identity, and timeouts: a client that does not
//! read its response loses its connection, and the bytes are returned.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use kernel::Identity;

use crate::backend::byte_budget::{ByteBudget, CountedBody};
use crate::backend::download::{CountedStream, STREAM_BYTES};
use crate::present::refusals::{RefusalResponse, over_limit};

/// Shorter responses are not counted.
const COUNTED_MIN: u64 = 16 << 10;

/// Takes the bytes of a response from the budget until its body is dropped.
pub(crate) fn charge(budget: &ByteBudget, identity: &Identity, response: Response) -> Response {
    let bytes = bytes_of(&response);
    if bytes < COUNTED_MIN {
        return response;
    }
    match budget.take(identity, bytes) {
        Ok(taken) => response.map(|body| Body::new(CountedBody::new(body, taken))),
        Err(limit) => RefusalResponse(over_limit(&limit)).into_response(),
    }
}

/// A body in memory has a known length; a stream has a few chunks in memory at a time.
fn bytes_of(response: &Response) -> u64 {
    if response.extensions().get::<CountedStream>().is_some() {
        return 0;
    }
    let content_type = response.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        return 0;
    }
    response.body().size_hint().exact().unwrap_or(STREAM_BYTES)
}
