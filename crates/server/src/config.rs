//! The table of settings, and the configuration made of it: resolved and checked, in one place.
//!
//! A new setting is one row here and its use; flags, the settings file, `lockd config` and the reference page follow.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use api::PORT;
use engine::{Options, Record};
use kernel::Span;

use crate::backend::boot::OpenOptions;
use crate::backend::shards::Settings;
use crate::backend::store::StoreUrl;
use crate::http::listener::ConnectionLimits;
use crate::settings::{LogFormat, LogLevel, Range, duration_text, settings};

settings! { |data_dir|
    /// Address to listen on: `host:port`, or `:port` for every address (without mTLS, for loopback)
    "listen" "LOCKD_LISTEN" "ADDRESS" => listen: String = format!(":{PORT}");
    /// Unix socket to listen on as well; every client that can open it is an operator
    "unix" "LOCKD_UNIX" "PATH" => unix: Option<PathBuf> = None;
    /// URL of the store: `disk:///path` or `mem://`
    "store" "LOCKD_STORE" "URL" => store: StoreUrl = StoreUrl::disk(data_dir.join("store")),
        note "in the data directory";
    /// Directory for everything that is not configured elsewhere
    "data-dir" "LOCKD_DATA_DIR" "PATH" => data_dir: PathBuf = data_dir.to_path_buf(),
        note "~/.local/share/lockd";
    /// Require TLS certificates on both sides
    "mtls" "LOCKD_MTLS" "BOOL" => mtls: bool = true;
    /// Identity file of the server
    "bundle" "LOCKD_BUNDLE" "FILE" => bundle: Option<PathBuf> = None,
        note "created in the data directory at the first start";
    /// File of revoked certificate serials, one per line, in addition to those in the identity file
    "denylist-path" "LOCKD_DENYLIST_PATH" "FILE" => denylist_path: Option<PathBuf> = None;
    /// TTL for requests that do not specify one
    "default-ttl" "LOCKD_DEFAULT_TTL" "TIME" => default_ttl: Duration = Duration::from_secs(60),
        range Range::SPAN_FROM_1_MS;
    /// Maximum TTL that a request may have
    "max-ttl" "LOCKD_MAX_TTL" "TIME" => max_ttl: Duration = of_span(kernel::Limits::default().ttl_max),
        range Range::SPAN_FROM_1_MS;
    /// Maximum time that a request waits for a lease
    "acquire-block" "LOCKD_ACQUIRE_BLOCK" "TIME" => acquire_block: Duration = Duration::from_secs(60),
        range Range::SPAN;
    /// Maximum delay before the expiry of an uncontended lease is logged; authority always ends on time
    "sweeper-interval" "LOCKD_SWEEPER_INTERVAL" "TIME" => sweeper_interval: Duration = Duration::from_secs(5),
        range Range::UP_TO_AN_HOUR;
    /// Maximum size of a document, as received
    "json-max" "LOCKD_JSON_MAX" "SIZE" => json_max: u64 = 100_000_000, range Range::DOCUMENT;
    /// Maximum size of a document that is stored in the log; a larger one gets a file of its own
    "inline-max" "LOCKD_INLINE_MAX" "SIZE" => inline_max: u64 = Record::DOCUMENT_MAX as u64,
        range Range::INLINE;
    /// How often to garbage-collect abandoned uploads
    "gc-temps-interval" "LOCKD_GC_TEMPS_INTERVAL" "TIME" =>
        gc_temps_interval: Duration = Duration::from_secs(300), range Range::SPAN_FROM_1_MS;
    /// Number of shards of a new store; an existing store keeps its own
    "shards" "LOCKD_SHARDS" "N" => shards: u32 = 1, range Range::Count(1, 1024);
    /// Maximum number of ended leases that stay readable
    "history-max" "LOCKD_HISTORY_MAX" "N" => history_max: u32 = kernel::Limits::default().history_max,
        range Range::count_from(0);
    /// How long ended leases stay readable
    "history-window" "LOCKD_HISTORY_WINDOW" "TIME" =>
        history_window: Duration = of_span(kernel::Limits::default().history_window), range Range::SPAN;
    /// Maximum number of leases that one identity may hold in a namespace
    "max-leases-per-identity" "LOCKD_MAX_LEASES_PER_IDENTITY" "N" =>
        max_leases_per_identity: u32 = kernel::Limits::default().leases_per_identity_max,
        range Range::count_from(1);
    /// Maximum number of connections; further ones wait to be accepted
    "max-connections" "LOCKD_MAX_CONNECTIONS" "N" => max_connections: usize = 10_000,
        range Range::Count(1, 1_000_000);
    /// Timeout of the TLS handshake, and of the head of a request
    "head-timeout" "LOCKD_HEAD_TIMEOUT" "TIME" => head_timeout: Duration = Duration::from_secs(15),
        range Range::SPAN_FROM_1_MS;
    /// Maximum idle time while a body is sent or received
    "stall-timeout" "LOCKD_STALL_TIMEOUT" "TIME" => stall_timeout: Duration = Duration::from_secs(30),
        range Range::SPAN_FROM_1_MS;
    /// How long requests in progress may continue when the server stops
    "drain-timeout" "LOCKD_DRAIN_TIMEOUT" "TIME" => drain_timeout: Duration = Duration::from_secs(10),
        range Range::SPAN;
    /// Allow listening beyond loopback without mTLS
    "insecure-listen" "LOCKD_INSECURE_LISTEN" "BOOL" => insecure_listen: bool = false;
    /// Allow a store on a network filesystem
    "allow-network-fs" "LOCKD_ALLOW_NETWORK_FS" "BOOL" => allow_network_fs: bool = false;
    /// Format of log lines, which go to standard error
    "log-format" "LOCKD_LOG_FORMAT" "FORMAT" => log_format: LogFormat = LogFormat::Text;
    /// Least severe level that is logged; `debug` includes every request
    "log-level" "LOCKD_LOG_LEVEL" "LEVEL" => log_level: LogLevel = LogLevel::Info;
    /// OpenTelemetry collector for traces, as in `http://127.0.0.1:4318/v1/traces` (builds with the feature
    /// `otel`)
    "otlp-endpoint" "LOCKD_OTLP_ENDPOINT" "URL" => otlp_endpoint: Option<String> = None;
}

