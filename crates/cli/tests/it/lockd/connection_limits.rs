//! No client alone, with a certificate or without, locks others, operators or probes out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpSocket;

use crate::lockd::frame_client::Protocol;
use crate::lockd::reload::text;
use crate::lockd::revocation::{World, rest};
use crate::lockd::serve::{Connection, Running, tls_config_for};
use crate::lockd::support::lockd;

fn status(connection: &mut Connection, path: &str) -> Option<u16> {
    connection.ask("GET", path, "").map(|(status, _)| status)
}

/// Silent connections from eight addresses, opened again as they are closed, until it is dropped.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Flood {
    fn start(address: &str) -> Flood {
        let address = address.parse().expect("an address");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let flood = async move {
            let mut open = std::collections::VecDeque::new();
            while !stopped.load(Ordering::Acquire) {
                for n in 2..10 {
                    let socket = TcpSocket::new_v4().expect("a socket");
                    socket.bind(([127, 0, 0, n], 0).into()).expect("loopback");
                    open.extend(socket.connect(address).await.ok());
                }
                while open.len() > 300 {
                    open.pop_front();
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(flood);
        });
        Flood { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Silent connections without a certificate took all places: no client was served while they were opened again.
#[test]
fn silent_connections_without_a_certificate_lock_nobody_out() {
    let mut world = World::new(&["--max-handshakes", "16", "--max-handshakes-per-address", "8"]);
    let client = world.client("worker");
    let flood = Flood::start(&world.server.address);
    world.server.log.wait_for("connection refused");
    for _ in 0..10 {
        assert_eq!(status(&mut world.server.connect(&client), "/v1/leases"), Some(200));
    }
    drop(flood);
    let (_, metrics) =
        world.server.connect(&world.path("data/client.pem")).ask("GET", "/metrics", "").expect("it");
    assert!(metrics.contains(r#"lockd_connections_refused_total{reason="handshakes"}"#), "{metrics}");
}

/// One certificate without any useful right held all connections: operators, probes and the Unix socket waited.
#[test]
fn one_identity_has_at_most_half_of_the_connections() {
    for protocol in Protocol::BOTH {
        let world = World::new(&["--max-connections", "20"]);
        let [hog, other] = ["hog", "other"].map(|name| tls_config_for(&world.client(name), protocol.alpn()));
        let mut held: Vec<Connection> = (0..9).map(|_| world.server.connect_with(&hog)).collect();
        for connection in &mut held {
            assert_eq!(status(connection, "/v1/whoami"), Some(200));
        }
        let mut refused = world.server.connect_with(&hog);
        assert_eq!(status(&mut refused, "/v1/whoami"), None, "closed at once");
        rest(&mut refused);
        assert_eq!(status(&mut world.server.connect_with(&other), "/v1/whoami"), Some(200));
        // A place is free again as soon as its connection is closed.
        drop(held.pop());
        crate::running::until("the hog is let in", || {
            status(&mut world.server.connect_with(&hog), "/v1/whoami") == Some(200)
        });
    }
}

#[test]
fn all_workers_together_leave_connections_for_operators_probes_and_the_unix_socket() {
    for protocol in Protocol::BOTH {
        let world = World::new(&["--max-connections", "20"]);
        let config = |name: &str| tls_config_for(&world.client(name), protocol.alpn());
        let mut held = Vec::new();
        for client in ["one", "two"].map(config) {
            held.extend((0..9).map(|_| world.server.connect_with(&client)));
        }
        for connection in &mut held {
            assert_eq!(status(connection, "/v1/whoami"), Some(200));
        }
        let worker = world.client("three");
        // Connections beyond the limit are for probes, which are HTTP.
        let mut framed = world.server.connect_with(&tls_config_for(&worker, Protocol::Frames.alpn()));
        assert_eq!(status(&mut framed, "/v1/whoami"), None);
        let mut beyond = world.server.connect(&worker);
        let (refused, body) = beyond.ask("GET", "/v1/leases", "").expect("a response");
        assert!(refused == 503 && body.contains("too many connections"), "{refused} {body}");
        assert_eq!(status(&mut world.server.connect(&worker), "/readyz"), Some(200), "a probe");
        let operator = tls_config_for(&world.path("data/client.pem"), protocol.alpn());
        assert_eq!(status(&mut world.server.connect_with(&operator), "/v1/whoami"), Some(200));
        let probe = lockd(&["health", "--alive", "--unix", text(&world.path("s"))]);
        assert_eq!(probe.code, 0, "{}", probe.stderr);
    }
}

/// The usual soft limit of 1024 open files: a thousand silent connections made the uploads of others fail.
#[test]
fn the_limit_of_open_files_is_raised_and_connections_are_fitted_to_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Running::start_after("ulimit -Sn 200; ulimit -Hn 600", &dir.path().join("data"), &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("it runs");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    assert_eq!(files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["600", "600"], "{files}");
    let line = server.log.seen.lines().find(|line| line.contains("max-connections is reduced"));
    let line = line.expect("it is logged");
    assert!(line.contains("WARN") && line.contains("max_connections=300"), "{line}");
}
