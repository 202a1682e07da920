//! A response whose body is in memory, before it is written in the form of its connection.

use axum::body::{Body, Bytes};
use axum::http::response::Parts;
use axum::response::Response;
use http_body::Body as _;
use http_body_util::BodyExt as _;

/// A response whose body is in memory.
pub(crate) struct ShortResponse {
    pub(crate) head: Parts,
    pub(crate) bytes: Bytes,
    /// Read to its end. It may return memory to a budget when it is dropped: that is when the response is sent.
    pub(crate) body: Body,
}

impl ShortResponse {
    /// Reads the body. `None` if that fails: whether the call was carried out is not known to its client.
    pub(crate) async fn read(response: Response) -> Option<ShortResponse> {
        let (head, mut body) = response.into_parts();
        let mut bytes = Bytes::new();
        while !body.is_end_stream() {
            let Some(frame) = body.frame().await else { break };
            let data = frame.ok()?.into_data().unwrap_or_default();
            bytes = if bytes.is_empty() { data } else { [bytes, data].concat().into() };
        }
        Some(ShortResponse { head, bytes, body })
    }
}
