//! The stream protocol: short calls in frames, many in flight on one connection, where the server offers it. All other calls,
//! and those that would exceed the maximum in flight, are sent over HTTP.
//!
//! **Invariant.** A failure says what it means for the request as it would over HTTP: [`StreamFailure::NotBegun`] and
//! [`StreamFailure::Connect`] only if the server has certainly not begun it, and [`StreamFailure::Unknown`] otherwise. A request
//! whose caller is gone is cancelled.
//!
//! `frame` turns a request into a frame; `link` opens the connection to one server, and remembers if that speaks only HTTP;
//! `connection` is a connection for its callers, and `driver` the task that reads and writes. What is absent: retries, failover,
//! and the meaning of any response, which are those of `call`.

mod connection;
mod driver;
mod frame;
mod link;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use hyper::body::Bytes;

pub(crate) use frame::frame_of;
pub(crate) use link::StreamLink;

/// When short calls are sent in frames: the stream protocol of lockd, with many requests in flight on one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamProtocol {
    /// Never: all calls are sent over HTTP.
    Never,
    /// Over TLS, if the server offers it in the handshake.
    #[default]
    IfOffered,
    /// Without TLS too. A server that does not know it is sent HTTP instead, at the cost of a connection each minute.
    Always,
}

/// The response to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The server that has carried out a forwarded request.
    pub(crate) server: Option<String>,
    pub(crate) body: Bytes,
}

/// Why a request has no response.
#[derive(Clone, Debug)]
pub(crate) enum StreamFailure {
    /// No connection could be opened.
    Connect(Arc<io::Error>),
    /// The connection was being closed before the server began the request.
    NotBegun,
    /// The connection broke, or the server gave up the request: it may have been carried out.
    Unknown(Arc<io::Error>),
}
