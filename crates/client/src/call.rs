//! Sends a request, with retries and failover over all servers, under one idempotency key.
//!
//! **Invariant.** A mutation that may have been applied is retried only under the same idempotency key, and only while
//! the server still remembers that key: the response to a retry is the response to every attempt. If no response
//! arrives, the error is [`Kind::Indeterminate`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use api::{Code, header};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response};

use crate::certificate_error;
use crate::clock::BootTime;
use crate::connect::{Connector, Socket};
use crate::document_body::DocumentBody;
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::exchange::{
    AttemptError, Connections, PooledServer, causes, error_from, http_request, is_no_http, other_protocol,
    pool_causes, read_body, unreachable_server,
};
use crate::identity_files::ClientIdentity;
use crate::progress::{self, ProgressSink};
use crate::random;
use crate::stream::{StreamFailure, StreamProtocol, frame_of};

/// The lowest expected upload rate: one attempt's timeout grows with the body by it.
const UPLOAD_BYTES_PER_MS: u64 = 1000;
/// A stream must send something at least this often.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The first and the longest delay between two rounds over all servers, before jitter.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// No server.
const NONE: usize = usize::MAX;
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

impl ApiRequest {
    /// The same request without a body.
    pub(crate) fn again(&self) -> ApiRequest {
        ApiRequest {
            method: self.method.clone(),
            path: self.path.clone(),
            headers: self.headers.clone(),
            body: DocumentBody::default(),
            ..*self
        }
    }
}

impl RetryPolicy {
    /// How long one attempt may take, besides its time in a wait queue.
    pub(crate) fn reply_timeout(&self) -> Duration {
        self.connect_timeout + self.response_timeout
    }
}

/// One request of the API.
#[derive(Debug)]
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: DocumentBody,
    pub(crate) mutates: bool,
    /// Added to the response timeout: how long the server may queue the request.
    pub(crate) wait: Duration,
    /// An upper bound on the timeout of one attempt.
    pub(crate) attempt_timeout: Option<Duration>,
}

/// A response, with its body.
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    /// Read before the request of this response was sent.
    pub(crate) sent_at: BootTime,
}

/// The attempts of one request, at one server after the other.
pub(crate) struct Attempts<'a> {
    servers: &'a Servers,
    /// The index of the server of the first attempt.
    first: usize,
    count: usize,
}

/// The configured servers, each with its connection pool.
pub(crate) struct Servers {
    all: Vec<PooledServer>,
    /// The index of the server that responded last, or to which it referred: the next call starts there.
    preferred: AtomicUsize,
    /// The index of the server to which the last response referred; [`NONE`] if it is not one of these.
    owner: AtomicUsize,
    policy: RetryPolicy,
    /// For HTTPS.
    identity: Option<ClientIdentity>,
    stream: StreamProtocol,
    progress: ProgressSink,
}

