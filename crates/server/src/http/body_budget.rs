//! Counts the memory of request bodies that are received whole: JSON.
//!
//! **Invariant.** The bytes of the bodies that an identity is sending, and of those whose requests are not done yet, are
//! within its part of the memory for them, but for the first [`FREE_BYTES`] of each. A body that would exceed it is
//! refused before the rest of it is received.
//!
//! **What would break it.** A limit on the length of each body alone: hundreds of connections, each of which sends two
//! megabytes of a body as slowly as the minimum rate allows, occupied hundreds of megabytes.
//!
//! **What is absent.** Documents, which are stored while they are received, and count their own memory.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use engine::limits::ExceededLimit;
use http_body::{Body as _, Frame, SizeHint};
use kernel::Identity;

use crate::backend::byte_budget::{ByteBudget, TakenGuard};
use crate::present::refusals::{RefusalResponse, over_limit};

/// The first bytes of a body do not count: the memory of connections and requests has them.
const FREE_BYTES: u64 = 16 << 10;

/// The memory of one body, until the request is done. Clones are the same.
#[derive(Clone)]
pub(crate) struct BodyMemory(Arc<Mutex<BodyCount>>);

struct BodyCount {
    taken: TakenGuard,
    bytes: u64,
    exceeded: Option<ExceededLimit>,
}

impl BodyMemory {
    pub(crate) fn new(budget: &ByteBudget, identity: &Identity) -> BodyMemory {
        let taken = budget.nothing(identity);
        BodyMemory(Arc::new(Mutex::new(BodyCount { taken, bytes: 0, exceeded: None })))
    }

    /// The request, whose body is counted while it is received.
    pub(crate) fn count(&self, request: Request<Body>) -> Request<Body> {
        if request.body().is_end_stream() {
            return request;
        }
        request.map(|inner| Body::new(CountedRequestBody { inner, memory: self.clone() }))
    }

    /// The refusal, if the body exceeded a limit; otherwise the response.
    pub(crate) fn refuse(&self, response: Response) -> Response {
        match &self.lock().exceeded {
            Some(limit) => RefusalResponse(over_limit(limit)).into_response(),
            None => response,
        }
    }

    fn received(&self, bytes: usize) -> Result<(), axum::Error> {
        let mut count = self.lock();
        let before = count.bytes.max(FREE_BYTES);
        count.bytes += bytes as u64;
        let more = count.bytes.max(FREE_BYTES) - before;
        count.taken.grow(more).map_err(|limit| {
            count.exceeded = Some(limit);
            axum::Error::new(BodyRefused)
        })
    }

    fn lock(&self) -> MutexGuard<'_, BodyCount> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body is not received to its end.
#[derive(Debug)]
struct BodyRefused;

impl std::fmt::Display for BodyRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("too many bytes of request bodies are being received")
    }
}

impl std::error::Error for BodyRefused {}

struct CountedRequestBody {
    inner: Body,
    memory: BodyMemory,
}

impl http_body::Body for CountedRequestBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Err(error) = self.memory.received(frame.data_ref().map_or(0, Bytes::len))
        {
            return Poll::Ready(Some(Err(error)));
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
