//! `lockd serve`: opens the store, lets clients in, and stops without losing anything.

mod first;
mod settings;

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::engine::{Fatal, Options, Upkeep, Watcher};
use identity::{Denylist, Role, ServerBundle, ServerTls, SharedDenylist};
use kernel::{Event, Lsn, Span};
use server::app::{App, Settings};
use server::boot::{self, Making, StoreUrl};
use server::peer::Peer;
use server::serve::{Limits, Listener, Tls, serve};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

pub(crate) use self::settings::Serve;
use crate::say;

type Failure = String;

/// Serves until it is told to stop.
pub(crate) fn run(args: &Serve) -> Result<(), Failure> {
    let data = args.data_dir()?;
    let store = args.store(&data)?;
    let identity = if args.mtls { Some(Identity::load(args, &data)?) } else { None };
    let watcher: Arc<dyn Watcher> = Arc::new(Watch);
    let making = Making {
        shards: args.shards,
        limits: args.limits(),
        options: Options { sweep_every: args.gc_temps_interval, ..Options::default() },
        allow_network: args.allow_network_fs,
    };
    let opened = boot::open(&store, &making, &random, &watcher).map_err(|error| error.to_string())?;
    let settings = Settings {
        default_ttl: span(args.default_ttl),
        max_ttl: span(args.max_ttl),
        acquire_block: span(args.acquire_block),
        json_max: args.json_max,
    };
    let app = Arc::new(App::new(opened.engines, opened.key, settings, Box::new(wall)));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no threads to serve with: {error}"))?;
    runtime.block_on(listen(args, &data, &store, identity, Arc::clone(&app)))?;
    drop(runtime);
    // The engines end here, after all that they took is answered; then others may have the store.
    drop(app);
    drop(opened.lock);
    say("stopped");
    Ok(())
}

fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "the program owns the wall clock; it is for people to read")]
fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Fills bytes with chance that nobody can guess.
pub(crate) fn random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the machine has no randomness: {error}"),
        }
    }
}

/// Tells people what happens in the background, and ends the process when it must end.
struct Watch;

impl Watcher for Watch {
    #[expect(
        clippy::disallowed_methods,
        reason = "memory is ahead of the log: nothing may be answered any more"
    )]
    fn fatal(&self, why: Fatal) {
        say(&why.to_string());
        std::process::exit(1);
    }

    fn happened(&self, _: &[(Lsn, Vec<Event>)]) {}

    fn upkeep(&self, news: Upkeep) {
        if let Upkeep::Failed(error) = news {
            say(&format!("upkeep of the store failed, and is tried again: {error}"));
        }
    }
}

/// Who this server is, and whom it lets in.
struct Identity {
    tls: Tls,
    bundle: PathBuf,
    denylist: Option<PathBuf>,
}

impl Identity {
    /// From its file; on the first start that is made, with a CA and a client.
    fn load(args: &Serve, data: &Path) -> Result<Identity, Failure> {
        let bundle = match &args.bundle {
            Some(path) => path.clone(),
            None => first::identities(data)?,
        };
        let (read, denylist) = read(&bundle, args.denylist_path.as_deref())?;
        let denylist = Arc::new(SharedDenylist::new(denylist));
        let clock = Arc::new(tokio_rustls::rustls::time_provider::DefaultTimeProvider);
        let server = ServerTls::new(&read, Arc::clone(&denylist), clock)?;
        Ok(Identity { tls: Tls { server, denylist }, bundle, denylist: args.denylist_path.clone() })
    }

    /// Takes over what has changed: revocations, and a certificate of the same CA.
    fn reload(&self) -> Result<(), Failure> {
        let (bundle, denylist) = read(&self.bundle, self.denylist.as_deref())?;
        self.tls.denylist.replace(denylist);
        Ok(self.tls.server.replace(&bundle)?)
    }
}

