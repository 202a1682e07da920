//! One exchange with one server: its connections, the HTTP request, and what a failure means.

use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::Refusal;
use api::responses::Ready;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::client::legacy::{Client as Pool, Error as PoolError};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::call::{ApiRequest, ApiResponse, RetryPolicy};
use crate::clock::BootTime;
use crate::connect::Connector;
use crate::document_body::{DocumentBody, UploadBody};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::identity_files::TlsConnectors;
use crate::progress::ProgressSink;
use crate::stream::{StreamLink, StreamProtocol};

/// The longest response that is accepted, in bytes; documents are not counted.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// The most that an HTTP/1.1 connection buffers in each direction, in bytes: what documents need on their way. A response's
/// headers must fit, too.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// How often an HTTP/2 connection in use is tested, and how long the response may take.
const HTTP2_PING: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(10));

/// A server, and the connections to it.
pub(crate) struct PooledServer {
    pub(crate) endpoint: Endpoint,
    pub(crate) connections: Mutex<Connections>,
}

/// The connections to a server.
#[derive(Clone)]
pub(crate) struct Connections {
    /// The generation of the identity that they are opened with.
    pub(crate) generation: u64,
    pub(crate) http: ConnectionPool,
    /// For the stream protocol, unless it is not wanted.
    pub(crate) stream: Option<Arc<StreamLink>>,
}

pub(crate) type ConnectionPool = Pool<Connector, UploadBody>;

/// An attempt without a final response.
pub(crate) struct AttemptError {
    pub(crate) error: Error,
    pub(crate) may_be_applied: bool,
    /// A certificate was refused, or the server does not speak the protocol: a retry at the same server is in vain.
    pub(crate) is_final: bool,
}

impl AttemptError {
    pub(crate) fn retryable(error: Error, may_be_applied: bool) -> AttemptError {
        AttemptError { error, may_be_applied, is_final: false }
    }

    pub(crate) fn unapplied(self) -> AttemptError {
        AttemptError { may_be_applied: false, is_final: true, ..self }
    }

    /// The failure of a request with this body: what could not be read, or was not sent to its end, was not applied.
    pub(crate) fn with_body(self, body: &DocumentBody) -> AttemptError {
        if let Some(why) = body.failure() {
            let detail = format!("the document cannot be read: {why}");
            return AttemptError::retryable(Error::new(Kind::Invalid, detail), false).unapplied();
        }
        let may_be_applied = self.may_be_applied && body.may_be_received();
        // A refused certificate is reason enough.
        if !body.is_spent() || self.is_final {
            return AttemptError { may_be_applied, ..self };
        }
        let error = self.error.with_note("the document is a stream, which cannot be sent again");
        AttemptError { error, may_be_applied, is_final: false }
    }

    /// The error to report, if an attempt may have been applied.
    pub(crate) fn into_error(self, ambiguous: bool) -> Error {
        let kind = match self.error.kind() {
            _ if ambiguous => Kind::Indeterminate,
            kind @ (Kind::Denied | Kind::Invalid) => kind,
            _ => Kind::Unavailable,
        };
        self.error.with_kind(kind).after(ambiguous)
    }
}

pub(crate) fn unreachable_server(
    server: &PooledServer,
    why: impl std::fmt::Display,
    may_be_applied: bool,
) -> AttemptError {
    let detail = format!("the server cannot be reached: {why}: server={}", server.endpoint);
    AttemptError::retryable(Error::new(Kind::Unavailable, detail), may_be_applied)
}

pub(crate) fn http_request(
    server: &PooledServer,
    request: &ApiRequest,
    progress: &ProgressSink,
) -> Result<Request<UploadBody>, Error> {
    let uri = format!("http://{}{}", server.endpoint.authority(), request.path);
    let mut builder = Request::builder().method(&request.method).uri(uri);
    for (name, value) in &request.headers {
        builder = builder.header(*name, value);
    }
    let built = builder.body(request.body.upload(progress));
    built.map_err(|error| Error::new(Kind::Invalid, format!("invalid HTTP request: {error}")))
}

