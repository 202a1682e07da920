//! The table of settings, and the configuration made of it: resolved and checked, in one place. Its columns are in
//! [`crate::settings`].
//!
//! A new setting is one row here and its use; flags, the settings file, `lockd config` and the reference page follow.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use api::PORT;
use bucket::BucketOptions;
use engine::Options;
use engine::document::INLINE_MAX;
use engine::limits::MemoryBudget;
use identity::{IdentityLocation, SeparateFiles};
use kernel::Span;
use store::object::UploadOptions;

use crate::backend::audit_log::AuditFileOptions;
use crate::backend::memory_plan::{MemoryPlan, ShardLimits};
use crate::backend::open_options::OpenOptions;
use crate::backend::shards::RequestLimits;
use crate::backend::store::StoreUrl;
use crate::backend::upload::UPLOAD_BYTES;
use crate::http::connections::most_of_one_owner;
use crate::http::identities::IdentitySources;
use crate::http::listener::ConnectionLimits;
use crate::settings::{
    BucketEncryption, HostNames, LogFormat, LogLevel, Range, Setting, duration_text, settings,
};

mod page;
#[cfg(test)]
mod tests;

pub use page::page;

settings! { |data_dir|
    /// Address to listen on: `host:port`, or `:port` for every address (without mTLS, for loopback)
    "listen" "LOCKD_LISTEN" "ADDRESS" => listen: String = format!(":{PORT}");
    /// Unix socket to listen on as well; every client that can open it is an operator
    "unix" "LOCKD_UNIX" "PATH" => unix: Option<PathBuf> = None;
    /// URL of the store: `disk:///path`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `mem://`
    "store" "LOCKD_STORE" "URL" => store: StoreUrl = StoreUrl::disk(data_dir.join("store")),
        note "in the data directory";
    /// File of the store key, 32 random bytes, outside of the store; recommended for a bucket
    "store-key-file" "LOCKD_STORE_KEY_FILE" "FILE" => store_key_file: Option<PathBuf> = None,
        note "in the store, created with it";
    /// Minimum interval between two appends to the log; a longer one costs latency, and a bucket fewer requests
    "commit-interval" "LOCKD_COMMIT_INTERVAL" "TIME" => commit_interval: Duration = Duration::ZERO,
        range Range::Duration(Duration::ZERO, Duration::from_secs(10));
    /// How long the owner of a shard in a bucket is silent before another server takes the shard over
    "takeover-silence" "LOCKD_TAKEOVER_SILENCE" "TIME" => takeover_silence: Duration = Duration::from_secs(3),
        range Range::Duration(Duration::from_secs(1), Duration::from_secs(600));
    /// Address at which other servers of the same bucket reach this one: `host:port`
    "advertise" "LOCKD_ADVERTISE" "ADDRESS" => advertise: Option<String> = None,
        note "the host name and the port that is listened on";
    /// Region of the bucket (S3)
    "s3-region" "LOCKD_S3_REGION" "REGION" => s3_region: Option<String> = None,
        note "`AWS_REGION`";
    /// URL of the object store, for one that is not the provider's own (S3, GCS, Azure)
    "s3-endpoint" "LOCKD_S3_ENDPOINT" "URL" => s3_endpoint: Option<String> = None,
        note "the provider's own";
    /// Encryption of objects by the store (S3)
    "s3-sse" "LOCKD_S3_SSE" "ALGORITHM" => s3_sse: BucketEncryption = BucketEncryption::Bucket;
    /// Key of the key management service, with `--s3-sse aws:kms`
    "s3-kms-key-id" "LOCKD_S3_KMS_KEY_ID" "ID" => s3_kms_key_id: Option<String> = None,
        note "the default key of the account";
    /// Size of the parts in which long documents and snapshots are uploaded; each upload has one part in a file of the data directory
    "s3-max-part-size" "LOCKD_S3_MAX_PART_SIZE" "SIZE" =>
        s3_max_part_size: u64 = BucketOptions::PART_BYTES_MIN as u64,
        range Range::Size(BucketOptions::PART_BYTES_MIN as u64, 1 << 30);
    /// Objects up to this size are uploaded by one request
    "s3-multipart-threshold" "LOCKD_S3_MULTIPART_THRESHOLD" "SIZE" =>
        s3_multipart_threshold: u64 = BucketOptions::PART_BYTES_MIN as u64,
        range Range::Size(1 << 20, 1 << 30);
    /// Timeout of a request to the object store
    "s3-timeout" "LOCKD_S3_TIMEOUT" "TIME" => s3_timeout: Duration = BucketOptions::default().timeout,
        range Range::Duration(Duration::from_millis(100), Duration::from_secs(600));
    /// Command that prints credentials, as `credential_process` in a profile of the AWS command line (S3)
    "s3-credential-process" "LOCKD_S3_CREDENTIAL_PROCESS" "COMMAND" => s3_credential_process: Option<String> = None,
        note "environment, web identity, container or machine role";
    /// File of trusted CAs for the object store, in PEM format
    "s3-ca-file" "LOCKD_S3_CA_FILE" "FILE" => s3_ca_file: Option<PathBuf> = None,
        note "those of the system";
    /// Directory for everything that is not configured elsewhere
    "data-dir" "LOCKD_DATA_DIR" "PATH" => data_dir: PathBuf = data_dir.to_path_buf(),
        note "~/.local/share/lockd";
    /// Require TLS certificates on both sides
    "mtls" "LOCKD_MTLS" "BOOL" => mtls: bool = true;
    /// Identity file of the server, or a directory with `tls.crt`, `tls.key` and `ca.crt`
    "bundle" "LOCKD_BUNDLE" "PATH" => bundle: Option<PathBuf> = None,
        note "created in the data directory at the first start";
    /// Certificate of the server, followed by those of intermediate CAs, instead of an identity file
    "tls-cert" "LOCKD_TLS_CERT" "FILE" => tls_cert: Option<PathBuf> = None;
    /// Private key of the certificate in `--tls-cert`
    "tls-key" "LOCKD_TLS_KEY" "FILE" => tls_key: Option<PathBuf> = None;
    /// CAs of clients, with `--tls-cert`
    "tls-ca" "LOCKD_TLS_CA" "FILE" => tls_ca: Option<PathBuf> = None;
    /// File that maps SPIFFE ids of clients to name, role and namespaces
    "spiffe-map" "LOCKD_SPIFFE_MAP" "FILE" => spiffe_map: Option<PathBuf> = None;
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
    "inline-max" "LOCKD_INLINE_MAX" "SIZE" => inline_max: u64 = INLINE_MAX as u64,
        range Range::INLINE;
    /// How often to garbage-collect abandoned uploads
    "gc-temps-interval" "LOCKD_GC_TEMPS_INTERVAL" "TIME" =>
        gc_temps_interval: Duration = Duration::from_secs(300), range Range::SPAN_FROM_1_MS;
    /// Number of shards of a new store; an existing store keeps its own
    "shards" "LOCKD_SHARDS" "N" => shards: u32 = 1, range Range::Count(1, 1024);
    /// Minimum size of the log that is kept for `lockd store dump` and `lockd store who`, per shard
    "log-retain" "LOCKD_LOG_RETAIN" "SIZE" => log_retain: u64 = Options::default().retain,
        range Range::Size(0, 1 << 40);
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
    /// Memory that the server stays within; limits in bytes, in all and per identity, are shares of it
    "memory-max" "LOCKD_MEMORY_MAX" "SIZE" => memory_max: u64 = default_memory_max(),
        range Range::Size(MEMORY_MIN, i64::MAX as u64),
        note "a quarter of the memory of the machine, or of its cgroup";
    /// Maximum size of all documents of one namespace together
    "max-document-bytes-per-namespace" "LOCKD_MAX_DOCUMENT_BYTES_PER_NAMESPACE" "SIZE" =>
        max_document_bytes_per_namespace: u64 = 16 << 30, range Range::DOCUMENT;
    /// Maximum number of connections; a tenth, at most 64, is kept for operators, and further ones are closed
    "max-connections" "LOCKD_MAX_CONNECTIONS" "N" => max_connections: usize = 10_000,
        range Range::Count(1, 1_000_000);
    /// Maximum number of connections of one identity (without mTLS: of one address), and at most half of all
    "max-connections-per-identity" "LOCKD_MAX_CONNECTIONS_PER_IDENTITY" "N" =>
        max_connections_per_identity: usize = 1000, range Range::Count(1, 1_000_000);
    /// Maximum number of TLS handshakes in progress
    "max-handshakes" "LOCKD_MAX_HANDSHAKES" "N" => max_handshakes: usize = 256,
        range Range::Count(1, 100_000);
    /// Maximum number of TLS handshakes in progress from one address, and at most --max-handshakes; an IPv6 network of 64
    /// bits is one address
    "max-handshakes-per-address" "LOCKD_MAX_HANDSHAKES_PER_ADDRESS" "N" =>
        max_handshakes_per_address: usize = 64, range Range::Count(1, 100_000);
    /// Timeout of the TLS handshake, and of the head of a request
    "head-timeout" "LOCKD_HEAD_TIMEOUT" "TIME" => head_timeout: Duration = Duration::from_secs(15),
        range Range::SPAN_FROM_1_MS;
    /// Maximum idle time while a body is sent or received
    "stall-timeout" "LOCKD_STALL_TIMEOUT" "TIME" => stall_timeout: Duration = Duration::from_secs(30),
        range Range::SPAN_FROM_1_MS;
    /// Minimum rate per second of a body that is sent or received, on average after the first --stall-timeout
    "min-body-rate" "LOCKD_MIN_BODY_RATE" "SIZE" => min_body_rate: u64 = 8000,
        range Range::Size(1, 1_000_000_000);
    /// How long requests in progress may continue when the server stops
    "drain-timeout" "LOCKD_DRAIN_TIMEOUT" "TIME" => drain_timeout: Duration = Duration::from_secs(10),
        range Range::SPAN;
    /// Allow listening beyond loopback without mTLS
    "insecure-listen" "LOCKD_INSECURE_LISTEN" "BOOL" => insecure_listen: bool = false;
    /// Names that requests without mTLS may have in `Host`, beside those of this machine; separated by commas, `*` for any
    "allowed-hosts" "LOCKD_ALLOWED_HOSTS" "NAMES" => allowed_hosts: HostNames = HostNames::default();
    /// Serve the web console at /ui/
    "ui" "LOCKD_UI" "BOOL" => ui: bool = true;
    /// Allow a store on a network filesystem
    "allow-network-fs" "LOCKD_ALLOW_NETWORK_FS" "BOOL" => allow_network_fs: bool = false;
    /// File for the audit log: one line of JSON for each grant, end of a lease, commit and operator's act
    "audit-log" "LOCKD_AUDIT_LOG" "FILE" => audit_log: Option<PathBuf> = None;
    /// Size at which the audit log is rotated: FILE becomes FILE.1, and FILE.1 becomes FILE.2
    "audit-log-size" "LOCKD_AUDIT_LOG_SIZE" "SIZE" => audit_log_size: u64 = 100_000_000,
        range Range::Size(1000, i64::MAX as u64);
    /// Number of rotated files of the audit log that are kept
    "audit-log-keep" "LOCKD_AUDIT_LOG_KEEP" "N" => audit_log_keep: u32 = 10, range Range::Count(0, 1000);
    /// Format of log lines, which go to standard error
    "log-format" "LOCKD_LOG_FORMAT" "FORMAT" => log_format: LogFormat = LogFormat::Text;
    /// Least severe level that is logged; `debug` includes every request
    "log-level" "LOCKD_LOG_LEVEL" "LEVEL" => log_level: LogLevel = LogLevel::Info;
    /// OpenTelemetry collector for traces, as in `http://127.0.0.1:4318/v1/traces` (builds with the feature
    /// `otel`)
    "otlp-endpoint" "LOCKD_OTLP_ENDPOINT" "URL" => otlp_endpoint: Option<String> = None;
}

