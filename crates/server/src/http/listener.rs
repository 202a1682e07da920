//! Accepts connections, and serves them until the server stops.
//!
//! **Invariant.** A slow, endless, half-open or malformed client costs at most one connection of bounded memory, and
//! never a lease. Over TLS the certificate is checked at the handshake and again with every request: resumed sessions
//! and open connections end with a revocation.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use identity::{ServerTls, SharedDenylist};
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::backend::shards::Backend;
use crate::http::browser_guard::BrowserGuard;
use crate::http::connection::{ConnectionService, RevocationCheck};
use crate::http::router::Routes;
use crate::http::timeouts::IdleTimeoutStream;
use crate::peer::Peer;
use crate::settings::HostNames;

/// Limits and timeouts of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of connections; further ones wait to be accepted.
    pub connections_max: usize,
    /// Timeout of the TLS handshake, and of the head of a request.
    pub head_timeout: Duration,
    /// Maximum idle time while a body is sent or received.
    pub stall_timeout: Duration,
    /// How long requests in progress may continue when the server stops.
    pub drain_timeout: Duration,
}

/// TLS of a server: its certificate, its CA, and the revoked certificates.
#[derive(Clone)]
pub struct Tls {
    /// The server's certificate, and the CA of its clients.
    pub server: ServerTls,
    /// Revoked client certificates, checked for every request.
    pub denylist: Arc<SharedDenylist>,
}

/// A socket that the server listens on.
pub enum Listener {
    /// Plain HTTP: every client is this peer. The names are those of this machine, beside the usual ones.
    Plain(TcpListener, Peer, HostNames),
    /// A Unix socket: every client is this peer.
    Unix(UnixListener, Peer),
    /// Mutual TLS.
    Tls(TcpListener, Tls),
}

/// Serves HTTP/1.1 and HTTP/2 until `stop` is true, then stops granting, and waits for requests in progress.
pub async fn serve(
    listeners: Vec<Listener>,
    backend: Arc<Backend>,
    limits: ConnectionLimits,
    stop: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        let revocation = match &listener {
            Listener::Tls(_, tls) => Some(RevocationCheck::new(&tls.server, &tls.denylist, &backend)),
            Listener::Plain(..) | Listener::Unix(..) => None,
        };
        let guard = match &listener {
            Listener::Plain(listener, _, allowed_hosts) => BrowserGuard::plain(listener, allowed_hosts),
            Listener::Unix(..) => BrowserGuard::unix(),
            Listener::Tls(..) => BrowserGuard::tls(),
        };
        let acceptor = Acceptor {
            routes: Routes::new(&backend),
            revocation,
            guard,
            backend: Arc::clone(&backend),
            limits,
            slots: Arc::clone(&slots),
            stop: stop.clone(),
        };
        accepting.spawn(acceptor.accept(listener));
    }
    while accepting.join_next().await.is_some() {}
    backend.drain();
    // All slots are free when every connection is closed.
    let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(limits.drain_timeout, slots.acquire_many(all)).await;
}

/// Why a handshake failed: for the log.
type HandshakeError = Box<dyn std::error::Error + Send + Sync>;

/// Read buffer of an HTTP/1 connection, in bytes. It bounds the head of a request, and long reads make long uploads
/// faster.
const READ_BUFFER_MAX: usize = 256 << 10;

