//! The times in responses, on a store whose appends are slow.
//!
//! `expires_at_unix_ms` and `remaining_ms` were taken from the wall clock when the response was written and the time that
//! remained when the command was decided. A holder was told an expiry later than its deadline, by as much as the sync
//! took, and acted without authority.

use std::time::Duration;

use axum::{Extension, Router};
use identity::Role;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server};
use serde_json::{Value, json};

use crate::embedding::{ask, ask_with};
use crate::support::slow_store::SlowStore;

const DELAY_MS: u64 = 400;
const TTL_MS: u64 = 60_000;

struct SlowServer {
    store: SlowStore,
    router: Router,
    _server: Server,
}

impl SlowServer {
    fn start() -> SlowServer {
        let store = SlowStore::default();
        let config = Config { store: StoreUrl::new(store.clone()), ..Config::in_memory() };
        let server = Server::new(config).expect("a store in memory");
        let router = server.router().layer(Extension(Peer::anonymous(Role::Operator)));
        store.delay(Duration::from_millis(DELAY_MS));
        SlowServer { store, router, _server: server }
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, reply) = ask(&self.router, "POST", path, &body).await;
        assert_eq!(status, 200, "{path}: {reply}");
        reply
    }

    async fn get(&self, path: &str) -> Value {
        let (status, reply) = ask(&self.router, "GET", path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {reply}");
        reply
    }

    /// Like [`SlowServer::post`]; also checks the times in the response, of a lease whose TTL begins with this request.
    async fn extend(&self, path: &str, body: Value, times: &str) -> Value {
        let reply = self.post(path, body).await;
        let found = reply.pointer(times).unwrap_or_else(|| panic!("{path}: {reply}"));
        self.check(path, found, TTL_MS);
        reply
    }

    /// Checks the times of a lease whose TTL began before the last append.
    fn check(&self, what: &str, times: &Value, ttl_ms: u64) {
        // Clocks are read in whole milliseconds, and authority lasts through the millisecond of the deadline.
        let deadline_at_most = self.store.appended_at_unix_ms() + ttl_ms + 1;
        if let Some(expires_at) = times["expires_at_unix_ms"].as_u64() {
            assert!(expires_at <= deadline_at_most, "{what}: {expires_at} > {deadline_at_most}");
        }
        if let Some(expires_at) = times["expires_at_unix"].as_u64() {
            assert!(
                expires_at <= deadline_at_most / 1000,
                "{what}: {expires_at} > {deadline_at_most} / 1000"
            );
        }
        if let Some(remaining) = times["remaining_ms"].as_u64() {
            let at_most = (ttl_ms + 1).saturating_sub(DELAY_MS);
            assert!(remaining <= at_most, "{what}: as if the append took no time: {remaining} > {at_most}");
        }
    }
}

