//! Figures for Prometheus. Whatever is counted here has happened, durably.
//!
//! Names and labels are a promise: fields are added, and not renamed. No label holds what clients choose: how many
//! series there are does not grow with keys, identities or namespaces.

use std::sync::OnceLock;
use std::time::Duration;

use engine::sequencer::Measure;
use kernel::{Counts, Event, Shard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// What `/metrics` answers with.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ending {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusing {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    path: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPath {
    path: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfShard {
    shard: u32,
}

/// 100 µs to 50 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 20))
}

/// All figures of a server.
pub(crate) struct Metrics {
    registry: Registry,
    grants: Counter,
    endings: Family<Ending, Counter>,
    released: Counter,
    expired: Counter,
    revoked: Counter,
    commits: Counter,
    removals: Counter,
    refusals: Family<Refusing, Counter>,
    requests: Family<Asked, Counter>,
    durations: Family<OfPath, Histogram, fn() -> Histogram>,
    appends: Histogram,
    appended: Counter,
    hand_offs: Histogram,
    log_floor: Family<OfShard, Gauge>,
    log_next: Family<OfShard, Gauge>,
    snapshots: Counter,
    moved: Counter,
    swept: Counter,
    upkeep_failures: Counter,
    pub(crate) connections: Gauge,
    handshakes_refused: Counter,
    leases: Gauge,
    waiters: Gauge,
    documents: Gauge,
    history: Gauge,
    agents: Gauge,
    namespaces: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let endings = Family::<Ending, Counter>::default();
        let ending = |reason| endings.get_or_create_owned(&Ending { reason });
        let (released, expired, revoked) = (ending("released"), ending("expired"), ending("revoked"));
        let metrics = Metrics {
            registry: Registry::default(),
            grants: Counter::default(),
            endings,
            released,
            expired,
            revoked,
            commits: Counter::default(),
            removals: Counter::default(),
            refusals: Family::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(seconds),
            appends: seconds(),
            appended: Counter::default(),
            hand_offs: seconds(),
            log_floor: Family::default(),
            log_next: Family::default(),
            snapshots: Counter::default(),
            moved: Counter::default(),
            swept: Counter::default(),
            upkeep_failures: Counter::default(),
            connections: Gauge::default(),
            handshakes_refused: Counter::default(),
            leases: Gauge::default(),
            waiters: Gauge::default(),
            documents: Gauge::default(),
            history: Gauge::default(),
            agents: Gauge::default(),
            namespaces: Gauge::default(),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Metrics {
        let info = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        self.registry.register_collector(Box::new(Process));
        let r = self.registry.sub_registry_with_prefix("lockd");
        r.register("build", "The version that runs", info);
        r.register("grants", "Leases granted", self.grants.clone());
        r.register("lease_ends", "Leases that ended, or lost their authority", self.endings.clone());
        r.register("commits", "Documents committed", self.commits.clone());
        r.register("removals", "Documents removed", self.removals.clone());
        r.register("refusals", "Requests refused, by code", self.refusals.clone());
        r.register("http_requests", "Requests answered", self.requests.clone());
        r.register_with_unit(
            "http_request_duration",
            "From a request's head to its answer's; waits for leases are in it",
            Unit::Seconds,
            self.durations.clone(),
        );
        r.register_with_unit(
            "log_append",
            "From handing a batch to the log until it is durable",
            Unit::Seconds,
            self.appends.clone(),
        );
        r.register_with_unit("log_appended", "Records appended", Unit::Bytes, self.appended.clone());
        r.register_with_unit(
            "handoff",
            "From taking up what frees a lease until the next in line has its answer",
            Unit::Seconds,
            self.hand_offs.clone(),
        );
        r.register("log_floor_batch", "The first batch in the log", self.log_floor.clone());
        r.register("log_next_batch", "The batch that is appended next", self.log_next.clone());
        r.register("snapshots", "Snapshots taken", self.snapshots.clone());
        r.register("documents_moved", "Documents carried forward in the log", self.moved.clone());
        r.register("blobs_swept", "Blobs deleted that nobody needed", self.swept.clone());
        r.register("upkeep_failures", "Snapshots and sweeps that failed", self.upkeep_failures.clone());
        r.register("connections", "Connections", self.connections.clone());
        r.register(
            "handshakes_refused",
            "TLS handshakes without a good certificate",
            self.handshakes_refused.clone(),
        );
        r.register("leases", "Leases that cover resources", self.leases.clone());
        r.register("waiters", "Requests that wait for a lease", self.waiters.clone());
        r.register("documents", "Keys with a document", self.documents.clone());
        r.register("history_leases", "Ended leases that can still be read", self.history.clone());
        r.register("agents", "Agents", self.agents.clone());
        r.register("namespaces", "Namespaces", self.namespaces.clone());
        for code in api::Code::ALL {
            drop(self.refusals.get_or_create(&Refusing { code: code.as_str() }));
        }
        self
    }

    pub(crate) fn happened(&self, event: &Event) {
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
                let of = OfShard { shard: shard.0 };
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

    pub(crate) fn snapshot(&self, moved: usize) {
        self.snapshots.inc();
        self.moved.inc_by(moved as u64);
    }

    pub(crate) fn swept(&self, blobs: usize) {
        self.swept.inc_by(blobs as u64);
    }

    pub(crate) fn upkeep_failed(&self) {
        self.upkeep_failures.inc();
    }

    pub(crate) fn handshake_refused(&self) {
        self.handshakes_refused.inc();
    }

    pub(crate) fn refused(&self, code: api::Code) {
        self.refusals.get_or_create(&Refusing { code: code.as_str() }).inc();
    }

    /// All of it as text; `shards` are what is known of each shard now: what it counts, and how many wait.
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

/// The figures of a path, found once. A path is a route, not what was asked for: there are only so many.
pub(crate) struct Counted {
    pub(crate) path: &'static str,
    /// Of answers with status 200.
    sound: OnceLock<Counter>,
    durations: OnceLock<Histogram>,
}

impl Counted {
    pub(crate) fn new(path: &'static str) -> Counted {
        Counted { path, sound: OnceLock::new(), durations: OnceLock::new() }
    }

    pub(crate) fn answered(&self, metrics: &Metrics, status: u16, took: Duration) {
        let find = || metrics.requests.get_or_create_owned(&Asked { path: self.path, status });
        let requests = if status == 200 { self.sound.get_or_init(find) } else { &find() };
        requests.inc();
        let find = || metrics.durations.get_or_create_owned(&OfPath { path: self.path });
        self.durations.get_or_init(find).observe(took.as_secs_f64());
    }
}

/// What the process takes, by the names that every client of Prometheus uses.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        if let Some(resident) = resident_bytes() {
            let gauge = ConstGauge::new(resident);
            let help = "Memory that the process has in use";
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
            let help = "Files and sockets that the process has open";
            gauge.encode(encoder.encode_descriptor(
                "process_open_fds",
                help,
                None,
                gauge.metric_type(),
            )?)?;
        }
        let counter = ConstCounter::new(cpu_seconds());
        let help = "Processor time that the process has had";
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
