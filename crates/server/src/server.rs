//! [`Server`]: opens the store, listens, reloads, and shuts down; for `lockd serve`, or embedded in another program.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use lockd_server::{Config, Server};
//!
//! let mut server = Server::new(Config::in_directory("/var/lib/lockd"))?;
//! let address = server.start().await?;
//! println!("leases at {address}");
//! server.shutdown().await?;
//! # Ok(()) }
//! ```

use std::fmt;
use std::fs::Permissions;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use engine::observe::{EngineObserver, Fatal, RecoverySummary};
use identity::Role;
use rustix::fs::Mode;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backend::audit_log::{AuditFile, AuditFileError, AuditLog};
use crate::backend::boot::{self, Environment, OpenStore};
use crate::backend::boot_error::BootError;
use crate::backend::engine_observer::{FatalHandler, ShardObserver};
use crate::backend::event_log::EventLog;
use crate::backend::history_feed;
use crate::backend::log_space;
use crate::backend::machine_clocks;
use crate::backend::metrics::Metrics;
use crate::backend::moment::{Clocks, WallClock};
use crate::backend::private_files::{check_private, private_dir};
use crate::backend::shards::{Backend, Components};
use crate::backend::store::TornTail;
use crate::config::{Config, ConfigError};
use crate::http::certificate_expiry;
use crate::http::connections::Connections;
use crate::http::descriptors;
use crate::http::identities::Identities;
use crate::http::listener::{ConnectionLimits, Listener, ListenerContext, serve};
use crate::http::reload::Reloader;
use crate::http::router::router;
use crate::peer::Peer;

/// Why a server cannot start.
#[derive(Debug)]
pub enum StartError {
    /// A setting has an invalid value.
    Config(ConfigError),
    /// The store cannot be opened.
    Store(BootError),
    /// The audit log cannot be opened.
    AuditLog(AuditFileError),
    /// An identity file or a denylist is missing or damaged.
    Identity(identity::Error),
    /// The address or socket cannot be listened on.
    Listen(String, std::io::Error),
    /// The server was started before.
    Started,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(error) => error.fmt(f),
            StartError::Store(error) => error.fmt(f),
            StartError::AuditLog(error) => error.fmt(f),
            StartError::Identity(error) => error.fmt(f),
            StartError::Listen(address, error) => write!(f, "cannot listen: {error}: address={address}"),
            StartError::Started => f.write_str("the server is already started"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> StartError {
        StartError::Config(error)
    }
}

impl From<BootError> for StartError {
    fn from(error: BootError) -> StartError {
        StartError::Store(error)
    }
}

impl From<AuditFileError> for StartError {
    fn from(error: AuditFileError) -> StartError {
        StartError::AuditLog(error)
    }
}

impl From<identity::Error> for StartError {
    fn from(error: identity::Error) -> StartError {
        StartError::Identity(error)
    }
}

/// A server with an open store. The store is closed and unlocked when this and every router of it are dropped.
pub struct Server {
    config: Config,
    limits: ConnectionLimits,
    backend: Arc<Backend>,
    connections: Arc<Connections>,
    /// `None` without mutual TLS.
    reloader: Option<Arc<Reloader>>,
    serving: Option<Serving>,
}

struct Serving {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Opens or creates the store, and reads or creates identities. Serves no requests yet. Raises the process's limit of
    /// open files to its hard limit.
    ///
    /// If an append to the log ever fails, **the process ends**: memory is then ahead of the log, and no further
    /// response may be sent. [`Server::with_fatal_handler`] is for programs that have to do something first.
    pub fn new(config: Config) -> Result<Server, StartError> {
        Server::with_fatal_handler(config, Box::new(end_process))
    }

