//! The service of one connection: checks the peer's certificate for every request, and calls the handler.
//!
//! **Invariant.** A request whose client loses its certificate while it is in progress is refused as unauthenticated, if
//! it has not been carried out. A client error that the loss itself causes, such as a body that was cut off, is replaced by
//! that refusal; other responses say what has happened, and are sent.
//!
//! Nearly all requests of a busy server are acquire, keepalive and release. In their plain form, with a short body of
//! known length and without a query, they take a fast path straight to their handlers; all other requests go through
//! the router, which costs a dozen allocations. The observer wraps both.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::{Code, Refusal, path};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request, Version};
use axum::response::{IntoResponse, Response};
use axum::{BoxError, Extension, Router};
use futures_util::future::BoxFuture;
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use identity::{Role, UnixTime};
use kernel::Shard;
use tower::ServiceExt;

use crate::backend::shards::Backend;
use crate::handlers::acquire;
use crate::handlers::holder;
use crate::http::browser_guard::BrowserGuard;
use crate::http::connections::{ConnectionUse, Connections};
use crate::http::event_streams;
use crate::http::forward::{FORWARDED, ForwardBody, Forwarded, Forwarder, moved_shard};
use crate::http::forwarded_peer::{self, ForwardedPeer};
use crate::http::gather::{self, Gather};
use crate::http::identities::Tls;
use crate::http::observer::RequestObserver;
use crate::http::refusal_log;
use crate::http::refusal_pace::RefusalPace;
use crate::http::reload::Reloader;
use crate::http::response_budget;
use crate::http::response_watch::ResponseWatch;
use crate::http::router::Routes;
use crate::http::stream_budget::{RequestMemory, StreamMemory};
use crate::http::timeouts::{BodyLimits, TimedBody};
use crate::parse::query::Query;
use crate::parse::{self, Headers};
use crate::peer::{CertificateCheck, Peer, PeerConnection};
use crate::present::refusals::{self, Indeterminate, RefusalResponse};

/// The longest body on the fast path, and of those that are read before they are handled, in bytes.
const FAST_PATH_BODY_MAX: u64 = 16 << 10;

/// The part of an upload's query that says where it goes.
#[derive(serde::Deserialize)]
struct UploadQuery {
    namespace: Option<String>,
}

/// The longest body that is kept in memory to be forwarded, in bytes: that of a request for many leases.
const FORWARD_BODY_MAX: u64 = api::agents::Bulk::BODY_MAX as u64;

/// The calls of connections beyond the limit.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Handles the requests of one connection.
#[derive(Clone)]
pub struct ConnectionService(Arc<ConnectionContext>);

/// A request body, as a connection delivers it.
pub trait RequestBody: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static> RequestBody for B {}

#[derive(Clone)]
struct ConnectionContext {
    backend: Arc<Backend>,
    router: Router,
    observer: Arc<RequestObserver>,
    forwarder: Option<Arc<Forwarder>>,
    /// `None` without mutual TLS.
    revocation: Option<RevocationCheck>,
    guard: BrowserGuard,
    peer: Peer,
    body_limits: BodyLimits,
    responses: ResponseWatch,
    allowed: ConnectionUse,
    /// The limit that a connection with few calls exceeds.
    connections_max: usize,
    /// Only on connections that may reload the server's identities.
    reloader: Option<Arc<Reloader>>,
    pace: Arc<RefusalPace>,
}

/// The parts of a connection beside its peer.
pub(crate) struct ConnectionSetup<'a> {
    pub(crate) routes: &'a Routes,
    pub(crate) revocation: Option<&'a RevocationCheck>,
    pub(crate) guard: &'a BrowserGuard,
    pub(crate) body_limits: BodyLimits,
    pub(crate) responses: ResponseWatch,
    pub(crate) allowed: ConnectionUse,
    pub(crate) connections_max: usize,
    pub(crate) reloader: Option<Arc<Reloader>>,
}

