//! The stream protocol: short calls of the API in frames with a length, many in flight on one connection.
//!
//! A connection begins with [`PREFACE`] in both directions, then each side sends frames; the server's first one has its
//! [`Settings`]. A request has a number that rises from one request to the next, and exactly one reply with that number: a
//! response, or [`Message::Aborted`] where HTTP would break the connection. Replies come in any order.
//! `docs/reference/stream.md` has the bytes.
//!
//! **Invariant.** There is one encoding of a message: fields rise by number, text is visible ASCII, and nothing is left over.
//! What [`parse()`] accepts, an encoder would have written.
//!
//! **What would break it.** A second spelling of a request, such as a repeated field: a proxy and the server could take
//! different ones for the request's.
//!
//! What is absent: sockets, HTTP, JSON, and the meaning of any call.

mod call;
mod encode;
mod field;
mod parse;

pub use call::{Method, is_carried};
pub use encode::{Unencodable, encode_control, encode_request, encode_response, renumber};
pub use field::{Field, Fields};
pub use parse::{Malformed, Message, Request, Response, parse, parse_preface};

/// The first bytes of a connection, in both directions. A server of HTTP refuses them as a request.
pub const PREFACE: &[u8; 8] = b"LOCKD/1\n";

/// The name of the protocol in the TLS handshake (ALPN).
pub const ALPN: &[u8] = b"lockd/1";

/// The longest body of a request, in bytes. Longer ones are sent over HTTP.
pub const BODY_MAX: usize = 16 << 10;

/// The longest frame of a request, in bytes, with its length.
pub const REQUEST_MAX: usize = 32 << 10;

/// The longest frame of a response, in bytes, with its length.
pub const RESPONSE_MAX: usize = 1 << 20;

/// The most requests in flight on a connection, waiters included.
pub const IN_FLIGHT_MAX: u32 = 200;

/// Length, kind and number: what each frame begins with.
const HEADER: usize = 9;

/// The number of a request on its connection: above that of the request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// What the server takes on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The longest frame of a request, in bytes, with its length.
    pub request_max: u32,
    /// The most requests in flight.
    pub in_flight_max: u32,
}

impl Settings {
    /// The settings of this version.
    pub const DEFAULT: Settings = Settings { request_max: 32 << 10, in_flight_max: IN_FLIGHT_MAX };
}

/// The kinds of frames.
mod kind {
    pub(crate) const REQUEST: u8 = 1;
    pub(crate) const RESPONSE: u8 = 2;
    pub(crate) const CANCEL: u8 = 3;
    pub(crate) const ABORTED: u8 = 4;
    pub(crate) const GO_AWAY: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const PONG: u8 = 7;
    pub(crate) const SETTINGS: u8 = 8;
}
