//! Estimates the requests a month, and what they cost, of a server with its store in a bucket. Arithmetic only.
//!
//! **Model.** A shard has one append in flight. Commands that arrive meanwhile go into the next one (group commit), and
//! the beginnings of two appends are at least the commit interval apart. With Poisson arrivals at rate λ and the period
//! T = max(latency of a PUT, commit interval), the next append begins after T if a command has arrived by then, and
//! else with the next command: so there are 1 / (T + e^(−λT) / λ) appends a second.
//!
//! **What is absent.** Storage; bytes sent and received (S3 Express charges for them, the others between regions only);
//! reads of documents; queries (one that no append follows costs a HEAD, shared by all that wait).

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Seconds of a month of 30 days.
const MONTH_S: f64 = 30.0 * 24.0 * 3600.0;
/// Documents up to this size are parts of a batch, in bytes.
const DOCUMENT_IN_BATCH_MAX: u64 = 64 << 10;
/// Batches that one index object describes.
const INDEX_BATCHES: f64 = 1024.0;
/// Batches after which a snapshot is made and the log truncated: a snapshot, a floor, a list.
const SNAPSHOT_BATCHES: f64 = 4096.0;
const SNAPSHOT_REQUESTS: f64 = 3.0;
/// Requests of a server that does nothing, for each shard and day: old uploads are listed once an hour.
const IDLE_REQUESTS_A_DAY: f64 = 24.0;
/// Within each silence a server overwrites its record and reads those of the others this often, and lists them once.
const LOOKS: f64 = 4.0;
/// With at most this many servers each follows every shard; with more, two follow each.
const FOLLOW_ALL_MAX: u32 = 3;

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Leases acquired, and released later, a second.
    pub acquires_per_second: f64,
    /// Renewals a second.
    pub renewals_per_second: f64,
    /// Updates of documents a second.
    pub documents_per_second: f64,
    /// The size of a document in bytes: up to 64 KiB it is part of a batch.
    pub document_bytes: u64,
    /// Shards of the server, over which the load is spread evenly.
    pub shards: u32,
    /// `--commit-interval`: the minimum time between two appends of a shard.
    pub commit_interval: Duration,
    /// The time that a PUT takes.
    pub put_latency: Duration,
    /// The size of the parts of long documents in bytes.
    pub part_bytes: u64,
    /// Servers of the bucket, stand-bys included.
    pub servers: u32,
    /// `--takeover-silence`.
    pub takeover_silence: Duration,
}

impl Default for Load {
    /// Ten leases a second on one shard of S3 Standard.
    fn default() -> Load {
        Load {
            acquires_per_second: 10.0,
            renewals_per_second: 0.0,
            documents_per_second: 0.0,
            document_bytes: 1024,
            shards: 1,
            commit_interval: Duration::ZERO,
            put_latency: Duration::from_millis(60),
            part_bytes: 5 << 20,
            servers: 1,
            takeover_silence: Duration::from_secs(3),
        }
    }
}

/// The list prices of a provider, in US dollars.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prices {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// A million writing requests: PUT, POST, LIST.
    pub writes_per_million: f64,
    /// A million reading requests: GET, HEAD.
    pub reads_per_million: f64,
    /// A million deletions.
    pub deletes_per_million: f64,
    /// The number of objects that one request deletes.
    pub deletes_per_request: u32,
    /// The region of these prices; others differ a little.
    pub region: &'static str,
    /// The month in which they were looked up, or `unconfirmed`.
    pub date: &'static str,
}

/// The known prices.
pub const PRICES: [Prices; 4] = [
    Prices {
        name: "s3",
        title: "S3 Standard",
        writes_per_million: 5.0,
        reads_per_million: 0.4,
        deletes_per_million: 0.0,
        deletes_per_request: 1000,
        region: "us-east-1",
        date: "2026-11",
    },
    Prices {
        name: "s3-express",
        title: "S3 Express One Zone",
        writes_per_million: 1.13,
        reads_per_million: 0.03,
        deletes_per_million: 0.0,
        deletes_per_request: 1000,
        region: "us-east-1",
        date: "2026-11",
    },
    Prices {
        name: "gcs",
        title: "Google Cloud Storage Standard, one region",
        writes_per_million: 5.0,
        reads_per_million: 0.4,
        deletes_per_million: 0.0,
        deletes_per_request: 1,
        region: "us-east1",
        date: "2026-11",
    },
    Prices {
        name: "azure",
        title: "Azure Blob Storage, hot, locally redundant",
        writes_per_million: 5.0,
        reads_per_million: 0.4,
        deletes_per_million: 0.0,
        deletes_per_request: 256,
        region: "East US",
        date: "unconfirmed",
    },
];

impl Prices {
    /// The prices of this name.
    pub fn named(name: &str) -> Option<&'static Prices> {
        PRICES.iter().find(|prices| prices.name == name)
    }
}

/// Requests a month, and what they cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Appends of all shards a second.
    pub appends_per_second: f64,
    /// Commands in one append, on average.
    pub commands_per_append: f64,
    /// The time from a command to its response, on average, in milliseconds: the wait for an append, and the append.
    pub latency_ms: f64,
    /// PUT requests of batches a month.
    pub append_requests: f64,
    /// PUT and POST requests of long documents a month.
    pub document_requests: f64,
    /// Index objects, snapshots, floors and lists a month.
    pub maintenance_requests: f64,
    /// PUT and LIST requests of the servers' own records a month.
    pub server_requests: f64,
    /// GET and HEAD requests a month, also those of stand-bys.
    pub read_requests: f64,
    /// Requests that delete, a month.
    pub delete_requests: f64,
    /// All requests, in dollars a month.
    pub dollars: f64,
}

