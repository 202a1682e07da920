//! A server for tests: a store in memory, chance that is the same in every run, a wall clock that stands still. Its credentials can be guessed by
//! anybody; nothing but tests may use it.

mod proxy;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::{Clock, EngineObserver, Fatal};
use identity::Role;
use kernel::Span;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::backend::boot::{Machine, Making, open};
use crate::backend::event_log::News;
use crate::backend::metrics::Metrics;
use crate::backend::shards::{App, Parts, Settings};
use crate::backend::store::StoreUrl;
use crate::backend::watch::Watch;
use crate::http::listener::{Limits, Listener, serve};
use crate::peer::Peer;
pub use proxy::Proxy;

/// Two shards in memory, on the machine's clock.
pub fn app(settings: Settings) -> Arc<App> {
    made(settings, &Machine::clock, Box::new(|| EPOCH))
}

/// Two shards in memory, whose time passes when a test says so.
pub fn app_by(settings: Settings, hands: &Hands) -> Arc<App> {
    let (kernel, wall) = (hands.clone(), hands.clone());
    let clock = move || -> std::io::Result<Box<dyn Clock>> { Ok(Box::new(kernel.clone())) };
    made(settings, &clock, Box::new(move || EPOCH + wall.passed()))
}

/// What every test server's wall clock starts from.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

fn made(
    settings: Settings,
    clock: &dyn Fn() -> std::io::Result<Box<dyn Clock>>,
    wall: Box<dyn Fn() -> Duration + Send + Sync>,
) -> Arc<App> {
    let making = Making { shards: 2, ..Making::default() };
    let (metrics, news) = (Arc::new(Metrics::new()), Arc::new(News::default()));
    let on_fatal = Box::new(|why: &Fatal| panic!("{why}"));
    let watch = Watch { metrics: Arc::clone(&metrics), news: Arc::clone(&news), on_fatal };
    let watcher: Arc<dyn EngineObserver> = Arc::new(watch);
    let machine = Machine { random: &|bytes| bytes.fill(7), clock };
    let opened = open(&StoreUrl::memory(), &making, machine, &watcher).expect("memory has room");
    // Numbers that differ from each other, the same in every run.
    let count = AtomicU64::new(0);
    let chance = Box::new(move |bytes: &mut [u8]| {
        let next = count.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        blake3::Hasher::new().update(&next).finalize_xof().fill(bytes);
    });
    Arc::new(App::new(opened, Parts { settings, metrics, news, wall, chance }))
}

/// A clock that a test moves. Whatever the server is asked next finds the new time.
#[derive(Clone, Default)]
pub struct Hands(Arc<AtomicU64>);

impl Hands {
    /// So much time passes.
    pub fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::AcqRel);
    }

    fn passed(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Acquire))
    }
}

impl Clock for Hands {
    fn boot_clock(&self) -> Span {
        Span(self.0.load(Ordering::Acquire))
    }

    fn boot_id(&self) -> u128 {
        1
    }

    fn unix_micros(&self) -> u64 {
        u64::try_from(EPOCH.as_micros()).expect("this century") + self.boot_clock().0 * 1000
    }
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
