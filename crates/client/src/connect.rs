//! Opens connections to a server: TCP or a Unix socket, with TLS over TCP.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::endpoint::{Address, Endpoint};

/// The version of HTTP that a client speaks over TLS. Without TLS it is HTTP/1.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1: a connection for each request in progress.
    #[default]
    Http1,
    /// HTTP/2, if the server offers it: one connection for all requests.
    Http2,
}

impl HttpVersion {
    /// The protocols to offer in the handshake, in order of preference.
    pub(crate) fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            HttpVersion::Http1 => vec![HTTP_1.to_vec()],
            HttpVersion::Http2 => vec![HTTP_2.to_vec(), HTTP_1.to_vec()],
        }
    }
}

const HTTP_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";

/// Opens connections to one server; the authority of the request's URI is ignored.
#[derive(Clone)]
pub(crate) struct Connector {
    endpoint: Endpoint,
    timeout: Duration,
    /// Used for `https://` endpoints.
    tls: Option<TlsConnector>,
}

/// A byte stream to a server, encrypted or not.
trait ByteStream: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> ByteStream for T {}

/// An open connection.
pub(crate) struct Socket {
    stream: Pin<Box<dyn ByteStream>>,
    /// The handshake agreed on HTTP/2.
    is_http2: bool,
}

impl Socket {
    fn new(stream: impl ByteStream + 'static, is_http2: bool) -> Socket {
        Socket { stream: Box::pin(stream), is_http2 }
    }
}

impl Connector {
    pub(crate) fn new(endpoint: Endpoint, timeout: Duration, tls: Option<TlsConnector>) -> Connector {
        Connector { endpoint, timeout, tls }
    }

    pub(crate) async fn open(self) -> io::Result<TokioIo<Socket>> {
        let opened = tokio::time::timeout(self.timeout, open(&self.endpoint, self.tls.as_ref())).await;
        opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(TokioIo::new)
    }
}

async fn open(endpoint: &Endpoint, tls: Option<&TlsConnector>) -> io::Result<Socket> {
    match &endpoint.address {
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            // Small requests must not be delayed by Nagle's algorithm.
            stream.set_nodelay(true)?;
            match tls.filter(|_| endpoint.tls) {
                None => Ok(Socket::new(stream, false)),
                Some(tls) => {
                    // Trust is in the CA's certificate, not in host names: the server name is arbitrary.
                    let name = ServerName::try_from("lockd").expect("a valid DNS name");
                    let stream = tls.connect(name, stream).await?;
                    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
                    Ok(Socket::new(stream, is_http2))
                }
            }
        }
        Address::Unix(path) => Ok(Socket::new(UnixStream::connect(path).await?, false)),
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Socket>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Socket>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().open())
    }
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        if self.is_http2 { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}