    /// Like [`Server::new`]; when the log fails, `on_fatal` is called, from any thread, and must end the process.
    pub fn with_fatal_handler(config: Config, on_fatal: FatalHandler) -> Result<Server, StartError> {
        config.check()?;
        if config.keeps_data() {
            private_dir(&config.data_dir)?;
        }
        if config.mtls {
            check_private(&config.identity_sources()?.key_file())?;
        }
        let load = || Identities::load(config.identity_sources()?).map_err(StartError::from);
        let identities = config.mtls.then(load).transpose()?;
        let wall: WallClock = Arc::new(machine_clocks::since_epoch);
        let (metrics, event_log) = (Arc::new(Metrics::new()), Arc::new(EventLog::new(Arc::clone(&wall))));
        let audit_file = config.audit_file().map(AuditFile::open).transpose()?;
        let audit_log = audit_file.map(|file| Arc::new(AuditLog::start(file, &metrics, Arc::clone(&wall))));
        let observer: Arc<dyn EngineObserver> = Arc::new(ShardObserver {
            metrics: Arc::clone(&metrics),
            event_log: Arc::clone(&event_log),
            audit_log: audit_log.clone(),
            on_fatal,
        });
        let environment = Environment { random: &system::random::fill, clock: &Environment::machine_clock };
        tracing::info!(version = env!("CARGO_PKG_VERSION"), store = %config.store, "opening the store");
        let options = config.open_options();
        let memory = options.engine.memory.clone();
        let store = boot::open(&config.store, &options, environment, &observer)?;
        store.torn_tails.iter().for_each(warn_of_torn_tail);
        metrics.torn_tails_cut(store.torn_tails.len());
        report_recovery(&config, &store, audit_log.as_deref());
        let settings = config.settings();
        let clocks = Clocks { wall, boot: Box::new(machine_clocks::since_boot) };
        let random = Box::new(system::random::fill);
        let certificates = identities.as_ref().map(|found| Arc::clone(&found.dates)).unwrap_or_default();
        let components = Components {
            settings,
            metrics,
            event_log,
            memory,
            directory: config.store.backend().directory().map(Path::to_path_buf),
            audit_log,
            certificates,
            clocks,
            random,
        };
        let backend = Arc::new(Backend::new(store, components));
        let limits = config.connection_limits();
        warn_of_fewer_connections(&config, limits.connections_max);
        let limits = descriptors::fit(limits);
        backend.metrics.started(backend.clocks.unix_ms() / 1000, limits.connections_max);
        let (max, per_identity_max) = (limits.connections_max, limits.connections_per_identity_max);
        let connections = Connections::new(max, per_identity_max, &backend.metrics);
        let reloader =
            identities.map(|identities| Arc::new(Reloader::new(identities, &connections, &backend)));
        Ok(Server { config, limits, backend, connections, reloader, serving: None })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All paths, to be mounted in another program. Each request needs a [`Peer`] among its extensions: the
    /// authenticated client.
    pub fn router(&self) -> Router {
        router(&self.backend)
    }

    /// Listens, and serves in the background, on the runtime of the caller. Returns the address.
    pub async fn start(&mut self) -> Result<SocketAddr, StartError> {
        if self.serving.is_some() {
            return Err(StartError::Started);
        }
        let tcp = bind(self.config.address()?).await?;
        let bound =
            tcp.local_addr().map_err(|error| StartError::Listen(self.config.listen.clone(), error))?;
        let mut listeners = vec![match &self.reloader {
            Some(reloader) => Listener::Tls(tcp, reloader.identities().tls.clone()),
            None => plain_listener(tcp, bound, &self.config),
        }];
        if let Some(path) = &self.config.unix {
            listeners.push(Listener::Unix(bind_unix(path)?, Peer::anonymous(Role::Operator)));
        }
        self.advertise(bound);
        let (stop, stopped) = watch::channel(false);
        let log_space = log_space::watch(Arc::clone(&self.backend), stopped.clone());
        let history = history_feed::watch(Arc::clone(&self.backend), stopped.clone());
        let expiry = certificate_expiry::watch(Arc::clone(&self.backend), stopped.clone());
        let reloading = self.reloader.clone().map(|reloader| reloader.watch(stopped.clone()));
        let serving = serve(listeners, self.listener_context(stopped));
        let task = tokio::spawn(async move {
            let reloading = async {
                if let Some(reloading) = reloading {
                    reloading.await;
                }
            };
            tokio::join!(serving, log_space, history, expiry, reloading);
        });
        self.serving = Some(Serving { stop, task });
        let scheme = if self.config.mtls { "https" } else { "http" };
        tracing::info!(url = %format_args!("{scheme}://{bound}"), store = %self.config.store, "serving");
        if !self.config.mtls {
            tracing::warn!("mTLS is off: every client has the identity `anonymous`");
        }
        Ok(bound)
    }

    /// Tells the other servers of the store where this one is reached.
    fn advertise(&self, bound: SocketAddr) {
        let Some(cluster) = &self.backend.cluster else { return };
        let scheme = if self.config.mtls { "https" } else { "http" };
        let usual = || {
            let is_any = bound.ip().is_unspecified();
            if is_any { format!("{}:{}", system::host_name(), bound.port()) } else { bound.to_string() }
        };
        let address = self.config.advertise.clone().unwrap_or_else(usual);
        cluster.registry().advertise(format!("{scheme}://{address}"));
    }

    fn listener_context(&self, stop: watch::Receiver<bool>) -> ListenerContext {
        let (backend, connections) = (Arc::clone(&self.backend), Arc::clone(&self.connections));
        let (reloader, limits) = (self.reloader.clone(), self.limits);
        ListenerContext {
            backend,
            connections,
            reloader,
            limits,
            lone_caller: Arc::default(),
            only_hyper: false,
            stop,
        }
    }

    /// Reads identities and revocations again, at once; a running server also notices by itself that the files have
    /// changed. If any of them is invalid, or revoked serials are missing, none is replaced. Logs the outcome.
    ///
    /// When this returns, nothing more is decided for a client whose certificate is revoked. Blocks for as long as it
    /// takes to read the files, and for a turn of each shard.
    pub fn reload(&self) -> Result<(), StartError> {
        match &self.reloader {
            Some(reloader) => Ok(reloader.reload().map(drop)?),
            None => Ok(()),
        }
    }

    /// Stops granting, refuses waiters, completes requests in progress, and closes the store.
    ///
    /// A store that is not closed within the drain timeout stays open and locked until its last append is decided, or
    /// the process ends.
    pub async fn shutdown(self) -> Result<(), CloseTimeout> {
        tracing::info!("stopping; no more leases are granted");
        if let Some(cluster) = self.backend.cluster.clone() {
            // First the shards are handed over: requests that come meanwhile are forwarded to their new owners.
            let handed_over = tokio::task::spawn_blocking(move || cluster.stop());
            let timeout = self.config.drain_timeout.max(CLOSE_TIMEOUT_MIN);
            // What is not handed over is taken over after the silence.
            let _ = tokio::time::timeout(timeout, handed_over).await;
        }
        if let Some(Serving { stop, task }) = self.serving {
            stop.send_replace(true);
            // A panic of the task was reported by the panic hook.
            let _ = task.await;
            if let Some(path) = self.config.unix.as_ref().filter(|path| is_socket(path)) {
                let _ = std::fs::remove_file(path);
            }
        }
        self.backend.drain();
        // It has a reference to the backend.
        drop(self.reloader);
        let backend = self.backend;
        // Blocks until every accepted command of all shards has its reply.
        let closed = tokio::task::spawn_blocking(move || close(backend));
        let timeout = self.config.drain_timeout.max(CLOSE_TIMEOUT_MIN);
        // A panic of the thread was reported by the panic hook.
        let _ = tokio::time::timeout(timeout, closed).await.map_err(|_| CloseTimeout(timeout))?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// A store has at least this time to complete its last append, also with a shorter drain timeout.
const CLOSE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The store did not complete its last append in time.
#[derive(Debug)]
pub struct CloseTimeout(Duration);

impl fmt::Display for CloseTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CloseTimeout(timeout) = self;
        write!(
            f,
            "the store did not complete its last append; nothing acknowledged is lost: waited={timeout:?}"
        )
    }
}

impl std::error::Error for CloseTimeout {}

/// A limit that was lowered must not surprise: connections beyond it are closed.
fn warn_of_fewer_connections(config: &Config, max_connections: usize) {
    if max_connections < config.max_connections {
        tracing::warn!(
            configured = config.max_connections,
            max_connections,
            memory_max = config.memory_max,
            "max-connections is reduced: the memory of --memory-max is not enough for them"
        );
    }
}

/// Closes the store, then the audit log, which has an entry for everything that the store has.
fn close(backend: Arc<Backend>) {
    let audit_log = backend.audit_log.clone();
    drop(backend);
    if let Some(audit_log) = audit_log {
        audit_log.record_stop();
        audit_log.close();
    }
}

/// Logs what each shard has recovered.
fn report_recovery(config: &Config, store: &OpenStore, audit_log: Option<&AuditLog>) {
    // The shards of a bucket are reported when they are taken over.
    let owned = store.slots.iter().filter(|_| store.cluster.is_none());
    let engines: Vec<_> = owned.filter_map(|slot| slot.engine()).collect();
    for (shard, engine) in engines.iter().enumerate() {
        let RecoverySummary { snapshot, records, leases, documents, was_clean, took } = engine.recovery();
        let snapshot = snapshot.map(|seq| seq.0);
        let last_stop = if *was_clean { "clean" } else { "unclean" };
        let ms = took.as_millis();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            shard,
            records,
            snapshot,
            leases,
            documents,
            ms,
            last_stop,
            "recovered the store"
        );
    }
    if let Some(audit_log) = audit_log {
        // Of a bucket, other servers may have closed what this one left open.
        let was_clean = || engines.iter().all(|engine| engine.recovery().was_clean);
        audit_log.record_start(config.store.to_string(), store.cluster.is_none().then(was_clean));
    }
}

fn warn_of_torn_tail(torn: &TornTail) {
    let TornTail { shard, file, offset, seq, lsns } = torn;
    let lsns = lsns.map_or("unreadable".to_string(), |lsns| format!("{}..={}", lsns.first.0, lsns.last.0));
    let file = file.display();
    tracing::warn!(shard = shard.0, %file, offset, seq = seq.0, %lsns, "torn tail cut; its batch was never acknowledged");
}

#[expect(clippy::disallowed_methods, reason = "memory is ahead of the log: no response may be sent any more")]
fn end_process(_: &Fatal) {
    std::process::exit(1);
}

fn plain_listener(tcp: TcpListener, bound: SocketAddr, config: &Config) -> Listener {
    Listener::Plain(tcp, Peer::anonymous(anonymous_role(bound)), config.allowed_hosts.clone())
}

/// The role of every client without mTLS: operator on a loopback address, worker beyond.
fn anonymous_role(bound: SocketAddr) -> Role {
    if bound.ip().is_loopback() { Role::Operator } else { Role::Worker }
}

/// Binds an address; the unspecified IPv6 address becomes the IPv4 one on a machine without IPv6.
async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = match TcpListener::bind(address).await {
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    };
    bound.map_err(|error| StartError::Listen(address.to_string(), error))
}

/// Whether this is a socket; a symbolic link to one is not.
fn is_socket(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Binds a Unix socket with mode 0600: every client of it is an operator. Replaces the socket of a dead server, and no
/// other file.
fn bind_unix(path: &Path) -> Result<UnixListener, StartError> {
    if is_socket(path) && std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    // The umask is process-wide: it is only tightened, so that files of other threads are at most too private.
    let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let bound = UnixListener::bind(path);
    rustix::process::umask(umask);
    let private = || std::fs::set_permissions(path, Permissions::from_mode(0o600));
    let bound = bound.and_then(|listener| private().map(|()| listener));
    bound.map_err(|error| StartError::Listen(path.display().to_string(), error))
}