impl ConnectionService {
    pub(crate) fn new(backend: &Arc<Backend>, peer: Peer, setup: ConnectionSetup<'_>) -> ConnectionService {
        let ConnectionSetup { routes, revocation, guard, body_limits, responses, .. } = setup;
        let ConnectionSetup { allowed, connections_max, reloader, .. } = setup;
        ConnectionService(Arc::new(ConnectionContext {
            backend: Arc::clone(backend),
            router: routes.router.clone(),
            observer: Arc::clone(&routes.observer),
            forwarder: routes.forwarder.clone(),
            revocation: revocation.cloned(),
            guard: guard.clone(),
            peer,
            body_limits,
            responses,
            allowed,
            connections_max,
            reloader,
            pace: Arc::default(),
        }))
    }

    /// Without authentication, as on a Unix socket: every client is this peer.
    pub fn unauthenticated(backend: &Arc<Backend>, peer: Peer, stall_timeout: Duration) -> ConnectionService {
        let body_limits = BodyLimits { stall_timeout, bytes_per_second_min: 1 };
        let setup = ConnectionSetup {
            routes: &Routes::new(backend),
            revocation: None,
            guard: &BrowserGuard::unix(),
            body_limits,
            responses: ResponseWatch::default(),
            allowed: ConnectionUse::Everything,
            connections_max: usize::MAX,
            reloader: None,
        };
        ConnectionService::new(backend, peer, setup)
    }

    /// Counts the memory of calls that the service does not count itself: those of the stream protocol.
    pub(crate) fn stream_memory(&self) -> StreamMemory {
        StreamMemory::new(&self.0.backend, &self.0.peer)
    }

    /// The same service for a protocol that no browser speaks.
    pub(crate) fn without_browsers(&self) -> ConnectionService {
        let context = ConnectionContext { guard: BrowserGuard::unix(), ..ConnectionContext::clone(&self.0) };
        ConnectionService(Arc::new(context))
    }

    /// Holds refusals back, also those that the service did not make.
    pub(crate) fn pace(&self) -> &RefusalPace {
        &self.0.pace
    }

    /// Handles one request.
    pub async fn handle<B: RequestBody>(&self, request: Request<B>) -> Response {
        self.0.handle(request).await
    }
}

impl<B: RequestBody> hyper::service::Service<Request<B>> for ConnectionService {
    type Response = Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

    /// An error closes the connection, or resets the stream of HTTP/2, without a response.
    fn call(&self, request: Request<B>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let response = inner.handle(request).await;
            if Indeterminate::is_in(&response) { Err(Indeterminate.into()) } else { Ok(response) }
        })
    }
}

impl ConnectionContext {
    async fn handle<B: RequestBody>(&self, request: Request<B>) -> Response {
        let version = request.version();
        let memory = match RequestMemory::take(&self.backend, &self.peer, version) {
            Ok(memory) => memory,
            // At once: there is no memory to hold it back.
            Err(refusal) => return self.responses.watch(version, *refusal),
        };
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let response = match self.check(request.uri().path()) {
            Ok(()) => self.accept(request).await,
            Err(refusal) => RefusalResponse(refusal).into_response(),
        };
        let is_withdrawn = self.peer.connection.authorization().is_withdrawn();
        let response = if is_withdrawn && response.status().is_client_error() {
            RefusalResponse(refusals::certificate_withdrawn()).into_response()
        } else {
            response
        };
        self.observer.refusals.responded(&self.peer, &method, &uri, &response);
        let response = self.pace.pace(response).await;
        memory.until_sent(self.responses.watch(version, response))
    }

    /// Checks that the client may send requests now, and this one.
    fn check(&self, path: &str) -> Result<(), Refusal> {
        self.revocation.as_ref().map_or(Ok(()), |check| check.check(&self.peer))?;
        match self.allowed {
            ConnectionUse::Everything => Ok(()),
            ConnectionUse::Probes if PROBES.contains(&path) => Ok(()),
            ConnectionUse::Probes => Err(refusals::too_many_connections(self.connections_max)),
        }
    }

