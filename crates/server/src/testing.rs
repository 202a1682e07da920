//! A server for tests: a store in memory, randomness that is the same in every run, a wall clock that stands still.
//! Its credentials are predictable: for tests only.

mod fill;
mod proxy;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::Clock;
use engine::limits::MemoryBudget;
use engine::observe::{EngineObserver, Fatal};
use identity::Role;
use kernel::Span;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::backend::boot::{Environment, open};
use crate::backend::engine_observer::ShardObserver;
use crate::backend::event_log::EventLog;
use crate::backend::machine_clocks;
use crate::backend::metrics::Metrics;
use crate::backend::moment::Clocks;
use crate::backend::open_options::OpenOptions;
use crate::backend::shards::{Backend, Components, RequestLimits};
use crate::backend::store::StoreUrl;
use crate::http::connections::Connections;
use crate::http::listener::{ConnectionLimits, Listener, ListenerContext, serve};
use crate::peer::Peer;
use crate::settings::HostNames;
pub use fill::fill;
pub use proxy::Proxy;

/// Two shards in memory, on the machine's clock.
pub fn backend(settings: RequestLimits) -> Arc<Backend> {
    let clocks = Clocks { wall: Arc::new(|| EPOCH), boot: Box::new(machine_clocks::since_boot) };
    build(settings, &Environment::machine_clock, clocks)
}

/// Two shards in memory, on a clock that the test advances.
pub fn backend_with_clock(settings: RequestLimits, test_clock: &TestClock) -> Arc<Backend> {
    let (kernel_clock, wall_clock, boot_clock) = (test_clock.clone(), test_clock.clone(), test_clock.clone());
    let clock = move || -> std::io::Result<Box<dyn Clock>> { Ok(Box::new(kernel_clock.clone())) };
    let wall = Arc::new(move || EPOCH + wall_clock.elapsed());
    build(settings, &clock, Clocks { wall, boot: Box::new(move || boot_clock.boot_clock()) })
}

/// The time since 1970 at which the wall clock of every test server starts.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

fn build(
    settings: RequestLimits,
    clock: &dyn Fn() -> std::io::Result<Box<dyn Clock>>,
    clocks: Clocks,
) -> Arc<Backend> {
    let options = OpenOptions { shards: 2, ..OpenOptions::default() };
    let (metrics, event_log) = (Arc::new(Metrics::new()), Arc::new(EventLog::new(Arc::clone(&clocks.wall))));
    let on_fatal = Box::new(|why: &Fatal| panic!("{why}"));
    let (counted, recorded) = (Arc::clone(&metrics), Arc::clone(&event_log));
    let observer: Arc<dyn EngineObserver> =
        Arc::new(ShardObserver { metrics: counted, event_log: recorded, audit_log: None, on_fatal });
    let environment = Environment { random: &|bytes| bytes.fill(7), clock };
    let store = open(&StoreUrl::memory(), &options, environment, &observer).expect("a store in memory opens");
    // Distinct numbers, the same in every run.
    let count = AtomicU64::new(0);
    let random = Box::new(move |bytes: &mut [u8]| {
        let next = count.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        blake3::Hasher::new().update(&next).finalize_xof().fill(bytes);
    });
    Arc::new(Backend::new(
        store,
        Components {
            settings,
            metrics,
            event_log,
            memory: MemoryBudget::default(),
            directory: None,
            audit_log: None,
            certificates: Arc::default(),
            clocks,
            random,
        },
    ))
}

/// A clock that the test advances. The next request sees the new time.
#[derive(Clone, Default)]
pub struct TestClock(Arc<AtomicU64>);

impl TestClock {
    /// Advances the clock by `ms` milliseconds.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::AcqRel);
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Acquire))
    }
}

impl Clock for TestClock {
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

/// How a [`Loopback`] serves.
pub struct LoopbackOptions {
    /// The role of every client.
    pub role: Role,
    /// Limits and timeouts of connections.
    pub limits: ConnectionLimits,
    /// Names of this machine, beside the usual ones.
    pub allowed_hosts: HostNames,
    /// Whether hyper reads every request, plain short calls too.
    pub only_hyper: bool,
}

impl Default for LoopbackOptions {
    fn default() -> LoopbackOptions {
        LoopbackOptions {
            role: Role::Operator,
            limits: ConnectionLimits::default(),
            allowed_hosts: HostNames::any(),
            only_hyper: false,
        }
    }
}

/// A server on a loopback address without authentication: every client is `anonymous`. Stops when dropped.
pub struct Loopback {
    /// The address that it listens on.
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
}

impl Loopback {
    /// Serves on the runtime of the caller.
    pub async fn start(role: Role) -> Loopback {
        Loopback::with_limits(role, ConnectionLimits::default()).await
    }

    /// Like [`Loopback::start`], with other limits.
    pub async fn with_limits(role: Role, limits: ConnectionLimits) -> Loopback {
        Loopback::with_backend(role, limits, backend(RequestLimits::default())).await
    }

    /// Like [`Loopback::start`], over this backend.
    pub async fn with_backend(role: Role, limits: ConnectionLimits, backend: Arc<Backend>) -> Loopback {
        Loopback::serving(backend, LoopbackOptions { role, limits, ..LoopbackOptions::default() }).await
    }

    /// With all options.
    pub async fn serving(backend: Arc<Backend>, options: LoopbackOptions) -> Loopback {
        let LoopbackOptions { role, limits, allowed_hosts, only_hyper } = options;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("the socket is bound");
        let (stop, stopped) = watch::channel(false);
        let listeners = vec![Listener::Plain(listener, Peer::anonymous(role), allowed_hosts)];
        let (max, per_identity_max) = (limits.connections_max, limits.connections_per_identity_max);
        let connections = Connections::new(max, per_identity_max, &backend.metrics);
        let context = ListenerContext {
            backend,
            connections,
            reloader: None,
            limits,
            lone_caller: Arc::default(),
            only_hyper,
            stop: stopped,
        };
        tokio::spawn(serve(listeners, context));
        Loopback { address, stop }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
