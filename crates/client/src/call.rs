//! Sends a request, with retries and failover over all servers, under one idempotency key.
//!
//! **Invariant.** A mutation that may have been applied is retried only under the same idempotency key, and only while
//! the server still remembers that key: the response to a retry is the response to every attempt. If no response
//! arrives, the error is [`Kind::Indeterminate`].

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use api::responses::Ready;
use api::{Code, Refusal, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::client::legacy::{Client as Pool, Error as PoolError};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use tokio_rustls::TlsConnector;

use crate::certificate_error;
use crate::clock::BootTime;
use crate::connect::Connector;
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::identity_files::ClientIdentity;
use crate::progress::{ProgressBody, ProgressSink, download};
use crate::random;

/// The longest response that is accepted, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 30;
/// The lowest expected upload rate: one attempt's timeout grows with the body by it.
const UPLOAD_BYTES_PER_MS: u64 = 1000;
/// The first and the longest delay between two rounds over all servers, before jitter.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
const TIMED_OUT: &str = "no response before the timeout";

/// Timeouts and limits of retries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) attempts_max: usize,
    /// No retry is sent later than this after the first attempt: the server may have forgotten the idempotency key.
    pub(crate) window: Duration,
}

/// One request of the API.
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
    pub(crate) mutates: bool,
    /// Added to the response timeout: how long the server may queue the request.
    pub(crate) wait: Duration,
    /// An upper bound on the timeout of one attempt.
    pub(crate) attempt_timeout: Option<Duration>,
}

/// A response, with its body.
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Read before the request of this response was sent.
    pub(crate) sent_at: BootTime,
}

/// An attempt without a final response.
struct AttemptError {
    error: Error,
    may_be_applied: bool,
}

impl AttemptError {
    /// A certificate was refused: a retry at the same server is in vain.
    fn is_denied(&self) -> bool {
        self.error.kind() == Kind::Denied
    }

    fn final_kind(&self, ambiguous: bool) -> Kind {
        match () {
            () if ambiguous => Kind::Indeterminate,
            () if self.is_denied() => Kind::Denied,
            () => Kind::Unavailable,
        }
    }
}

struct PooledServer {
    endpoint: Endpoint,
    /// The connections, and the generation of the identity that they were opened with.
    pool: Mutex<(u64, ConnectionPool)>,
}

type ConnectionPool = Pool<Connector, ProgressBody>;

/// The configured servers, each with its connection pool.
pub(crate) struct Servers {
    all: Vec<PooledServer>,
    /// The index of the server that responded last: the next call starts there.
    preferred: AtomicUsize,
    policy: RetryPolicy,
    /// For HTTPS.
    identity: Option<ClientIdentity>,
    progress: ProgressSink,
}

