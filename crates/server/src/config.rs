//! What a server is set to: every setting, resolved and checked, in one place.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use engine::engine::Options;
use engine::record::Record;
use kernel::Span;

use crate::backend::boot::{Making, StoreUrl};
use crate::backend::shards::Settings;
use crate::http::listener::Limits;
use crate::settings::{Quantity, Range, duration_text};

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
    /// What is wrong with it, and what to do.
    pub what: String,
    /// Its value.
    pub value: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: setting=--{} value={}", self.what, self.setting, self.value)
    }
}

impl std::error::Error for ConfigError {}

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

    /// Checks every setting against its range, and against the others.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (setting, value, range) in self.quantities() {
            if !value.is_within(range) {
                let what = format!("out of range, which is {range}");
                return Err(ConfigError { setting, what, value: value.to_string() });
            }
        }
        if self.default_ttl > self.max_ttl {
            let what = format!("longer than --max-ttl, {}; set both", duration_text(self.max_ttl));
            return Err(ConfigError { setting: "default-ttl", what, value: duration_text(self.default_ttl) });
        }
        self.address().map(drop)
    }

    /// Every duration, size and count, with its range.
    fn quantities(&self) -> [(&'static str, Quantity, Range); 15] {
        let (time, bytes) = (Quantity::Duration, Quantity::Number);
        let count = |number: u32| Quantity::Number(number.into());
        [
            ("default-ttl", time(self.default_ttl), Range::SPAN_FROM_1_MS),
            ("max-ttl", time(self.max_ttl), Range::SPAN_FROM_1_MS),
            ("acquire-block", time(self.acquire_block), Range::SPAN),
            ("sweeper-interval", time(self.sweeper_interval), Range::UP_TO_AN_HOUR),
            ("json-max", bytes(self.json_max), Range::DOCUMENT),
            ("inline-max", bytes(self.inline_max), Range::INLINE),
            ("gc-temps-interval", time(self.gc_temps_interval), Range::SPAN_FROM_1_MS),
            ("shards", count(self.shards), Range::Count(1, 1024)),
            ("history-max", count(self.history_max), Range::count_from(0)),
            ("history-window", time(self.history_window), Range::SPAN),
            ("max-leases-per-identity", count(self.max_leases_per_identity), Range::count_from(1)),
            ("max-connections", Quantity::Number(self.max_connections as u64), Range::Count(1, 1_000_000)),
            ("head-timeout", time(self.head_timeout), Range::SPAN_FROM_1_MS),
            ("stall-timeout", time(self.stall_timeout), Range::SPAN_FROM_1_MS),
            ("drain-timeout", time(self.drain_timeout), Range::SPAN),
        ]
    }

    /// The address to listen on. Without a host: every address with mTLS, the loopback address without.
    pub fn address(&self) -> Result<SocketAddr, ConfigError> {
        let address = match self.listen.strip_prefix(':') {
            Some(port) => {
                let any = if self.mtls {
                    IpAddr::V6(Ipv6Addr::UNSPECIFIED)
                } else {
                    IpAddr::V4(Ipv4Addr::LOCALHOST)
                };
                let port = port.parse().map_err(|_| self.bad_address("not a port"))?;
                SocketAddr::new(any, port)
            }
            None => {
                let found = self.listen.to_socket_addrs().ok().and_then(|mut found| found.next());
                found.ok_or_else(|| self.bad_address("not an address, which is host:port or :port"))?
            }
        };
        if !self.mtls && !address.ip().is_loopback() && !self.insecure_listen {
            let what = "without mTLS every client is let in; listen on 127.0.0.1, or set --insecure-listen";
            return Err(self.bad_address(what));
        }
        Ok(address)
    }

    fn bad_address(&self, what: &str) -> ConfigError {
        ConfigError { setting: "listen", what: what.into(), value: self.listen.clone() }
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

    const MS: Duration = Duration::from_millis(1);
    /// The longest span that the kernel takes: 2^32 - 1 ms, 49.7 days.
    const SPAN_MAX: Duration = Duration::from_millis(kernel::Limits::SPAN_MAX.0);

    type Field<T> = fn(&mut Config) -> &mut T;

    /// Every duration, with its shortest and longest value.
    fn durations() -> [(&'static str, Field<Duration>, Duration, Duration); 9] {
        [
            ("default-ttl", |config| &mut config.default_ttl, MS, SPAN_MAX),
            ("max-ttl", |config| &mut config.max_ttl, MS, SPAN_MAX),
            ("acquire-block", |config| &mut config.acquire_block, Duration::ZERO, SPAN_MAX),
            (
                "sweeper-interval",
                |config| &mut config.sweeper_interval,
                Duration::ZERO,
                Duration::from_secs(3600),
            ),
            ("gc-temps-interval", |config| &mut config.gc_temps_interval, MS, SPAN_MAX),
            ("history-window", |config| &mut config.history_window, Duration::ZERO, SPAN_MAX),
            ("head-timeout", |config| &mut config.head_timeout, MS, SPAN_MAX),
            ("stall-timeout", |config| &mut config.stall_timeout, MS, SPAN_MAX),
            ("drain-timeout", |config| &mut config.drain_timeout, Duration::ZERO, SPAN_MAX),
        ]
    }

    /// The usual settings, but that any TTL goes with any other.
    fn changed(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config { default_ttl: MS, max_ttl: SPAN_MAX, ..Config::in_memory() };
        change(&mut config);
        if config.max_ttl < SPAN_MAX {
            config.default_ttl = config.max_ttl;
        }
        config
    }

    /// `--history-window 60d` passed the check; the kernel, whose spans are shorter, panicked at the first record.
    #[test]
    fn every_duration_is_served_at_its_ends_and_refused_one_beyond() {
        for (name, field, min, max) in durations() {
            for good in [min, max] {
                let config = changed(|config| *field(config) = good);
                assert_eq!(config.check(), Ok(()), "{name} {good:?}");
                assert!(crate::Server::new(config).is_ok(), "{name} {good:?}");
            }
            let below = min.checked_sub(Duration::from_nanos(1));
            for bad in [Some(max + MS), Some(Duration::MAX), below].into_iter().flatten() {
                let mut config = changed(|_| {});
                *field(&mut config) = bad;
                let error = config.check().expect_err(name);
                assert_eq!(error.setting, name, "{bad:?}: {error}");
                assert!(error.to_string().contains("from "), "its range is named: {error}");
            }
        }
    }

    #[test]
    fn every_size_and_count_is_served_at_its_ends_and_refused_one_beyond() {
        type Set = fn(&mut Config, u64);
        let settings: [(&str, Set, u64, u64); 6] = [
            ("json-max", |config, value| config.json_max = value, 1, i64::MAX as u64),
            ("inline-max", |config, value| config.inline_max = value, 0, Record::DOCUMENT_MAX as u64),
            ("shards", |config, value| config.shards = u32::try_from(value).expect("32 bits"), 1, 1024),
            (
                "history-max",
                |config, value| config.history_max = u32::try_from(value).expect("32 bits"),
                0,
                u32::MAX.into(),
            ),
            (
                "max-leases-per-identity",
                |config, value| config.max_leases_per_identity = u32::try_from(value).expect("32 bits"),
                1,
                u32::MAX.into(),
            ),
            (
                "max-connections",
                |config, value| config.max_connections = usize::try_from(value).expect("64 bits"),
                1,
                1_000_000,
            ),
        ];
        for (name, set, min, max) in settings {
            for good in [min, max] {
                let config = changed(|config| set(config, good));
                assert_eq!(config.check(), Ok(()), "{name} {good}");
                // 1024 engines are too many threads for a test.
                assert!(name == "shards" || crate::Server::new(config).is_ok(), "{name} {good}");
            }
            let fits = |value: &u64| *value <= u32::MAX.into() || name == "json-max";
            for bad in [min.checked_sub(1), Some(max + 1).filter(fits)].into_iter().flatten() {
                let error = changed(|config| set(config, bad)).check().expect_err(name);
                assert_eq!(error.setting, name, "{bad}: {error}");
                assert!(error.to_string().contains("from "), "its range is named: {error}");
            }
        }
    }
}
