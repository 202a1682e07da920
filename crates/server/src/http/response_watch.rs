//! Response bodies that wait for their client.
//!
//! **Invariant.** A body whose next frame the client does not take within the stall timeout, or takes at less than the
//! minimum rate, ends its connection, on HTTP/1.1 and on HTTP/2.
//!
//! **What would break it.** A timeout of socket writes alone: an HTTP/2 client with a flow-control window of 0 reads from
//! the socket, and nothing is written. The body is not even polled then, so it cannot run a timer of its own: the list of
//! waiting bodies is checked from outside.
//!
//! **What is absent.** Bodies that wait for the server, such as event streams without an event: their client is not slow.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Version;
use axum::response::Response;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::Instant;

/// On HTTP/1.1 a body of this length fits into the buffers of the connection, whose writes have a timeout.
const BUFFERED_MAX: u64 = 64 << 10;

/// The response bodies of one connection. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct ResponseWatch(Arc<Mutex<Bodies>>);

#[derive(Default)]
struct Bodies {
    next_id: u64,
    waiting: BTreeMap<u64, Progress>,
}

/// How far a client has taken a body.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Since when the client could take the next frame; `None` while the server has none.
    waits_since: Option<Instant>,
    /// How long the client has let earlier frames wait.
    waited: Duration,
    bytes: u64,
}

impl Progress {
    fn is_stalled(&self, now: Instant, timeout: Duration, bytes_per_second_min: u64) -> bool {
        let Some(since) = self.waits_since else { return false };
        let waits = now.saturating_duration_since(since);
        let allowed = Duration::from_millis(self.bytes.saturating_mul(1000) / bytes_per_second_min.max(1));
        waits >= timeout || self.waited + waits >= timeout + allowed
    }

    /// The client has taken a frame, or asks for one that the server does not have yet.
    fn taken(&mut self, now: Instant, bytes: usize, waits: bool) {
        if let Some(since) = self.waits_since {
            self.waited += now.saturating_duration_since(since);
        }
        self.bytes += bytes as u64;
        self.waits_since = waits.then_some(now);
    }
}

impl ResponseWatch {
    /// Watches the body of a response.
    pub(crate) fn watch(&self, version: Version, response: Response) -> Response {
        let is_buffered = version < Version::HTTP_2
            && response.body().size_hint().exact().is_some_and(|n| n <= BUFFERED_MAX);
        if is_buffered || response.body().is_end_stream() {
            return response;
        }
        response.map(|inner| {
            let mut bodies = self.lock();
            let id = bodies.next_id;
            bodies.next_id += 1;
            bodies.waiting.insert(id, Progress { waits_since: Some(Instant::now()), ..Progress::default() });
            Body::new(WatchedBody { inner, id, watch: self.clone() })
        })
    }

    /// Whether the client lets any body wait for too long.
    pub(crate) fn is_stalled(&self, timeout: Duration, bytes_per_second_min: u64) -> bool {
        let now = Instant::now();
        let bodies = self.lock();
        bodies.waiting.values().any(|body| body.is_stalled(now, timeout, bytes_per_second_min))
    }

    fn lock(&self) -> MutexGuard<'_, Bodies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response body whose progress is recorded.
struct WatchedBody {
    inner: Body,
    id: u64,
    watch: ResponseWatch,
}

impl WatchedBody {
    fn taken(&self, bytes: usize, waits: bool) {
        let now = Instant::now();
        if let Some(progress) = self.watch.lock().waiting.get_mut(&self.id) {
            progress.taken(now, bytes, waits);
        }
    }
}

impl http_body::Body for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        match &polled {
            Poll::Pending => self.taken(0, false),
            Poll::Ready(Some(Ok(frame))) => self.taken(frame.data_ref().map_or(0, Bytes::len), true),
            Poll::Ready(_) => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.watch.lock().waiting.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn a_body_that_is_not_taken_or_taken_too_slowly_is_stalled() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut body = Progress { waits_since: Some(began), ..Progress::default() };
        assert!(!body.is_stalled(at(9), TIMEOUT, 1) && body.is_stalled(at(10), TIMEOUT, 1));
        // One byte every nine seconds, where one per second is required.
        body.taken(at(9), 1, true);
        assert!(!body.is_stalled(at(10), TIMEOUT, 1));
        assert!(body.is_stalled(at(11), TIMEOUT, 1), "10 s for the start and 1 s for a byte are used up");
        // The server has nothing to send: the client may wait.
        let mut idle = Progress { waits_since: Some(began), ..Progress::default() };
        idle.taken(at(1), 0, false);
        assert!(!idle.is_stalled(at(1000), TIMEOUT, 1));
    }
}
