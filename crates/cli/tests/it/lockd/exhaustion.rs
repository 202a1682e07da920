//! One malicious worker with a valid certificate against the real server: during each attack, another worker's requests
//! all succeed, and the server stays within its memory. Latency and resident memory are printed for each attack.
//!
//! With `LOCKD_LONG=1` each attack lasts ten seconds instead of two; in builds with optimisation these are rounds, each beside
//! a control round ([`fairness`]) in which the attacker talks to a [`Sink`] on the same machine, which does nothing.

mod fairness;
pub(super) mod http2;
mod over_frames;
mod round;
mod without_rights;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_rustls::rustls::ClientConfig;

use crate::lockd::frame_client::Protocol;
use crate::lockd::serve::{Connection, Running, connect_to, tls_config, tls_config_for};
use crate::lockd::sink::Sink;

/// The server's resident memory at its peak must stay below this.
const RESIDENT_MAX_KIB: u64 = 512 << 10;

/// A server, a malicious worker and a well-behaved one, each in a namespace of its own.
struct Arena {
    server: Running,
    /// What the attacker speaks.
    protocol: Protocol,
    /// What is attacked instead, in a control run.
    sink: Option<Sink>,
    attacker: PathBuf,
    /// A certificate with a right in a namespace that does not exist.
    none: PathBuf,
    victim: PathBuf,
    dir: tempfile::TempDir,
}

impl Arena {
    fn start(protocol: Protocol, is_control: bool) -> Arena {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        let server = Running::start(&data, &["--memory-max", "256MiB"]);
        let sink = is_control.then(|| Sink::start(&data.join("server.pem")));
        let client = |name: &str, rights: &str| {
            let out = dir.path().join(format!("{name}.pem"));
            let made = Command::new(assert_cmd::cargo::cargo_bin!("lockd"))
                .args(["auth", "new", "client", "--cn", name, "--namespace", rights, "--server-in"])
                .arg(data.join("server.pem"))
                .arg("--out")
                .arg(&out)
                .output();
            assert!(made.expect("the program").status.success());
            out
        };
        // The attacker's certificate is for every namespace, as that of a careless operator may be.
        let (attacker, none) = (client("attacker", "*:rwp"), client("none", "none:r"));
        let victim = client("victim", "victim:rwp");
        Arena { server, protocol, sink, attacker, none, victim, dir }
    }

    /// The address that is attacked.
    fn target(&self) -> &str {
        self.sink.as_ref().map_or(&self.server.address, |sink| &sink.address)
    }

    fn attacker(&self) -> Connection {
        connect_to(self.target(), &self.config(&self.attacker))
    }

    /// The TLS of a client, with the attacker's protocol.
    fn config(&self, client: &Path) -> Arc<ClientConfig> {
        tls_config_for(client, self.protocol.alpn())
    }

    /// How many requests the attacker has in flight on a connection.
    fn in_flight(&self) -> usize {
        match self.protocol {
            Protocol::Http => 1,
            Protocol::Frames => frames::IN_FLIGHT_MAX as usize,
        }
    }

    /// A bundle in the attacker's namespace, of as many names of 500 bytes as a request has room for.
    fn bundle(&self, prefix: &str) -> Value {
        bundle(prefix, if self.protocol == Protocol::Http { 128 } else { 28 })
    }

    /// Sends requests as fast as the server responds, until the attack is over: each has a path, headers and a body.
    fn flood(
        &self,
        stop: &AtomicBool,
        refused: &AtomicUsize,
        request: impl Fn(usize) -> (&'static str, String, String),
    ) {
        let (mut connection, mut in_flight) = (self.attacker(), 0);
        for n in 0.. {
            if stop.load(Ordering::Acquire) {
                return;
            }
            let (path, headers, body) = request(n);
            in_flight += 1;
            if connection.begin("POST", path, &headers, &body).is_some() && in_flight < self.in_flight() {
                continue;
            }
            let response = connection.next_response();
            in_flight -= 1;
            if response.is_none() {
                (connection, in_flight) = (self.attacker(), 0);
            }
            note(refused, response);
        }
    }

    /// The attacker's lease.
    fn lease(&self, body: &Value) -> Option<String> {
        let (status, reply) = self.attacker().ask("POST", "/v1/acquire", &body.to_string())?;
        let reply: Value = serde_json::from_str(&reply).ok()?;
        (status == 200).then(|| reply["lease_id"].as_str().expect("a credential").to_string())
    }

    /// Commits a document of the attacker, and releases the key.
    fn write_document(&self, name: &str, bytes: usize) {
        let lease = self.lease(&key(name)).expect("granted");
        let (path, header) = (
            format!("/v1/update_state?key={name}&namespace=attacker&release=1"),
            format!("x-lease-id: {lease}\r\n"),
        );
        let document = format!("[\"{}\"]", "x".repeat(bytes));
        let written = self.attacker().send("POST", &path, &header, &document);
        assert_eq!(written.map(|(status, _)| status), Some(200));
    }

    fn peak_resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux");
        line.trim().trim_end_matches("kB").trim().parse().expect("a number")
    }
}

