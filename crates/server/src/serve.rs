//! Listens, and serves whoever connects until it is told to stop.

use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::app::App;
use crate::peer::Peer;
use crate::router::router;

/// What one connection may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; one more waits to be accepted.
    pub connections_max: usize,
    /// How long the head of a request may take.
    pub head_timeout: Duration,
    /// How long connections may go on after they were told to stop.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 10_000,
            head_timeout: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Serves plain HTTP/1.1 and HTTP/2 until `stop` says true; everybody is `peer`.
pub async fn plain(
    listener: TcpListener,
    app: Arc<App>,
    peer: Peer,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let router = router(Arc::clone(&app)).layer(Extension(peer));
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let connections = hyper_util::server::graceful::GracefulShutdown::new();
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("nobody closes it");
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        // Out of descriptors, or gone again: the next may do better.
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        // Small answers must not wait for more to send.
        let _ = stream.set_nodelay(true);
        let connection = connection(stream, router.clone(), limits);
        let watched = connections.watch(connection);
        tokio::spawn(async move {
            // Whatever a client does wrong costs its own connection.
            let _ = watched.await;
            drop(slot);
        });
    }
    app.drain();
    let _ = tokio::time::timeout(limits.drain_timeout, connections.shutdown()).await;
}

type Connection = auto::UpgradeableConnection<
    'static,
    TokioIo<tokio::net::TcpStream>,
    TowerToHyperService<Router>,
    TokioExecutor,
>;

fn connection(stream: tokio::net::TcpStream, router: Router, limits: Limits) -> Connection {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_timeout);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(20)));
    let connection =
        builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(router));
    connection.into_owned()
}