/// Batches between two snapshots of a log in a bucket.
const BUCKET_BATCHES: u64 = 4096;

impl Setting<Config> {
    /// Checks a value: its syntax and its range.
    pub fn check(&self, text: &OsStr) -> Result<(), String> {
        self.set(&mut Config::in_memory(), text)
    }

    /// The default, as a flag takes it or as a note; `None`: not set.
    pub fn default_text(&self) -> Option<String> {
        if let Some(note) = self.default_note {
            return Some(note.to_string());
        }
        self.value_text(&Config::in_directory(""))
    }
}

impl Default for RequestLimits {
    fn default() -> RequestLimits {
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
    pub fn in_directory(data_dir: impl Into<PathBuf>) -> Config {
        Config::defaults(&data_dir.into())
    }

    /// For tests and trials: a store in memory, plain HTTP on any free port of the loopback address.
    pub fn in_memory() -> Config {
        let store = StoreUrl::memory();
        Config { listen: "127.0.0.1:0".into(), store, mtls: false, ..Config::in_directory("") }
    }

    /// Lowers defaults to what other settings allow, except where `is_set` says that the setting was set. Returns each
    /// lowered setting with its bound: `("default-ttl", "max-ttl")`.
    pub fn lower_defaults(&mut self, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, &'static str)> {
        let mut lowered = Vec::new();
        if !is_set("default-ttl") && self.default_ttl > self.max_ttl {
            self.default_ttl = self.max_ttl;
            lowered.push(("default-ttl", "max-ttl"));
        }
        let fitting = self.memory_plan().connections_max();
        if !is_set("max-connections") && self.max_connections > fitting {
            self.max_connections = fitting;
            lowered.push(("max-connections", "what memory-max allows"));
        }
        let half = most_of_one_owner(self.max_connections);
        if !is_set("max-connections-per-identity") && self.max_connections_per_identity > half {
            self.max_connections_per_identity = half;
            lowered.push(("max-connections-per-identity", "half of max-connections"));
        }
        if !is_set("max-handshakes-per-address") && self.max_handshakes_per_address > self.max_handshakes {
            self.max_handshakes_per_address = self.max_handshakes;
            lowered.push(("max-handshakes-per-address", "max-handshakes"));
        }
        lowered
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
            let max_ttl = duration_text(self.max_ttl);
            let what = format!("longer than --max-ttl, which is {max_ttl}; lower it, or raise --max-ttl");
            return Err(ConfigError { setting: "default-ttl", what, value: duration_text(self.default_ttl) });
        }
        if self.s3_kms_key_id.is_some() && self.s3_sse != BucketEncryption::Kms {
            let what = "a key is used with --s3-sse aws:kms only; set it, or remove the key";
            let value = self.s3_kms_key_id.clone().unwrap_or_default();
            return Err(ConfigError { setting: "s3-kms-key-id", what: what.into(), value });
        }
        self.identity()?;
        self.address().map(drop)
    }