fn is_long() -> bool {
    std::env::var_os("LOCKD_LONG").is_some()
}

/// Without optimisation the server needs ten times as long for a request, and the sink, which does nothing, does not.
fn is_compared() -> bool {
    is_long() && !cfg!(debug_assertions)
}

/// How long each round of an attack lasts.
fn duration() -> Duration {
    let attack = Duration::from_secs(if is_long() { 10 } else { 2 });
    if is_compared() { attack / u32::try_from(fairness::ROUNDS).expect("a few") } else { attack }
}

/// A bundle of names of 500 bytes in the attacker's namespace.
fn bundle(prefix: &str, names: usize) -> Value {
    let name = |n: usize| json!({"kind": "KEY", "name": format!("{prefix}-{n:03}-{}", "x".repeat(490))});
    let resources: Vec<Value> = (0..names).map(name).collect();
    json!({"namespace": "attacker", "resources": resources, "ttl_seconds": 300})
}

fn key(name: &str) -> Value {
    json!({"namespace": "attacker", "key": name, "ttl_seconds": 300})
}

type Spawn =
    for<'scope, 'env> fn(&'scope Scope<'scope, 'env>, &'env Arena, &'env AtomicBool, &'env AtomicUsize);

/// An attack that can be made over both protocols.
struct Attack {
    name: &'static str,
    spawn: Spawn,
}

impl Attack {
    fn over_http(&self) {
        withstands(self.name, self.spawn);
    }

    fn over_frames(&self) {
        withstands_over(Protocol::Frames, &format!("{} over frames", self.name), self.spawn);
    }
}

/// Runs an attack over HTTP.
fn withstands(name: &str, spawn: Spawn) {
    withstands_over(Protocol::Http, name, spawn);
}

/// Runs an attack; in the long form of builds with optimisation, compared with control rounds in between.
fn withstands_over(protocol: Protocol, name: &str, spawn: Spawn) {
    if is_compared() {
        fairness::assert_fair(protocol, name, spawn);
    } else {
        round::attack(protocol, name, false, spawn);
    }
}