    async fn accept<B: RequestBody>(&self, mut request: Request<B>) -> Response {
        if let Err(refusal) = self.guard.check(&request) {
            tracing::debug!(reason = %refusal.detail, "request of a web page refused");
            return RefusalResponse(refusal).into_response();
        }
        if request.headers().contains_key(FORWARDED) {
            return match self.forwarded_peer(&request) {
                Ok(peer) => {
                    if let Some(only) = gather::only_shard(request.headers()) {
                        request.extensions_mut().insert(only);
                    }
                    if let Some(only) = event_streams::only_shards(request.headers()) {
                        request.extensions_mut().insert(only);
                    }
                    let response =
                        Box::pin(async move { self.dispatch_forwarded(&peer, request).await }).await;
                    // The shard may just have been handed over to this server.
                    if let Some(shard) = moved_shard(&response) {
                        self.backend.wake_shard(shard);
                    }
                    response
                }
                Err(refusal) => RefusalResponse(refusal).into_response(),
            };
        }
        match &self.forwarder {
            // Also a server that owns every shard: it may just have lost one.
            Some(forwarder) => Box::pin(self.dispatch_or_forward(forwarder, request)).await,
            None => self.dispatch(&self.peer, request).await,
        }
    }

    /// The client of a request that another server forwards.
    fn forwarded_peer<B>(&self, request: &Request<B>) -> Result<Peer, Refusal> {
        let Some(revocation) = &self.revocation else { return Ok(self.peer.clone()) };
        if self.peer.role != Role::Server {
            return Err(Refusal::new(
                Code::Forbidden,
                "only servers forward requests: header=X-Lockd-Forwarded",
            ));
        }
        let header = request.headers().get(FORWARDED).map(HeaderValue::as_bytes).unwrap_or_default();
        let malformed = || Refusal::new(Code::InvalidBody, "malformed header: header=X-Lockd-Forwarded");
        let forwarded = ForwardedPeer::decode(header).ok_or_else(malformed)?;
        let peer = forwarded.peer(&self.peer).ok_or_else(malformed)?;
        // Before the checks: a reload after this ends it.
        revocation.connections.forwarded.register(&peer.connection, &self.peer.connection);
        let is_server_ended = self.peer.connection.authorization().is_withdrawn();
        if is_server_ended || revocation.is_revoked(forwarded.serial.as_deref()) {
            return Err(refusals::certificate_withdrawn());
        }
        Ok(peer)
    }

    /// Handles a request of another server's client, and logs a refusal as that client's.
    async fn dispatch_forwarded<B: RequestBody>(&self, peer: &Peer, request: Request<B>) -> Response {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let response = self.dispatch(peer, request).await;
        self.observer.refusals.responded(peer, &method, &uri, &response);
        refusal_log::logged(response)
    }

