//! Metrics for Prometheus. Everything counted here is durable.
//!
//! Names and labels are a promise: metrics are added, and not renamed. No label holds a value that clients choose: the
//! number of series does not grow with keys, identities or namespaces. `metrics!` is the one table of them; the page
//! `docs/reference/metrics.md` is made from what it registers.

#[cfg(test)]
mod tests;

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bucket::{Operation, RequestCounts};
use engine::limits::LimitUsage;
use engine::observe::Measure;
use kernel::{Counts, Event, Shard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::backend::certificate_dates::CertificateDate;
use crate::backend::disk_space::DiskSpace;

/// The content type of `/metrics`.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    path: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    path: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShardLabels {
    shard: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    which: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    op: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    limit: &'static str,
}

type PathHistograms = Family<PathLabels, Histogram, fn() -> Histogram>;

/// Buckets from 100 µs to 50 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 20))
}

fn register(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>, metric: impl Metric) {
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, metric),
        None => registry.register(name, help, metric),
    }
}

/// A row: field, type, initial value, name without the prefix `lockd_`, unit, help.
macro_rules! metrics {
    ($($field:ident: $kind:ty = $new:expr, $name:literal, $unit:expr, $help:literal;)+) => {
        /// All metrics of a server.
        pub(crate) struct Metrics {
            registry: Registry,
            /// Series of `ends`, looked up once.
            released: Counter,
            expired: Counter,
            revoked: Counter,
            $($field: $kind,)+
        }

        impl Metrics {
            /// The names of all rows.
            #[cfg(test)]
            const NAMES: &'static [&'static str] = &[$($name),+];

            fn registered() -> Metrics {
                let mut registry = Registry::default();
                registry.register_collector(Box::new(ProcessMetrics));
                let prefixed = registry.sub_registry_with_prefix("lockd");
                let info = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
                register(prefixed, "build", "The version that runs", None, info);
                $(
                    let $field: $kind = $new;
                    register(prefixed, $name, $help, $unit, $field.clone());
                )+
                let (released, expired, revoked) = Default::default();
                Metrics { registry, released, expired, revoked, $($field,)+ }
            }
        }
    };
}

