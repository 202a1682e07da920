//! `GET /openapi.json`: what this server answers, for programs that write clients and for tests.
//!
//! **Invariant.** The document says what is true. Its paths are the router's: both are made from one list of [`Call`]s.
//! Its schemas are derived from the types that requests are read into and answers are written from. That every answer
//! is declared, status, code and body, is checked wherever the tests of this crate ask anything.
//!
//! [`call`] is one call with its description; [`document()`] puts all of them together; [`rules`] adds what no derived
//! schema can say: which fields exclude each other, and the limits of this very server.

mod call;
mod document;
#[cfg(test)]
mod reference;
mod rules;

use axum::Extension;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;

pub(crate) use call::{Call, HeaderEtag, HeaderEventId, HeaderNumber, anything, json, number};
pub(crate) use document::document;

/// Where the document is.
pub(crate) const PATH: &str = "/openapi.json";

/// The document, made once.
#[derive(Clone)]
pub(crate) struct Document(pub(crate) Bytes);

pub(crate) async fn serve(Extension(Document(bytes)): Extension<Document>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], bytes)
}
