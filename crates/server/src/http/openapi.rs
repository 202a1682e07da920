//! `GET /openapi.json`: the OpenAPI document of this server, for client generators and tests.
//!
//! **Invariant.** The document matches the server. Its paths are the router's: both are built from one list of [`ApiCall`]s.
//! Its schemas are derived from the types that requests and responses are (de)serialized with. The tests of this crate
//! check every response that they get, by status, code and body, against the document.
//!
//! [`call`] describes one call; [`document()`] assembles all of them; [`rules`] adds what derived schemas cannot express:
//! mutually exclusive fields, and the limits of this server.

mod call;
mod document;
#[cfg(test)]
mod reference;
mod rules;
#[cfg(test)]
mod tests;

use axum::Extension;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;

pub(crate) use call::{ApiCall, HeaderEtag, HeaderEventId, HeaderNumber, anything, json, number};
pub(crate) use document::document;

/// The document's path.
pub(crate) const PATH: &str = "/openapi.json";

/// The serialized document, built once.
#[derive(Clone)]
pub(crate) struct OpenApiDocument(pub(crate) Bytes);

pub(crate) async fn serve(
    Extension(OpenApiDocument(bytes)): Extension<OpenApiDocument>,
) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], bytes)
}