/// Writes a line that the test runner does not capture: the figures belong into the log of every run.
fn report(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn note(refused: &AtomicUsize, response: Option<(u16, String)>) {
    if response.is_none_or(|(status, _)| status != 200) {
        refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// 4,000 bundles of 128 long names took 700 MB, and a restart took them again.
#[test]
fn leases_with_long_names() {
    LEASES_WITH_LONG_NAMES.over_http();
}

const LEASES_WITH_LONG_NAMES: Attack = Attack {
    name: "leases with long names",
    spawn: |scope, arena, stop, refused| {
        for thread in 0..4 {
            scope.spawn(move || {
                arena.flood(stop, refused, |n| {
                    let body = arena.bundle(&format!("{thread}-{n}")).to_string();
                    ("/v1/acquire", String::new(), body)
                });
            });
        }
    },
};

/// 760 waiting bundles of long names took 150 MB.
#[test]
fn waiters_with_long_names() {
    WAITERS_WITH_LONG_NAMES.over_http();
}

const WAITERS_WITH_LONG_NAMES: Attack = Attack {
    name: "waiters with long names",
    spawn: |scope, arena, stop, refused| {
        arena.lease(&arena.bundle("hot")).expect("the first is granted");
        for _ in 0..4 {
            scope.spawn(move || {
                let mut body = arena.bundle("hot");
                body["block_seconds"] = json!(50);
                let body = body.to_string();
                let mut waiting = Vec::new();
                while !stop.load(Ordering::Acquire) && waiting.len() < 200 {
                    let mut connection = arena.attacker();
                    for _ in 0..arena.in_flight() {
                        connection.begin("POST", "/v1/acquire", "", &body);
                    }
                    let response = connection.response_within(Duration::from_millis(20));
                    if response.is_none() || arena.in_flight() > 1 {
                        waiting.push(connection);
                    }
                    if response.is_some() {
                        note(refused, response);
                    }
                }
                idle_until(stop);
            });
        }
    },
};

/// Ten requests for a document of 60 MB with the lease, whose responses were not read, took a gigabyte.
#[test]
fn documents_that_are_not_read() {
    withstands("documents that are not read", |scope, arena, stop, _| {
        arena.write_document("d", 20 << 20);
        scope.spawn(move || {
            let resources = json!([{"kind": "KEY", "name": "d", "predicate": "CONSUMES"}]);
            let shared =
                json!({"namespace": "attacker", "resources": resources, "ttl_seconds": 300}).to_string();
            let mut unread = Vec::new();
            while !stop.load(Ordering::Acquire) && unread.len() < 60 {
                let mut connection = arena.attacker();
                connection.begin("POST", "/v1/acquire?include_state=1", "", &shared);
                unread.push(connection);
                let mut connection = arena.attacker();
                let path = "/v1/get_state?key=d&public=1&namespace=attacker";
                connection.begin("GET", path, "", "");
                unread.push(connection);
            }
            idle_until(stop);
        });
    });
}

/// 570 requests over HTTP/2 with a flow-control window of 0 kept 550 MB: no write was pending, so no timeout ran.
#[test]
fn http2_windows_of_zero() {
    withstands("HTTP/2 windows of 0", |scope, arena, stop, _| {
        arena.write_document("d", 4 << 20);
        scope.spawn(move || {
            let config = tls_config_for(&arena.attacker, "h2");
            let mut connections = Vec::new();
            while !stop.load(Ordering::Acquire) && connections.len() < 30 {
                let mut connection = connect_to(arena.target(), &config);
                connection.write(&http2::preface_with_a_window_of_zero());
                for stream in 0..190 {
                    let path = "/v1/get_state?key=d&public=1&namespace=attacker";
                    if connection.write(&http2::get(2 * stream + 1, path)).is_none() {
                        break;
                    }
                }
                connections.push(connection);
            }
            idle_until(stop);
        });
    });
}

/// 200 requests on each of a thousand connections, none of which sends its body: each occupied the memory of a request for
/// as long as the idle timeout, and nothing counted them.
#[test]
fn requests_without_a_body() {
    withstands("requests without a body", |scope, arena, stop, _| {
        for _ in 0..2 {
            scope.spawn(move || {
                let config = tls_config_for(&arena.attacker, "h2");
                let mut connections = Vec::new();
                while !stop.load(Ordering::Acquire) && connections.len() < 450 {
                    let mut connection = connect_to(arena.target(), &config);
                    connection.write(&http2::preface_with_a_window_of_zero());
                    let streams: Vec<u8> = (0..200)
                        .flat_map(|stream| http2::begin_post(2 * stream + 1, "/v1/acquire"))
                        .collect();
                    connection.write(&streams);
                    connections.push(connection);
                }
                idle_until(stop);
            });
        }
    });
}

/// A head may be as long as the read buffer of its connection, which was 256 KiB: a thousand unfinished ones were 256 MB.
#[test]
fn heads_that_never_end() {
    withstands("heads that never end", |scope, arena, stop, _| {
        for _ in 0..2 {
            scope.spawn(move || {
                let config = tls_config(&arena.attacker);
                let mut connections = Vec::new();
                let head = format!("GET / HTTP/1.1\r\nhost: lockd\r\nx: {}", "x".repeat(255 << 10));
                while !stop.load(Ordering::Acquire) && connections.len() < 450 {
                    let mut connection = connect_to(arena.target(), &config);
                    connection.write(head.as_bytes());
                    connections.push(connection);
                }
                idle_until(stop);
            });
        }
    });
}

/// Silent connections of anyone, reopened as they were cut, kept every client out.
#[test]
fn silent_connections_without_a_certificate() {
    withstands("silent connections without a certificate", |scope, arena, stop, _| {
        for _ in 0..2 {
            scope.spawn(move || {
                let mut silent = std::collections::VecDeque::new();
                while !stop.load(Ordering::Acquire) {
                    silent.extend(std::net::TcpStream::connect(arena.target()));
                    if silent.len() > 200 {
                        silent.pop_front();
                    }
                }
            });
        }
    });
}

/// Eight reconciles of one credential a thousand times took 900 MB, and delayed others by seconds.
#[test]
fn reconciles_of_one_lease() {
    withstands("reconciles of one lease", |scope, arena, stop, refused| {
        let lease = arena.lease(&arena.bundle("r")).expect("granted");
        let ids = vec![lease; 1000];
        let body = json!({"namespace": "attacker", "lease_ids": ids}).to_string();
        for _ in 0..8 {
            let body = body.clone();
            scope.spawn(move || {
                let mut connection = arena.attacker();
                while !stop.load(Ordering::Acquire) {
                    let response = connection.ask("POST", "/v1/leases/reconcile", &body);
                    if response.is_none() {
                        connection = arena.attacker();
                    }
                    note(refused, response);
                }
            });
        }
    });
}

/// 150 uploads at once took 120 MB, and as many files and descriptors.
#[test]
fn uploads_that_never_end() {
    withstands("uploads that never end", |scope, arena, stop, _| {
        let lease = arena.lease(&key("u")).expect("granted");
        scope.spawn(move || {
            let header = format!("x-lease-id: {lease}\r\ncontent-length: 90000000\r\n");
            let part = format!("[\"{}", "x".repeat(420 << 10));
            let mut uploads = Vec::new();
            while !stop.load(Ordering::Acquire) && uploads.len() < 150 {
                let mut connection = arena.attacker();
                connection.begin_body("POST", "/v1/update_state?key=u&namespace=attacker", &header, &part);
                uploads.push(connection);
            }
            idle_until(stop);
        });
    });
}

/// Only the bodies of documents were counted: JSON of two megabytes on each of hundreds of connections, of which the last
/// byte never came, occupied as many megabytes.
#[test]
fn long_bodies_that_never_end() {
    withstands("long bodies that never end", |scope, arena, stop, _| {
        for _ in 0..2 {
            scope.spawn(move || {
                let part = format!("[\"{}", "x".repeat(1_990_000));
                let mut connections = Vec::new();
                while !stop.load(Ordering::Acquire) && connections.len() < 200 {
                    let mut connection = arena.attacker();
                    let header = "content-length: 2000000\r\n";
                    connection.begin_body("POST", "/v1/leases/heartbeat", header, &part);
                    connections.push(connection);
                }
                idle_until(stop);
            });
        }
    });
}

/// Polling what many waiting bundles contend for took a second of every other client's time.
#[test]
fn lists_are_polled() {
    withstands("lists are polled", |scope, arena, stop, refused| {
        arena.lease(&arena.bundle("l")).expect("granted");
        for path in
            ["/v1/contention", "/v1/leases?limit=1000", "/v1/agents?namespace=attacker", "/v1/namespaces"]
        {
            scope.spawn(move || {
                let mut connection = arena.attacker();
                while !stop.load(Ordering::Acquire) {
                    let response = connection.ask("GET", path, "");
                    if response.is_none() {
                        connection = arena.attacker();
                    }
                    note(refused, response);
                }
            });
        }
        scope.spawn(move || {
            let mut body = arena.bundle("l");
            body["block_seconds"] = json!(50);
            let body = body.to_string();
            let waiting: Vec<Connection> = (0..50)
                .map(|_| {
                    let mut connection = arena.attacker();
                    connection.begin("POST", "/v1/acquire", "", &body);
                    connection
                })
                .collect();
            idle_until(stop);
            drop(waiting);
        });
    });
}

/// A worker with rights on every namespace filled the tables of namespaces and agents in seconds; then no one else could
/// use a new one, and each list of agents delayed all others.
#[test]
fn namespaces_and_agents_are_made() {
    NAMESPACES_AND_AGENTS_ARE_MADE.over_http();
}

const NAMESPACES_AND_AGENTS_ARE_MADE: Attack = Attack {
    name: "namespaces and agents are made",
    spawn: |scope, arena, stop, refused| {
        for thread in 0..4 {
            scope.spawn(move || {
                arena.flood(stop, refused, |n| {
                    let (namespace, agent) = (format!("made-{thread}-{}", n % 500), format!("agent-{thread}-{n}"));
                    let intents = json!([{"predicate": "MUTATES", "object": format!("KEY:{n}")}]);
                    let manifest = json!({
                        "namespace": namespace, "agent_id": agent, "session_id": "s", "intents": intents, "ttl_ms": 1000
                    });
                    ("/v1/manifest", String::new(), manifest.to_string())
                });
            });
        }
        for path in ["/v1/agents?namespace=made-0-1&limit=1", "/v1/namespaces"] {
            scope.spawn(move || {
                let mut connection = arena.attacker();
                while !stop.load(Ordering::Acquire) {
                    note(refused, connection.ask("GET", path, ""));
                }
            });
        }
    },
};

fn idle_until(stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