metrics! {
    grants: Counter = Counter::default(), "grants", None, "Leases granted";
    ends: Family<EndLabels, Counter> = Family::default(), "lease_ends", None,
        "Leases that ended, or lost their authority";
    commits: Counter = Counter::default(), "commits", None, "Documents committed";
    removals: Counter = Counter::default(), "removals", None, "Documents removed";
    refusals: Family<RefusalLabels, Counter> = Family::default(), "refusals", None, "Requests refused, by code";
    requests: Family<RequestLabels, Counter> = Family::default(), "http_requests", None, "Requests answered";
    durations: PathHistograms = Family::new_with_constructor(seconds), "http_request_duration",
        Some(Unit::Seconds), "From a request's head to its response's, waits for leases included";
    appends: Histogram = seconds(), "log_append", Some(Unit::Seconds),
        "From handing a batch to the log until it is durable";
    object_operations: Family<OperationLabels, Counter> = Family::default(), "object_requests", None,
        "Requests to the object store, by operation; none for a store on disk";
    shards_owned: Gauge = Gauge::default(), "shards_owned", None,
        "Shards whose log this server writes";
    forwarded: Counter = Counter::default(), "requests_forwarded", None,
        "Requests that were sent on to the server that owns their shard";
    appended: Counter = Counter::default(), "log_appended", Some(Unit::Bytes), "Records appended";
    hand_offs: Histogram = seconds(), "handoff", Some(Unit::Seconds),
        "From the command that frees a lease until the next waiter has its response";
    log_floor: Family<ShardLabels, Gauge> = Family::default(), "log_floor_batch", None,
        "The first batch in the log";
    log_next: Family<ShardLabels, Gauge> = Family::default(), "log_next_batch", None,
        "The batch that is appended next";
    torn_tails: Counter = Counter::default(), "log_torn", None,
        "Incomplete batches that were cut off a log when it was opened";
    snapshots: Counter = Counter::default(), "snapshots", None, "Snapshots taken";
    moved: Counter = Counter::default(), "documents_moved", None, "Documents carried forward in the log";
    blobs_deleted: Counter = Counter::default(), "blobs_swept", None, "Unreferenced blobs deleted";
    maintenance_failures: Counter = Counter::default(), "upkeep_failures", None,
        "Snapshots and garbage collections that failed";
    audit_entries: Family<ResultLabels, Counter> = Family::default(), "audit_entries", None,
        "Entries of the audit log, written or lost";
    audit_failures: Counter = Counter::default(), "audit_failures", None, "Failed writes of the audit log";
    audit_queue: Gauge = Gauge::default(), "audit_queue", Some(Unit::Bytes),
        "Entries of the audit log that are not written yet";
    start_time: Gauge = Gauge::default(), "start_time", Some(Unit::Seconds),
        "When the server started, in Unix time";
    ready: Gauge = Gauge::default(), "ready", None, "1 if leases can be granted durably, as in /readyz";
    disk_free: Gauge = Gauge::default(), "disk_free", Some(Unit::Bytes),
        "Free space on the filesystem of the store; 0 for a store in memory";
    disk_size: Gauge = Gauge::default(), "disk_size", Some(Unit::Bytes),
        "Size of the filesystem of the store; 0 for a store in memory";
    limit: Family<LimitLabels, Gauge> = Family::default(), "limit", Some(Unit::Bytes),
        "Limits in bytes, by limit";
    limit_used: Family<LimitLabels, Gauge> = Family::default(), "limit_used", Some(Unit::Bytes),
        "Bytes in use of each limit";
    oldest_waiter: Gauge<f64, AtomicU64> = Gauge::default(), "oldest_waiter", Some(Unit::Seconds),
        "Time since the first try of the waiter at the head of the queues; 0 without waiters";
    connections: Gauge = Gauge::default(), "connections", None, "Open connections";
    connections_max: Gauge = Gauge::default(), "connections_max", None, "Limit of open connections";
    handshakes_refused: Counter = Counter::default(), "handshakes_refused", None,
        "TLS handshakes without a valid certificate";
    certificate_expires: Family<CertificateLabels, Gauge> = Family::default(), "certificate_expires",
        Some(Unit::Seconds), "Time until a certificate of the server expires; negative once it has";
    connections_refused: Family<EndLabels, Counter> = Family::default(), "connections_refused", None,
        "Connections closed because of a limit, by limit";
    connections_ended: Family<EndLabels, Counter> = Family::default(), "connections_ended", None,
        "Connections that the server ended, by reason";
    reloads: Family<ResultLabels, Counter> = Family::default(), "reloads", None,
        "Reloads of identities and revocations";
    leases: Gauge = Gauge::default(), "leases", None, "Leases that cover resources";
    waiters: Gauge = Gauge::default(), "waiters", None, "Requests that wait for a lease";
    documents: Gauge = Gauge::default(), "documents", None, "Keys with a document";
    history: Gauge = Gauge::default(), "history_leases", None, "Ended leases that can still be read";
    agents: Gauge = Gauge::default(), "agents", None, "Agents that are known";
    namespaces: Gauge = Gauge::default(), "namespaces", None, "Namespaces that are known";
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut metrics = Metrics::registered();
        let end = |reason| metrics.ends.get_or_create_owned(&EndLabels { reason });
        (metrics.released, metrics.expired, metrics.revoked) =
            (end("released"), end("expired"), end("revoked"));
        for code in api::Code::ALL {
            drop(metrics.refusals.get_or_create(&RefusalLabels { code: code.as_str() }));
        }
        for result in ["written", "lost"] {
            drop(metrics.audit_entries.get_or_create(&ResultLabels { result }));
        }
        for result in ["accepted", "refused"] {
            drop(metrics.reloads.get_or_create(&ResultLabels { result }));
        }
        metrics
    }

    pub(crate) fn durable(&self, event: &Event) {
        let counter = match event {
            Event::Granted(..) => &self.grants,
            Event::Released(_) => &self.released,
            Event::Expired { .. } => &self.expired,
            Event::Revoked(_) => &self.revoked,
            Event::Committed { .. } => &self.commits,
            Event::Removed { .. } | Event::Dropped { .. } => &self.removals,
            Event::Activated(_) | Event::Rebound(..) | Event::Reclaimed(_) => return,
        };
        counter.inc();
    }

    pub(crate) fn measured(&self, shard: Shard, measure: Measure) {
        match measure {
            Measure::Append { took, bytes, bounds } => {
                self.appends.observe(took.as_secs_f64());
                self.appended.inc_by(bytes as u64);
                let of = ShardLabels { shard: shard.0 };
                self.log_floor.get_or_create(&of).set(bounds.floor.0.cast_signed());
                self.log_next.get_or_create(&of).set(bounds.next.0.cast_signed());
            }
            Measure::HandOff { took, waiters } => {
                for _ in 0..waiters {
                    self.hand_offs.observe(took.as_secs_f64());
                }
            }
        }
    }

    pub(crate) fn torn_tails_cut(&self, tails: usize) {
        let counted = if planted!(TornTailsUncounted) { 0 } else { tails as u64 };
        self.torn_tails.inc_by(counted);
    }

    pub(crate) fn snapshot(&self, moved: usize) {
        self.snapshots.inc();
        self.moved.inc_by(moved as u64);
    }

    pub(crate) fn blobs_deleted(&self, blobs: usize) {
        self.blobs_deleted.inc_by(blobs as u64);
    }

    pub(crate) fn maintenance_failed(&self) {
        self.maintenance_failures.inc();
    }

    /// The number of open connections.
    pub(crate) fn connections(&self) -> &Gauge {
        &self.connections
    }

    pub(crate) fn handshake_refused(&self) {
        self.handshakes_refused.inc();
    }

    /// This many shards are written by this server.
    pub(crate) fn owned(&self, shards: usize) {
        self.shards_owned.set(i64::try_from(shards).unwrap_or(i64::MAX));
    }

    /// A request was sent on to another server.
    pub(crate) fn forwarded(&self) {
        self.forwarded.inc();
    }

    /// The requests to the object store so far.
    pub(crate) fn object_requests(&self, counts: Option<&RequestCounts>) {
        let Some(counts) = counts else { return };
        for operation in Operation::ALL {
            let counter =
                self.object_operations.get_or_create_owned(&OperationLabels { op: operation.name() });
            counter.inner().store(counts.get(operation), std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The certificates in use, as of `now` in Unix seconds. One that was removed is no longer shown.
    pub(crate) fn certificates(&self, dates: &[CertificateDate], now: u64) {
        self.certificate_expires.clear();
        for date in dates {
            let which = CertificateLabels { which: date.which.as_str() };
            self.certificate_expires.get_or_create(&which).set(date.remaining(now));
        }
    }

    /// A connection was closed because of this limit.
    pub(crate) fn connection_refused(&self, limit: &'static str) {
        self.connections_refused.get_or_create(&EndLabels { reason: limit }).inc();
    }

    /// The server ended a connection.
    pub(crate) fn connection_ended(&self, reason: &'static str) {
        self.connections_ended.get_or_create(&EndLabels { reason }).inc();
    }

    pub(crate) fn reloaded(&self, accepted: bool) {
        let result = if accepted { "accepted" } else { "refused" };
        self.reloads.get_or_create(&ResultLabels { result }).inc();
    }

    /// The server has started: at this time in Unix seconds, with this limit of connections.
    pub(crate) fn started(&self, unix_seconds: u64, connections_max: usize) {
        self.start_time.set(unix_seconds.cast_signed());
        self.connections_max.set(i64::try_from(connections_max).unwrap_or(i64::MAX));
    }

    pub(crate) fn ready(&self, is_ready: bool) {
        self.ready.set(is_ready.into());
    }

    /// The filesystem of the store; without one both are 0.
    pub(crate) fn disk(&self, space: Option<DiskSpace>) {
        let DiskSpace { size, free } = space.unwrap_or(DiskSpace { size: 0, free: 0 });
        self.disk_free.set(i64::try_from(free).unwrap_or(i64::MAX));
        self.disk_size.set(i64::try_from(size).unwrap_or(i64::MAX));
    }

    pub(crate) fn limits(&self, limits: &[LimitUsage]) {
        for LimitUsage { name, used, max } in limits {
            let of = LimitLabels { limit: name };
            self.limit.get_or_create(&of).set(i64::try_from(*max).unwrap_or(i64::MAX));
            self.limit_used.get_or_create(&of).set(i64::try_from(*used).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn oldest_waiter(&self, waited: Duration) {
        self.oldest_waiter.set(waited.as_secs_f64());
    }

    pub(crate) fn audit_written(&self, entries: u64) {
        self.audit_entries.get_or_create(&ResultLabels { result: "written" }).inc_by(entries);
    }

    pub(crate) fn audit_lost(&self, entries: u64) {
        self.audit_entries.get_or_create(&ResultLabels { result: "lost" }).inc_by(entries);
    }

    pub(crate) fn audit_failed(&self) {
        self.audit_failures.inc();
    }

    pub(crate) fn audit_queue_bytes(&self, bytes: usize) {
        self.audit_queue.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    pub(crate) fn refused(&self, code: api::Code) {
        self.refusals.get_or_create(&RefusalLabels { code: code.as_str() }).inc();
    }

    /// The OpenMetrics text. `shards` has the counts of each shard's tables and its number of waiters.
    pub(crate) fn text(&self, shards: &[(Counts, usize)]) -> String {
        let sum = |of: fn(&(Counts, usize)) -> usize| {
            i64::try_from(shards.iter().map(of).sum::<usize>()).unwrap_or(i64::MAX)
        };
        self.leases.set(sum(|(counts, _)| counts.leases));
        self.history.set(sum(|(counts, _)| counts.history));
        self.documents.set(sum(|(counts, _)| counts.documents));
        self.agents.set(sum(|(counts, _)| counts.agents));
        self.namespaces.set(sum(|(counts, _)| counts.namespaces));
        self.waiters.set(sum(|(_, waiters)| *waiters));
        let mut out = String::new();
        text::encode(&mut out, &self.registry).expect("writing to a string");
        out
    }
}

/// The metrics of one route, looked up once.
pub(crate) struct RouteMetrics {
    /// The route's pattern, not the path of a request.
    pub(crate) path: &'static str,
    /// Responses with status 200.
    ok: OnceLock<Counter>,
    durations: OnceLock<Histogram>,
}

impl RouteMetrics {
    pub(crate) fn new(path: &'static str) -> RouteMetrics {
        RouteMetrics { path, ok: OnceLock::new(), durations: OnceLock::new() }
    }

    pub(crate) fn responded(&self, metrics: &Metrics, status: u16, took: Duration) {
        let find = || metrics.requests.get_or_create_owned(&RequestLabels { path: self.path, status });
        let requests = if status == 200 { self.ok.get_or_init(find) } else { &find() };
        requests.inc();
        let find = || metrics.durations.get_or_create_owned(&PathLabels { path: self.path });
        self.durations.get_or_init(find).observe(took.as_secs_f64());
    }
}

/// Resources that the process uses, by the names that every Prometheus client uses.
#[derive(Debug)]
struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        if let Some(resident) = resident_bytes() {
            let gauge = ConstGauge::new(resident);
            let help = "Resident memory of the process";
            let name = "process_resident_memory";
            gauge.encode(encoder.encode_descriptor(
                name,
                help,
                Some(&Unit::Bytes),
                gauge.metric_type(),
            )?)?;
        }
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            // One of them is the directory itself.
            let gauge = ConstGauge::new(i64::try_from(entries.count()).unwrap_or(i64::MAX) - 1);
            let help = "Open file descriptors of the process";
            gauge.encode(encoder.encode_descriptor(
                "process_open_fds",
                help,
                None,
                gauge.metric_type(),
            )?)?;
        }
        let counter = ConstCounter::new(cpu_seconds());
        let help = "Processor time of the process, user and system";
        let name = "process_cpu";
        counter.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), counter.metric_type())?)
    }
}

fn resident_bytes() -> Option<i64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = statm.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(i64::try_from(rustix::param::page_size()).ok()?)
}

fn cpu_seconds() -> f64 {
    let spec = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(spec).unwrap_or_default().as_secs_f64()
}
