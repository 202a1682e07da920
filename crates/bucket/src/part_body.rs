//! The body of a request whose bytes are in a spool.
//!
//! The client library takes bodies that are in memory, and signs their hash. A spooled part is handed to it as zeros of the
//! same length, all of which share one block of memory, and without a signature of the hash (`UNSIGNED-PAYLOAD`: the
//! connection protects the bytes). The HTTP service sends the part in their place.
//!
//! **Invariant.** A request has the bytes of its part, or fails. **What would break it.** Sending the zeros: so the part
//! belongs to the task of the operation, and replaces the body of each of its requests to the object itself.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Method, Uri};
use http_body::{Body, Frame, SizeHint};
use object_store::PutPayload;
use object_store::client::{HttpError, HttpErrorKind, HttpRequestBody};
use store::object::Part;
use tokio::task::JoinHandle;

use crate::exchange::Exchange;

/// Zeros that stand for the bytes of spooled parts.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

tokio::task_local! {
    static PART: Part;
}

/// Runs an operation whose request has this spooled part as its body.
pub(crate) async fn with_part<T>(part: Part, operation: impl Future<Output = T>) -> T {
    PART.scope(part, operation).await
}

/// A payload of this length that takes no memory.
pub(crate) fn placeholder(length: usize) -> PutPayload {
    let whole = (0..length / ZEROS.len()).map(|_| Bytes::from_static(&ZEROS));
    let rest = Bytes::from_static(&ZEROS[..length % ZEROS.len()]);
    whole.chain((!rest.is_empty()).then_some(rest)).collect()
}

/// The body of a request.
pub(crate) enum RequestBody {
    /// As the library has made it.
    Library(HttpRequestBody),
    /// From a spool.
    Spooled(PartBody),
}

impl RequestBody {
    /// The body to send for a request of the library.
    pub(crate) fn of(method: &Method, uri: &Uri, body: HttpRequestBody) -> RequestBody {
        if *method != Method::PUT || !Exchange::has(uri) {
            return RequestBody::Library(body);
        }
        match PART.try_with(Clone::clone) {
            Ok(part) => {
                assert_eq!(part.len(), body.content_length(), "the placeholder is as long as the part");
                RequestBody::Spooled(PartBody { part, offset: 0, reading: None })
            }
            Err(_) => RequestBody::Library(body),
        }
    }
}

/// Reads a part piece by piece, while the piece before is sent.
pub(crate) struct PartBody {
    part: Part,
    offset: usize,
    reading: Option<JoinHandle<std::io::Result<Vec<u8>>>>,
}

impl PartBody {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        if self.offset == self.part.len() {
            return Poll::Ready(None);
        }
        let (part, offset) = (&self.part, self.offset);
        let reading = self.reading.get_or_insert_with(|| {
            let part = part.clone();
            tokio::task::spawn_blocking(move || part.read(offset, Part::PIECE_BYTES))
        });
        let read = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        let piece = match read {
            Ok(Ok(piece)) => piece,
            Ok(Err(error)) => return Poll::Ready(Some(Err(unreadable(error)))),
            Err(error) => return Poll::Ready(Some(Err(unreadable(error)))),
        };
        self.offset += piece.len();
        Poll::Ready(Some(Ok(Bytes::from(piece))))
    }
}

fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        match self.get_mut() {
            RequestBody::Library(body) => Pin::new(body).poll_frame(context),
            RequestBody::Spooled(body) => {
                let piece = ready!(body.poll_piece(context));
                Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Library(body) => body.is_end_stream(),
            RequestBody::Spooled(body) => body.offset == body.part.len(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Library(body) => body.size_hint(),
            RequestBody::Spooled(body) => SizeHint::with_exact((body.part.len() - body.offset) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_have_every_length_and_share_their_memory() {
        for length in [0, 1, ZEROS.len() - 1, ZEROS.len(), ZEROS.len() + 1, 5 << 20] {
            let payload = placeholder(length);
            assert_eq!(payload.content_length(), length);
            assert!(payload.iter().all(|piece| piece.as_ptr() == ZEROS.as_ptr()), "length={length}");
        }
    }
}
