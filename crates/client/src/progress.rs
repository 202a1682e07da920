//! Progress of large uploads and downloads, for progress bars.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, SizeHint};

/// Bodies up to this size are not reported, in bytes.
const SMALL_BYTES: u64 = 64 << 10;
/// Reported uploads are sent in chunks of this many bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Receives the progress of documents that are sent or received.
pub trait TransferProgress: Send + Sync {
    /// A body of `bytes` bytes begins. A retry begins again.
    fn begin(&self, bytes: u64);
    /// `bytes` more bytes of it were sent or received.
    fn moved(&self, bytes: u64);
}

/// The receiver of progress, if there is one.
pub(crate) type ProgressSink = Option<Arc<dyn TransferProgress>>;

/// A request body that reports its progress.
pub(crate) struct ProgressBody {
    rest: Bytes,
    sink: ProgressSink,
}

impl ProgressBody {
    pub(crate) fn new(body: Bytes, sink: &ProgressSink) -> ProgressBody {
        let bytes = body.len() as u64;
        let sink = sink.clone().filter(|_| bytes > SMALL_BYTES);
        if let Some(sink) = &sink {
            sink.begin(bytes);
        }
        ProgressBody { rest: body, sink }
    }
}

impl Body for ProgressBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let chunk_max = if self.sink.is_some() { CHUNK_BYTES } else { usize::MAX };
        let length = chunk_max.min(self.rest.len());
        let chunk = self.rest.split_to(length);
        if let Some(sink) = &self.sink {
            sink.moved(length as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// A response body that reports its progress.
pub(crate) fn download<B>(body: B, sink: &ProgressSink) -> impl Body<Data = Bytes, Error = B::Error>
where
    B: Body<Data = Bytes>,
{
    let bytes = body.size_hint().exact().filter(|bytes| *bytes > SMALL_BYTES);
    let sink = sink.clone().filter(|_| bytes.is_some());
    if let (Some(sink), Some(bytes)) = (&sink, bytes) {
        sink.begin(bytes);
    }
    body.map_frame(move |frame| {
        if let (Some(sink), Some(data)) = (&sink, frame.data_ref()) {
            sink.moved(data.len() as u64);
        }
        frame
    })
}
