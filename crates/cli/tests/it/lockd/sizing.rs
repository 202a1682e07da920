//! Measures what leases, waiters, connections and documents cost, for `docs/operating/sizing.md`.
//!
//! Ignored: it takes about a minute, and its output is for people. The figures are differences of resident memory and of
//! bytes appended, so they include everything that the server keeps for the thing.

use std::path::Path;

use engine::internals::decider::Decider;
use engine::internals::snapshot;
use engine::{MachineClock, Origin, TenureConfig};
use kernel::{Action, Command, Kernel, Limits, Shard, Span, Store};
use sim::fixture::{grant, identity, key};
use store::Seq;

use crate::lockd::serve::{Connection, Running, tls_config};
use crate::running::until;

const LEASES: usize = 30_000;
const CONNECTIONS: usize = 400;
const DOCUMENTS: usize = 2_000;
const DOCUMENT_BYTES: usize = 1_000;

struct Meter<'a> {
    server: &'a Running,
    client: &'a Path,
}

impl Meter<'_> {
    /// The bytes of records appended to the log.
    fn log_bytes(&self) -> i64 {
        let (_, text) = self.server.connect(self.client).ask("GET", "/metrics", "").expect("metrics");
        let value = |line: &str| line.strip_prefix("lockd_log_appended_bytes_total ")?.parse().ok();
        text.lines().find_map(value).expect("a count of bytes")
    }

    /// Resident memory in bytes, once freed memory has gone back to the system.
    fn memory(&self) -> i64 {
        std::thread::park_timeout(std::time::Duration::from_secs(3));
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.server.pid())).expect("it runs");
        let pages: i64 = statm.split(' ').nth(1).expect("resident pages").parse().expect("a number");
        pages * i64::try_from(rustix::param::page_size()).expect("small")
    }

    /// Prints the cost of one of `count` things.
    fn measure<T>(&self, what: &str, count: usize, create: impl FnOnce(&Running) -> T) -> T {
        let (memory, log) = (self.memory(), self.log_bytes());
        let created = create(self.server);
        let count = i64::try_from(count).expect("small");
        let (memory, log) = ((self.memory() - memory) / count, (self.log_bytes() - log) / count);
        println!("{what:<36} {memory:>9} bytes of memory {log:>9} bytes of log");
        created
    }
}

fn post(connection: &mut Connection, path: &str, headers: &str, body: &str) -> serde_json::Value {
    let (status, reply) = connection.send("POST", path, headers, body).expect("a response");
    assert_eq!(status, 200, "{reply}");
    serde_json::from_str(&reply).expect("JSON")
}

#[test]
#[ignore = "measures, for docs/operating/sizing.md"]
fn cost_of_leases_waiters_connections_and_documents() {
    let data = tempfile::tempdir().expect("a directory");
    // Connections stay open although a slow machine leaves them idle.
    let server = Running::start(data.path(), &["--head-timeout", "10m"]);
    let client = data.path().join("client.pem");
    let config = tls_config(&client);
    let meter = Meter { server: &server, client: &client };
    // The memory of the start is freed, and buffers have their size.
    let mut connection = server.connect(&client);
    for _ in 0..2000 {
        let lease = post(&mut connection, "/v1/acquire", "", r#"{"key":"warm"}"#);
        let body = serde_json::json!({"lease_id": lease["lease_id"]}).to_string();
        post(&mut connection, "/v1/release", "", &body);
    }
    println!("{:<36} {:>9} bytes of memory", "the server without any", meter.memory());
    meter.measure("a lease of one key of 20 bytes", LEASES, |server| {
        let mut connection = server.connect(&client);
        for n in 0..LEASES {
            let body = format!(r#"{{"key":"{n:0>20}","ttl_seconds":300}}"#);
            post(&mut connection, "/v1/acquire", "", &body);
        }
    });
    meter.measure("a document of 1 kB, with its lease", DOCUMENTS, |server| {
        let mut connection = server.connect(&client);
        let text = "x".repeat(DOCUMENT_BYTES - 8);
        for n in 0..DOCUMENTS {
            let lease =
                post(&mut connection, "/v1/acquire", "", &format!(r#"{{"key":"document-{n:0>11}"}}"#));
            let held = format!("x-lease-id: {}\r\n", lease["lease_id"].as_str().expect("one"));
            let path = format!("/v1/update_state?key=document-{n:0>11}");
            post(&mut connection, &path, &held, &format!(r#"{{"a":"{text}"}}"#));
        }
    });
    let idle: Vec<Connection> = meter.measure("an open connection", CONNECTIONS, |server| {
        (0..CONNECTIONS)
            .map(|_| {
                let mut connection = server.connect_with(&config);
                connection.ask("GET", "/healthz", "").expect("a response");
                connection
            })
            .collect()
    });
    let _waiting = meter.measure("a waiter on an open connection", CONNECTIONS, |server| {
        let mut idle = idle;
        for connection in &mut idle {
            let body = r#"{"key":"00000000000000000000","block_seconds":60}"#;
            connection.begin("POST", "/v1/acquire", "", body).expect("sent");
        }
        let mut probe = server.connect(&client);
        until("all wait", || {
            let (_, text) = probe.ask("GET", "/metrics", "").expect("metrics");
            text.lines().any(|line| line == format!("lockd_waiters {CONNECTIONS}"))
        });
        idle
    });
    println!("{:<36} {:>9} bytes of disk", "a lease in a snapshot", snapshot_bytes_of_a_lease());
}

/// The growth of a snapshot with a lease of one key of 20 bytes.
fn snapshot_bytes_of_a_lease() -> usize {
    let tenure = TenureConfig {
        store: Store { shard: Shard(0), shards: 1, hash_seed: 9 },
        writer: 3,
        limits: Limits::default(),
        slots: kernel::Slots::ALL,
    };
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let mut decider = Decider::open(Kernel::new(), Seq(0), clock, &tenure).expect("a right clock");
    for n in 0..LEASES {
        let request = grant(key(&format!("{n:0>20}")), Span(300_000));
        let command = Command::by(&identity("worker-1"), Action::Acquire(request));
        decider.decide(&command, &Origin::default(), None);
    }
    let mut bytes = 0;
    let written = snapshot::write(&decider.kernel().snapshot(), Seq(1), &mut |part| {
        bytes += part.len();
        Ok(())
    });
    written.expect("memory does not fail");
    bytes / LEASES
}