impl Connections {
    /// None are open yet.
    pub(crate) fn new(
        endpoint: &Endpoint,
        policy: RetryPolicy,
        tls: Option<(TlsConnectors, u64)>,
        protocol: StreamProtocol,
    ) -> Connections {
        let (tls, generation) = tls.unzip();
        let (http, stream) = tls.map(|tls| (tls.http, tls.stream)).unzip();
        let connector = |tls| Connector::new(endpoint.clone(), policy.connect_timeout, tls);
        let has_stream = match protocol {
            StreamProtocol::Never => false,
            StreamProtocol::IfOffered => endpoint.tls,
            StreamProtocol::Always => true,
        };
        Connections {
            generation: generation.unwrap_or_default(),
            http: new_pool(connector(http)),
            stream: has_stream.then(|| StreamLink::new(connector(stream), policy.connect_timeout)),
        }
    }
}

fn new_pool(connector: Connector) -> ConnectionPool {
    let mut builder = Pool::builder(TokioExecutor::new());
    // A connection that all requests share must be noticed when it is dead.
    builder.http2_keep_alive_interval(HTTP2_PING.0).http2_keep_alive_timeout(HTTP2_PING.1);
    builder.http1_max_buf_size(CONNECTION_BUFFER_BYTES);
    builder.timer(TokioTimer::new()).pool_timer(TokioTimer::new()).build(connector)
}

pub(crate) async fn read_body(
    server: &PooledServer,
    response: Response<Incoming>,
    sent_at: BootTime,
) -> Result<ApiResponse, AttemptError> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
    let body = body.map_err(|error| unreachable_server(server, error, true))?.to_bytes();
    Ok(ApiResponse { status: parts.status.as_u16(), body, sent_at })
}

pub(crate) fn is_no_http(error: &(dyn StdError + 'static)) -> bool {
    let mut next = error.source();
    while let Some(cause) = next {
        if cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Why a request failed. The text of the pool's error says only in which step it was.
pub(crate) fn pool_causes(error: &PoolError) -> String {
    error.source().map_or_else(|| error.to_string(), causes)
}

/// An error and its sources.
pub(crate) fn causes(error: &(dyn StdError + 'static)) -> String {
    let (mut texts, mut next, mut is_refused) = (Vec::new(), Some(error), false);
    while let Some(cause) = next {
        texts.push(cause.to_string());
        let io = cause.downcast_ref::<io::Error>();
        is_refused |= io.is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused);
        next = cause.source();
    }
    let note = if is_refused { "; no server listens there" } else { "" };
    texts.join(": ") + note
}

/// The server speaks another protocol than its address says. Nothing was applied, and a retry does not help.
pub(crate) fn other_protocol(server: &PooledServer, what: &str) -> AttemptError {
    let detail = format!("{what}: server={}", server.endpoint);
    AttemptError::retryable(Error::new(Kind::Invalid, detail), false).unapplied()
}

/// The server's refusal, or an error by status if the body is none.
pub(crate) fn error_from(server: &PooledServer, response: &ApiResponse) -> Error {
    if let Ok(refusal) = serde_json::from_slice::<Refusal>(&response.body) {
        return Error::refused(refusal);
    }
    if let Ok(Ready { ready: false, reason, .. }) = serde_json::from_slice(&response.body) {
        let reason = reason.unwrap_or_default();
        let detail = format!("the server is not ready: reason={reason:?} server={}", server.endpoint);
        return Error::new(Kind::Unavailable, detail);
    }
    let kind = match response.status {
        401 | 403 => Kind::Denied,
        500.. => Kind::Unavailable,
        _ => Kind::Invalid,
    };
    let what = "the response is not lockd's; check that the server is a lockd of this version";
    Error::new(kind, format!("{what}: server={} status={}", server.endpoint, response.status))
}