fn remaining_ms(times: &Value) -> u64 {
    times["remaining_ms"].as_u64().unwrap_or_else(|| panic!("{times}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_and_its_replay_never_show_a_time_after_the_deadline() {
    let server = SlowServer::start();
    let body = json!({"key": "k", "ttl_ms": TTL_MS});
    server.extend("/v1/acquire", body.clone(), "").await;
    let body = json!({"key": "replayed", "ttl_ms": TTL_MS});
    let retry = [("x-idempotency-key", "one")];
    for _ in 0..2 {
        let (status, reply) = ask_with(&server.router, "POST", "/v1/acquire", &retry, &body).await;
        assert_eq!(status, 200, "{reply}");
        server.check("replay", &reply, TTL_MS);
    }
    let manifest = json!({
        "agent_id": "a", "session_id": "s", "ttl_ms": TTL_MS,
        "intents": [{"predicate": "MUTATES", "object": "FILE:/src/a.rs"}],
    });
    server.extend("/v1/manifest", manifest, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_never_shows_a_time_after_the_deadline() {
    let server = SlowServer::start();
    let reserved = json!({"key": "k", "ttl_ms": TTL_MS, "reserve": true});
    let lease = server.extend("/v1/acquire", reserved, "").await;
    let id = &lease["lease_id"];
    server.check("activate", &server.post("/v1/activate", json!({"lease_id": id})).await, TTL_MS);
    let path = format!("/v1/leases/{}/touch", lease["public_id"].as_str().expect("text"));
    server.check("touch", &server.post(&path, json!({"lease_id": id})).await, TTL_MS);
    server.extend("/v1/keepalive", json!({"lease_id": id, "ttl_ms": TTL_MS}), "").await;
    server.extend("/v1/leases/heartbeat", json!({"lease_ids": [id]}), "/results/0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebind_never_shows_a_time_after_the_deadline() {
    let server = SlowServer::start();
    let on_hold = |key: &str| json!({"key": key, "ttl_ms": TTL_MS, "on_expiry": "manual"});
    server.store.delay(Duration::ZERO);
    let short = |key: &str| {
        let mut body = on_hold(key);
        body["ttl_ms"] = json!(200);
        body
    };
    let (first, second) =
        (server.post("/v1/acquire", short("k")).await, server.post("/v1/acquire", short("l")).await);
    for lease in [&first, &second] {
        let path = format!("/v1/leases/{}", lease["public_id"].as_str().expect("text"));
        while server.get(&path).await["state"] != "revoking" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    server.store.delay(Duration::from_millis(DELAY_MS));
    let path = format!("/v1/leases/{}/rebind", first["public_id"].as_str().expect("text"));
    let rebound = server.post(&path, json!({"lease_id": first["lease_id"]})).await;
    server.check("rebind", &rebound, 200);
    let body = json!({"lease_ids": [second["lease_id"]], "rebind": true});
    let reconciled = server.post("/v1/leases/reconcile", body).await;
    for part in ["/results/0/lease", "/results/0"] {
        server.check(part, reconciled.pointer(part).unwrap_or_else(|| panic!("{reconciled}")), 200);
    }
}

/// A query is answered once the state that it read is durable, so it may wait for a sync that is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_never_shows_a_time_after_the_deadline() {
    let server = SlowServer::start();
    server.store.delay(Duration::ZERO);
    let lease = server.post("/v1/acquire", json!({"key": "k", "ttl_ms": TTL_MS})).await;
    server.store.delay(Duration::from_millis(DELAY_MS));
    let one = format!("/v1/leases/{}", lease["public_id"].as_str().expect("text"));
    let paths = [
        (one.as_str(), ""),
        ("/v1/leases", "/leases/0"),
        ("/v1/resource/KEY:k/state", "/leases/0"),
        ("/v1/describe?key=k", ""),
    ];
    for (path, times) in paths {
        let renewal = json!({"lease_id": lease["lease_id"], "ttl_ms": TTL_MS});
        let before = server.store.appended_at_unix_ms();
        // A renewal in the same millisecond would change nothing, and not be logged.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let view = async {
            while server.store.appended_at_unix_ms() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            server.get(path).await
        };
        let (_, view) = tokio::join!(server.post("/v1/keepalive", renewal), view);
        let found = view.pointer(times).unwrap_or_else(|| panic!("{path}: {view}"));
        server.check(path, found, TTL_MS);
    }
}

/// A released lease showed an expiry that moved with every look, and a revoked one a minute of authority.
#[tokio::test]
async fn an_ended_lease_shows_the_moment_of_its_end_and_nothing_remaining() {
    let clock = lockd_server::testing::TestClock::default();
    let server = crate::support::Server::start_by(&clock);
    let look = async |lease: &Value| {
        let (_, view) =
            server.get(&format!("/v1/leases/{}", lease["public_id"].as_str().expect("text"))).await;
        (view["state"].clone(), remaining_ms(&view), view["expires_at_unix_ms"].as_u64().expect("a time"))
    };
    let released = server.acquire(json!({"key": "k", "ttl_ms": 60_000})).await;
    let revoked = server.acquire(json!({"key": "l", "ttl_ms": 60_000})).await;
    let expired = server.acquire(json!({"key": "m", "ttl_ms": 5000})).await;
    let granted_at = released["expires_at_unix_ms"].as_u64().expect("a time") - 60_000;
    clock.advance(1000);
    server.release(&released).await;
    let path = format!("/v1/leases/{}/revoke", revoked["public_id"].as_str().expect("text"));
    server.ask(&path, &Value::Null).await;
    for passed_ms in [10, 40_000, 40_000] {
        clock.advance(passed_ms);
        assert_eq!(look(&released).await, (json!("released"), 0, granted_at + 1000));
        let (state, remaining, expires_at) = look(&revoked).await;
        assert_eq!((state, remaining), (json!("revoking"), 0));
        assert!(expires_at <= granted_at + 60_000, "{expires_at}");
    }
    assert_eq!(look(&expired).await, (json!("expired"), 0, granted_at + 5000));
}