impl Load {
    /// Why the load cannot be estimated, if so.
    pub fn check(&self) -> Result<(), String> {
        for (name, rate) in [
            ("acquires per second", self.acquires_per_second),
            ("renewals per second", self.renewals_per_second),
            ("documents per second", self.documents_per_second),
        ] {
            if !(0.0..=1e9).contains(&rate) {
                return Err(format!("{name} must be a number from 0 to a thousand million: value={rate}"));
            }
        }
        if self.shards == 0 || self.part_bytes == 0 {
            return Err("a server has at least one shard, and parts of at least one byte".to_string());
        }
        if self.servers == 0 || self.takeover_silence < Duration::from_secs(1) {
            return Err("a store has at least one server, and a silence of at least 1 s".to_string());
        }
        Ok(())
    }

    /// Commands that are logged: an acquire has its release, and an update of a document is one.
    fn commands_per_second(&self) -> f64 {
        2.0 * self.acquires_per_second + self.renewals_per_second + self.documents_per_second
    }

    /// Requests of the servers' own records a month, writing and reading, with those of stand-bys that follow logs.
    fn server_requests(&self) -> (f64, f64) {
        let silences = MONTH_S / self.takeover_silence.as_secs_f64();
        let (servers, others) = (f64::from(self.servers), f64::from(self.servers - 1));
        let followers = if self.servers <= FOLLOW_ALL_MAX { others } else { 2.0 };
        let polls = if self.commands_per_second() > 0.0 { LOOKS } else { 1.0 };
        let reads = servers * LOOKS * others + f64::from(self.shards) * followers * polls;
        (silences * servers * (LOOKS + 1.0), silences * reads)
    }

    /// Requests of one document of its own object: one, or the parts, the beginning and the completion of an upload.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn requests_per_document(&self) -> f64 {
        if self.document_bytes <= DOCUMENT_IN_BATCH_MAX {
            return 0.0;
        }
        let parts = self.document_bytes.div_ceil(self.part_bytes);
        // A HEAD, counted as a write to be on the safe side, looks whether the name is free.
        if parts == 1 { 1.0 } else { parts as f64 + 3.0 }
    }
}

/// Estimates a load at these prices.
pub fn estimate(load: &Load, prices: &Prices) -> Result<Estimate, String> {
    load.check()?;
    let shards = f64::from(load.shards);
    let rate = load.commands_per_second() / shards;
    let period = load.put_latency.max(load.commit_interval).as_secs_f64();
    let appends = appends_per_second(rate, period);
    let append_requests = appends * shards * MONTH_S;
    let document_objects = load.documents_per_second * MONTH_S;
    let document_requests = document_objects * load.requests_per_document();
    let maintenance =
        append_requests / INDEX_BATCHES + append_requests / SNAPSHOT_BATCHES * SNAPSHOT_REQUESTS;
    let maintenance_requests = maintenance + shards * IDLE_REQUESTS_A_DAY * 30.0;
    let long_documents = if load.requests_per_document() > 0.0 { document_objects } else { 0.0 };
    let delete_requests = (append_requests + long_documents) / f64::from(prices.deletes_per_request);
    let (server_requests, server_reads) = load.server_requests();
    let read_requests = append_requests / SNAPSHOT_BATCHES + server_reads;
    let writes = append_requests + document_requests + maintenance_requests + server_requests;
    let dollars = (writes * prices.writes_per_million
        + read_requests * prices.reads_per_million
        + delete_requests * prices.deletes_per_million)
        / 1e6;
    Ok(Estimate {
        appends_per_second: appends * shards,
        commands_per_append: if appends > 0.0 { rate / appends } else { 0.0 },
        latency_ms: 1000.0 * (load.put_latency.as_secs_f64() + wait(rate, period)),
        append_requests,
        document_requests,
        maintenance_requests,
        server_requests,
        read_requests,
        delete_requests,
        dollars,
    })
}

/// Appends of one shard a second, at this rate of commands and this period in seconds.
fn appends_per_second(rate: f64, period: f64) -> f64 {
    if rate <= 0.0 { 0.0 } else { 1.0 / (period + (-rate * period).exp() / rate) }
}

/// The time that a command waits for its append to begin, in seconds: of the commands of a cycle, those that arrive
/// within the period wait half of it.
fn wait(rate: f64, period: f64) -> f64 {
    let commands_of_cycle = rate * period + (-rate * period).exp();
    if commands_of_cycle <= 0.0 { 0.0 } else { period / 2.0 * rate * period / commands_of_cycle }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "appends            {:>14.1} a second", self.appends_per_second)?;
        writeln!(f, "commands an append {:>14.1}", self.commands_per_append)?;
        writeln!(f, "mean latency       {:>14.0} ms", self.latency_ms)?;
        for (name, requests) in [
            ("appends", self.append_requests),
            ("long documents", self.document_requests),
            ("maintenance", self.maintenance_requests),
            ("server records", self.server_requests),
            ("reads", self.read_requests),
            ("deletions", self.delete_requests),
        ] {
            writeln!(f, "{name:<18} {requests:>14.0} requests a month")?;
        }
        write!(f, "cost               {:>14.2} dollars a month", self.dollars)
    }
}

#[cfg(test)]
mod tests;
