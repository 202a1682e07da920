//! A response that carries a lease, until it is written to a socket. If its body is dropped unread, the delivery failed.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

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

/// A body that confirms its delivery with its first part, and goes on with a document.
struct StateBody {
    head: ConfirmingBody,
    document: Body,
    tail: Option<Bytes>,
}

impl http_body::Body for StateBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.head.is_end_stream() {
            let frame = ready!(Pin::new(&mut self.head).poll_frame(context));
            return Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)));
        }
        match ready!(Pin::new(&mut self.document).poll_frame(context)) {
            Some(frame) => Poll::Ready(Some(frame)),
            None => Poll::Ready(self.tail.take().map(|tail| Ok(Frame::data(tail)))),
        }
    }
}

/// A JSON object that carries a lease, with a document as its last field. The document is streamed.
pub(crate) fn json_with_state(object: Vec<u8>, document: Body, bytes: u64, delivery: Delivery) -> Response {
    let mut head = object;
    assert_eq!(head.pop(), Some(b'}'), "an object");
    head.extend_from_slice(b",\"state\":");
    let length = head.len() as u64 + bytes + 1;
    let head = ConfirmingBody { bytes: Some(head.into()), delivery: Some(delivery) };
    let body = Body::new(StateBody { head, document, tail: Some(Bytes::from_static(b"}")) });
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_LENGTH, length);
    response.body(body).expect("its parts are valid")
}

/// A JSON response that carries a lease, or the replay of one.
pub(crate) fn json(body: Vec<u8>, delivery: Delivery) -> Response {
    let body = Body::new(ConfirmingBody { bytes: Some(body.into()), delivery: Some(delivery) });
    let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
    response.body(body).expect("its parts are valid")
}