impl Servers {
    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        policy: RetryPolicy,
        identity: Option<ClientIdentity>,
        progress: ProgressSink,
    ) -> Servers {
        let (tls, generation) = identity.as_ref().map(ClientIdentity::connector).unzip();
        let all = endpoints.into_iter().map(|endpoint| {
            let pool = new_pool(&endpoint, policy, tls.clone());
            PooledServer { endpoint, pool: Mutex::new((generation.unwrap_or_default(), pool)) }
        });
        Servers { all: all.collect(), preferred: AtomicUsize::new(0), policy, identity, progress }
    }

    /// The connections to a server, and their generation. After a change of the identity they are new ones: the server
    /// would refuse the old certificate on open connections once it has expired.
    fn pool(&self, server: &PooledServer) -> (u64, ConnectionPool) {
        let mut pool = server.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((tls, generation)) = self.identity.as_ref().map(ClientIdentity::connector)
            && generation != pool.0
        {
            *pool = (generation, new_pool(&server.endpoint, self.policy, Some(tls)));
        }
        pool.clone()
    }

    /// Sends the request until a server responds. Returns a successful response, or the final error.
    pub(crate) async fn call(&self, mut request: ApiRequest) -> Result<ApiResponse, Error> {
        if request.mutates {
            request.headers.push((header::IDEMPOTENCY_KEY, random::idempotency_key()));
        }
        let (started, first) = (BootTime::now(), self.preferred.load(Ordering::Relaxed));
        let window = self.policy.window + request.wait;
        let (mut attempt, mut ambiguous) = (0, false);
        loop {
            let index = (first + attempt) % self.all.len();
            let failed = match self.try_once(&self.all[index], &request).await {
                Ok(response) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return response.map_err(|error| error.after(ambiguous));
                }
                Err(failed) => failed,
            };
            ambiguous |= request.mutates && failed.may_be_applied;
            attempt += 1;
            let delay = self.delay(attempt);
            let attempts_max = if failed.is_denied() { 0 } else { self.policy.attempts_max };
            if attempt >= attempts_max.max(self.all.len()) || started.elapsed() + delay > window {
                let kind = failed.final_kind(ambiguous);
                return Err(failed.error.with_kind(kind).after(ambiguous));
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Opens a streaming response from the first server that starts one. The timeout covers the response head only.
    pub(crate) async fn open(&self, request: &ApiRequest) -> Result<Incoming, Error> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failed = Error::new(Kind::Unavailable, "no server is configured");
        for attempt in 0..self.all.len() {
            let index = (first + attempt) % self.all.len();
            match self.open_stream(&self.all[index], request).await {
                Ok(body) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(body);
                }
                Err(error) if error.kind() == Kind::Unavailable => failed = error,
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    async fn open_stream(&self, server: &PooledServer, request: &ApiRequest) -> Result<Incoming, Error> {
        let (sent_at, timeout) =
            (BootTime::now(), self.policy.connect_timeout + self.policy.response_timeout);
        let (generation, pool) = self.pool(server);
        let sent = pool.request(http_request(server, request, &None)?);
        let response = tokio::time::timeout(timeout, sent).await;
        let response = response.map_err(|_| unreachable_server(server, TIMED_OUT, false).error)?;
        let response = response.map_err(|error| self.failed_attempt(server, generation, &error).error)?;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        let response = tokio::time::timeout(timeout, read_body(server, response, &None, sent_at)).await;
        let response = response.map_err(|_| unreachable_server(server, TIMED_OUT, false).error)?;
        Err(error_from(server, &response.map_err(|failed| failed.error)?))
    }

    /// The delay before an attempt: none for the first attempt at each server, then exponential backoff with jitter.
    fn delay(&self, attempt: usize) -> Duration {
        if attempt < self.all.len() {
            return Duration::ZERO;
        }
        let doublings = u32::try_from(attempt - self.all.len()).unwrap_or(u32::MAX).min(10);
        random::jitter((BACKOFF.0 * 2_u32.pow(doublings)).min(BACKOFF.1))
    }

    /// One attempt. `Ok` is final, whether success or error; `Err` may be retried.
    async fn try_once(
        &self,
        server: &PooledServer,
        request: &ApiRequest,
    ) -> Result<Result<ApiResponse, Error>, AttemptError> {
        let http_request = match http_request(server, request, &self.progress) {
            Ok(http_request) => http_request,
            Err(error) => return Ok(Err(error)),
        };
        let sent_at = BootTime::now();
        let upload = Duration::from_millis(request.body.len() as u64 / UPLOAD_BYTES_PER_MS);
        let timeout = self.policy.connect_timeout + self.policy.response_timeout + request.wait + upload;
        let timeout = request.attempt_timeout.map_or(timeout, |max| timeout.min(max));
        let (generation, pool) = self.pool(server);
        let exchanged = self.exchange(server, (generation, &pool), http_request, sent_at);
        let response = match tokio::time::timeout(timeout, exchanged).await {
            Ok(response) => response?,
            Err(_) => return Err(unreachable_server(server, TIMED_OUT, true)),
        };
        if response.status < 300 {
            return Ok(Ok(response));
        }
        let error = error_from(server, &response);
        match error.code() {
            // The certificate has expired or was revoked, and a new one is there already.
            Some(Code::Unauthenticated) if self.identity_changed_since(generation) => {
                Err(AttemptError { error: error.with_kind(Kind::Unavailable), may_be_applied: false })
            }
            Some(Code::Draining | Code::NoSpace | Code::Moved) => {
                Err(AttemptError { error, may_be_applied: false })
            }
            _ if response.status >= 500 => Err(AttemptError { error, may_be_applied: true }),
            _ => Ok(Err(error)),
        }
    }

    async fn exchange(
        &self,
        server: &PooledServer,
        (generation, pool): (u64, &ConnectionPool),
        request: Request<ProgressBody>,
        sent_at: BootTime,
    ) -> Result<ApiResponse, AttemptError> {
        let response =
            pool.request(request).await.map_err(|error| self.failed_attempt(server, generation, &error))?;
        read_body(server, response, &self.progress, sent_at).await
    }

    /// Certificate errors end in the handshake: nothing was applied. A retry helps only if the identity has changed since.
    fn failed_attempt(&self, server: &PooledServer, generation: u64, error: &PoolError) -> AttemptError {
        match certificate_error::find(error, &server.endpoint, self.identity.as_ref()) {
            Some(error) if self.identity_changed_since(generation) => {
                AttemptError { error: error.with_kind(Kind::Unavailable), may_be_applied: false }
            }
            Some(error) => AttemptError { error, may_be_applied: false },
            None if !server.endpoint.tls && is_no_http(error) => {
                // A TLS server answers plain text with an alert, before it reads a request.
                let why = "the response is no HTTP, the server may expect HTTPS; use an https:// address and an identity file";
                unreachable_server(server, why, false)
            }
            None => unreachable_server(server, causes(error), !error.is_connect()),
        }
    }

    fn identity_changed_since(&self, generation: u64) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.changed_since(generation))
    }
}

