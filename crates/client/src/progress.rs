//! How far a large body has come, for whoever shows it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, SizeHint};

/// Bodies up to this size are not told of.
const SMALL: u64 = 64 << 10;
/// As much is handed on at once.
const PIECE: usize = 64 << 10;

/// Is told how far documents have come, on their way there or back.
pub trait Progress: Send + Sync {
    /// A body of so many bytes begins; again from its beginning, if it is tried again.
    fn begin(&self, bytes: u64);
    /// So many more of them were sent or received.
    fn moved(&self, bytes: u64);
}

/// Somebody to tell, if anybody wants to know.
pub(crate) type Watcher = Option<Arc<dyn Progress>>;

/// A body that tells how far it was sent.
pub(crate) struct Upload {
    rest: Bytes,
    watcher: Watcher,
}

impl Upload {
    pub(crate) fn new(body: Bytes, watcher: &Watcher) -> Upload {
        let bytes = body.len() as u64;
        let watcher = watcher.clone().filter(|_| bytes > SMALL);
        if let Some(watcher) = &watcher {
            watcher.begin(bytes);
        }
        Upload { rest: body, watcher }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let whole = if self.watcher.is_some() { PIECE } else { usize::MAX };
        let length = whole.min(self.rest.len());
        let piece = self.rest.split_to(length);
        if let Some(watcher) = &self.watcher {
            watcher.moved(length as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// A body that tells how far it was received.
pub(crate) fn download<B>(body: B, watcher: &Watcher) -> impl Body<Data = Bytes, Error = B::Error>
where
    B: Body<Data = Bytes>,
{
    let bytes = body.size_hint().exact().filter(|bytes| *bytes > SMALL);
    let watcher = watcher.clone().filter(|_| bytes.is_some());
    if let (Some(watcher), Some(bytes)) = (&watcher, bytes) {
        watcher.begin(bytes);
    }
    body.map_frame(move |frame| {
        if let (Some(watcher), Some(data)) = (&watcher, frame.data_ref()) {
            watcher.moved(data.len() as u64);
        }
        frame
    })
}