    /// Where the server's identity is; `None`: in the data directory.
    pub(crate) fn identity(&self) -> Result<Option<IdentityLocation>, ConfigError> {
        match (&self.bundle, &self.tls_cert, &self.tls_key, &self.tls_ca) {
            (bundle, None, None, None) => Ok(bundle.clone().map(IdentityLocation::Path)),
            (None, Some(certificate), Some(key), Some(ca)) => {
                let (certificate, key, ca) = (certificate.clone(), key.clone(), ca.clone());
                Ok(Some(IdentityLocation::Separate(SeparateFiles { certificate, key, ca })))
            }
            (bundle, certificate, ..) => {
                let what = match bundle {
                    Some(_) => "not together with --bundle; use one of them",
                    None => "--tls-cert, --tls-key and --tls-ca belong together; set all three",
                };
                let value = certificate.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
                Err(ConfigError { setting: "tls-cert", what: what.into(), value })
            }
        }
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

    /// Whether the server keeps anything in the data directory: identities, or the store.
    pub(crate) fn keeps_data(&self) -> bool {
        let identities = self.mtls && self.bundle.is_none() && self.tls_cert.is_none();
        let store = self.store.backend().directory().is_some_and(|path| path.starts_with(&self.data_dir));
        !self.data_dir.as_os_str().is_empty() && (identities || store)
    }

    pub(crate) fn settings(&self) -> RequestLimits {
        RequestLimits {
            default_ttl: span(self.default_ttl),
            max_ttl: span(self.max_ttl),
            acquire_block: span(self.acquire_block),
            json_max: self.json_max,
            inline_max: usize::try_from(self.inline_max).unwrap_or(INLINE_MAX),
            request_bodies: self.memory_plan().request_bodies(),
            responses: self.memory_plan().responses(),
            requests: self.memory_plan().requests(),
            request_refusals: self.memory_plan().request_refusals(),
            history_bytes_max: self.memory_plan().history_bytes_max(),
            ui: self.ui,
        }
    }

    /// The kernel's limits in a store of one shard.
    pub fn limits(&self) -> kernel::Limits {
        self.shard_limits().in_each_of(1)
    }

    fn shard_limits(&self) -> ShardLimits {
        let usual = kernel::Limits::default();
        // Two members per ended lease, as by default: otherwise the members would cap a larger history.
        let history_members_max = self.history_max.saturating_mul(2).max(usual.history_members_max);
        let configured = kernel::Limits {
            ttl_max: span(self.max_ttl),
            history_max: self.history_max,
            history_members_max,
            history_window: span(self.history_window),
            leases_per_identity_max: self.max_leases_per_identity,
            ..usual
        };
        ShardLimits::new(configured, self.memory_plan())
    }

    fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan::new(self.memory_max)
    }

