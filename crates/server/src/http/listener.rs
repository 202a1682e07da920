//! Accepts connections, and serves them until the server stops.
//!
//! **Invariant.** A slow, endless, half-open or malformed client costs at most one connection of bounded memory, and
//! never a lease. A connection beyond a limit is closed at once. Over TLS the certificate is checked at the handshake,
//! again when the connection is registered, and with every request: a revocation ends resumed sessions and open
//! connections.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use identity::VerifiedChain;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::backend::shards::Backend;
use crate::http::browser_guard::BrowserGuard;
use crate::http::connection::{ConnectionService, ConnectionSetup, RevocationCheck};
use crate::http::connections::{ConnectionLimit, ConnectionUse, Connections, SocketKind};
use crate::http::direct::{DirectConnection, End, Socket};
use crate::http::handshakes::{HandshakeSlot, Handshakes};
use crate::http::identities::Tls;
use crate::http::lone_caller::LoneCaller;
use crate::http::refusal_log::RefusalLog;
use crate::http::refused_serial;
use crate::http::reload::Reloader;
use crate::http::request_set::{ConnectionTask, ReadBudget, RequestExecutor};
use crate::http::response_watch::ResponseWatch;
use crate::http::router::Routes;
use crate::http::stream::StreamConnection;
use crate::http::timeouts::{BodyLimits, IdleTimeoutStream};
use crate::peer::{ConnectionEnd, Peer, PeerConnection};
use crate::settings::HostNames;

/// Limits and timeouts of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of connections over TCP; further ones are closed.
    pub connections_max: usize,
    /// Maximum number of them that one identity may have, or one address without mTLS.
    pub connections_per_identity_max: usize,
    /// Maximum number of TLS handshakes in progress.
    pub handshakes_max: usize,
    /// Maximum number of them from one address.
    pub handshakes_per_address_max: usize,
    /// Timeout of the TLS handshake, and of the head of a request.
    pub head_timeout: Duration,
    /// Maximum idle time while a body is sent or received.
    pub stall_timeout: Duration,
    /// Minimum rate of a body, in bytes per second.
    pub body_rate_min: u64,
    /// How long requests in progress may continue when the server stops.
    pub drain_timeout: Duration,
}

impl ConnectionLimits {
    fn of_bodies(&self) -> BodyLimits {
        BodyLimits { stall_timeout: self.stall_timeout, bytes_per_second_min: self.body_rate_min }
    }
}

/// A socket that the server listens on.
pub(crate) enum Listener {
    /// Plain HTTP: every client is this peer. The names are those of this machine, beside the usual ones.
    Plain(TcpListener, Peer, HostNames),
    /// A Unix socket: every client is this peer.
    Unix(UnixListener, Peer),
    /// Mutual TLS.
    Tls(TcpListener, Tls),
}

