//! A TCP proxy that can break connections and drop responses. For tests only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards connections to a server until it is cut.
pub struct Proxy {
    /// The address that it listens on.
    pub address: SocketAddr,
    cut: watch::Sender<bool>,
    /// The number of times that all connections were broken.
    broken: watch::Sender<u64>,
    faults: Faults,
}

/// The faults to inject into responses.
#[derive(Clone, Default)]
struct Faults {
    /// How many responses are still to be dropped.
    swallow: Arc<AtomicUsize>,
    /// How many responses were dropped.
    swallowed: Arc<AtomicUsize>,
    /// Responses are held back, with their connections open.
    hang: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy for a server.
    pub async fn before(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("the socket is bound");
        let (cut, is_cut) = watch::channel(false);
        let (broken, breaks) = watch::channel(0);
        let faults = Faults::default();
        tokio::spawn(listen(listener, server, (is_cut, breaks), faults.clone()));
        Proxy { address, cut, broken, faults }
    }

    /// Breaks all connections, and goes on to accept new ones.
    pub fn break_connections(&self) {
        self.broken.send_modify(|count| *count += 1);
    }

    /// Breaks all connections, and accepts no more.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Reads the next responses from the server, drops them, and breaks their connections.
    pub fn swallow(&self, responses: usize) {
        self.faults.swallow.store(responses, Ordering::SeqCst);
    }

    /// How many responses were dropped.
    pub fn swallowed(&self) -> usize {
        self.faults.swallowed.load(Ordering::SeqCst)
    }

    /// Holds back all further responses, and keeps their connections open.
    pub fn hang(&self) {
        self.faults.hang.store(true, Ordering::SeqCst);
    }
}

type Breaks = (watch::Receiver<bool>, watch::Receiver<u64>);

async fn listen(listener: TcpListener, to: SocketAddr, (is_cut, breaks): Breaks, faults: Faults) {
    let mut cut = is_cut.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = cut.wait_for(|cut| *cut) => return,
        };
        let (client, _) = accepted.expect("loopback");
        let upstream = TcpStream::connect(to).await.expect("the server listens");
        let (mut cut, mut breaks, faults) = (is_cut.clone(), breaks.clone(), faults.clone());
        breaks.mark_unchanged();
        tokio::spawn(async move {
            tokio::select! {
                () = forward(client, upstream, faults) => {}
                _ = cut.wait_for(|cut| *cut) => {}
                _ = breaks.changed() => {}
            }
        });
    }
}

async fn forward(client: TcpStream, upstream: TcpStream, faults: Faults) {
    let (mut client_read, mut client_write) = client.into_split();
    let (mut upstream_read, mut upstream_write) = upstream.into_split();
    let requests = async { drop(tokio::io::copy(&mut client_read, &mut upstream_write).await) };
    let responses = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = upstream_read.read(&mut buffer).await {
            if faults.hang.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            let decrement = |left: usize| left.checked_sub(1);
            if faults.swallow.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement).is_ok() {
                faults.swallowed.fetch_add(1, Ordering::SeqCst);
                return;
            }
            if client_write.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = responses => {}
    }
}
