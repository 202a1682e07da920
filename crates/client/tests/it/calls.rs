//! Every call of the API has a method of the client.
//!
//! The methods run against a real server, behind a proxy that records the requests. The operations of the server's OpenAPI
//! document that were not among them have no method.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::agents::{AgentState, Bulk, Intent, Manifest, Reconcile};
use api::requests::{Acquire, OnExpiry, Party, Pause, Quota};
use lockd_client::{AcquireOptions, Client, Conditions, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{Server, client};

/// Another spelling of `read_state`, for clients that cannot send a GET with headers.
const SAME_AS_ANOTHER: [&str; 1] = ["get_state"];

type Requests = Arc<Mutex<BTreeSet<(String, String)>>>;

#[tokio::test]
async fn every_call_of_the_api_has_a_method() {
    let server = Server::start().await;
    let (client, requests) = recorded(&server).await;
    holders(&client).await;
    documents(&client).await;
    agents(&client).await;
    operators(&client).await;
    let document = health(&client).await;
    let sent = requests.lock().expect("no panic").clone();
    let without: Vec<String> =
        operations(&document).into_iter().filter(|operation| !operation.is_in(&sent)).map(|o| o.id).collect();
    assert_eq!(without, Vec::<String>::new(), "these calls have no method");
}

async fn holders(client: &Client) {
    let request = Acquire { key: Some("a".into()), reserve: Some(true), ..Acquire::default() };
    let reserved = client.grant(request, Duration::ZERO).await.expect("free");
    client.activate(&reserved.lease_id).await.expect("reserved");
    assert_eq!(client.activate("L-1").await.expect_err("no credential").kind(), Kind::Invalid);
    client.touch(&reserved.lease_id).await.expect("active");
    client.keepalive(&reserved.lease_id, None).await.expect("active");
    assert_eq!(client.lease(&reserved.public_id).await.expect("known").state, "active");
    assert_eq!(client.leases(None, None).await.expect("allowed").leases.len(), 1);
    assert!(client.fence("a", None, reserved.fencing_token).await.expect("allowed").current);
    assert!(!client.fence("a", None, reserved.fencing_token + 1).await.expect("allowed").current);
    assert_eq!(client.describe("a", None).await.expect("known").state.as_deref(), Some("active"));
    client.release(&reserved.lease_id).await.expect("ours");
    let history = client.history("KEY:a", None).await.expect("allowed");
    let events: Vec<&str> = history.entries.iter().map(|entry| entry.event.as_str()).collect();
    assert_eq!(events, ["granted", "released"]);
    assert_eq!(client.whoami().await.expect("known").identity, "anonymous");
    rebind(client).await;
}

async fn rebind(client: &Client) {
    let on_expiry = Some(OnExpiry::HoldMs(60_000));
    let request = Acquire { key: Some("b".into()), ttl_ms: Some(1), on_expiry, ..Acquire::default() };
    let expired = client.grant(request, Duration::ZERO).await.expect("free");
    tokio::time::sleep(Duration::from_millis(20)).await;
    let back = client.rebind(&expired.lease_id).await.expect("on hold");
    assert_eq!(back.public_id, expired.public_id);
    assert!(back.fencing_token > expired.fencing_token);
    client.release(&back.lease_id).await.expect("ours");
}

async fn documents(client: &Client) {
    let lease = client.acquire("c", &AcquireOptions::default()).await.expect("free");
    lease.update_state("1", &Conditions::default()).await.expect("held");
    assert_eq!(lease.read_state().await.expect("held").document.as_deref(), Some(b"1".as_slice()));
    let listed = client.keys(None, Some("c"), None).await.expect("allowed");
    assert_eq!((listed.keys[0].key.as_str(), listed.keys[0].state_bytes, listed.cursor), ("c", 1, None));
    assert_eq!(client.keys(None, Some("c"), Some("c")).await.expect("allowed").keys, []);
    let removed = client.remove_state("c", None, lease.credential(), &Conditions::default()).await;
    assert!(removed.expect("held").removed);
}

async fn agents(client: &Client) {
    let intents = vec![Intent { predicate: "MUTATES".into(), object: "FILE:/x".into() }];
    let (agent_id, session_id) = ("coder".to_string(), "s".to_string());
    let manifest = Manifest { agent_id, session_id, intents, ..Manifest::default() };
    let lease_id = client.manifest(&manifest).await.expect("free").lease.expect("granted").lease_id;
    let bulk = Bulk { lease_ids: vec![lease_id.clone()], ..Bulk::default() };
    assert!(client.heartbeat(&bulk).await.expect("ours")[0].ok);
    let reconcile = Reconcile { lease_ids: vec![lease_id], ..Reconcile::default() };
    assert!(client.reconcile(&reconcile).await.expect("ours")[0].valid);
    client.set_agent("coder", None, AgentState::Alive).await.expect("ours");
    assert_eq!(client.agents(None, None).await.expect("allowed").agents.len(), 1);
    assert_eq!(client.resource("FILE:/x", None).await.expect("allowed").state, "active");
    client.contention(None).await.expect("allowed");
    client.events(None, None).await.expect("allowed");
    assert!(client.release_all(&bulk).await.expect("ours")[0].ok);
}

async fn operators(client: &Client) {
    let held = || Acquire { key: Some("d".into()), namespace: Some("n".into()), ..Acquire::default() };
    let lease = client.grant(held(), Duration::ZERO).await.expect("free");
    client.revoke(&lease.public_id).await.expect("held");
    client.reclaim(&lease.public_id).await.expect("revoked");
    client.grant(held(), Duration::ZERO).await.expect("free again");
    let everything =
        Party { namespace: Some("n".into()), identity: Some("anonymous".into()), agent_id: None };
    assert_eq!(client.revoke_all(&everything).await.expect("an operator").revoked, 1);
    let refused = client.delete_namespace("n").await.expect_err("a lease in it is not reclaimed yet");
    assert_eq!(refused.code(), Some(api::Code::InvalidState));
    for lease in client.leases(Some("n"), None).await.expect("an operator").leases {
        if lease.state == "revoking" {
            client.reclaim(&lease.public_id).await.expect("revoked");
        }
    }
    assert!(client.namespaces(None).await.expect("an operator").namespaces.contains(&"n".to_string()));
    client.delete_namespace("n").await.expect("no lease is held in it");
    client.delete_namespace("n").await.expect("it may be repeated");
    let pause = |paused| Pause { namespace: None, identity: Some("x".into()), agent_id: None, paused };
    client.pause(&pause(true)).await.expect("an operator");
    client.pause(&pause(false)).await.expect("an operator");
    let quota = Quota { identity: Some("x".into()), max_leases: Some(7), ..Quota::default() };
    client.set_quota(&quota).await.expect("an operator");
    let quotas = client.quotas(None).await.expect("an operator").quotas;
    assert!(quotas.iter().any(|quota| quota.max_leases == Some(7)), "{quotas:?}");
    let refused = client.hand_over(None).await.expect_err("the store has one server");
    assert_eq!(refused.code(), Some(api::Code::InvalidState));
    let refused = client.reload().await.expect_err("only over a Unix socket");
    assert_eq!(refused.kind(), Kind::Denied);
}

/// Returns the OpenAPI document.
async fn health(client: &Client) -> String {
    client.alive().await.expect("it runs");
    client.ready().await.expect("it runs");
    assert!(client.metrics().await.expect("it runs").contains("# TYPE"));
    client.openapi().await.expect("it runs")
}

struct Operation {
    id: String,
    method: String,
    /// With `{name}` for a segment of any text.
    path: String,
}

impl Operation {
    fn is_in(&self, sent: &BTreeSet<(String, String)>) -> bool {
        sent.iter().any(|(method, path)| *method == self.method && self.matches(path))
    }

    fn matches(&self, path: &str) -> bool {
        let (path, pattern) = (path.split('/'), self.path.split('/'));
        path.clone().count() == pattern.clone().count()
            && path.zip(pattern).all(|(segment, pattern)| pattern.starts_with('{') || segment == pattern)
    }
}

/// The operations of an OpenAPI document, less the deprecated ones.
fn operations(document: &str) -> Vec<Operation> {
    let document: serde_json::Value = serde_json::from_str(document).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let mut all = Vec::new();
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            let id = operation["operationId"].as_str().expect("an id").to_string();
            if operation["deprecated"] != true && !SAME_AS_ANOTHER.contains(&id.as_str()) {
                all.push(Operation { id, method: method.to_uppercase(), path: path.clone() });
            }
        }
    }
    assert!(all.len() > 25, "the document has all calls");
    all
}

/// A client of the server, and the method and path of each request that it sends.
async fn recorded(server: &Server) -> (Client, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let (near, far) = (listener.local_addr().expect("bound"), server.address);
    let requests = Requests::default();
    let recorder = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let upstream = TcpStream::connect(far).await.expect("the server listens");
            tokio::spawn(forward(socket, upstream, Arc::clone(&recorder)));
        }
    });
    (client(&[near]), requests)
}

async fn forward(client: TcpStream, upstream: TcpStream, recorder: Requests) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = upstream.into_split();
    let requests = async {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_client.read(&mut chunk).await {
            record(&chunk[..length], &recorder);
            if to_server.write_all(&chunk[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

/// Records the request lines in `chunk`. The client writes each head at once.
fn record(chunk: &[u8], recorder: &Requests) {
    for line in String::from_utf8_lossy(chunk).lines() {
        if let [method, target, "HTTP/1.1"] = line.split(' ').collect::<Vec<_>>()[..] {
            let path = target.split('?').next().unwrap_or_default();
            recorder.lock().expect("no panic").insert((method.to_string(), path.to_string()));
        }
    }
}
