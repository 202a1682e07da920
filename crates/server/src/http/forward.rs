//! Forwards requests for shards of other servers, one hop.
//!
//! A request is handled here first. If its shard is another server's, the refusal says so and nothing was carried out; then
//! the request goes to that server, with the identity of its client, and the response comes back as it is. While no server
//! owns the shard, or the owner changes, a request whose body is in memory waits for the next owner and is sent again.
//!
//! **Invariant.** A request that may have been carried out is sent again only if that is harmless: a read, or one with an
//! idempotency key. Any other is refused as indeterminate. The identity in a forwarded request counts only on connections
//! of servers, whose certificate has the role `server`; a forwarded request is not forwarded again.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use api::{Code, Refusal};
use axum::body::{Body, Bytes};
use axum::http::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use axum::http::request::Parts;
use axum::http::{Method, Request, Uri};
use axum::response::{IntoResponse, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use identity::{ClientTls, ServerBundle, SharedDenylist};
use kernel::Shard;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

use crate::backend::cluster::registry::ShardOwner;
use crate::backend::error::BackendError;
use crate::backend::shards::Backend;
use crate::http::forwarded_peer::ForwardedPeer;
use crate::http::refusal_log;
use crate::peer::Peer;
use crate::present::refusals::{self, IntoRefusal as _, MovedShard, RefusalResponse};

/// Carries the client's identity. Only servers may send it.
pub(crate) const FORWARDED: HeaderName = HeaderName::from_static("x-lockd-forwarded");

/// The pause before a request is sent again.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a request in progress looks whether its server still owns the shard.
const OWNER_POLL: Duration = Duration::from_millis(250);
/// How long a request waits for an owner of its shard: this, and two silences.
const OWNER_TIMEOUT: Duration = Duration::from_secs(5);
/// The time in which a connection to another server is opened.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The TLS configuration for connections to other servers, replaced when the identity is reloaded.
#[derive(Default)]
pub(crate) struct ForwardingTls(Mutex<Option<Arc<ClientConfig>>>);

impl ForwardingTls {
    /// Uses the certificate for forwarding of this bundle. Without one, nothing is forwarded.
    pub(crate) fn replace(&self, bundle: &ServerBundle, denylist: &Arc<SharedDenylist>) {
        let tls = ClientTls::forwarding(bundle, Arc::clone(denylist), Arc::new(DefaultTimeProvider));
        let config = tls.ok().map(|tls| {
            let mut config = ClientConfig::clone(&tls.config());
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Arc::new(config)
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn current(&self) -> Option<Arc<ClientConfig>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The body of a request to be forwarded.
pub(crate) enum ForwardBody {
    /// In memory: it can be sent again.
    Bytes(Bytes),
    /// Sent while it arrives.
    Stream(Body),
}

/// The result of forwarding.
pub(crate) enum Forwarded {
    Response(Response),
    /// This server owns the shard by now.
    Local,
}

/// Sends requests to other servers.
pub(crate) struct Forwarder {
    backend: Arc<Backend>,
    client: Client<Connector, Body>,
}

/// The failure of one try.
enum SendError {
    /// Nothing was carried out.
    NotSent,
    /// It may have been carried out.
    Indeterminate,
    /// The client may no longer act. What it sent may have been carried out.
    ClientEnded,
}

impl Forwarder {
    pub(crate) fn new(backend: &Arc<Backend>, tls: Option<Arc<ForwardingTls>>) -> Forwarder {
        let client = Client::builder(TokioExecutor::new()).build(Connector { tls });
        Forwarder { backend: Arc::clone(backend), client }
    }

    /// Sends a request to the owner of its shard.
    pub(crate) async fn forward(
        &self,
        peer: &Peer,
        shard: Shard,
        head: &Parts,
        body: ForwardBody,
    ) -> Forwarded {
        if self.backend.cluster.is_none() {
            return Forwarded::Local;
        }
        let deadline = self.deadline();
        let mut body = Some(body);
        let mut may_be_done = false;
        let is_harmless =
            head.method == Method::GET || head.headers.contains_key(api::header::IDEMPOTENCY_KEY);
        loop {
            if peer.connection.authorization().is_withdrawn() {
                return Forwarded::Response(if may_be_done { indeterminate() } else { withdrawn() });
            }
            if self.backend.owns(shard) && matches!(body, Some(ForwardBody::Bytes(_))) {
                return Forwarded::Local;
            }
            if Instant::now() > deadline {
                return Forwarded::Response(self.refuse(shard));
            }
            let Some(owner) = self.owner(shard) else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let (this_body, again) = match body.take() {
                Some(ForwardBody::Bytes(bytes)) => {
                    (Body::from(bytes.clone()), Some(ForwardBody::Bytes(bytes)))
                }
                Some(ForwardBody::Stream(stream)) => (stream, None),
                None => return Forwarded::Response(self.refuse(shard)),
            };
            body = again;
            match self.send(peer, shard, &owner, head, this_body).await {
                Ok(response) if response.status() == 421 && body.is_some() => {}
                // The body is gone: its client has to send it again.
                Ok(response) if response.status() == 421 => return Forwarded::Response(self.refuse(shard)),
                Ok(mut response) => {
                    self.backend.metrics.forwarded();
                    if let Ok(address) = HeaderValue::try_from(owner.address.as_str()) {
                        response.headers_mut().insert(api::header::SERVER, address);
                    }
                    return Forwarded::Response(response);
                }
                Err(SendError::NotSent) => {}
                Err(SendError::Indeterminate) if is_harmless => may_be_done = head.method != Method::GET,
                Err(SendError::Indeterminate | SendError::ClientEnded) => {
                    return Forwarded::Response(indeterminate());
                }
            }
            self.pause(shard).await;
        }
    }

    /// Sends a request without a body once, to this owner of the shard. `None` if that server has not responded, or owns the
    /// shard no longer.
    pub(crate) async fn send_once(
        &self,
        peer: &Peer,
        shard: Shard,
        owner: &ShardOwner,
        head: &Parts,
    ) -> Option<Response> {
        let response = self.send(peer, shard, owner, head, Body::empty()).await.ok()?;
        (response.status() != 421).then_some(response)
    }

    /// The deadline of a request that waits for an owner of its shard.
    pub(crate) fn deadline(&self) -> Instant {
        let silence = self.backend.cluster.as_ref().map_or(Duration::ZERO, |cluster| cluster.silence());
        Instant::now() + silence * 2 + OWNER_TIMEOUT
    }

    /// Waits before a request is sent again.
    pub(crate) async fn pause(&self, shard: Shard) {
        self.backend.wake_shard(shard);
        tokio::time::sleep(PAUSE).await;
    }

    /// The owner, if requests can be sent to it.
    pub(crate) fn owner(&self, shard: Shard) -> Option<ShardOwner> {
        let owner = self.backend.cluster.as_ref()?.registry().owner(shard);
        if owner.is_none() {
            self.backend.wake_shard(shard);
        }
        owner.filter(|owner| !owner.address.is_empty())
    }

    /// No server owns the shard, or its owner cannot be reached.
    pub(crate) fn refuse(&self, shard: Shard) -> Response {
        let server = self.owner(shard).map(|owner| owner.address);
        let detail = format!("the server that owns the shard cannot be reached; retry: shard={}", shard.0);
        let refusal = Refusal::new(Code::Unavailable, detail).with(|hints| hints.server = server);
        RefusalResponse(refusal).into_response()
    }

    /// Sends it once. A response that takes long is given up when another server owns the shard, and every response once the
    /// client may no longer act: a lease that it waited for would be granted to it, until its connection is closed.
    async fn send(
        &self,
        peer: &Peer,
        shard: Shard,
        owner: &ShardOwner,
        head: &Parts,
        body: Body,
    ) -> Result<Response, SendError> {
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri: Uri = format!("{}{path}", owner.address).parse().map_err(|_| SendError::NotSent)?;
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = end_to_end(&head.headers);
        let forwarded = ForwardedPeer::of(peer, self.registry_id()).encode();
        let forwarded = HeaderValue::try_from(forwarded).map_err(|_| SendError::NotSent)?;
        request.headers_mut().insert(FORWARDED, forwarded);
        // Frames have none, and without mutual TLS the owner takes only bodies that say it.
        request.headers_mut().entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        let mut sent = std::pin::pin!(self.client.request(request));
        loop {
            tokio::select! {
                biased;
                _ = peer.connection.ended() => return Err(SendError::ClientEnded),
                response = &mut sent => {
                    return response.map(presented).map_err(|error| {
                        if error.is_connect() { SendError::NotSent } else { SendError::Indeterminate }
                    });
                }
                () = tokio::time::sleep(OWNER_POLL) => {
                    if !self.is_still(shard, owner) {
                        return Err(SendError::Indeterminate);
                    }
                }
            }
        }
    }

    fn is_still(&self, shard: Shard, owner: &ShardOwner) -> bool {
        self.owner(shard).is_none_or(|now| now.server == owner.server && now.is_live)
            && !self.backend.owns(shard)
    }

    fn registry_id(&self) -> u128 {
        self.backend.cluster.as_ref().map_or(0, |cluster| cluster.registry().id().0)
    }
}

/// The headers that belong to the request or response, and not to one connection.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for header in [CONNECTION, TRANSFER_ENCODING, HOST, FORWARDED] {
        headers.remove(header);
    }
    headers
}

fn presented(response: hyper::Response<hyper::body::Incoming>) -> Response {
    let (mut head, body) = response.into_parts();
    head.headers = end_to_end(&head.headers);
    // By the server that has carried the request out.
    refusal_log::logged(Response::from_parts(head, Body::new(body)))
}

fn indeterminate() -> Response {
    RefusalResponse(BackendError::Indeterminate.into_refusal()).into_response()
}

fn withdrawn() -> Response {
    RefusalResponse(refusals::certificate_withdrawn()).into_response()
}

/// The shard that a response refers to another server.
pub(crate) fn moved_shard(response: &Response) -> Option<Shard> {
    response.extensions().get::<MovedShard>().map(|MovedShard(shard)| *shard)
}

/// Opens connections to other servers.
#[derive(Clone)]
struct Connector {
    /// `None` without mutual TLS.
    tls: Option<Arc<ForwardingTls>>,
}

impl Connector {
    async fn open(self, uri: Uri) -> io::Result<TokioIo<Socket>> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_string();
        let port = uri.port_u16().unwrap_or(api::PORT);
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host.as_str(), port)))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(TokioIo::new(Socket(Box::pin(stream)))) };
        let no_certificate = || io::Error::other("the server has no certificate for forwarding");
        let connector = TlsConnector::from(tls.current().ok_or_else(no_certificate)?);
        // Trust is in the CA's certificate, not in host names: the server name is arbitrary.
        let name = ServerName::try_from("lockd").expect("a valid DNS name");
        let handshake = tokio::time::timeout(CONNECT_TIMEOUT, connector.connect(name, stream));
        let stream = handshake.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        Ok(TokioIo::new(Socket(Box::pin(stream))))
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Socket>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Socket>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().open(uri))
    }
}

/// A byte stream to a server, encrypted or not.
trait ByteStream: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> ByteStream for T {}

struct Socket(Pin<Box<dyn ByteStream>>);

impl Connection for Socket {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_shutdown(cx)
    }
}