    pub(crate) fn open_options(&self) -> OpenOptions {
        let limits = self.shard_limits();
        // A log that is never replayed: retained segments would only cost memory.
        let retain = if self.store.backend().is_volatile() { 0 } else { self.log_retain };
        let sweeper = span(self.sweeper_interval);
        let audit = self.audit_log.is_some();
        let limits_in_bytes = self.memory_plan().engine_limits(self.max_document_bytes_per_namespace);
        let memory = MemoryBudget::new(limits_in_bytes);
        // A retry may come after a whole wait and a pause.
        let attempt_idle_max = Span(span(self.acquire_block).0.saturating_add(ATTEMPT_PAUSE.0));
        let sweep_every = self.gc_temps_interval;
        let usual = Options::default();
        let commit_interval = span(self.commit_interval);
        // Each batch in a bucket is an object, which a start has to read.
        let snapshot_batches =
            if self.store.backend().is_remote() { BUCKET_BATCHES } else { usual.snapshot_batches };
        let engine = Options {
            retain,
            sweep_every,
            attempt_idle_max,
            sweeper,
            memory,
            audit,
            commit_interval,
            snapshot_batches,
            ..usual
        };
        OpenOptions {
            shards: self.shards,
            limits,
            engine,
            allow_network: self.allow_network_fs,
            store_key_file: self.store_key_file.clone(),
            takeover_silence: self.takeover_silence,
            spool_dir: self.data_dir.clone(),
            writer_bytes_max: self
                .memory_plan()
                .request_bodies()
                .per_identity
                .saturating_sub(UPLOAD_BYTES as u64),
            bucket: self.bucket_options(),
        }
    }

