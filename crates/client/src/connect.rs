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
pub(crate) struct Socket(Pin<Box<dyn ByteStream>>);

impl Connector {
    pub(crate) fn new(endpoint: Endpoint, timeout: Duration, tls: Option<TlsConnector>) -> Connector {
        Connector { endpoint, timeout, tls }
    }

    async fn open(self) -> io::Result<TokioIo<Socket>> {
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
                None => Ok(Socket(Box::pin(stream))),
                Some(tls) => {
                    // Trust is in the CA's certificate, not in host names: the server name is arbitrary.
                    let name = ServerName::try_from("lockd").expect("a valid DNS name");
                    Ok(Socket(Box::pin(tls.connect(name, stream).await?)))
                }
            }
        }
        Address::Unix(path) => Ok(Socket(Box::pin(UnixStream::connect(path).await?))),
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
