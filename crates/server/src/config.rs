//! What a server is set to: every setting, resolved and checked, in one place.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use engine::engine::Options;
use engine::record::Record;
use kernel::Span;

use crate::app::Settings;
use crate::boot::{Making, StoreUrl};
use crate::serve::Limits;

/// The port, where none is named.
pub const PORT: u16 = 9341;

/// Settings of a server. Start with [`Config::in_folder`] or [`Config::in_memory`], and change what is to be otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where to listen: `host:port`, or `:port` for every address (with mTLS) or this machine (without).
    pub listen: String,
    /// A socket to listen on too; whoever may open it is an operator.
    pub unix: Option<PathBuf>,
    /// Without mTLS, listen beyond this machine all the same.
    pub insecure_listen: bool,
    /// The folder for what is not put elsewhere: identities that are made at the first start.
    pub data_dir: PathBuf,
    /// Where leases are kept.
    pub store: StoreUrl,
    /// How many shards a new store has; an old one keeps its own.
    pub shards: u32,
    /// The store may be on a network filesystem.
    pub allow_network_fs: bool,
    /// Certificates on both sides.
    pub mtls: bool,
    /// The server's identity file; `None`: one in the data folder, made at the first start.
    pub bundle: Option<PathBuf>,
    /// Revoked serials, besides those in the identity file.
    pub denylist_path: Option<PathBuf>,
    /// Where a request names no TTL.
    pub default_ttl: Duration,
    /// The longest TTL.
    pub max_ttl: Duration,
    /// The longest wait for a lease.
    pub acquire_block: Duration,
    /// How late what is due and nobody waits for may be written down. Nothing is honoured longer for it.
    pub sweeper_interval: Duration,
    /// The longest document, as it is received.
    pub json_max: u64,
    /// Documents up to this length are kept in the log; longer ones in files of their own.
    pub inline_max: u64,
    /// How often what uploads left behind is looked for.
    pub gc_temps_interval: Duration,
    /// How many ended leases are remembered.
    pub history_max: u32,
    /// How long ended leases are remembered.
    pub history_window: Duration,
    /// How many leases one identity may hold in a namespace.
    pub max_leases_per_identity: u32,
    /// How many connections there may be; one more waits to be accepted.
    pub max_connections: usize,
    /// How long a handshake, and the head of a request, may take.
    pub head_timeout: Duration,
    /// How long one may do nothing who sends a body or is sent an answer.
    pub stall_timeout: Duration,
    /// How long what is under way may go on when the server stops.
    pub drain_timeout: Duration,
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The setting, as its flag is spelled, without dashes.
    pub setting: &'static str,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: setting={}", self.what, self.setting)
    }
}

impl std::error::Error for ConfigError {}

fn wrong<T>(setting: &'static str, what: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError { setting, what: what.into() })
}

impl Config {
    /// The usual settings: mTLS on port 9341, a store and identities in this folder.
    pub fn in_folder(data_dir: impl Into<PathBuf>) -> Config {
        let (data_dir, limits, connections) = (data_dir.into(), kernel::Limits::default(), Limits::default());
        Config {
            listen: format!(":{PORT}"),
            unix: None,
            insecure_listen: false,
            store: StoreUrl::Disk(data_dir.join("store")),
            data_dir,
            shards: 1,
            allow_network_fs: false,
            mtls: true,
            bundle: None,
            denylist_path: None,
            default_ttl: Duration::from_secs(60),
            max_ttl: Duration::from_millis(limits.ttl_max.0),
            acquire_block: Duration::from_secs(60),
            sweeper_interval: Duration::from_secs(5),
            json_max: 100_000_000,
            inline_max: Record::DOCUMENT_MAX as u64,
            gc_temps_interval: Duration::from_secs(300),
            history_max: limits.history_max,
            history_window: Duration::from_millis(limits.history_window.0),
            max_leases_per_identity: limits.leases_per_identity_max,
            max_connections: connections.connections_max,
            head_timeout: connections.head_timeout,
            stall_timeout: connections.stall_timeout,
            drain_timeout: connections.drain_timeout,
        }
    }

    /// Nothing is kept: a store in memory, plain HTTP on any free port of this machine.
    pub fn in_memory() -> Config {
        let store = StoreUrl::Memory;
        Config { listen: "127.0.0.1:0".into(), store, mtls: false, ..Config::in_folder("") }
    }

    /// Is there anything that cannot be?
    pub fn check(&self) -> Result<(), ConfigError> {
        let ms = |setting, duration: Duration| match span(duration) {
            Span(0) => wrong(setting, "at least a millisecond is needed"),
            Span(u64::MAX) => wrong(setting, "longer than can be counted"),
            _ => Ok(()),
        };
        ms("default-ttl", self.default_ttl)?;
        ms("max-ttl", self.max_ttl)?;
        ms("gc-temps-interval", self.gc_temps_interval)?;
        ms("head-timeout", self.head_timeout)?;
        ms("stall-timeout", self.stall_timeout)?;
        if self.default_ttl > self.max_ttl {
            return wrong("default-ttl", "longer than max-ttl");
        }
        if self.sweeper_interval > Duration::from_secs(3600) {
            return wrong("sweeper-interval", "an hour at the most");
        }
        if !(1..=1024).contains(&self.shards) {
            return wrong("shards", "from 1 to 1024");
        }
        if self.json_max == 0 {
            return wrong("json-max", "nothing could be stored");
        }
        if self.inline_max > Record::DOCUMENT_MAX as u64 {
            return wrong("inline-max", format!("at most {} bytes fit into a record", Record::DOCUMENT_MAX));
        }
        if !(1..=1_000_000).contains(&self.max_connections) {
            return wrong("max-connections", "from 1 to 1000000");
        }
        if self.max_leases_per_identity == 0 {
            return wrong("max-leases-per-identity", "nothing could be granted");
        }
        self.address().map(drop)
    }