fn unreachable_server(
    server: &PooledServer,
    why: impl std::fmt::Display,
    may_be_applied: bool,
) -> AttemptError {
    let detail = format!("the server cannot be reached: {why}: server={}", server.endpoint);
    AttemptError { error: Error::new(Kind::Unavailable, detail), may_be_applied }
}

fn http_request(
    server: &PooledServer,
    request: &ApiRequest,
    progress: &ProgressSink,
) -> Result<Request<ProgressBody>, Error> {
    let uri = format!("http://{}{}", server.endpoint.authority(), request.path);
    let mut builder = Request::builder().method(&request.method).uri(uri);
    for (name, value) in &request.headers {
        builder = builder.header(*name, value);
    }
    let built = builder.body(ProgressBody::new(request.body.clone(), progress));
    built.map_err(|error| Error::new(Kind::Invalid, format!("invalid HTTP request: {error}")))
}

fn new_pool(endpoint: &Endpoint, policy: RetryPolicy, tls: Option<TlsConnector>) -> ConnectionPool {
    let connector = Connector::new(endpoint.clone(), policy.connect_timeout, tls);
    Pool::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector)
}

async fn read_body(
    server: &PooledServer,
    response: Response<Incoming>,
    progress: &ProgressSink,
    sent_at: BootTime,
) -> Result<ApiResponse, AttemptError> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(download(body, progress), RESPONSE_BYTES_MAX).collect().await;
    let body = body.map_err(|error| unreachable_server(server, error, true))?.to_bytes();
    Ok(ApiResponse { status: parts.status.as_u16(), headers: parts.headers, body, sent_at })
}

fn is_no_http(error: &PoolError) -> bool {
    let mut next = error.source();
    while let Some(cause) = next {
        if cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            return true;
        }
        next = cause.source();
    }
    false
}

/// An error with its chain of sources.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// The server's refusal, or an error by status if the body is none.
fn error_from(server: &PooledServer, response: &ApiResponse) -> Error {
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
