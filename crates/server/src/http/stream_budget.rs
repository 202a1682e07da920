//! Counts the requests in progress of HTTP/2 and of the stream protocol.
//!
//! **Invariant.** The requests of an identity, from their heads until their responses are sent, occupy at most its part of
//! the memory for them. Beyond it a request is refused; the refusals that wait to be sent are counted too, and beyond
//! their share the connection is ended.
//!
//! **What would break it.** Limits on bodies and long responses alone: a connection carries 200 requests, and an identity
//! has a thousand connections. Requests that never send their bodies, or whose short responses a flow-control window of 0
//! keeps back, occupied hundreds of megabytes until their idle timeouts. A refusal is kept back like any other response.
//!
//! **What is absent.** HTTP/1.1: there a connection has one request at a time, and connections are limited.

use axum::body::Body;
use axum::http::Version;
use axum::response::{IntoResponse, Response};
use engine::limits::ExceededLimit;

use crate::backend::byte_budget::{CountedBody, TakenGuard};
use crate::backend::shards::Backend;
use crate::peer::{ConnectionEnd, Peer};
use crate::present::refusals::{RefusalResponse, over_limit};

/// A request in progress: its stream, task and buffers, in bytes. Measured: 5 KiB.
const REQUEST_BYTES: u64 = 8 << 10;
/// A refusal that waits to be sent, in bytes.
const REFUSAL_BYTES: u64 = 2 << 10;

/// The memory of a request, until it is dropped; nothing on HTTP/1.1.
pub(crate) struct RequestMemory(Option<TakenGuard>);

impl RequestMemory {
    /// Takes the memory of a request; or returns the response to send instead.
    pub(crate) fn take(
        backend: &Backend,
        peer: &Peer,
        version: Version,
    ) -> Result<RequestMemory, Box<Response>> {
        if version < Version::HTTP_2 {
            return Ok(RequestMemory(None));
        }
        match backend.requests.take(&peer.identity, REQUEST_BYTES) {
            Ok(taken) => Ok(RequestMemory(Some(taken))),
            Err(limit) => {
                let response = RefusalResponse(over_limit(&limit)).into_response();
                Err(Box::new(refuse(backend, peer, response)))
            }
        }
    }

    /// Keeps the memory until the response is sent.
    pub(crate) fn until_sent(self, response: Response) -> Response {
        match self.0 {
            Some(taken) => counted(response, taken),
            None => response,
        }
    }
}

/// The memory of the calls of a stream connection, until their replies are sent. It is taken and returned in steps, since each
/// locks the budget that all connections share.
pub(crate) struct StreamMemory {
    guard: TakenGuard,
    taken: u64,
    used: u64,
}

/// What a connection may use uncounted: one request with the longest body, as on HTTP/1.1.
const UNCOUNTED: u64 = REQUEST_BYTES + frames::BODY_MAX as u64;
/// What is taken at once.
const STEP: u64 = 64 << 10;

impl StreamMemory {
    pub(crate) fn new(backend: &Backend, peer: &Peer) -> StreamMemory {
        StreamMemory { guard: backend.requests.nothing(&peer.identity), taken: 0, used: 0 }
    }

    /// Takes the memory of a call whose body has this length; returns how much that is.
    pub(crate) fn take(&mut self, body: usize) -> Result<u64, ExceededLimit> {
        let bytes = REQUEST_BYTES + body as u64;
        while self.used + bytes > UNCOUNTED + self.taken {
            self.guard.grow(STEP)?;
            self.taken += STEP;
        }
        self.used += bytes;
        Ok(bytes)
    }

    /// Returns the memory of calls.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.used -= bytes;
        // One step is kept: a connection that goes back and forth about a boundary does not lock the budget each time.
        while UNCOUNTED + self.taken >= self.used + 2 * STEP && self.taken > 0 {
            self.guard.shrink(STEP);
            self.taken -= STEP;
        }
    }
}

/// Sends a refusal while there is memory for it. Otherwise the connection is ended.
fn refuse(backend: &Backend, peer: &Peer, response: Response) -> Response {
    let Ok(taken) = backend.request_refusals.take(&peer.identity, REFUSAL_BYTES) else {
        if peer.connection.end(ConnectionEnd::Overloaded) {
            backend.metrics.connection_ended(ConnectionEnd::Overloaded.as_str());
        }
        return response.map(|_| Body::empty());
    };
    counted(response, taken)
}

fn counted(response: Response, taken: TakenGuard) -> Response {
    response.map(|body| Body::new(CountedBody::new(body, taken)))
}