/// The bundle, and all that is revoked: in it, and in the file beside it.
fn read(bundle: &Path, denylist: Option<&Path>) -> Result<(ServerBundle, Denylist), Failure> {
    let parsed =
        ServerBundle::parse(&identity::file::read(bundle)?).map_err(|error| error.in_file(bundle))?;
    let mut revoked = parsed.denylist().clone();
    if let Some(path) = denylist {
        let listed = Denylist::parse(&identity::file::read(path)?).map_err(|error| error.in_file(path))?;
        revoked = revoked.union(&listed);
    }
    Ok((parsed, revoked))
}

async fn listen(
    args: &Serve,
    data: &Path,
    store: &StoreUrl,
    identity: Option<Identity>,
    app: Arc<App>,
) -> Result<(), Failure> {
    let listener = bind(args.address()?).await?;
    let bound = listener.local_addr().map_err(|error| error.to_string())?;
    let mut listeners = Vec::new();
    if let Some(path) = &args.unix {
        listeners.push(Listener::Unix(unix(path)?, Peer::anonymous(Role::Operator)));
    }
    listeners.push(match &identity {
        Some(identity) => Listener::Tls(listener, identity.tls.clone()),
        None => Listener::Plain(listener, Peer::anonymous(settings::anonymous(bound))),
    });
    greet(args, data, store, bound, identity.is_some());
    let (stop, stopped) = watch::channel(false);
    let signals = Signals::new()?;
    let serving = tokio::spawn(serve(listeners, app, Limits::default(), stopped));
    signals.wait(identity.as_ref()).await;
    say("stopping: nothing is granted any more");
    let _ = stop.send(true);
    serving.await.map_err(|error| format!("the server failed: {error}"))?;
    if let Some(path) = &args.unix {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Where a machine has no IPv6, every address means every one that it has.
async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = match TcpListener::bind(address).await {
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    };
    bound.map_err(|error| format!("cannot listen: {error}: address={address}"))
}

/// A socket that a dead server left behind is in nobody's use.
fn unix(path: &Path) -> Result<UnixListener, Failure> {
    if std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    UnixListener::bind(path).map_err(|error| format!("cannot listen: {error}: path={}", path.display()))
}

struct Signals {
    end: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let on = |kind| signal(kind).map_err(|error| format!("no signals: {error}"));
        Ok(Signals {
            end: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            reload: on(SignalKind::hangup())?,
        })
    }

    /// Until it is time to stop.
    async fn wait(mut self, identity: Option<&Identity>) {
        loop {
            tokio::select! {
                _ = self.end.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.reload.recv() => match identity.map(Identity::reload) {
                    Some(Ok(())) => say("reloaded identities and revocations"),
                    Some(Err(what)) => say(&format!("nothing was reloaded: {what}")),
                    None => {}
                }
            }
        }
    }
}

/// Where it serves, and what to type next.
fn greet(args: &Serve, data: &Path, store: &StoreUrl, bound: SocketAddr, mtls: bool) {
    let store = match store {
        StoreUrl::Memory => "mem:// (gone when the server stops)".to_string(),
        StoreUrl::Disk(path) => format!("disk://{}", path.display()),
    };
    let scheme = if mtls { "https" } else { "http" };
    let mut err = std::io::stderr().lock();
    let mut line = |text: String| drop(writeln!(err, "lockd: {text}"));
    line(format!("serving {scheme}://{bound} store={store}"));
    if !mtls {
        line("without mTLS everybody is the identity `anonymous`".to_string());
    }
    let host = if bound.ip().is_unspecified() { "localhost".to_string() } else { bound.ip().to_string() };
    let made = args.bundle.is_none().then(|| data.join(first::CLIENT));
    let shown = match made.filter(|_| mtls) {
        Some(path) => format!(" --identity {}", path.display()),
        None if mtls => " --identity client.pem".to_string(),
        None => " --mtls=false".to_string(),
    };
    let port = bound.port();
    // As this program was called: it may be in nobody's path.
    let program = std::env::args().next().unwrap_or_else(|| "lockd".to_string());
    line(format!("try it: {program} client acquire --server {host}:{port}{shown} --ttl 30s orders"));
}