    /// How a bucket is reached.
    fn bucket_options(&self) -> BucketOptions {
        BucketOptions {
            region: self.s3_region.clone(),
            endpoint: self.s3_endpoint.clone(),
            encryption: self.s3_sse.with_key(self.s3_kms_key_id.clone()),
            part_bytes: usize::try_from(self.s3_max_part_size).unwrap_or(usize::MAX),
            multipart_threshold: usize::try_from(self.s3_multipart_threshold).unwrap_or(usize::MAX),
            timeout: self.s3_timeout,
            credential_process: self.s3_credential_process.clone(),
            ca_file: self.s3_ca_file.clone(),
            ..BucketOptions::default()
        }
    }

    pub(crate) fn audit_file(&self) -> Option<AuditFileOptions> {
        let path = self.audit_log.clone()?;
        Some(AuditFileOptions { path, bytes_max: self.audit_log_size, keep: self.audit_log_keep })
    }

    pub(crate) fn identity_sources(&self) -> Result<IdentitySources, ConfigError> {
        Ok(IdentitySources {
            location: self.identity()?,
            denylist: self.denylist_path.clone(),
            spiffe_map: self.spiffe_map.clone(),
            data_dir: self.data_dir.clone(),
        })
    }

    pub(crate) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            connections_max: self.max_connections.min(self.memory_plan().connections_max()),
            connections_per_identity_max: self.max_connections_per_identity,
            handshakes_max: self.max_handshakes,
            handshakes_per_address_max: self.max_handshakes_per_address,
            body_rate_min: self.min_body_rate,
            head_timeout: self.head_timeout,
            stall_timeout: self.stall_timeout,
            drain_timeout: self.drain_timeout,
        }
    }
}

/// The least memory that a server is useful with.
const MEMORY_MIN: u64 = 64 << 20;
const _: () = assert!(
    (UPLOAD_BYTES + UploadOptions::SPOOLED_BYTES) as u64
        <= MemoryPlan::new(MEMORY_MIN).request_bodies().per_identity,
    "of one identity at least one upload of a long document fits, also to a bucket"
);

/// The longest pause of a client between the reply to a blocked request and its retry.
const ATTEMPT_PAUSE: Span = Span(15_000);

fn default_memory_max() -> u64 {
    system::memory::available().map_or(MEMORY_MIN, |bytes| (bytes / 4).max(MEMORY_MIN))
}

fn of_span(span: Span) -> Duration {
    Duration::from_millis(span.0)
}

fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
