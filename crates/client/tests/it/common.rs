//! A real server on loopback, and connections to it.

use std::net::SocketAddr;

use identity::Role;
use lockd_client::Client;
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
