//! An answer that gives a lease, on its way to a socket. If it gets no further than here, the grant is undone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::Response;
use engine::engine::Engine;
use engine::shard::Submission;
use http_body::{Frame, SizeHint};
use kernel::{Action, Command, LeaseId, RequestKey, Retraction};

/// A grant that nobody has yet.
pub(crate) struct Grant {
    engine: Arc<Engine>,
    retraction: Retraction,
    delivered: bool,
}

impl Grant {
    pub(crate) fn new(engine: &Arc<Engine>, lease: LeaseId, request: Option<RequestKey>) -> Grant {
        Grant { engine: Arc::clone(engine), retraction: Retraction { lease, request }, delivered: false }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !self.delivered {
            let command = Command::internal(Action::Retract(self.retraction));
            self.engine.sequencer().submit(Submission::new(command, Box::new(|_| true)));
        }
    }
}

/// A body that takes its grant along.
struct Carrying {
    bytes: Option<Bytes>,
    grant: Grant,
}

impl http_body::Body for Carrying {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let bytes = self.bytes.take();
        // From here on it is the socket's: what that swallows lasts until its TTL.
        self.grant.delivered = true;
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// A JSON answer that gives a lease; `None` where it was given before.
pub(crate) fn json(body: Vec<u8>, grant: Option<Grant>) -> Response {
    let body = match grant {
        Some(grant) => Body::new(Carrying { bytes: Some(body.into()), grant }),
        None => Body::from(body),
    };
    let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
    response.body(body).expect("its parts are valid")
}