/// The state that the listeners of a server share.
#[derive(Clone)]
pub(crate) struct ListenerContext {
    pub(crate) backend: Arc<Backend>,
    pub(crate) connections: Arc<Connections>,
    /// For the Unix socket; `None` without mutual TLS.
    pub(crate) reloader: Option<Arc<Reloader>>,
    pub(crate) limits: ConnectionLimits,
    pub(crate) lone_caller: Arc<LoneCaller>,
    /// Serves every connection by hyper from its first byte: for tests that compare.
    pub(crate) only_hyper: bool,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Serves HTTP/1.1 and HTTP/2 until `stop` is true, then stops granting, and waits for requests in progress.
pub(crate) async fn serve(listeners: Vec<Listener>, context: ListenerContext) {
    let ConnectionLimits { handshakes_max, handshakes_per_address_max, drain_timeout, .. } = context.limits;
    let mut tasks = tokio::task::JoinSet::new();
    let (mut revocation, handshakes) = (None, Handshakes::new(handshakes_max, handshakes_per_address_max));
    let forwarding = context.reloader.as_ref().map(|reloader| Arc::clone(&reloader.identities().forwarding));
    for listener in listeners {
        let revocation_check = match &listener {
            Listener::Tls(_, tls) => Some(RevocationCheck::new(tls, &context.backend, &context.connections)),
            Listener::Plain(..) | Listener::Unix(..) => None,
        };
        let guard = match &listener {
            Listener::Plain(listener, _, allowed_hosts) => BrowserGuard::plain(listener, allowed_hosts),
            Listener::Unix(..) => BrowserGuard::unix(),
            Listener::Tls(..) => BrowserGuard::tls(),
        };
        revocation = revocation.or(revocation_check.clone());
        let acceptor = Acceptor {
            routes: Routes::new(&context.backend).forwarding(&context.backend, forwarding.clone()),
            revocation: revocation_check,
            guard,
            handshakes: Arc::clone(&handshakes),
            refusals: RefusalLog::default(),
            context: context.clone(),
        };
        tasks.spawn(acceptor.accept(listener));
    }
    tasks.spawn(end_connections(revocation, context.clone()));
    while tasks.join_next().await.is_some() {}
    context.backend.drain();
    let _ = tokio::time::timeout(drain_timeout, context.connections.closed()).await;
}

/// Ends connections whose certificate has expired, or whose client does not take its responses.
async fn end_connections(revocation: Option<RevocationCheck>, mut context: ListenerContext) {
    let ConnectionLimits { stall_timeout, body_rate_min, .. } = context.limits;
    let interval = (stall_timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = context.stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(interval) => {}
        }
        context.connections.end_stalled(stall_timeout, body_rate_min);
        if let Some(revocation) = &revocation {
            revocation.end_expired(&context.connections);
        }
    }
}

/// Why a handshake was ended for another one.
const REPLACED: &str = "too many handshakes: it was the oldest";

/// Why a handshake failed: for the log.
type HandshakeError = Box<dyn std::error::Error + Send + Sync>;

/// Read buffer of an HTTP/1 connection, in bytes. It bounds the head of a request: a client that never ends its heads
/// occupies one on each of its connections. Shorter reads would make long uploads slower.
const READ_BUFFER_MAX: usize = 64 << 10;
/// Maximum number of HTTP/2 requests in progress on one connection, waiters included.
const STREAMS_MAX: u32 = 200;
/// How much of an HTTP/2 response is buffered, in bytes. With [`STREAMS_MAX`] it bounds the memory of a connection.
const SEND_BUFFER_MAX: usize = 64 << 10;
/// How long a connection that may only probe stays open.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the requests of a connection that is ended may take to send their responses.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Accepts the connections of one listener.
struct Acceptor {
    routes: Routes,
    revocation: Option<RevocationCheck>,
    guard: BrowserGuard,
    handshakes: Arc<Handshakes>,
    refusals: RefusalLog,
    context: ListenerContext,
}