impl Servers {
    /// A connection of its own to the first server that can be reached, and the server's address.
    pub(crate) async fn connect(&self) -> Result<(Socket, &Endpoint), Error> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failure = Error::new(Kind::Invalid, "no server is named");
        for at in 0..self.all.len() {
            let server = &self.all[(first + at) % self.all.len()];
            let tls = self.identity.as_ref().map(|identity| identity.connectors().0.http);
            match Connector::new(server.endpoint.clone(), self.policy.connect_timeout, tls).open().await {
                Ok(socket) => return Ok((socket.into_inner(), &server.endpoint)),
                Err(error) => {
                    let detail = format!("cannot connect: {error}: server={}", server.endpoint);
                    failure = Error::new(Kind::Unavailable, detail);
                }
            }
        }
        Err(failure)
    }

    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        policy: RetryPolicy,
        identity: Option<ClientIdentity>,
        stream: StreamProtocol,
        progress: ProgressSink,
    ) -> Servers {
        let tls = identity.as_ref().map(ClientIdentity::connectors);
        let all = endpoints.into_iter().map(|endpoint| {
            let connections = Connections::new(&endpoint, policy, tls.clone(), stream);
            PooledServer { endpoint, connections: Mutex::new(connections) }
        });
        Servers {
            all: all.collect(),
            preferred: AtomicUsize::new(0),
            owner: AtomicUsize::new(NONE),
            policy,
            identity,
            stream,
            progress,
        }
    }

    /// The connections to a server. After a change of the identity they are new ones: the server would refuse the old
    /// certificate on open connections once it has expired.
    fn connections(&self, server: &PooledServer) -> Connections {
        let mut connections = server.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((tls, generation)) = self.identity.as_ref().map(ClientIdentity::connectors)
            && generation != connections.generation
        {
            let tls = Some((tls, generation));
            *connections = Connections::new(&server.endpoint, self.policy, tls, self.stream);
        }
        connections.clone()
    }

    /// Sends the request until a server responds. Returns a successful response, or the final error.
    pub(crate) async fn call(&self, mut request: ApiRequest) -> Result<ApiResponse, Error> {
        if request.mutates {
            request.headers.push((header::IDEMPOTENCY_KEY, random::idempotency_key()));
        }
        let (started, mut attempts) = (BootTime::now(), self.attempts());
        let window = self.policy.window + request.wait;
        let mut ambiguous = false;
        loop {
            let failed = match attempts.next(&request).await {
                Ok(response) => return response.map_err(|error| error.after(ambiguous)),
                Err(failed) => failed,
            };
            ambiguous |= request.mutates && failed.may_be_applied;
            let delay = attempts.delay();
            let is_final = failed.is_final && attempts.has_tried_all() || request.body.is_spent();
            if is_final || attempts.is_exhausted() || started.elapsed() + delay > window {
                return Err(failed.into_error(ambiguous));
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Begins the attempts of a request, with the server that responded last.
    pub(crate) fn attempts(&self) -> Attempts<'_> {
        Attempts { servers: self, first: self.preferred.load(Ordering::Relaxed), count: 0 }
    }

    pub(crate) fn policy(&self) -> RetryPolicy {
        self.policy
    }

    /// Sends a request that changes nothing until a server starts a response. The timeout covers the response's head only.
    pub(crate) async fn open(&self, request: &ApiRequest) -> Result<Response<Incoming>, Error> {
        let mut attempts = self.attempts();
        loop {
            let failed = match attempts.open(request).await {
                Ok(response) => return response,
                Err(failed) => failed,
            };
            if failed.is_final && attempts.has_tried_all() || attempts.is_exhausted() {
                return Err(failed.into_error(false));
            }
            tokio::time::sleep(attempts.delay()).await;
        }
    }

    /// The same, with one attempt at each server.
    pub(crate) async fn open_once(&self, request: &ApiRequest) -> Result<Response<Incoming>, Error> {
        let mut attempts = self.attempts();
        loop {
            match attempts.open(request).await {
                Ok(response) => return response,
                Err(failed) if attempts.has_tried_all() => return Err(failed.into_error(false)),
                Err(_) => {}
            }
        }
    }

    /// The receiver of the progress of a response of this length. It begins now.
    pub(crate) fn progress(&self, bytes: u64) -> ProgressSink {
        let sink = self.progress.clone().filter(|_| progress::is_large(bytes));
        if let Some(sink) = &sink {
            sink.begin(bytes);
        }
        sink
    }

    /// One attempt. `Ok` is final, whether success or error; `Err` may be retried.
    async fn try_once(
        &self,
        server: &PooledServer,
        request: &ApiRequest,
    ) -> Result<Result<ApiResponse, Error>, AttemptError> {
        let sent_at = BootTime::now();
        let exchanged = async {
            if let Some(exchanged) = self.try_stream(server, request, sent_at).await {
                return exchanged;
            }
            match self.try_open(server, request).await? {
                Ok(response) => Ok(Ok(read_body(server, response, sent_at).await?)),
                Err(error) => Ok(Err(error)),
            }
        };
        tokio::select! {
            exchanged = exchanged => {
                exchanged.map_err(|failed: AttemptError| failed.with_body(&request.body))
            }
            () = self.timeout(request) => {
                Err(unreachable_server(server, TIMED_OUT, true).with_body(&request.body))
            }
        }
    }

    /// Ends when the time for an attempt is over.
    async fn timeout(&self, request: &ApiRequest) {
        let upload = request.body.bytes().unwrap_or_default() / UPLOAD_BYTES_PER_MS;
        let timeout = self.policy.reply_timeout() + request.wait + Duration::from_millis(upload);
        let timeout = request.attempt_timeout.map_or(timeout, |max| timeout.min(max));
        if request.body.moved_at().is_none() {
            return tokio::time::sleep(timeout).await;
        }
        // A stream may be of any length: it has to go on.
        let idle_max = timeout.max(STREAM_IDLE_TIMEOUT);
        while let Some(left) =
            request.body.moved_at().and_then(|moved_at| idle_max.checked_sub(moved_at.elapsed()))
        {
            tokio::time::sleep(left.max(Duration::from_millis(1))).await;
        }
    }

    /// Sends the request in a frame. `None` if it has to be sent over HTTP: nothing was sent.
    async fn try_stream(
        &self,
        server: &PooledServer,
        request: &ApiRequest,
        sent_at: BootTime,
    ) -> Option<Result<Result<ApiResponse, Error>, AttemptError>> {
        let Connections { generation, stream, .. } = self.connections(server);
        let (stream, frame) = (stream?, frame_of(request)?);
        let reply = match stream.exchange(&frame).await {
            Ok(reply) => reply?,
            Err(StreamFailure::Connect(error)) => {
                let refused = self.refused_connection(server, generation, &*error);
                return Some(Err(
                    refused.unwrap_or_else(|| unreachable_server(server, causes(&*error), false))
                ));
            }
            Err(StreamFailure::NotBegun) => {
                return Some(Err(unreachable_server(server, "it closes the connection", false)));
            }
            Err(StreamFailure::Unknown(error)) => {
                return Some(Err(unreachable_server(server, causes(&*error), true)));
            }
        };
        self.learn(reply.server.as_deref());
        let response = ApiResponse { status: reply.status, body: reply.body, sent_at };
        if (200..300).contains(&response.status) {
            return Some(Ok(Ok(response)));
        }
        Some(self.refused(server, generation, &response).map(Err))
    }

    /// Sends the request, and returns the response if it is a success. `Ok` is final; `Err` may be retried.
    async fn try_open(
        &self,
        server: &PooledServer,
        request: &ApiRequest,
    ) -> Result<Result<Response<Incoming>, Error>, AttemptError> {
        let http_request = match http_request(server, request, &self.progress) {
            Ok(http_request) => http_request,
            Err(error) => return Ok(Err(error)),
        };
        let (sent_at, Connections { generation, http, .. }) = (BootTime::now(), self.connections(server));
        let response = http.request(http_request).await;
        let response = response.map_err(|error| {
            let refused = self.refused_connection(server, generation, &error);
            refused.unwrap_or_else(|| unreachable_server(server, pool_causes(&error), !error.is_connect()))
        })?;
        self.learn(response.headers().get(header::SERVER).and_then(|server| server.to_str().ok()));
        if response.status().is_success() {
            return Ok(Ok(response));
        }
        let response = read_body(server, response, sent_at).await?;
        self.refused(server, generation, &response).map(Err)
    }

    /// What a response without success means. `Ok` is final; `Err` may be retried.
    fn refused(
        &self,
        server: &PooledServer,
        generation: u64,
        response: &ApiResponse,
    ) -> Result<Error, AttemptError> {
        let error = error_from(server, response);
        self.learn(error.refusal().and_then(|refusal| refusal.hints.server.as_deref()));
        match error.code() {
            // The certificate has expired or was revoked, and a new one is there already.
            Some(Code::Unauthenticated) if self.identity_changed_since(generation) => {
                Err(AttemptError::retryable(error.with_kind(Kind::Unavailable), false))
            }
            Some(Code::Draining | Code::NoSpace | Code::Moved) => Err(AttemptError::retryable(error, false)),
            _ if response.status >= 500 => Err(AttemptError::retryable(error, true)),
            _ => Ok(error),
        }
    }

    /// A certificate was refused, or the server speaks another protocol. `None` for all other failures.
    ///
    /// Certificate errors end in the handshake: nothing was applied. A retry helps only if the identity has changed since.
    fn refused_connection(
        &self,
        server: &PooledServer,
        generation: u64,
        error: &(dyn std::error::Error + 'static),
    ) -> Option<AttemptError> {
        Some(match certificate_error::find(error, &server.endpoint, self.identity.as_ref()) {
            Some(error) if self.identity_changed_since(generation) => {
                AttemptError::retryable(error.with_kind(Kind::Unavailable), false)
            }
            Some(error) => AttemptError::retryable(error, false).unapplied(),
            None if !server.endpoint.tls && is_no_http(error) => {
                // A TLS server answers plain text with an alert, before it reads a request.
                let what = "this is plain HTTP, and the server's response is not: it may expect TLS; use an https:// address \
                            and an identity file, without --mtls=false";
                other_protocol(server, what)
            }
            None if certificate_error::is_no_tls(error) => {
                let what = "this is TLS, and the server's response is not: it may expect plain HTTP; use an http:// address \
                            or --mtls=false";
                other_protocol(server, what)
            }
            None => return None,
        })
    }

    /// A response has come from another server than the one that was asked, or refers to it. A client goes only to servers
    /// that it was given.
    fn learn(&self, server: Option<&str>) {
        let Some(server) = server else { return };
        let known = self.all.iter().position(|one| one.endpoint.to_string() == server);
        self.owner.store(known.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// The server to start with, after a response of the server at `index`.
    fn prefer(&self, index: usize) {
        let owner = self.owner.swap(NONE, Ordering::Relaxed);
        self.preferred.store(if owner == NONE { index } else { owner }, Ordering::Relaxed);
    }

    fn identity_changed_since(&self, generation: u64) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.changed_since(generation))
    }
}

impl Attempts<'_> {
    /// One attempt, at the next server. `Ok` is final, whether success or error; `Err` may be retried.
    pub(crate) async fn next(
        &mut self,
        request: &ApiRequest,
    ) -> Result<Result<ApiResponse, Error>, AttemptError> {
        let index = self.next_server();
        let response = self.servers.try_once(&self.servers.all[index], request).await?;
        self.servers.prefer(index);
        Ok(response)
    }

    /// The same, until the response's head is there.
    async fn open(
        &mut self,
        request: &ApiRequest,
    ) -> Result<Result<Response<Incoming>, Error>, AttemptError> {
        let index = self.next_server();
        let (servers, server) = (self.servers, &self.servers.all[index]);
        let opened = tokio::time::timeout(servers.policy.reply_timeout(), servers.try_open(server, request));
        let response = opened.await.map_err(|_| unreachable_server(server, TIMED_OUT, true))??;
        servers.prefer(index);
        Ok(response)
    }

    /// The next server, or the one to which a refusal of the last has referred.
    fn next_server(&mut self) -> usize {
        let owner = if self.count == 0 { NONE } else { self.servers.owner.swap(NONE, Ordering::Relaxed) };
        if owner != NONE {
            self.first = owner + self.servers.all.len() - self.count % self.servers.all.len();
        }
        let index = (self.first + self.count) % self.servers.all.len();
        self.count += 1;
        index
    }

    /// The delay before the next attempt: none before the first at each server, then exponential backoff with jitter.
    pub(crate) fn delay(&self) -> Duration {
        let Some(repeated) = self.count.checked_sub(self.servers.all.len()) else { return Duration::ZERO };
        let doublings = u32::try_from(repeated).unwrap_or(u32::MAX).min(10);
        random::jitter((BACKOFF.0 * 2_u32.pow(doublings)).min(BACKOFF.1))
    }

    /// Each server was tried.
    pub(crate) fn has_tried_all(&self) -> bool {
        self.count >= self.servers.all.len()
    }

    /// As many attempts were made as the policy allows; each server gets one.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.has_tried_all() && self.count >= self.servers.policy.attempts_max
    }
}