    /// Handles a request that may be for a shard of another server.
    async fn dispatch_or_forward<B: RequestBody>(
        &self,
        forwarder: &Forwarder,
        request: Request<B>,
    ) -> Response {
        let is_short = request.body().size_hint().upper().is_some_and(|length| length <= FORWARD_BODY_MAX);
        if let Some(shard) = self.upload_elsewhere(&request).filter(|_| !is_short) {
            let (head, body) = request.into_parts();
            let body = Body::new(TimedBody::new(body, self.body_limits, &self.peer.connection));
            let sent = forwarder.forward(&self.peer, shard, &head, ForwardBody::Stream(body)).await;
            return match sent {
                Forwarded::Response(response) => response,
                Forwarded::Local => RefusalResponse(refusals::moved(shard)).into_response(),
            };
        }
        if !is_short {
            let response = self.dispatch(&self.peer, request).await;
            return match moved_shard(&response) {
                Some(shard) => forwarder.refuse(shard),
                None => response,
            };
        }
        let bytes = request.body().size_hint().upper().unwrap_or_default();
        let memory = self.backend.request_bodies.take(&self.peer.identity, bytes);
        let _memory = match memory {
            Ok(memory) => memory,
            Err(limit) => return RefusalResponse(refusals::over_limit(&limit)).into_response(),
        };
        let (mut head, body) = request.into_parts();
        let body = match read_body(TimedBody::new(body, self.body_limits, &self.peer.connection)).await {
            Ok(body) => body,
            Err(refusal) => return RefusalResponse(refusal).into_response(),
        };
        // Only servers confine a request to a shard.
        head.headers.remove(gather::SHARD);
        head.headers.remove(event_streams::SHARDS);
        if event_streams::is_divided(&self.backend, &head) {
            let local = |head: Parts| -> BoxFuture<'_, Response> {
                let request = Request::from_parts(head, Full::new(Bytes::new()));
                Box::pin(self.dispatch(&self.peer, request))
            };
            return event_streams::open(&self.backend, forwarder, &self.peer, &head, &local).await;
        }
        let Some(gather) = Gather::find(&self.backend, &head, &body) else {
            return self.dispatch_short(forwarder, &head, &body).await;
        };
        let send = |shard, body: Bytes| -> BoxFuture<'_, Response> {
            let head = gather::confined(&head, shard, &body);
            Box::pin(async move { self.dispatch_short(forwarder, &head, &body).await })
        };
        let response = gather.run(&self.backend, &self.peer.identity, &body, &send).await;
        response_budget::charge(&self.backend.responses, &self.peer.identity, response)
    }

    /// Handles a request whose body is in memory, or sends it to the owner of its shard.
    async fn dispatch_short(&self, forwarder: &Forwarder, head: &Parts, body: &Bytes) -> Response {
        loop {
            let request = Request::from_parts(head.clone(), Full::new(body.clone()));
            let response = self.dispatch(&self.peer, request).await;
            let Some(shard) = moved_shard(&response) else { return response };
            let sent = forwarder.forward(&self.peer, shard, head, ForwardBody::Bytes(body.clone())).await;
            if let Forwarded::Response(response) = sent {
                return response;
            }
        }
    }

    /// The shard of an upload, if another server has it: an upload is not received here first.
    fn upload_elsewhere<B>(&self, request: &Request<B>) -> Option<Shard> {
        let path = request.uri().path().replace('-', "_");
        if request.method() != Method::POST || path != path::UPDATE_STATE {
            return None;
        }
        let UploadQuery { namespace } = axum::extract::Query::try_from_uri(request.uri()).ok()?.0;
        let namespace = parse::namespace(namespace.as_deref()).ok()?;
        Some(self.backend.shard_of(&namespace)).filter(|shard| !self.backend.owns(*shard))
    }

    async fn dispatch<B: RequestBody>(&self, peer: &Peer, request: Request<B>) -> Response {
        let response = match FastPath::find(&request) {
            Some(call) => {
                let handle = async |request| call.handle(self, peer, request).await;
                self.observer.observe_direct(call.path(), peer, request, handle).await
            }
            None => match self.read_short_body(request).await {
                Ok(request) => self.route(peer, request).await,
                Err(refusal) => RefusalResponse(refusal).into_response(),
            },
        };
        response_budget::charge(&self.backend.responses, &peer.identity, response)
    }

    /// Makes the body of a request one that the handlers read, with timeouts. A short body on HTTP/2 is read here: a handler
    /// that refuses the request without reading it would reset the stream behind its response, and clients, curl among
    /// them, lose a response whose stream is reset while they send.
    async fn read_short_body<B: RequestBody>(&self, request: Request<B>) -> Result<Request<Body>, Refusal> {
        let is_http2 = request.version() == Version::HTTP_2;
        let (head, body) = request.into_parts();
        if body.is_end_stream() {
            return Ok(Request::from_parts(head, Body::empty()));
        }
        let is_short = body.size_hint().exact().is_some_and(|length| length <= FAST_PATH_BODY_MAX);
        let body = TimedBody::new(body, self.body_limits, &self.peer.connection);
        let body = if is_http2 && is_short { Body::from(read_body(body).await?) } else { Body::new(body) };
        Ok(Request::from_parts(head, body))
    }

    fn route(
        &self,
        peer: &Peer,
        mut request: Request<Body>,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        request.extensions_mut().insert(peer.clone());
        if let Some(revocation) = &self.revocation {
            request.extensions_mut().insert(revocation.recheck(&self.peer, &peer.connection));
        }
        if let Some(reloader) = &self.reloader {
            request.extensions_mut().insert(Arc::clone(reloader));
        }
        let response = self.router.clone().oneshot(request);
        Box::pin(async move {
            match response.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}

/// A call that bypasses the router.
#[derive(Clone, Copy)]
enum FastPath {
    Acquire,
    Keepalive,
    Release,
}

impl FastPath {
    fn find<B: RequestBody>(request: &Request<B>) -> Option<FastPath> {
        let is_plain = request.method() == Method::POST && request.uri().query().is_none();
        let is_short = request.body().size_hint().exact().is_some_and(|length| length <= FAST_PATH_BODY_MAX);
        match request.uri().path() {
            _ if !(is_plain && is_short) => None,
            path::ACQUIRE => Some(FastPath::Acquire),
            path::KEEPALIVE => Some(FastPath::Keepalive),
            path::RELEASE => Some(FastPath::Release),
            _ => None,
        }
    }

    fn path(self) -> &'static str {
        match self {
            FastPath::Acquire => path::ACQUIRE,
            FastPath::Keepalive => path::KEEPALIVE,
            FastPath::Release => path::RELEASE,
        }
    }

    async fn handle<B: RequestBody>(
        self,
        service: &ConnectionContext,
        peer: &Peer,
        request: Request<B>,
    ) -> Response {
        let (head, body) = request.into_parts();
        let body = TimedBody::new(body, service.body_limits, &service.peer.connection);
        let body = match read_body(body).await {
            Ok(body) => body,
            Err(refusal) => return RefusalResponse(refusal).into_response(),
        };
        let (backend, peer) = (State(Arc::clone(&service.backend)), Extension(peer.clone()));
        let headers = Headers(head.headers);
        match self {
            FastPath::Acquire => {
                let query = Query(acquire::AcquireQuery::default());
                acquire::acquire(backend, peer, query, headers, body).await.into_response()
            }
            FastPath::Keepalive => holder::keepalive(backend, peer, headers, body).await.into_response(),
            FastPath::Release => holder::release(backend, peer, headers, body).await.into_response(),
        }
    }
}

/// Reads a body, whose length is known and short. Most bodies are one frame, which is not copied.
async fn read_body<B: RequestBody>(mut body: TimedBody<B>) -> Result<Bytes, Refusal> {
    let broken = |error: axum::Error| refusals::truncated(&error);
    let Some(first) = body.frame().await else { return Ok(Bytes::new()) };
    let first = first.map_err(broken)?.into_data().unwrap_or_default();
    if body.is_end_stream() {
        return Ok(first);
    }
    let rest = body.collect().await.map_err(broken)?.to_bytes();
    Ok([first, rest].concat().into())
}

/// Refuses certificates that are not valid any more, though they were at the handshake.
#[derive(Clone)]
pub(crate) struct RevocationCheck {
    tls: Tls,
    backend: Arc<Backend>,
    connections: Arc<Connections>,
}

impl RevocationCheck {
    pub(crate) fn new(tls: &Tls, backend: &Arc<Backend>, connections: &Arc<Connections>) -> RevocationCheck {
        let (backend, connections) = (Arc::clone(backend), Arc::clone(connections));
        RevocationCheck { tls: tls.clone(), backend, connections }
    }

    pub(crate) fn check(&self, peer: &Peer) -> Result<(), Refusal> {
        let refuse = |why: String| Refusal::new(Code::Unauthenticated, why);
        let certificate = peer.certificate.as_ref();
        let certificate = certificate.ok_or_else(|| refuse("the client has no certificate".to_string()))?;
        self.tls.check(certificate, &peer.connection, self.now()).map_err(|why| refuse(why.to_string()))
    }

    /// Whether a certificate was revoked, by the serial number that a server has forwarded.
    fn is_revoked(&self, serial: Option<&str>) -> bool {
        forwarded_peer::is_revoked(&self.tls.denylist, serial)
    }

    fn now(&self) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_millis(self.backend.clocks.unix_ms()))
    }

    /// Ends the connections whose certificate has expired.
    pub(crate) fn end_expired(&self, connections: &Connections) {
        connections.end_invalid(&self.tls, self.now());
    }

    /// `client` is the connection of the request's client: another than the peer's if the peer forwards.
    fn recheck(&self, peer: &Peer, client: &PeerConnection) -> CertificateCheck {
        let (check, peer, client) = (self.clone(), peer.clone(), client.clone());
        CertificateCheck(Arc::new(move || client.end_reason().is_none() && check.check(&peer).is_ok()))
    }
}
