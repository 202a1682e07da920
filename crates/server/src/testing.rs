//! A server for tests: a store in memory, chance and a clock that never change. Its credentials can be guessed by
//! anybody; nothing but tests may use it.

mod proxy;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::engine::{Fatal, Watcher};
use identity::Role;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::{App, Settings};
use crate::boot::{Making, StoreUrl, open};
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::serve::{Limits, Listener, serve};
use crate::watch::Watch;
pub use proxy::Proxy;

/// Two shards in memory.
pub fn app(settings: Settings) -> Arc<App> {
    let making = Making { shards: 2, ..Making::default() };
    let metrics = Arc::new(Metrics::new());
    let on_fatal = Box::new(|why: &Fatal| panic!("{why}"));
    let watcher: Arc<dyn Watcher> = Arc::new(Watch { metrics: Arc::clone(&metrics), on_fatal });
    let opened = open(&StoreUrl::Memory, &making, &|bytes| bytes.fill(7), &watcher).expect("memory has room");
    let wall = Box::new(|| Duration::from_secs(1_800_000_000));
    Arc::new(App::new(opened, settings, metrics, wall))
}

/// A server on loopback, to whom everybody is `anonymous`. Ends when it is dropped.
pub struct Loopback {
    /// Where it listens.
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
}

impl Loopback {
    /// Serves on the runtime that this is called on.
    pub async fn start(role: Role) -> Loopback {
        Loopback::limited(role, Limits::default()).await
    }

    /// The same, with other limits.
    pub async fn limited(role: Role, limits: Limits) -> Loopback {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("it is bound");
        let (stop, stopped) = watch::channel(false);
        let listeners = vec![Listener::Plain(listener, Peer::anonymous(role))];
        tokio::spawn(serve(listeners, app(Settings::default()), limits, stopped));
        Loopback { address, stop }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
