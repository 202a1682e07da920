//! Opens connections to a server: TCP or a Unix socket, with TLS over TCP.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::certificate_error;
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

/// The protocols to offer in the handshake of a stream connection.
pub(crate) fn stream_alpn() -> Vec<Vec<u8>> {
    vec![frames::ALPN.to_vec(), HTTP_1.to_vec()]
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
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> ByteStream for T {}

/// An open connection.
pub(crate) struct Socket {
    stream: Pin<Box<dyn ByteStream>>,
    /// What the handshake agreed on: a name of ALPN.
    protocol: Option<Vec<u8>>,
    /// A write failed, and the reason is being read.
    failed_write: Option<io::Error>,
}

impl Socket {
    fn new(stream: impl ByteStream + 'static, protocol: Option<Vec<u8>>) -> Socket {
        Socket { stream: Box::pin(stream), protocol, failed_write: None }
    }

    /// The handshake agreed on the stream protocol.
    pub(crate) fn is_stream(&self) -> bool {
        self.protocol.as_deref() == Some(frames::ALPN)
    }

    pub(crate) fn into_stream(self) -> Pin<Box<dyn ByteStream>> {
        self.stream
    }
}

impl Connector {
    pub(crate) fn new(endpoint: Endpoint, timeout: Duration, tls: Option<TlsConnector>) -> Connector {
        Connector { endpoint, timeout, tls }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.endpoint.tls && self.tls.is_some()
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
                None => Ok(Socket::new(stream, None)),
                Some(tls) => {
                    // Trust is in the CA's certificate, not in host names: the server name is arbitrary.
                    let name = ServerName::try_from("lockd").expect("a valid DNS name");
                    let stream = tls.connect(name, stream).await?;
                    let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                    Ok(Socket::new(stream, protocol))
                }
            }
        }
        Address::Unix(path) => Ok(Socket::new(UnixStream::connect(path).await?, None)),
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
        match self.protocol.as_deref() {
            Some(HTTP_2) => Connected::new().negotiated_h2(),
            _ => Connected::new(),
        }
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

impl Socket {
    /// The result of a write. A failure waits for the end of what the server sent before it closed the connection, and is
    /// replaced by that if it is an error of TLS.
    ///
    /// In TLS 1.3 a client may send its request before the server has checked the client's certificate. The alert of a
    /// server that refuses it may then be unread when a write fails with a broken pipe.
    fn poll_written<T>(&mut self, cx: &mut Context<'_>, written: io::Result<T>) -> Poll<io::Result<T>> {
        match written {
            Ok(written) => Poll::Ready(Ok(written)),
            Err(failure) => {
                self.failed_write = Some(failure);
                self.poll_failure(cx).map(Err)
            }
        }
    }

    /// Nothing else is read here: the sender gives up the connection after a failed write.
    fn poll_failure(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut unused = [0; 1024];
        let last = ready!(self.stream.as_mut().poll_read(cx, &mut ReadBuf::new(&mut unused)));
        let failure = self.failed_write.take().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
        Poll::Ready(last.err().filter(|error| certificate_error::is_tls(error)).unwrap_or(failure))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.failed_write.is_some() {
            return self.poll_failure(cx).map(Err);
        }
        let written = ready!(self.stream.as_mut().poll_write(cx, buf));
        self.poll_written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.failed_write.is_some() {
            return self.poll_failure(cx).map(Err);
        }
        let flushed = ready!(self.stream.as_mut().poll_flush(cx));
        self.poll_written(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio_rustls::rustls::{AlertDescription, Error as TlsError};

    use super::*;

    /// A connection that the server has closed: writes fail, and reads end with what it sent before, which arrives later.
    struct ClosedStream(Option<TlsError>, bool);

    impl AsyncRead for ClosedStream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.1 = !self.1;
            if self.1 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(self.0.clone().map_or(Ok(()), |error| Err(io::Error::other(error))))
        }
    }

    impl AsyncWrite for ClosedStream {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A large document was sent with a revoked certificate. Some of its writes failed before the alert was read: the
    /// server "cannot be reached", or the commit "may have been applied".
    #[tokio::test]
    async fn a_failed_write_is_reported_with_the_alert_that_the_server_sent() {
        let alert = TlsError::AlertReceived(AlertDescription::CertificateRevoked);
        let mut refused = Socket::new(ClosedStream(Some(alert), false), None);
        for failure in [refused.write(b"x").await.map(drop), refused.flush().await] {
            assert!(certificate_error::is_tls(&failure.expect_err("closed")));
        }
        let mut closed = Socket::new(ClosedStream(None, false), None);
        for failure in [closed.write(b"x").await.map(drop), closed.flush().await] {
            assert_eq!(failure.expect_err("closed").kind(), io::ErrorKind::BrokenPipe);
        }
    }
}
