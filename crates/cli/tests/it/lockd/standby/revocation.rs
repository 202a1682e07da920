//! Revocation over several servers: a client is revoked at the server that owns the shard, or at the one that it is connected
//! to.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use objectserver::ObjectServer;
use serde_json::{Value, json};

use super::super::bucket::object_server;
use crate::lockd::reload::{auth, serial, text};
use crate::lockd::revocation::rest;
use crate::lockd::serve::{Connection, Running};
use crate::lockd::support::lockd;
use crate::running::until;

/// The first server owns the shard, and the second forwards to it. Each has a denylist of its own.
struct Pair {
    owner: Running,
    edge: Running,
    dir: tempfile::TempDir,
    _objects: ObjectServer,
}

/// One of the two servers.
#[derive(Clone, Copy)]
enum Server {
    Owner,
    Edge,
}

impl Pair {
    fn start() -> Pair {
        let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
        let (endpoint, path) = (objects.endpoint(), |name: &str| dir.path().join(name));
        let process = r#"echo '{"Version":1,"AccessKeyId":"id","SecretAccessKey":"secret","SessionToken":null,"Expiration":null}'"#;
        let mut flags = vec!["--store", "s3://locks/test", "--s3-region", "us-east-1"];
        flags.extend(["--takeover-silence", "1s", "--s3-endpoint", &endpoint]);
        flags.extend(["--s3-credential-process", process]);
        let (owner_socket, edge_socket) = (path("owner.sock"), path("edge.sock"));
        let owner = Running::start(&path("owner"), &[&flags[..], &["--unix", text(&owner_socket)]].concat());
        let copy = path("edge.pem");
        std::fs::copy(path("owner/server.pem"), &copy).expect("it was made");
        let own = ["--unix", text(&edge_socket), "--bundle", text(&copy)];
        let edge = Running::start(&path("edge"), &[&flags[..], &own].concat());
        Pair { owner, edge, dir, _objects: objects }
    }

    fn bundle(&self, server: Server) -> PathBuf {
        self.dir.path().join(match server {
            Server::Owner => "owner/server.pem",
            Server::Edge => "edge.pem",
        })
    }

    fn client(&self, name: &str) -> PathBuf {
        let out = self.dir.path().join(format!("{name}.pem"));
        let issuer = self.bundle(Server::Owner);
        auth(&["new", "client", "--cn", name, "--server-in", text(&issuer), "--out", text(&out)]);
        out
    }

    /// Returns when one server has revoked the client. The other does not know of it.
    fn revoke_at(&self, server: Server, client: &std::path::Path) {
        auth(&["revoke", "client", "--server-in", text(&self.bundle(server)), &serial(client)]);
        let socket = self.dir.path().join(match server {
            Server::Owner => "owner.sock",
            Server::Edge => "edge.sock",
        });
        let ran = lockd(&["reload", "--unix", text(&socket)]);
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    }

