//! Listens, and serves whoever connects until it is told to stop.
//!
//! **Invariant.** Whatever a client does, slow, endless, half-open or malformed, costs one bounded connection, and
//! never a lease. Over TLS the certificate is checked at the handshake and again with every request: resumed
//! sessions and open connections do not outlive a revocation.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use identity::{PeerIdentity, ServerTls, SharedDenylist};
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::backend::shards::App;
use crate::config::Config;
use crate::http::connection::{Front, Gate};
use crate::http::router::Routes;
use crate::http::timeouts::PatientStream;
use crate::peer::Peer;

/// What one connection may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; one more waits to be accepted.
    pub connections_max: usize,
    /// How long a handshake, and the head of a request, may take.
    pub head_timeout: Duration,
    /// How long one may do nothing who sends a body or is sent an answer.
    pub stall_timeout: Duration,
    /// How long connections may go on after they were told to stop.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Config::in_memory().limits()
    }
}

/// Who is let in, and who no longer.
#[derive(Clone)]
pub struct Tls {
    /// The certificate, and the CA.
    pub server: ServerTls,
    /// Revoked certificates.
    pub denylist: Arc<SharedDenylist>,
}

/// What a server listens on.
pub enum Listener {
    /// Plain HTTP: everybody is this peer.
    Plain(TcpListener, Peer),
    /// A socket on this machine: everybody is this peer.
    Unix(UnixListener, Peer),
    /// Over TLS, with certificates on both sides.
    Tls(TcpListener, Tls),
}

/// Serves HTTP/1.1 and HTTP/2 until `stop` says true, then stops granting, and waits for what is under way.
pub async fn serve(listeners: Vec<Listener>, app: Arc<App>, limits: Limits, stop: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        let gate = match &listener {
            Listener::Tls(_, tls) => Some(Gate::new(&tls.denylist, &app)),
            Listener::Plain(..) | Listener::Unix(..) => None,
        };
        let door = Door {
            routes: Routes::new(&app),
            gate,
            app: Arc::clone(&app),
            limits,
            slots: Arc::clone(&slots),
            stop: stop.clone(),
        };
        accepting.spawn(door.accept(listener));
    }
    while accepting.join_next().await.is_some() {}
    app.drain();
    // Whoever has all slots knows that nobody is connected any more.
    let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(limits.drain_timeout, slots.acquire_many(all)).await;
}

/// Why a handshake came to nothing: for the log.
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// As much is read at a time at the most: the head of a request is no longer. Long documents come faster in long reads.
const READ_MAX: usize = 256 << 10;

/// One way in.
struct Door {
    routes: Routes,
    gate: Option<Gate>,
    app: Arc<App>,
    limits: Limits,
    slots: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Door {
    async fn accept(self, listener: Listener) {
        let mut stop = self.stop.clone();
        let door = Arc::new(self);
        loop {
            let slot = Arc::clone(&door.slots).acquire_owned().await.expect("nobody closes it");
            let accepted = tokio::select! {
                accepted = door.one(&listener, slot) => accepted,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            if accepted.is_err() {
                // Out of descriptors, or gone again: the next may do better.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn one(self: &Arc<Self>, listener: &Listener, slot: OwnedSemaphorePermit) -> std::io::Result<()> {
        let door = Arc::clone(self);
        match listener {
            Listener::Plain(listener, peer) => {
                let (stream, peer) = (quick(listener.accept().await?.0), peer.clone());
                tokio::spawn(async move { door.serve(stream, peer, slot).await });
            }
            Listener::Unix(listener, peer) => {
                let (stream, peer) = (listener.accept().await?.0, peer.clone());
                tokio::spawn(async move { door.serve(stream, peer, slot).await });
            }
            Listener::Tls(listener, tls) => {
                let (stream, tls) = (quick(listener.accept().await?.0), tls.clone());
                tokio::spawn(async move { door.shake_hands(stream, tls, slot).await });
            }
        }
        Ok(())
    }

    /// Who cannot show a certificate in time costs nothing more.
    async fn shake_hands(&self, stream: TcpStream, tls: Tls, slot: OwnedSemaphorePermit) {
        let (stream, peer) = match self.known(stream, &tls).await {
            Ok(known) => known,
            Err(why) => {
                self.app.metrics.handshake_refused();
                tracing::debug!(%why, "a handshake failed");
                return;
            }
        };
        self.serve(stream, peer, slot).await;
    }

    async fn known(&self, stream: TcpStream, tls: &Tls) -> Result<(TlsStream<TcpStream>, Peer), Failed> {
        let acceptor = TlsAcceptor::from(tls.server.config());
        let stream = tokio::time::timeout(self.limits.head_timeout, acceptor.accept(stream)).await??;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = Peer::of(PeerIdentity::from_chain(chain)?)?;
        Ok((stream, peer))
    }

    async fn serve<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: I,
        peer: Peer,
        slot: OwnedSemaphorePermit,
    ) {
        let _counted = Counted::new(self.app.metrics.connections());
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.limits.head_timeout);
        builder.http1().max_buf_size(READ_MAX);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(20)));
        let stall = self.limits.stall_timeout;
        let front = Front::new(&self.app, &self.routes, self.gate.as_ref(), peer, stall);
        let stream = PatientStream::new(stream, self.limits.head_timeout, stall);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), front));
        let stopped = tokio::select! {
            biased;
            () = Stopped::new(&self.stop) => true,
            // Whatever a client does wrong costs its own connection.
            _ = connection.as_mut() => false,
        };
        if stopped {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
        drop(slot);
    }
}

/// Ends when the server stops. A connection wakes up with every request, and to wait for the signal is to stand in a list that
/// all connections share: so it does that once, and then only looks whether the signal has come.
struct Stopped {
    stop: watch::Receiver<bool>,
    waiting: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Whom the signal wakes.
    woken: Option<Waker>,
}

impl Stopped {
    fn new(stop: &watch::Receiver<bool>) -> Stopped {
        let mut signal = stop.clone();
        // Not held back by what its task has used up: then it would stand in no list.
        let waiting = tokio::task::unconstrained(async move { drop(signal.wait_for(|stop| *stop).await) });
        let waiting = Box::pin(waiting);
        Stopped { stop: stop.clone(), waiting, woken: None }
    }
}

impl Future for Stopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waits = self.woken.as_ref().is_some_and(|woken| woken.will_wake(context.waker()));
        if waits && matches!(self.stop.has_changed(), Ok(false)) {
            return Poll::Pending;
        }
        self.woken = Some(context.waker().clone());
        self.waiting.as_mut().poll(context)
    }
}

/// One more while it lasts.
struct Counted<'a>(&'a Gauge);

impl Counted<'_> {
    fn new(gauge: &Gauge) -> Counted<'_> {
        gauge.inc();
        Counted(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Small answers must not wait for more to send.
fn quick(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true);
    stream
}