impl Default for Settings {
    fn default() -> Settings {
        Config::in_memory().settings()
    }
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        Config::in_memory().connection_limits()
    }
}

/// A setting with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The setting, as its flag is spelled, without dashes.
    pub setting: &'static str,
    /// The reason, and what to do.
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
    /// The defaults: mTLS on port 9341, a store and identities in this directory.
    pub fn in_folder(data_dir: impl Into<PathBuf>) -> Config {
        Config::defaults(&data_dir.into())
    }

    /// For tests and trials: a store in memory, plain HTTP on any free port of the loopback address.
    pub fn in_memory() -> Config {
        let store = StoreUrl::memory();
        Config { listen: "127.0.0.1:0".into(), store, mtls: false, ..Config::in_folder("") }
    }

    /// Checks every setting against its range, and against the others.
    pub fn check(&self) -> Result<(), ConfigError> {
        for setting in Config::SETTINGS {
            setting.check_range(self).map_err(|what| ConfigError {
                setting: setting.name,
                what,
                value: setting.value_text(self).unwrap_or_default(),
            })?;
        }
        if self.default_ttl > self.max_ttl {
            let what = format!("longer than --max-ttl, {}; set both", duration_text(self.max_ttl));
            return Err(ConfigError { setting: "default-ttl", what, value: duration_text(self.default_ttl) });
        }
        self.address().map(drop)
    }

    /// The address to listen on. Without a host: every address with mTLS, the loopback address without.
    pub fn address(&self) -> Result<SocketAddr, ConfigError> {
        let address = if let Some(port) = self.listen.strip_prefix(':') {
            let any: IpAddr =
                if self.mtls { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::LOCALHOST.into() };
            let port = port.parse().map_err(|_| self.bad_address("not a port"))?;
            SocketAddr::new(any, port)
        } else {
            let found = self.listen.to_socket_addrs().ok().and_then(|mut found| found.next());
            found.ok_or_else(|| self.bad_address("not an address, which is host:port or :port"))?
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
        if self.data_dir.as_os_str().is_empty() {
            return None;
        }
        let identities = self.mtls && self.bundle.is_none();
        let store = self.store.backend().directory();
        let below = store.and_then(|path| path.strip_prefix(&self.data_dir).ok());
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

    pub(crate) fn open_options(&self) -> OpenOptions {
        let limits = kernel::Limits {
            ttl_max: span(self.max_ttl),
            history_max: self.history_max,
            history_window: span(self.history_window),
            leases_per_identity_max: self.max_leases_per_identity,
            ..kernel::Limits::default()
        };
        let mut engine = Options::default();
        if self.store.backend().is_volatile() {
            // A log that is never replayed: retained segments would only cost memory.
            engine.retain = 0;
        }
        let sweeper = span(self.sweeper_interval);
        let engine = Options { sweep_every: self.gc_temps_interval, sweeper, ..engine };
        OpenOptions { shards: self.shards, limits, engine, allow_network: self.allow_network_fs }
    }

    pub(crate) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            connections_max: self.max_connections,
            head_timeout: self.head_timeout,
            stall_timeout: self.stall_timeout,
            drain_timeout: self.drain_timeout,
        }
    }
}

fn of_span(span: Span) -> Duration {
    Duration::from_millis(span.0)
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
        config.check().expect_err("invalid").setting
    }

    #[test]
    fn defaults_are_valid_and_each_invalid_setting_is_named() {
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
    fn without_mtls_only_loopback_is_allowed_unless_insecure_listen_is_set() {
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

    #[test]
    fn the_data_directory_is_left_alone_if_nothing_is_kept_in_it() {
        let with = |data_dir: &str, store, mtls| {
            let config = Config { store, mtls, ..Config::in_folder(data_dir) };
            config.data_subdirectory().map(str::to_string)
        };
        let disk = |path: &str| StoreUrl::disk(path);
        assert_eq!(with("/data", disk("/data/store"), true).as_deref(), Some("store"));
        assert_eq!(with("/data", disk("/data/own/deep"), false).as_deref(), Some("own"));
        assert_eq!(with("/data", disk("/elsewhere"), true).as_deref(), Some("store"), "identities are");
        assert_eq!(with("/data", disk("/elsewhere"), false), None);
        assert_eq!(with("/data", StoreUrl::memory(), false), None);
        assert_eq!(with("/data", disk("/data"), true), None, "it is tightened as the store");
        assert_eq!(with("", disk("/elsewhere"), false), None);
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