    /// Where it listens. Without a host: every address with mTLS, this machine without.
    pub fn address(&self) -> Result<SocketAddr, ConfigError> {
        let address = match self.listen.strip_prefix(':') {
            Some(port) => {
                let any = if self.mtls {
                    IpAddr::V6(Ipv6Addr::UNSPECIFIED)
                } else {
                    IpAddr::V4(Ipv4Addr::LOCALHOST)
                };
                let port = port.parse();
                port.map(|port| SocketAddr::new(any, port)).or_else(|_| wrong("listen", "not a port"))?
            }
            None => self.resolve()?,
        };
        if !self.mtls && !address.ip().is_loopback() && !self.insecure_listen {
            let what = "without mTLS anybody who can connect is let in; listen on 127.0.0.1, or say --insecure-listen";
            return wrong("listen", what);
        }
        Ok(address)
    }

    fn resolve(&self) -> Result<SocketAddr, ConfigError> {
        let found = self.listen.to_socket_addrs().ok().and_then(|mut found| found.next());
        found.map_or_else(
            || wrong("listen", format!("not an address; host:port or :port is: {}", self.listen)),
            Ok,
        )
    }

    /// The only directory that the server makes in the data directory; `None` if it keeps nothing there.
    pub(crate) fn data_subdirectory(&self) -> Option<&str> {
        let identities = self.mtls && self.bundle.is_none();
        let below = match &self.store {
            StoreUrl::Disk(path) => path.strip_prefix(&self.data_dir).ok(),
            StoreUrl::Memory => None,
        };
        match below.map(|path| path.iter().next().and_then(OsStr::to_str)) {
            Some(Some(name)) => Some(name),
            // The store is the data directory, and tightened as such.
            Some(None) => None,
            None => identities.then_some("store"),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            default_ttl: span(self.default_ttl),
            max_ttl: span(self.max_ttl),
            acquire_block: span(self.acquire_block),
            json_max: self.json_max,
            inline_max: usize::try_from(self.inline_max).unwrap_or(Record::DOCUMENT_MAX),
        }
    }

    pub(crate) fn making(&self) -> Making {
        let limits = kernel::Limits {
            ttl_max: span(self.max_ttl),
            history_max: self.history_max,
            history_window: span(self.history_window),
            leases_per_identity_max: self.max_leases_per_identity,
            ..kernel::Limits::default()
        };
        let usual = match self.store {
            StoreUrl::Disk(_) => Options::default(),
            // Nobody will ever read this log: what is kept of it is memory.
            StoreUrl::Memory => Options { retain: 0, ..Options::default() },
        };
        let sweeper = span(self.sweeper_interval);
        let options = Options { sweep_every: self.gc_temps_interval, sweeper, ..usual };
        Making { shards: self.shards, limits, options, allow_network: self.allow_network_fs }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections_max: self.max_connections,
            head_timeout: self.head_timeout,
            stall_timeout: self.stall_timeout,
            drain_timeout: self.drain_timeout,
        }
    }
}

fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Config)) -> &'static str {
        let mut config = Config::in_folder("/tmp/anywhere");
        change(&mut config);
        config.check().expect_err("it cannot be").setting
    }

    #[test]
    fn the_usual_settings_are_sound_and_each_that_cannot_be_is_named() {
        assert_eq!(Config::in_folder("/tmp/anywhere").check(), Ok(()));
        assert_eq!(Config::in_memory().check(), Ok(()));
        assert_eq!(refused(|config| config.default_ttl = Duration::ZERO), "default-ttl");
        assert_eq!(refused(|config| config.default_ttl = Duration::from_secs(301)), "default-ttl");
        assert_eq!(refused(|config| config.max_ttl = Duration::MAX), "max-ttl");
        assert_eq!(refused(|config| config.sweeper_interval = Duration::MAX), "sweeper-interval");
        assert_eq!(refused(|config| config.shards = 0), "shards");
        assert_eq!(refused(|config| config.json_max = 0), "json-max");
        assert_eq!(refused(|config| config.inline_max = 1 << 20), "inline-max");
        assert_eq!(refused(|config| config.max_connections = 0), "max-connections");
        assert_eq!(refused(|config| config.max_leases_per_identity = 0), "max-leases-per-identity");
        assert_eq!(refused(|config| config.listen = "nowhere".into()), "listen");
        assert_eq!(refused(|config| config.listen = ":port".into()), "listen");
    }

    #[test]
    fn without_certificates_only_this_machine_is_let_in_unless_insisted_on() {
        let everywhere = "0.0.0.0:9341".to_string();
        let mut config = Config { mtls: false, listen: everywhere.clone(), ..Config::in_memory() };
        assert_eq!(config.check().expect_err("insecure").setting, "listen");
        config.insecure_listen = true;
        assert_eq!(config.check(), Ok(()));
        let bare = |mtls| Config { mtls, listen: ":7".into(), ..Config::in_memory() }.address();
        assert_eq!(bare(false).expect("sound").ip(), Ipv4Addr::LOCALHOST);
        assert!(bare(true).expect("sound").ip().is_unspecified());
        assert_eq!(Config { mtls: true, listen: everywhere, ..Config::in_memory() }.check(), Ok(()));
    }
}
