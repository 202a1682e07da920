//! A whole server: to be run by a program of its own, or inside another.
//!
//! ```no_run
//! # async fn example() -> Result<(), server::StartError> {
//! use server::{Config, Server};
//!
//! let mut server = Server::new(Config::in_folder("/var/lib/lockd"))?;
//! let address = server.start().await?;
//! println!("leases at {address}");
//! server.shutdown().await;
//! # Ok(()) }
//! ```

use std::fmt;
use std::fs::Permissions;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use engine::{EngineObserver, Fatal};
use identity::Role;
use rustix::fs::Mode;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backend::boot::{self, BootError, Machine};
use crate::backend::event_log::News;
use crate::backend::machine;
use crate::backend::metrics::Metrics;
use crate::backend::shards::{App, Parts};
use crate::backend::store::TornTail;
use crate::backend::watch::{OnFatal, Watch};
use crate::config::{Config, ConfigError};
use crate::http::identities::Identities;
use crate::http::listener::{Listener, serve};
use crate::http::router::router;
use crate::peer::Peer;

/// Why a server does not start.
#[derive(Debug)]
pub enum StartError {
    /// A setting cannot be.
    Config(ConfigError),
    /// The store does not open.
    Store(BootError),
    /// An identity file or a denylist is missing or damaged.
    Identity(identity::Error),
    /// It cannot listen there.
    Listen(String, std::io::Error),
    /// It serves already.
    Started,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(error) => error.fmt(f),
            StartError::Store(error) => error.fmt(f),
            StartError::Identity(error) => error.fmt(f),
            StartError::Listen(at, error) => write!(f, "cannot listen: {error}: address={at}"),
            StartError::Started => f.write_str("the server was started already"),
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

impl From<identity::Error> for StartError {
    fn from(error: identity::Error) -> StartError {
        StartError::Identity(error)
    }
}

/// An open store, and what lets clients in. The store is let go when this and every router of it are dropped.
pub struct Server {
    config: Config,
    app: Arc<App>,
    identities: Option<Identities>,
    serving: Option<Serving>,
}

struct Serving {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Opens the store, or makes it, and reads or makes identities; nobody is served yet.
    ///
    /// If the log ever fails to take what was decided, **the process ends**: memory is ahead of the log then, and no
    /// answer may be given any more. [`Server::with_fatal`] is for programs that have to do something first.
    pub fn new(config: Config) -> Result<Server, StartError> {
        Server::with_fatal(config, Box::new(end_process))
    }

    /// The same; when the store fails, `on_fatal` is called, from any thread, and must see to it that the process ends.
    pub fn with_fatal(config: Config, on_fatal: OnFatal) -> Result<Server, StartError> {
        config.check()?;
        if let Some(subdirectory) = config.data_subdirectory() {
            boot::private_dir(&config.data_dir, &[subdirectory])?;
        }
        let identities = if config.mtls { Some(Identities::load(&config)?) } else { None };
        let (metrics, news) = (Arc::new(Metrics::new()), Arc::new(News::default()));
        let watcher: Arc<dyn EngineObserver> =
            Arc::new(Watch { metrics: Arc::clone(&metrics), news: Arc::clone(&news), on_fatal });
        let machine = Machine { random: &system::random::fill, clock: &Machine::clock };
        let opened = boot::open(&config.store, &config.making(), machine, &watcher)?;
        opened.torn_tails.iter().for_each(warn_of_torn_tail);
        let (wall, chance) = (Box::new(machine::wall), Box::new(system::random::fill));
        let app = App::new(opened, Parts { settings: config.settings(), metrics, news, wall, chance });
        Ok(Server { config, app: Arc::new(app), identities, serving: None })
    }

    /// What it is set to.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All paths, to be mounted in another program. Each request needs a [`Peer`] among its extensions: who is asking.
    pub fn router(&self) -> Router {
        router(&self.app)
    }

    /// Listens, and serves in the background, on the runtime that this is called on. Returns where.
    pub async fn start(&mut self) -> Result<SocketAddr, StartError> {
        if self.serving.is_some() {
            return Err(StartError::Started);
        }
        let tcp = bind(self.config.address()?).await?;
        let bound =
            tcp.local_addr().map_err(|error| StartError::Listen(self.config.listen.clone(), error))?;
        let mut listeners = vec![match &self.identities {
            Some(identities) => Listener::Tls(tcp, identities.tls.clone()),
            None => Listener::Plain(tcp, Peer::anonymous(anonymous(bound))),
        }];
        if let Some(path) = &self.config.unix {
            listeners.push(Listener::Unix(unix(path)?, Peer::anonymous(Role::Operator)));
        }
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve(listeners, Arc::clone(&self.app), self.config.limits(), stopped));
        self.serving = Some(Serving { stop, task });
        let scheme = if self.config.mtls { "https" } else { "http" };
        tracing::info!(url = %format_args!("{scheme}://{bound}"), store = %self.config.store, "serving");
        if !self.config.mtls {
            tracing::warn!("without mTLS everybody is the identity `anonymous`");
        }
        Ok(bound)
    }

    /// Reads identities and revocations again. If anything is wrong with them, all stays as it was.
    pub fn reload(&self) -> Result<(), StartError> {
        match &self.identities {
            Some(identities) => Ok(identities.reload()?),
            None => Ok(()),
        }
    }

    /// Grants nothing any more, sends away those who wait, answers what is under way, and closes the store.
    pub async fn shutdown(self) {
        tracing::info!("stopping: nothing is granted any more");
        if let Some(Serving { stop, task }) = self.serving {
            stop.send_replace(true);
            // A task that panicked has said so.
            let _ = task.await;
        }
        self.app.drain();
        if let Some(path) = &self.config.unix {
            let _ = std::fs::remove_file(path);
        }
        let app = self.app;
        // The engines' threads are waited for.
        let _ = tokio::task::spawn_blocking(move || drop(app)).await;
        tracing::info!("stopped");
    }
}

fn warn_of_torn_tail(torn: &TornTail) {
    let TornTail { shard, file, offset, seq, lsns } = torn;
    let lsns = lsns.map_or("unreadable".to_string(), |lsns| format!("{}..={}", lsns.first.0, lsns.last.0));
    let file = file.display();
    tracing::warn!(shard = shard.0, %file, offset, seq = seq.0, %lsns, "torn tail cut; its batch was never acknowledged");
}

#[expect(clippy::disallowed_methods, reason = "memory is ahead of the log: nothing may be answered any more")]
fn end_process(_: &Fatal) {
    std::process::exit(1);
}

/// What everybody is, where nobody is asked.
fn anonymous(bound: SocketAddr) -> Role {
    if bound.ip().is_loopback() { Role::Operator } else { Role::Worker }
}

/// Where a machine has no IPv6, every address means every one that it has.
async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = match TcpListener::bind(address).await {
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    };
    bound.map_err(|error| StartError::Listen(address.to_string(), error))
}

/// For this user alone: every client of the socket is an operator. Replaces a socket that a dead server left behind.
fn unix(path: &Path) -> Result<UnixListener, StartError> {
    if std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    // Process-wide, and so only narrower: what another thread creates meanwhile is for its owner too.
    let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let bound = UnixListener::bind(path);
    rustix::process::umask(umask);
    let private = || std::fs::set_permissions(path, Permissions::from_mode(0o600));
    let bound = bound.and_then(|listener| private().map(|()| listener));
    bound.map_err(|error| StartError::Listen(path.display().to_string(), error))
}