/// Accepts the connections of one listener.
struct Acceptor {
    routes: Routes,
    revocation: Option<RevocationCheck>,
    guard: BrowserGuard,
    backend: Arc<Backend>,
    limits: ConnectionLimits,
    slots: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Acceptor {
    async fn accept(self, listener: Listener) {
        let mut stop = self.stop.clone();
        let acceptor = Arc::new(self);
        loop {
            let slot =
                Arc::clone(&acceptor.slots).acquire_owned().await.expect("the semaphore is never closed");
            let accepted = tokio::select! {
                accepted = acceptor.accept_one(&listener, slot) => accepted,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            if accepted.is_err() {
                // Out of file descriptors, or the client is gone already: accept again after a pause.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn accept_one(
        self: &Arc<Self>,
        listener: &Listener,
        slot: OwnedSemaphorePermit,
    ) -> std::io::Result<()> {
        let acceptor = Arc::clone(self);
        match listener {
            Listener::Plain(listener, peer, _) => {
                let (stream, peer) = (without_delay(listener.accept().await?.0), peer.clone());
                tokio::spawn(async move { acceptor.serve(stream, peer, slot).await });
            }
            Listener::Unix(listener, peer) => {
                let (stream, peer) = (listener.accept().await?.0, peer.clone());
                tokio::spawn(async move { acceptor.serve(stream, peer, slot).await });
            }
            Listener::Tls(listener, tls) => {
                let (stream, tls) = (without_delay(listener.accept().await?.0), tls.clone());
                tokio::spawn(async move { acceptor.serve_tls(stream, tls, slot).await });
            }
        }
        Ok(())
    }

    /// Drops connections that do not complete the handshake in time.
    async fn serve_tls(&self, stream: TcpStream, tls: Tls, slot: OwnedSemaphorePermit) {
        let (stream, peer) = match self.handshake(stream, &tls).await {
            Ok(accepted) => accepted,
            Err(why) => {
                self.backend.metrics.handshake_refused();
                tracing::debug!(%why, "TLS handshake failed");
                return;
            }
        };
        self.serve(stream, peer, slot).await;
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        tls: &Tls,
    ) -> Result<(TlsStream<TcpStream>, Peer), HandshakeError> {
        let acceptor = TlsAcceptor::from(tls.server.config());
        let stream = tokio::time::timeout(self.limits.head_timeout, acceptor.accept(stream)).await??;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = Peer::from_certificate(tls.server.peer(chain)?)?;
        Ok((stream, peer))
    }

    async fn serve<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: I,
        peer: Peer,
        slot: OwnedSemaphorePermit,
    ) {
        let _counted = GaugeGuard::new(self.backend.metrics.connections());
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.limits.head_timeout);
        builder.http1().max_buf_size(READ_BUFFER_MAX);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(20)));
        let stall = self.limits.stall_timeout;
        let checks = (self.revocation.as_ref(), &self.guard);
        let service = ConnectionService::new(&self.backend, &self.routes, checks, peer, stall);
        let stream = IdleTimeoutStream::new(stream, self.limits.head_timeout, stall);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        let stopped = tokio::select! {
            biased;
            () = StopSignal::new(&self.stop) => true,
            // An error of a client ends its own connection only.
            _ = connection.as_mut() => false,
        };
        if stopped {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
        drop(slot);
    }
}

/// Completes when the server stops.
///
/// A connection's task is polled with every request, and each poll of `watch` would lock the waiter list that all
/// connections share. So this registers a waker once, and after that only checks whether the value has changed.
struct StopSignal {
    stop: watch::Receiver<bool>,
    waiting: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The waker that is registered.
    registered: Option<Waker>,
}

impl StopSignal {
    fn new(stop: &watch::Receiver<bool>) -> StopSignal {
        let mut signal = stop.clone();
        // Without the task's cooperative budget: an exhausted one would return pending before the waker is registered.
        let waiting = tokio::task::unconstrained(async move { drop(signal.wait_for(|stop| *stop).await) });
        let waiting = Box::pin(waiting);
        StopSignal { stop: stop.clone(), waiting, registered: None }
    }
}

impl Future for StopSignal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_registered = self.registered.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if is_registered && matches!(self.stop.has_changed(), Ok(false)) {
            return Poll::Pending;
        }
        self.registered = Some(context.waker().clone());
        self.waiting.as_mut().poll(context)
    }
}

/// Counts in a gauge until it is dropped.
struct GaugeGuard<'a>(&'a Gauge);

impl GaugeGuard<'_> {
    fn new(gauge: &Gauge) -> GaugeGuard<'_> {
        gauge.inc();
        GaugeGuard(gauge)
    }
}

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Disables Nagle's algorithm: short responses are sent at once.
fn without_delay(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true);
    stream
}
