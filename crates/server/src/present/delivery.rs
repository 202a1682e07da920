//! A response that carries a lease, until it is written to a socket. If its body is dropped unread, the delivery failed.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::Response;
use engine::Delivery;
use http_body::{Frame, SizeHint};

/// A body that confirms its delivery when it is read.
struct ConfirmingBody {
    bytes: Option<Bytes>,
    delivery: Option<Delivery>,
}

impl http_body::Body for ConfirmingBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let bytes = self.bytes.take();
        if let Some(delivery) = self.delivery.take() {
            delivery.confirm();
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// A JSON response that carries a lease, or the replay of one.
pub(crate) fn json(body: Vec<u8>, delivery: Delivery) -> Response {
    let body = Body::new(ConfirmingBody { bytes: Some(body.into()), delivery: Some(delivery) });
    let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
    response.body(body).expect("its parts are valid")
}
