//! A real server on loopback, and connections to it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use identity::Role;
use lockd_client::{Builder, Client, HttpVersion, StreamProtocol};
use lockd_server::Config;
use lockd_server::testing::Loopback;
use tokio::net::{TcpListener, TcpStream};

/// A server with an in-memory store; it ends with the test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _running: Loopback,
}

impl Server {
    pub(crate) async fn start() -> Server {
        let running = Loopback::start(Role::Operator).await;
        Server { address: running.address, _running: running }
    }

    pub(crate) fn client(&self) -> Client {
        client(&[self.address])
    }
}

pub(crate) fn client(addresses: &[SocketAddr]) -> Client {
    let builder = Client::builder().plain();
    let builder = addresses.iter().fold(builder, |builder, at| builder.endpoint(at.to_string()));
    builder.build().expect("valid addresses")
}

/// A server over mTLS, with a CA and an operator's identity file of its own, and a store on disk.
pub(crate) struct MtlsServer {
    pub(crate) address: SocketAddr,
    dir: tempfile::TempDir,
    acquire_block: Duration,
    protocol: Protocol,
    running: Option<lockd_server::Server>,
}

impl MtlsServer {
    /// Its clients speak this protocol.
    pub(crate) async fn start(protocol: Protocol) -> MtlsServer {
        MtlsServer::with_acquire_block(protocol, Duration::from_secs(60)).await
    }

    /// With this maximum time of a request in the wait queue.
    pub(crate) async fn with_acquire_block(protocol: Protocol, acquire_block: Duration) -> MtlsServer {
        // An address of its own: while the server is stopped, no other test gets its port.
        static NEXT: AtomicU8 = AtomicU8::new(2);
        let address = SocketAddr::from(([127, 0, 0, NEXT.fetch_add(1, Ordering::Relaxed)], 0));
        let dir = tempfile::tempdir().expect("a directory");
        let mut server = MtlsServer { address, dir, acquire_block, protocol, running: None };
        server.resume().await;
        server
    }

    /// Ends the server: waiters are dismissed, and connections are refused from now on.
    pub(crate) async fn stop(&mut self) {
        self.running.take().expect("it runs").shutdown().await.expect("the store closes");
    }

    /// Starts it on the store and at the address that it had.
    pub(crate) async fn resume(&mut self) {
        let config = Config {
            listen: self.address.to_string(),
            acquire_block: self.acquire_block,
            drain_timeout: Duration::from_secs(1),
            ..Config::in_directory(self.dir.path().join("data"))
        };
        let mut running = lockd_server::Server::new(config).expect("a store");
        self.address = running.start().await.expect("loopback");
        self.running = Some(running);
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn identity_file(&self) -> std::path::PathBuf {
        self.dir.path().join("data/client.pem")
    }

    pub(crate) fn builder(&self) -> Builder {
        self.protocol.choose(Client::builder().identity_file(self.identity_file()))
    }

    pub(crate) fn client(&self) -> Client {
        self.client_at(self.address)
    }

    /// A client of a proxy before the server.
    pub(crate) fn client_at(&self, address: SocketAddr) -> Client {
        self.client_of(&[address])
    }

    /// A client of several addresses of the server.
    pub(crate) fn client_of(&self, addresses: &[SocketAddr]) -> Client {
        let add = |builder: Builder, at: &SocketAddr| builder.endpoint(format!("https://{at}"));
        addresses.iter().fold(self.builder(), add).build().expect("valid")
    }
}

/// What a client speaks over mTLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    /// The stream protocol for short calls, HTTP/1.1 for all others.
    Stream,
}

impl Protocol {
    fn choose(self, builder: Builder) -> Builder {
        match self {
            Protocol::Http1 => builder.stream(StreamProtocol::Never),
            Protocol::Http2 => builder.stream(StreamProtocol::Never).http_version(HttpVersion::Http2),
            Protocol::Stream => builder,
        }
    }
}

/// Tests over all protocols: functions that take one.
macro_rules! over_all_protocols {
    ($($name:ident)*) => {
        mod http1 {
            $(#[tokio::test] async fn $name() { super::$name(crate::common::Protocol::Http1).await; })*
        }
        mod http2 {
            $(#[tokio::test] async fn $name() { super::$name(crate::common::Protocol::Http2).await; })*
        }
        mod stream {
            $(#[tokio::test] async fn $name() { super::$name(crate::common::Protocol::Stream).await; })*
        }
    };
}

pub(crate) use over_all_protocols;

/// Waits until a key has this many waiters.
pub(crate) async fn until_waiters(client: &Client, key: &str, waiters: u64) {
    while client.describe(key, None).await.map_or(u64::MAX, |described| described.waiters) != waiters {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Forwards a Unix socket to a server.
pub(crate) fn proxy_socket(server: &Server, path: &std::path::Path) {
    let (listener, to) = (tokio::net::UnixListener::bind(path).expect("a socket"), server.address);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = TcpStream::connect(to).await.expect("the server listens");
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
}

/// An address without a listener.
pub(crate) async fn unused_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    listener.local_addr().expect("it was bound")
}
