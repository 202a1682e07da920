//! A minimal HTTP/1.1 client with low overhead: one connection, one request at a time.

use std::path::Path;
use std::sync::Arc;

use identity::{ClientBundle, ClientTls};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
}

/// A TLS configuration with an identity file and this ALPN protocol.
pub(crate) fn tls(identity: &Path, protocol: &str) -> Arc<ClientConfig> {
    let text = std::fs::read_to_string(identity).expect("made at the first start");
    let bundle = ClientBundle::parse(&text).expect("sound");
    let tls = ClientTls::new(&bundle, Arc::new(DefaultTimeProvider)).expect("sound");
    let mut config = (*tls.config()).clone();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Arc::new(config)
}

pub(crate) async fn plain(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    stream
}

pub(crate) async fn encrypted(address: &str, config: &Arc<ClientConfig>) -> TlsStream<TcpStream> {
    let name = ServerName::try_from("anything").expect("a name");
    TlsConnector::from(Arc::clone(config)).connect(name, plain(address).await).await.expect("a handshake")
}

impl Connection {
    pub(crate) async fn open(address: &str, config: Option<&Arc<ClientConfig>>) -> Connection {
        let stream: Box<dyn Stream> = match config {
            None => Box::new(plain(address).await),
            Some(config) => Box::new(encrypted(address, config).await),
        };
        Connection { stream, buffer: Vec::with_capacity(4096) }
    }

    /// Sends a request; returns the body of the response, whose status must be 200.
    pub(crate) async fn post(&mut self, path: &str, body: &str) -> &[u8] {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        self.send(&format!("{head}content-length: {length}\r\n\r\n{body}")).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> &[u8] {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await
    }

    async fn send(&mut self, request: &str) -> &[u8] {
        self.stream.write_all(request.as_bytes()).await.expect("it listens");
        self.buffer.clear();
        loop {
            assert_ne!(self.stream.read_buf(&mut self.buffer).await.expect("an answer"), 0, "it hung up");
            if let Some((head, whole)) = body_range(&self.buffer)
                && self.buffer.len() >= whole
            {
                assert!(
                    self.buffer.starts_with(b"HTTP/1.1 200"),
                    "{}",
                    String::from_utf8_lossy(&self.buffer)
                );
                return &self.buffer[head..whole];
            }
        }
    }
}

/// The offsets of the start and the end of the body.
fn body_range(buffer: &[u8]) -> Option<(usize, usize)> {
    let head = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&buffer[..head]).ok()?.to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    Some((head, head + length.trim().parse::<usize>().ok()?))
}

/// The text of a field, without parsing the whole response.
pub(crate) fn field<'a>(body: &'a [u8], name: &str) -> &'a str {
    let text = std::str::from_utf8(body).expect("text");
    let after = text.split_once(&format!("\"{name}\":\"")).expect("a field").1;
    after.split('"').next().expect("its end")
}