    /// A client that waits for `k` at the second server.
    fn wait_for_k(&self, client: &std::path::Path, holder: &mut Connection) -> JoinHandle<Option<u16>> {
        let mut waiter = self.edge.connect(client);
        let body = json!({"key": "k", "block_seconds": 50, "ttl_seconds": 300}).to_string();
        let waiting =
            std::thread::spawn(move || waiter.ask("POST", "/v1/acquire", &body).map(|(status, _)| status));
        until("it waits", || {
            let (_, key) = holder.ask("GET", "/v1/describe?key=k", "").expect("a response");
            key.contains(r#""waiters":1"#)
        });
        waiting
    }
}

fn acquire(connection: &mut Connection, body: &Value) -> String {
    let (status, reply) = connection.ask("POST", "/v1/acquire", &body.to_string()).expect("a response");
    assert_eq!(status, 200, "{reply}");
    let reply: Value = serde_json::from_str(&reply).expect("JSON");
    reply["lease_id"].as_str().expect("a credential").to_string()
}

fn release(connection: &mut Connection, lease: &str) {
    let body = json!({"lease_id": lease}).to_string();
    assert_eq!(connection.ask("POST", "/v1/release", &body).expect("a response").0, 200);
}

/// The owner ended the connections of revoked clients, of which a client of another server has none: the waiter of a client
/// that the owner had revoked was granted, its upload committed, and it went on reading events.
#[test]
fn a_client_that_the_owner_has_revoked_is_granted_nothing_through_another_server() {
    let pair = Pair::start();
    let [revoked, good] = ["revoked", "good"].map(|name| pair.client(name));
    let mut holder = pair.owner.connect(&good);
    let held = acquire(&mut holder, &json!({"key": "k", "ttl_seconds": 60}));
    let of_upload = acquire(&mut pair.edge.connect(&revoked), &json!({"key": "u", "ttl_seconds": 60}));
    let waiting = pair.wait_for_k(&revoked, &mut holder);
    let mut events = pair.edge.connect(&revoked);
    events.begin("GET", "/v1/events", "connection: close\r\n", "").expect("sent");
    let mut begun = [0; 12];
    events.0.read_exact(&mut begun).expect("a response");
    assert_eq!(&begun, b"HTTP/1.1 200");
    let mut upload = pair.edge.connect(&revoked);
    let document = format!("[\"{}\"]", "x".repeat(4 << 20));
    let (part, left) = document.split_at(document.len() / 2);
    let headers = format!("x-lease-id: {of_upload}\r\ncontent-length: {}\r\n", document.len());
    upload.begin_body("POST", "/v1/update_state?key=u", &headers, part).expect("sent");
    pair.revoke_at(Server::Owner, &revoked);
    release(&mut holder, &held);
    assert_eq!(waiting.join().expect("no panic"), Some(401));
    acquire(&mut holder, &json!({"key": "k", "ttl_seconds": 60}));
    let _ = upload.write(left.as_bytes());
    let response = upload.response_within(Duration::from_secs(30));
    assert!(response.as_ref().is_none_or(|(status, _)| *status == 401), "{response:?}");
    let (_, described) = holder.ask("GET", "/v1/describe?key=u", "").expect("a response");
    assert!(described.contains(r#""version":0"#), "nothing was committed: {described}");
    acquire(&mut holder, &json!({"key": "unseen", "ttl_seconds": 60}));
    let seen = rest(&mut events);
    assert!(!seen.contains("unseen"), "{seen}");
    // A new request of the client: the owner refuses what the other server forwards.
    let again = pair.edge.connect(&revoked).ask("POST", "/v1/acquire", r#"{"key":"new"}"#);
    assert_eq!(again.map(|(status, _)| status), Some(401));
}

/// A server gave the connections of a revoked client a second for their responses: a lease that was granted by the owner
/// meanwhile reached the client, with its credential and token.
#[test]
fn a_client_that_its_server_has_revoked_gets_no_grant_of_another() {
    let pair = Pair::start();
    let [revoked, good] = ["revoked", "good"].map(|name| pair.client(name));
    let mut holder = pair.owner.connect(&good);
    let held = acquire(&mut holder, &json!({"key": "k", "ttl_seconds": 60}));
    let waiting = pair.wait_for_k(&revoked, &mut holder);
    pair.revoke_at(Server::Edge, &revoked);
    release(&mut holder, &held);
    let status = waiting.join().expect("no panic");
    assert!(status.is_none_or(|status| status == 401), "{status:?}");
    // If the owner has granted it before it noticed, the grant is undone: no response of it was delivered.
    acquire(&mut holder, &json!({"key": "k", "ttl_seconds": 60, "block_seconds": 50}));
    assert_eq!(pair.edge.connect(&revoked).ask("GET", "/v1/leases", ""), None, "refused");
}

/// The log of the owner named the other server's certificate and address, and that of the other server an act that was
/// `moved`.
#[test]
fn forwarded_refusals_and_operators_acts_are_logged_once_and_as_their_clients() {
    let mut pair = Pair::start();
    let (worker, operator) = (pair.client("worker"), pair.dir.path().join("owner/client.pem"));
    let mut connection = pair.edge.connect(&worker);
    let address = connection.0.sock.local_addr().expect("connected").to_string();
    let (status, _) =
        connection.ask("POST", "/v1/acquire", r#"{"namespace":"other","key":"k"}"#).expect("a response");
    assert_eq!(status, 403);
    let lease = acquire(&mut connection, &json!({"key": "k", "ttl_seconds": 60}));
    let headers = format!("x-lease-id: {lease}\r\nx-fencing-token: 1\r\n");
    let (status, _) = connection.send("POST", "/v1/update_state?key=k", &headers, "{}").expect("a response");
    assert_eq!(status, 403);
    let line = pair.owner.log.wait_for("fencing_mismatch");
    for part in [r#"identity="worker""#, &format!("serial={}", serial(&worker)), &address, "status=403"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let mut acting = pair.edge.connect(&operator);
    let address = acting.0.sock.local_addr().expect("connected").to_string();
    let body = r#"{"namespace":"default","identity":"ada","paused":true}"#;
    assert_eq!(acting.ask("POST", "/v1/pause", body).expect("a response").0, 200);
    let line = pair.owner.log.wait_for("operator's act");
    for part in [r#"identity="operator""#, &format!("serial={}", serial(&operator)), &address, "status=200"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    // Everything that the other server has logged until now.
    drop(pair.edge.connect(&worker).0.sock.write_all(b"no handshake"));
    pair.edge.log.wait_for("handshake refused");
    let seen = pair.edge.log.seen();
    assert!(!seen.contains("operator's act") && !seen.contains("fencing_mismatch"), "{seen}");
}