impl Acceptor {
    async fn accept(self, listener: Listener) {
        let mut stop = self.context.stop.clone();
        let acceptor = Arc::new(self);
        loop {
            let accepted = tokio::select! {
                accepted = acceptor.accept_one(&listener) => accepted,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            if accepted.is_err() {
                // Out of file descriptors, or the client is gone already: accept again after a pause.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn accept_one(self: &Arc<Self>, listener: &Listener) -> std::io::Result<()> {
        let acceptor = Arc::clone(self);
        match listener {
            Listener::Plain(listener, peer, _) => {
                let (stream, address) = listener.accept().await?;
                let (stream, peer) = (without_delay(stream), peer.on_connection(Some(address)));
                tokio::spawn(async move { acceptor.serve(stream, peer, SocketKind::Tcp).await });
            }
            Listener::Unix(listener, peer) => {
                let (stream, peer) = (listener.accept().await?.0, peer.on_connection(None));
                tokio::spawn(async move { acceptor.serve(stream, peer, SocketKind::Unix).await });
            }
            Listener::Tls(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                match self.handshakes.begin(address.ip()) {
                    Ok(slot) => {
                        let (stream, tls) = (without_delay(stream), tls.clone());
                        tokio::spawn(async move { acceptor.serve_tls(stream, tls, slot).await });
                    }
                    Err(limit) => self.refuse(limit, Some(address)),
                }
            }
        }
        Ok(())
    }

    /// Drops connections that do not complete the handshake in time.
    async fn serve_tls(&self, stream: TcpStream, tls: Tls, slot: HandshakeSlot) {
        let address = stream.peer_addr().ok();
        let handshake = async {
            tokio::select! {
                done = self.handshake(stream, &tls) => done,
                () = slot.ended() => Err(REPLACED.into()),
                _ = StopSignal::new(&self.context.stop, &PeerConnection::default()) => Err("shutting down".into()),
            }
        };
        let (done, serial) = refused_serial::during(handshake).await;
        drop(slot);
        match done {
            Ok((stream, peer, chain)) => {
                self.serve(stream, peer.on_tls_connection(address, chain), SocketKind::Tcp).await;
            }
            Err(why) => {
                self.context.backend.metrics.handshake_refused();
                self.refusals.handshake(address, serial, &*why);
            }
        }
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        tls: &Tls,
    ) -> Result<(TlsStream<TcpStream>, Peer, VerifiedChain), HandshakeError> {
        // Before the configuration: a change of the trusted CAs in between is noticed by the next check.
        let version = tls.server.version();
        let acceptor = TlsAcceptor::from(tls.server.config());
        let timeout = self.context.limits.head_timeout;
        let stream = tokio::time::timeout(timeout, acceptor.accept(stream)).await??;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = Peer::from_certificate(tls.server.peer(chain)?)?;
        let chain = VerifiedChain::new(chain, version);
        Ok((stream, peer, chain))
    }

    fn refuse(&self, limit: ConnectionLimit, address: Option<SocketAddr>) {
        self.context.backend.metrics.connection_refused(limit.as_str());
        self.refusals.connection(address, limit.as_str());
    }

    async fn serve<I: Socket>(&self, stream: I, peer: Peer, kind: SocketKind) {
        let responses = ResponseWatch::default();
        let slot = match self.context.connections.admit(&peer, kind, &responses) {
            Ok(slot) => slot,
            Err(limit) => return self.refuse(limit, peer.connection.address()),
        };
        // After it is registered: see the invariant of `connections`.
        if let Some(Err(why)) = self.revocation.as_ref().map(|check| check.check(&peer)) {
            let serial = peer.certificate.as_ref().map(|certificate| certificate.serial);
            self.context.backend.metrics.handshake_refused();
            return self.refusals.handshake(peer.connection.address(), serial, &why.detail);
        }
        let connection = peer.connection.clone();
        let serving = self.serve_admitted(stream, peer, kind, slot.allowed, responses);
        if slot.allowed == ConnectionUse::Probes {
            let _ = tokio::time::timeout(PROBE_TIMEOUT, serving).await;
        } else {
            serving.await;
        }
        drop((slot, connection));
    }

    async fn serve_admitted<I: Socket>(
        &self,
        stream: I,
        peer: Peer,
        kind: SocketKind,
        allowed: ConnectionUse,
        responses: ResponseWatch,
    ) {
        let ListenerContext { limits, stop, backend, reloader, .. } = &self.context;
        let mut stopped = StopSignal::new(stop, &peer.connection);
        let setup = ConnectionSetup {
            routes: &self.routes,
            revocation: self.revocation.as_ref(),
            guard: &self.guard,
            body_limits: limits.of_bodies(),
            responses,
            allowed,
            connections_max: limits.connections_max,
            reloader: reloader.clone().filter(|_| kind == SocketKind::Unix),
        };
        let service = ConnectionService::new(backend, peer, setup);
        let reading = ReadBudget::default();
        let (head_timeout, stall_timeout) = (limits.head_timeout, limits.stall_timeout);
        let stream = IdleTimeoutStream::new(stream, head_timeout, stall_timeout, reading.clone());
        if allowed == ConnectionUse::Probes || self.context.only_hyper {
            return self.serve_http(stream, service, reading, stopped, allowed).await;
        }
        let callers = &self.context.lone_caller;
        let turns = reading.clone();
        let direct =
            DirectConnection::new(stream, service.clone(), &backend.clocks, callers, turns, head_timeout);
        match until_stopped(direct, &mut stopped, DirectConnection::shut_down).await {
            Some(End::Unrecognised(stream)) => {
                self.serve_http(stream, service, reading, stopped, allowed).await;
            }
            Some(End::Stream(stream)) => {
                let stream = StreamConnection::new(stream, &service, callers, reading, head_timeout);
                let _ = until_stopped(stream, &mut stopped, StreamConnection::shut_down).await;
            }
            Some(End::Closed) | None => {}
        }
    }

    /// Serves a connection by hyper, to its end.
    async fn serve_http<I: Socket>(
        &self,
        stream: I,
        service: ConnectionService,
        reading: ReadBudget,
        mut stopped: StopSignal,
        allowed: ConnectionUse,
    ) {
        let executor = RequestExecutor::default();
        let builder = self.builder(allowed, executor.clone());
        let connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        let task = ConnectionTask::new(connection, executor, reading);
        // An error of a client ends its own connection only.
        let served = until_stopped(task, &mut stopped, |task| {
            task.get_mut().connection.as_mut().graceful_shutdown();
        });
        drop(served.await);
    }

    fn builder(&self, allowed: ConnectionUse, executor: RequestExecutor) -> auto::Builder<RequestExecutor> {
        let mut builder = auto::Builder::new(executor);
        let http1 = &mut builder.http1();
        http1.timer(TokioTimer::new()).header_read_timeout(self.context.limits.head_timeout);
        http1.max_buf_size(READ_BUFFER_MAX).keep_alive(allowed == ConnectionUse::Everything);
        let http2 = &mut builder.http2();
        http2.timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(20)));
        http2.max_concurrent_streams(STREAMS_MAX).max_send_buf_size(SEND_BUFFER_MAX);
        builder
    }
}

/// Serves a connection until it ends by itself, or is stopped: then it is shut down, and its last call may respond. `None` if
/// it was dropped with all its requests.
async fn until_stopped<C: Future>(
    connection: C,
    stopped: &mut StopSignal,
    shut_down: impl FnOnce(Pin<&mut C>),
) -> Option<C::Output> {
    let mut connection = std::pin::pin!(connection);
    let end = tokio::select! {
        biased;
        end = stopped => end,
        ended = connection.as_mut() => return Some(ended),
    };
    match end {
        Some(ConnectionEnd::Stalled | ConnectionEnd::Overloaded) => None,
        Some(_) => {
            shut_down(connection.as_mut());
            tokio::time::timeout(END_TIMEOUT, connection).await.ok()
        }
        None => {
            shut_down(connection.as_mut());
            Some(connection.await)
        }
    }
}

/// Completes when the server stops, with `None`, or when it ends this connection.
///
/// A connection's task is polled with every request, and each poll of `watch` would lock the waiter list that all
/// connections share. So this registers a waker once, and after that only checks whether anything has changed.
struct StopSignal {
    stop: watch::Receiver<bool>,
    connection: PeerConnection,
    waiting: Pin<Box<dyn Future<Output = Option<ConnectionEnd>> + Send>>,
    /// The waker that is registered.
    registered: Option<Waker>,
}

impl StopSignal {
    fn new(stop: &watch::Receiver<bool>, connection: &PeerConnection) -> StopSignal {
        let (mut signal, peer) = (stop.clone(), connection.clone());
        // Without the task's cooperative budget: an exhausted one would return pending before the waker is registered.
        let waiting = tokio::task::unconstrained(async move {
            tokio::select! {
                end = peer.ended() => Some(end),
                _ = signal.wait_for(|stop| *stop) => None,
            }
        });
        let (stop, connection) = (stop.clone(), connection.clone());
        StopSignal { stop, connection, waiting: Box::pin(waiting), registered: None }
    }
}

impl Future for StopSignal {
    type Output = Option<ConnectionEnd>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ConnectionEnd>> {
        let is_registered = self.registered.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        let is_stopped = !matches!(self.stop.has_changed(), Ok(false));
        if is_registered && !is_stopped && self.connection.end_reason().is_none() {
            return Poll::Pending;
        }
        self.registered = Some(context.waker().clone());
        self.waiting.as_mut().poll(context)
    }
}

/// Disables Nagle's algorithm: short responses are sent at once.
fn without_delay(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true);
    stream
}
